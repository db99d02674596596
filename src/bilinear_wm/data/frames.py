"""The recorded pictures of some episodes: in memory where they fit, else read when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from bilinear_wm.data.file import EpisodeFile, num_frames

MEMORY_SHARE = 0.5
"""Of what is free: pictures that need less are kept."""


class Frames:
    """Pictures by episode and number.

    Args:
        file: Where they are.
        episodes: Which episodes, in order.
        cameras: Which cameras.
        in_memory: Keep them; by default if they fill at most half of what is free.
    """

    def __init__(
        self,
        file: EpisodeFile,
        episodes: NDArray[np.int64],
        cameras: Iterable[str],
        in_memory: bool | None = None,
    ) -> None:
        self._file, self._episodes, cameras = file, episodes, tuple(cameras)
        self.counts: NDArray[np.int64] = num_frames(file.lengths[episodes], file.frame_stride)
        """Pictures of each episode."""
        self.first = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        """Where each episode's pictures begin among all of them."""
        needed = int(self.counts.sum()) * len(cameras) * int(np.prod(file.picture_shape)) * 3
        free = float(psutil.virtual_memory().available)
        self.in_memory = needed < MEMORY_SHARE * free if in_memory is None else in_memory
        self._kept = {camera: self._load(camera) for camera in cameras} if self.in_memory else {}

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which reads from the file."""
        return self.__dict__ | {"in_memory": False, "_kept": {}}

    def read(
        self, camera: str, which: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Pictures `numbers` (n, ...) of the episodes `which` (n,)."""
        if self.in_memory:
            return self._kept[camera][beside(self.first[which], numbers) + numbers]
        found = []
        for episode, wanted in zip(self._episodes[which], numbers, strict=True):
            first, last = int(wanted.min()), int(wanted.max())
            pictures = self._file.read_frames(int(episode), camera, first, last + 1)
            found.append(pictures[wanted - first])
        return np.stack(found)

    def _load(self, camera: str) -> NDArray[np.uint8]:
        frames = np.empty((int(self.counts.sum()), *self._file.picture_shape, 3), np.uint8)
        for first, count, episode in zip(self.first, self.counts, self._episodes, strict=True):
            frames[first : first + count] = self._file.read_frames(int(episode), camera)
        self._file.close()
        return frames


def beside(values: NDArray[np.int64], array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Values (n,) with further axes, to be added to an array (n, ...)."""
    return values.reshape(-1, *(1,) * (array.ndim - 1))
