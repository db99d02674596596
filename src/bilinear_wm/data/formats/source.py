"""Where episodes are and how they are to be read: a path, then options as in a web address.

aloha?camera=observation.images.top&state=gripper,elbow&size=64&fit=crop

camera   the column that is the model's first camera, `pixels`; the only one, if there is one
action   the column of what was done, where it is not called `action`
state    columns, or numbers of columns by name, that are the state
size     pictures of so many pixels: 64, or 48x64 for height and width; as stored, if not given
fit      how they get there: `stretch` (the default), or `crop` the middle first
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError, needed

Fit = Literal["stretch", "crop"]
OPTIONS = ("camera", "action", "state", "size", "fit")


@dataclass(frozen=True)
class Source:
    """A path and how to read what is there."""

    path: Path
    camera: str | None = None
    state: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    """Height and width."""
    fit: Fit = "stretch"
    action: str = "action"

    @classmethod
    def of(cls, text: str | Path) -> Source:
        """Take an address apart; what exists under the whole name is meant as it stands."""
        whole = Path(text)
        name, mark, query = str(text).partition("?")
        if not mark or whole.exists():
            return cls(whole)
        given = dict(parse_qsl(query, keep_blank_values=True, separator="&"))
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown or "" in given.values() or (query and not given):
            raise InputError(
                f"{text}: expected options {', '.join(OPTIONS)} as NAME=VALUE, joined by '&', "
                f"found {query!r}"
            )
        fit: Any = given.get("fit", "stretch")
        if fit not in get_args(Fit):
            raise InputError(
                f"{text}: fit: expected one of {', '.join(get_args(Fit))}, found {fit!r}"
            )
        state = tuple(part for part in given.get("state", "").split(",") if part)
        size, action = _size(text, given.get("size")), given.get("action", "action")
        return cls(Path(name), given.get("camera"), state, size, fit, action)

    def fitted_shape(self, height: int, width: int) -> tuple[int, int]:
        """What pictures of that height and width measure when they are read."""
        if self.size is not None:
            return self.size
        side = min(height, width)
        return (side, side) if self.fit == "crop" else (height, width)

    def fitted(self, pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pictures (n, H, W, 3) in the size that was asked for."""
        height, width = pictures.shape[1:3]
        target = self.fitted_shape(height, width)
        if target == (height, width):
            return pictures
        image = needed("PIL.Image", "lerobot", str(self.path))
        box = _middle(height, width, target) if self.fit == "crop" else (0, 0, width, height)
        return np.stack(
            [
                # Bilinear over the area that becomes a pixel: no flicker of small things.
                np.asarray(
                    image.fromarray(picture).resize(target[::-1], image.Resampling.BILINEAR, box)
                )
                for picture in pictures
            ]
        )


def _middle(height: int, width: int, target: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest box in the middle with the target's proportions: left, top, right, bottom."""
    scale = min(height / target[0], width / target[1])
    down, across = (height - scale * target[0]) / 2, (width - scale * target[1]) / 2
    return across, down, width - across, height - down


def _size(text: str | Path, given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    parts = given.split("x")
    if len(parts) > 2 or not all(part.isdecimal() and 8 <= int(part) <= 4096 for part in parts):
        raise InputError(
            f"{text}: size: expected pixels from 8 to 4096, as 64 or 48x64 (height x width), "
            f"found {given!r}"
        )
    return int(parts[0]), int(parts[-1])
