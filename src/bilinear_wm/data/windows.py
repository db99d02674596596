"""episodes.h5 to training windows, action statistics and a split by whole episodes.

    data = EpisodeDataset("pusht.h5", num_frames=2)
    for batch in data.batches(128, seed=0, epoch=0):
        batch.pixels, batch.actions

A window is `num_frames` pictures, `frame_skip` environment steps apart, with the actions
between them: one block of `frame_skip` concatenated, z-scored actions per pair of pictures.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import h5py
import numpy as np
import psutil
from numpy.typing import NDArray

from bilinear_wm.data.file import EpisodeFile, num_frames as count_frames
from bilinear_wm.errors import InputError

Split = Literal["train", "validation", "all"]
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Batch:
    """Windows, as numpy arrays with a leading batch axis."""

    pixels: NDArray[np.uint8]
    """(batch, num_frames, H, W, 3)."""
    actions: NDArray[np.float32]
    """(batch, num_frames - 1, frame_skip * action_size), z-scored."""
    states: NDArray[np.float64] | None
    """(batch, num_frames, state_size), where the file has states."""
    episodes: NDArray[np.int64]
    """(batch,): the episode of each window in the file."""
    steps: NDArray[np.int64]
    """(batch,): the environment step at which each window begins."""

    def __len__(self) -> int:
        return len(self.pixels)


class EpisodeDataset:
    """The windows of one split of an episode file.

    Args:
        path: An HDF5 file of `bwm collect`, or of the public stable-worldmodel/LeWM schema.
        num_frames: Pictures a window.
        frame_skip: Environment steps between them (one model step).
        split: `train`, `validation` or `all`; whole episodes, never parts.
        validation_share: The share of episodes held out.
        split_seed: Chooses which.
        image_size: What the pictures must measure, if it matters.
        render_quality: How they must have been drawn, if it matters.
        in_memory: Keep the pictures in memory; by default if they fill at most half of what
            is free.
    """

    def __init__(
        self,
        path: str | Path,
        num_frames: int = 2,
        *,
        frame_skip: int = 5,
        split: Split = "train",
        validation_share: float = 0.1,
        split_seed: int = 0,
        image_size: int | None = None,
        render_quality: str | None = None,
        in_memory: bool | None = None,
    ) -> None:
        self.file = EpisodeFile(path)
        self.num_frames, self.frame_skip = num_frames, frame_skip
        self._check(image_size, render_quality)
        train, validation = split_episodes(self.file.num_episodes, validation_share, split_seed)
        chosen = {"train": train, "validation": validation, "all": np.union1d(train, validation)}
        if split not in chosen:
            raise InputError(f"split: expected one of {tuple(chosen)}, found {split!r}")
        self.episodes = chosen[split]
        self.action_mean, self.action_std = self._action_statistics(train)
        self._window_episode, self._window_step = self._list_windows()
        if len(self) == 0:
            span = frame_skip * (num_frames - 1) + 1
            raise InputError(
                f"{path}: expected episodes of at least {span} rows in the {split} split "
                f"({num_frames} frames, {frame_skip} steps apart), found at most "
                f"{self.file.lengths[self.episodes].max(initial=0)}"
            )
        needed = int(self._frame_counts().sum()) * self.image_size**2 * 3
        keep = needed < MEMORY_SHARE * _free_memory() if in_memory is None else in_memory
        self._frames = self._load() if keep else None
        self._handle: tuple[int, h5py.File] | None = None

    def reframed(self, num_frames: int) -> Self:
        """The same split in windows of another length, sharing the pictures in memory."""
        other = copy.copy(self)
        other.num_frames = num_frames
        other._window_episode, other._window_step = other._list_windows()
        return other

    # What the file says.

    @property
    def image_size(self) -> int:
        return self.file.image_size

    @property
    def action_size(self) -> int:
        """Numbers in one environment action."""
        return int(self.file.actions.shape[1])

    @property
    def block_size(self) -> int:
        """Numbers in one model action: a block of environment actions."""
        return self.frame_skip * self.action_size

    @property
    def in_memory(self) -> bool:
        return self._frames is not None

    @property
    def num_pictures(self) -> int:
        """Recorded pictures in the split."""
        return int(self._frame_counts().sum())

    # Windows.

    def __len__(self) -> int:
        return len(self._window_step)

    def __getitem__(self, index: int) -> Batch:
        """One window, as a batch of one."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.batch([index])

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The windows with these indices, in this order."""
        index = np.asarray(indices, np.int64)
        which, step = self._window_episode[index], self._window_step[index]
        episode = self.episodes[which]
        first_row = self.file.offsets[episode] + step
        at_frames = self.frame_skip * np.arange(self.num_frames)
        states = self.file.states
        return Batch(
            pixels=self._pixels(which, step),
            actions=self.actions_of(index),
            states=None if states is None else states[first_row[:, None] + at_frames],
            episodes=episode,
            steps=step,
        )

    def actions_of(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The z-scored action blocks of the windows with these indices."""
        index = np.asarray(indices, np.int64)
        episode = self.episodes[self._window_episode[index]]
        first_row = self.file.offsets[episode] + self._window_step[index]
        span = self.frame_skip * (self.num_frames - 1)
        actions = self.file.actions[first_row[:, None] + np.arange(span)]
        scaled = (actions - self.action_mean) / self.action_std
        return scaled.reshape(len(index), self.num_frames - 1, self.block_size)

    def frames_of(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Which pictures of `pictures()` the windows with these indices hold."""
        index = np.asarray(indices, np.int64)
        counts = self._frame_counts()
        first_of_episode = np.concatenate([[0], np.cumsum(counts)[:-1]])
        stride = self.file.frame_stride
        first = first_of_episode[self._window_episode[index]] + self._window_step[index] // stride
        return first[:, None] + self.frame_skip // stride * np.arange(self.num_frames)

    def pictures(self, chunk: int) -> Iterator[NDArray[np.uint8]]:
        """Every recorded picture of the split once, in order, about `chunk` at a time."""
        if self._frames is not None:
            for start in range(0, len(self._frames), chunk):
                yield self._frames[start : start + chunk]
            return
        waiting: list[NDArray[np.uint8]] = []
        with self.file.open() as file:
            for episode in self.episodes:
                waiting.append(self.file.read_frames(file, int(episode)))
                if sum(map(len, waiting)) >= chunk:
                    yield np.concatenate(waiting)
                    waiting = []
        if waiting:
            yield np.concatenate(waiting)

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The shuffled window indices of an epoch: a pure function of its arguments."""
        return np.random.default_rng([seed, epoch]).permutation(len(self))

    def batches(
        self, batch_size: int, seed: int, epoch: int, first_batch: int = 0
    ) -> Iterator[Batch]:
        """The full batches of an epoch, optionally from some batch on (to resume)."""
        order = self.order(seed, epoch)
        for start in range(first_batch * batch_size, len(order) - batch_size + 1, batch_size):
            yield self.batch(order[start : start + batch_size])

    # Inside.

    def _check(self, image_size: int | None, render_quality: str | None) -> None:
        file = self.file
        if self.num_frames < 1 or self.frame_skip < 1:
            raise InputError(
                f"num_frames, frame_skip: expected at least 1, "
                f"found {self.num_frames}, {self.frame_skip}"
            )
        if self.frame_skip % file.frame_stride:
            raise InputError(
                f"{file.path}: frame_skip: expected a multiple of the file's frame_stride "
                f"{file.frame_stride}, found {self.frame_skip}; collect with --frame-stride 1"
            )
        if image_size is not None and image_size != file.image_size:
            raise InputError(
                f"{file.path}: expected pictures of {image_size} px, found {file.image_size} px; "
                f"collect with --image-size {image_size}"
            )
        if render_quality is not None and file.render_quality not in (None, render_quality):
            raise InputError(
                f"{file.path}: expected {render_quality} pictures, found {file.render_quality} "
                f"ones; collect with --render-quality {render_quality}"
            )

    def _action_statistics(
        self, episodes: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation of each action number over the training split."""
        rows = np.zeros(len(self.file.actions), bool)
        for episode in episodes:
            start = self.file.offsets[episode]
            rows[start : start + self.file.lengths[episode] - 1] = True
        actions = self.file.actions[rows].astype(np.float64)
        std = actions.std(axis=0)
        std[std < 1e-8] = 1.0  # a number that never changes says nothing; keep it finite
        return actions.mean(axis=0).astype(np.float32), std.astype(np.float32)

    def _list_windows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        last = self.file.lengths[self.episodes] - 1 - self.frame_skip * (self.num_frames - 1)
        starts = [np.arange(0, end + 1, self.file.frame_stride) for end in last]
        which = np.repeat(np.arange(len(starts)), [len(s) for s in starts])
        return which, np.concatenate(starts) if starts else np.zeros(0, np.int64)

    def _frame_counts(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = count_frames(
            self.file.lengths[self.episodes], self.file.frame_stride
        )
        return counts

    def _load(self) -> NDArray[np.uint8]:
        counts = self._frame_counts()
        size = self.image_size
        frames = np.empty((int(counts.sum()), size, size, 3), np.uint8)
        self._first_frame = np.concatenate([[0], np.cumsum(counts)[:-1]])
        with self.file.open() as file:
            for first, count, episode in zip(self._first_frame, counts, self.episodes, strict=True):
                frames[first : first + count] = self.file.read_frames(file, int(episode))
        return frames

    def _pixels(self, which: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.uint8]:
        stride = self.frame_skip // self.file.frame_stride
        offset = stride * np.arange(self.num_frames)
        if self._frames is not None:
            first = self._first_frame[which] + step // self.file.frame_stride
            return self._frames[first[:, None] + offset]
        rows = self.file.frame_offsets[self.episodes[which]] + step // self.file.frame_stride
        column = self._open_here()["pixels"]
        return np.stack([column[row : row + offset[-1] + 1 : stride] for row in rows])

    def _open_here(self) -> h5py.File:
        """An open file that belongs to this process (HDF5 handles do not survive a fork)."""
        if self._handle is None or self._handle[0] != os.getpid():
            self._handle = os.getpid(), self.file.open()
        return self._handle[1]


def split_episodes(
    num_episodes: int, validation_share: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Episode numbers for training and for validation, each sorted."""
    if not 0 <= validation_share < 1:
        raise InputError(f"validation_share: expected 0 <= share < 1, found {validation_share}")
    held_out = round(num_episodes * validation_share)
    if validation_share > 0 and num_episodes > 1:
        held_out = max(held_out, 1)
    order = np.random.default_rng(seed).permutation(num_episodes)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def _free_memory() -> float:
    return float(psutil.virtual_memory().available)
