"""Pictures and videos on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError

Pixels = NDArray[np.uint8]
GAP = 2
VIDEO_SIZE = 384


def contact_sheet(rows: Iterable[NDArray[np.uint8]], columns: int) -> Pixels:
    """One picture: each row of frames in a line, evenly thinned to `columns`."""
    lines = []
    for frames in rows:
        chosen = np.linspace(0, len(frames) - 1, columns).round().astype(int)
        gapped = np.pad(frames[chosen], ((0, 0), (0, GAP), (0, GAP), (0, 0)), constant_values=128)
        lines.append(np.concatenate(list(gapped), axis=1))
    return np.concatenate(lines, axis=0)


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
