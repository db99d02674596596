"""Recorded episodes to training windows, action statistics and a split by whole episodes.

    data = EpisodeDataset("pusht.h5", num_frames=2)
    for batch in data.batches(128, seed=0, epoch=0):
        batch.pixels, batch.actions

A window is `num_frames` observations, `frame_skip` environment steps apart, with the actions
between them: one block of `frame_skip` concatenated, z-scored actions per pair of observations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data.file import EpisodeFile, in_pixels
from bilinear_wm.data.frames import Frames, beside
from bilinear_wm.errors import InputError
from bilinear_wm.observation import Observation, ObservationSpec, concatenate
from bilinear_wm.stage import at_least

Split = Literal["train", "validation", "test", "all"]
FRAME_SKIP = 5
"""Environment steps a model step, unless told otherwise."""
SMALLEST = 4
"""Episodes from which on there is something to train on, to validate and to test."""
STILL = 1e-8
"""A number with a smaller std never changes."""


@dataclass(frozen=True)
class Batch:
    """Windows, as numpy arrays with a leading batch axis."""

    observation: Observation
    """Arrays of (batch, num_frames, ...); with a history (batch, num_frames, num_observed, ...)."""
    actions: NDArray[np.float32]
    """(batch, num_frames - 1, frame_skip * action_size), z-scored."""
    states: NDArray[np.float64] | None
    """(batch, num_frames, state_size), where the file has states."""
    episodes: NDArray[np.int64]
    """(batch,): the episode of each window in the file."""
    steps: NDArray[np.int64]
    """(batch,): the environment step at which each window begins."""

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """Present pictures of the first camera: (batch, num_frames, H, W, 3)."""
        pictures: NDArray[np.uint8] = next(iter(self.observation.pictures.values()))
        return pictures[:, :, -1] if pictures.ndim == 6 else pictures

    def __len__(self) -> int:
        return len(self.actions)


class EpisodeDataset:
    """The windows of one split of an episode file.

    Args:
        path: Episodes of `bwm collect`, stable-worldmodel or LeRobot, with options after a `?`
            (`data/formats/source.py`).
        num_frames: Observations a window.
        frame_skip: Environment steps between them (one model step).
        spec: What an observation is; by default the picture of the camera `pixels`.
        split: `train`, `validation` or `all`; whole episodes, never parts.
        validation_share: The share of episodes held out.
        split_seed: Chooses which.
        image_size: What the pictures must measure, if it matters; (height, width) or a side.
        render_quality: How they must have been drawn, if it matters.
        in_memory: Keep the pictures in memory; by default if they fill at most half of what
            is free.
    """

    def __init__(
        self,
        path: str | Path,
        num_frames: int = 2,
        *,
        frame_skip: int = FRAME_SKIP,
        spec: ObservationSpec | None = None,
        split: Split = "train",
        validation_share: float = 0.1,
        split_seed: int = 0,
        image_size: int | tuple[int, int] | None = None,
        render_quality: str | None = None,
        in_memory: bool | None = None,
    ) -> None:
        self.file = EpisodeFile(path)
        self.num_frames, self.frame_skip = num_frames, frame_skip
        self.spec = ObservationSpec() if spec is None else spec
        self._check(image_size, render_quality)
        names = self.spec.proprioception
        self._numbers = self.file.read_numbers(names) if names else None
        parts = split_episodes(self.file.num_episodes, validation_share, split_seed)
        if split not in get_args(Split):
            raise InputError(f"split: expected one of {get_args(Split)}, found {split!r}")
        everything = np.arange(self.file.num_episodes)
        self.episodes = everything if split == "all" else getattr(parts, split)
        train = parts.train
        acted = self.file.actions[self._rows(train, -1)]
        self.still_actions = tuple(np.flatnonzero(acted.astype(np.float64).std(0) < STILL).tolist())
        self.action_mean, self.action_std = _statistics(acted)
        numbers = np.zeros((1, 0)) if self._numbers is None else self._numbers[self._rows(train)]
        self.proprioception_mean, self.proprioception_std = _statistics(numbers)
        self._window_episode, self._window_step = self._list_windows()
        if len(self.episodes) == 0:
            raise InputError(
                f"{path}: expected at least two episodes, of which one is held out, found "
                f"{self.file.num_episodes}"
            )
        if len(self) == 0:
            span = frame_skip * (num_frames - 1) + 1
            raise InputError(
                f"{path}: expected episodes of at least {span} rows in the {split} split "
                f"({num_frames} frames, {frame_skip} steps apart), found at most "
                f"{self.file.lengths[self.episodes].max(initial=0)}"
            )
        self._frames = Frames(self.file, self.episodes, self.spec.cameras, in_memory)

    def reframed(self, num_frames: int) -> Self:
        """The same split in windows of another length, sharing the pictures in memory."""
        other = copy.copy(self)
        other.num_frames = num_frames
        other._window_episode, other._window_step = other._list_windows()
        return other

    # What the file says.

    @property
    def picture_shape(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return self.file.picture_shape

    @property
    def image_size(self) -> int:
        """Their height."""
        return self.file.picture_shape[0]

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
        return self._frames.in_memory

    @property
    def num_pictures(self) -> int:
        """Recorded pictures in the split."""
        return int(self._frames.counts.sum())

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
            observation=self._observe(which, step[:, None] + at_frames),
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
        """Which of `observations()` the windows with these indices hold."""
        index = np.asarray(indices, np.int64)
        stride = self.file.frame_stride
        first = self._frames.first[self._window_episode[index]]
        first = first + self._window_step[index] // stride
        return first[:, None] + self.frame_skip // stride * np.arange(self.num_frames)

    def observations(self, chunk: int) -> Iterator[Observation]:
        """Every recorded moment of the split once, in order, about `chunk` at a time."""
        waiting: list[Observation] = []
        count = 0
        for which, frames in enumerate(self._frames.counts):
            steps = self.file.frame_stride * np.arange(frames)
            waiting.append(self._observe(np.array([which]), steps[None])[0])
            count += int(frames)
            if count >= chunk:
                yield concatenate(waiting)
                waiting, count = [], 0
        if waiting:
            yield concatenate(waiting)

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

    def _check(self, image_size: int | tuple[int, int] | None, render_quality: str | None) -> None:
        file = self.file
        at_least(self, 1, "num_frames", "frame_skip")
        if self.frame_skip % file.frame_stride:
            raise InputError(
                f"{file.path}: frame_skip: expected a multiple of the file's frame_stride "
                f"{file.frame_stride}, found {self.frame_skip}; collect with --frame-stride 1"
            )
        spec = self.spec
        for camera in spec.cameras:
            file.check_camera(camera)
        if spec.num_observed > 1 and spec.every % file.frame_stride:
            raise InputError(
                f"{file.path}: observed_every: expected a multiple of the file's frame_stride "
                f"{file.frame_stride}, found {spec.every}; collect with --frame-stride 1"
            )
        wanted = (image_size, image_size) if isinstance(image_size, int) else image_size
        if wanted not in (None, file.picture_shape):
            raise InputError(
                f"{file.path}: expected pictures of {in_pixels(wanted)}, found "
                f"{in_pixels(file.picture_shape)}; collect with --image-size {wanted[0]}, or read "
                f"them so: '{file.path}?size={wanted[0]}x{wanted[1]}'"
            )
        if render_quality is not None and file.render_quality not in (None, render_quality):
            raise InputError(
                f"{file.path}: expected {render_quality} pictures, found {file.render_quality} "
                f"ones; collect with --render-quality {render_quality}"
            )

    def _rows(self, episodes: NDArray[np.int64], until: int = 0) -> NDArray[np.bool_]:
        """Which rows of the file belong to episodes; -1 to leave out the last of each."""
        rows = np.zeros(len(self.file.actions), bool)
        for episode in episodes:
            start = self.file.offsets[episode]
            rows[start : start + self.file.lengths[episode] + until] = True
        return rows

    def _list_windows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        last = self.file.lengths[self.episodes] - 1 - self.frame_skip * (self.num_frames - 1)
        starts = [np.arange(0, end + 1, self.file.frame_stride) for end in last]
        which = np.repeat(np.arange(len(starts)), [len(s) for s in starts])
        return which, np.concatenate(starts) if starts else np.zeros(0, np.int64)

    def _observe(self, which: NDArray[np.int64], steps: NDArray[np.int64]) -> Observation:
        """What is seen in episodes (n,) of the split at steps (n, frames) of each."""
        if self.spec.num_observed > 1:
            steps = self.spec.looks_back(steps)
        frames = steps // self.file.frame_stride
        pictures = {c: self._frames.read(c, which, frames) for c in self.spec.cameras}
        if self._numbers is None:
            return Observation(pictures)
        first_row = self.file.offsets[self.episodes[which]]
        return Observation(pictures, self._numbers[beside(first_row, steps) + steps])


class Parts(NamedTuple):
    """Episode numbers, each sorted."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    """To choose settings on."""
    test: NDArray[np.int64]
    """To report; empty where a single episode is held out."""


def split_episodes(num_episodes: int, held_out_share: float = 0.1, seed: int = 0) -> Parts:
    """Whole episodes for training, and two halves of those held out."""
    if not 0 <= held_out_share < 1:
        raise InputError(f"validation_share: expected 0 <= share < 1, found {held_out_share}")
    held_out = round(num_episodes * held_out_share)
    if held_out_share > 0:  # one for each half, as soon as as many are left to train on
        held_out = max(held_out, 2 if num_episodes >= SMALLEST else min(num_episodes - 1, 1))
    order = np.random.default_rng(seed).permutation(num_episodes)
    half = (held_out + 1) // 2
    return Parts(*(np.sort(p) for p in (order[held_out:], order[:half], order[half:held_out])))


def _statistics(numbers: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation of each column."""
    values = numbers.astype(np.float64)
    std = values.std(axis=0)
    std[std < STILL] = 1.0  # a number that never changes says nothing; keep it finite
    return values.mean(axis=0).astype(np.float32), std.astype(np.float32)
