"""Pictures and videos on disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError, needed

Pixels = NDArray[np.uint8]
GAP, FONT = 6, 12
PAPER = 232
"""The grey between pictures, many of which are white."""
READABLE = 72
"""How large pictures are shown at least, that captions fit under them."""
VIDEO_SIZE, TITLE = 384, 36
"""How large videos show their pictures, and how high the words above are."""


@dataclass(frozen=True)
class Strip:
    """A line of a contact sheet."""

    label: str
    """What stands beside it."""
    frames: Pixels
    """(n, height, width, 3)."""
    captions: Sequence[str] = ()
    """What stands under each picture."""


def contact_sheet(strips: Sequence[Strip]) -> Pixels:
    """One picture: strips below each other, labelled, with gaps between the pictures."""
    needed("PIL", "report", "a contact sheet")
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT)
    line = FONT + GAP
    left = GAP + math.ceil(max(font.getlength(strip.label) for strip in strips))
    lines = []
    for strip in strips:
        frames = [enlarge(frame, READABLE) for frame in strip.frames]
        height, width = frames[0].shape[:2]
        size = (left + GAP + len(frames) * (width + GAP), GAP + height + line)
        canvas = Image.new("RGB", size, (PAPER,) * 3)
        pen = ImageDraw.Draw(canvas)
        pen.text((GAP, GAP + height / 2), strip.label, "black", font, anchor="lm")
        for i, frame in enumerate(frames):
            x = left + GAP + i * (width + GAP)
            canvas.paste(Image.fromarray(frame), (x, GAP))
            if strip.captions:
                under = (x + width / 2, GAP + height + 1)
                pen.text(under, strip.captions[i], "dimgray", font, anchor="ma")
        lines.append(np.asarray(canvas))
    width = max(each.shape[1] for each in lines)
    return np.concatenate(
        [
            np.pad(each, ((0, 0), (0, width - each.shape[1]), (0, 0)), constant_values=PAPER)
            for each in lines
        ]
    )


def with_points(frame: Pixels, points: NDArray[np.float64], size: int) -> Pixels:
    """An enlarged picture with points (x, y in [-1, 1]) as dots, each of its own colour."""
    big = enlarge(frame, size).copy()
    height, width = big.shape[:2]
    radius = max(height // 64, 2)
    rows, columns = np.mgrid[:height, :width] + 0.5
    for colour, (x, y) in zip(_colours(len(points)), points, strict=True):
        away = np.hypot(columns - (x + 1) / 2 * width, rows - (y + 1) / 2 * height)
        big[away < radius + 1] = 255
        big[away < radius] = colour
    return big


def _colours(count: int) -> Pixels:
    """Hues all round the circle."""
    hue = 6 * np.arange(count)[:, None] / count + np.array([0, 4, 2])
    return (40 + 200 * np.clip(np.abs(hue % 6 - 3) - 1, 0, 1)).astype(np.uint8)


def enlarge(frame: Pixels, size: int) -> Pixels:
    """Repeat pixels so that the picture measures about `size`, and an even number."""
    factor = max(size // frame.shape[0], 1)
    big = frame.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = (n // 2 * 2 for n in big.shape[:2])
    return big[:height, :width]


def title_bar(text: str, width: int) -> Pixels:
    """A strip with a word in its middle, to stand above a picture."""
    needed("PIL", "report", "a title")
    from PIL import Image, ImageDraw, ImageFont

    strip = Image.new("RGB", (width, TITLE), "white")
    font = ImageFont.load_default(TITLE * 2 / 3)
    ImageDraw.Draw(strip).text((width / 2, TITLE / 2), text, "black", font, anchor="mm")
    return np.asarray(strip)


def first_frame(video: Path) -> bytes:
    """The first picture of a video, as PNG."""
    imageio = _imageio()
    data: bytes = imageio.imwrite("<bytes>", imageio.imread(video, index=0), extension=".png")
    return data


def write_picture(path: Path, pixels: Pixels) -> None:
    """Write a PNG."""
    _imageio().imwrite(path, pixels)


def write_video(path: Path, frames: Iterable[Pixels], fps: int) -> None:
    """Write an MP4, enlarged to be watchable."""
    big = [enlarge(frame, VIDEO_SIZE) for frame in frames]
    _imageio().imwrite(path, big, fps=fps, codec="libx264", macro_block_size=2)


def _imageio() -> ModuleType:
    try:
        import imageio.v3 as imageio
    except ModuleNotFoundError as error:
        raise InputError(
            "pictures and videos need imageio: pip install 'bilinear-world-models[report]'"
        ) from error
    return imageio
