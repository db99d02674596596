"""What happened, to look at: `--view rerun` writes a recording that rerun's viewer opens offline.

    bwm evaluate --checkpoint pretrained/tworoom --task tworoom --out results.jsonl --view rerun
    rerun results.rrd

Loops know a `View`, or None; the library is imported when one is opened.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinear_wm.errors import InputError, needed

Kind = Literal["rerun"]
EXTRA, SUFFIX = "view", ".rrd"


class View(Protocol):
    """Takes what there is to see. Places are paths, steps count on the one timeline."""

    def picture(self, step: int, place: str, pixels: NDArray[np.uint8]) -> None:
        """Pixels (H, W, 3); several (n, H, W, 3) are put side by side."""

    def points(self, step: int, place: str, points: ArrayLike, shape: tuple[int, int]) -> None:
        """Points (k, 2), x and y in [-1, 1], on a picture of that height and width."""

    def table(self, step: int, place: str, rows: ArrayLike) -> None:
        """Numbers (n, m), such as a plan's actions."""

    def numbers(self, step: int, place: str, numbers: Mapping[str, float]) -> None:
        """Numbers by name, each a curve."""


@contextlib.contextmanager
def opened(kind: Kind | None, beside: Path | None) -> Iterator[View | None]:
    """A view that is written while it is watched; None where none is asked for.

    Args:
        kind: What writes it.
        beside: The results file or training folder that it belongs to.
    """
    if kind is None:
        yield None
        return
    if beside is None:
        raise InputError("view: expected `out`, beside which the recording is written, found none")
    rerun = needed("rerun", EXTRA, "view")
    path = free(beside / f"view{SUFFIX}" if beside.is_dir() else beside.with_suffix(SUFFIX))
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = rerun.RecordingStream("bilinear_wm", recording_id=None)
    stream.save(path)
    try:
        yield RerunView(rerun, stream)
    finally:
        stream.flush()
        stream.disconnect()
        print(f"view: {path}; look at it with: rerun {path}", flush=True)


def free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that is not taken."""
    names = (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    return next(each for each in (path, *itertools.islice(names, 10_000)) if not each.exists())


class RerunView:
    """A view as an .rrd file; threads may share it."""

    def __init__(self, rerun: Any, stream: Any) -> None:
        self._rerun, self._stream = rerun, stream
        self._lock = threading.Lock()

    def picture(self, step: int, place: str, pixels: NDArray[np.uint8]) -> None:
        if pixels.ndim == 4:
            pixels = np.concatenate(list(pixels), axis=1)
        self._log(step, place, self._rerun.Image(pixels))

    def points(self, step: int, place: str, points: ArrayLike, shape: tuple[int, int]) -> None:
        height, width = shape
        at = (np.asarray(points) + 1) / 2 * [width, height]
        self._log(step, place, self._rerun.Points2D(at, radii=height / 64))

    def table(self, step: int, place: str, rows: ArrayLike) -> None:
        self._log(step, place, self._rerun.Tensor(np.asarray(rows)))

    def numbers(self, step: int, place: str, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._log(step, f"{place}/{name}", self._rerun.Scalars(float(value)))

    def _log(self, step: int, place: str, thing: Any) -> None:
        with self._lock:  # the clock is the stream's
            self._stream.set_time("step", sequence=step)
            self._stream.log(place, thing)
