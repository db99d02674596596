"""Episodes on disk, checked: whatever is read is what it should be, whichever format it is in.

`formats/` has the formats, `formats/source.py` what may be said of how to read them. Cameras are
columns of pictures and sensors columns of floats, (rows,) or (rows, n); both are read where a model
asks for them by name.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data import guard
from bilinear_wm.data.formats import format_of
from bilinear_wm.data.formats.source import Source
from bilinear_wm.errors import InputError
from bilinear_wm.observation import CAMERA
from bilinear_wm.tasks import task_class

STATE_COLUMNS = (
    ("state",), ("qpos", "qvel"), ("proprio",), ("observation",), ("pos_agent",),
    ("observation.state",),
)  # fmt: skip


@dataclass(frozen=True)
class Episode:
    """One recorded episode of T environment steps."""

    pixels: NDArray[np.uint8]
    """(frames, H, W, 3): every `frame_stride`-th of the T + 1 pictures."""
    actions: NDArray[np.float32]
    """(T, action_size)."""
    states: NDArray[np.float64]
    """(T + 1, state_size)."""


@dataclass(frozen=True)
class Provenance:
    """What made the episodes. Files that differ in any of it are not mixed."""

    task: str
    image_size: int
    frame_stride: int
    render_quality: str
    seed: int
    disturbance: float = 0.0


def num_frames(rows: NDArray[np.int64] | int, stride: int) -> Any:
    """How many pictures an episode of that many rows keeps."""
    return -(-rows // stride)


class EpisodeFile:
    """Episodes that have been checked.

    Everything but the pictures is read and verified here. Problems raise `InputError` with
    the file, column, episode and step.

    Args:
        path: A file or folder of any known format, with options after a `?`.
    """

    def __init__(self, path: str | Path) -> None:
        self.source = Source.of(path)
        self.path = self.source.path
        self._stored = format_of(self.path)(self.path)
        with contextlib.closing(self._stored):
            self._read()

    def _read(self) -> None:
        self.attributes = dict(self._stored.attributes)
        self.columns = self._stored.columns
        self.lengths, self.offsets = self._stored.checked_index()
        self.frame_stride = guard.whole_number(self.path, self.attributes, "frame_stride", 1)
        self.picture_shape = self.check_camera(CAMERA)
        """Height and width of the pictures."""
        self.actions = self._read_actions()
        self.states = self._read_states()
        guard.check_task(self.path, self.task, self.states, self.actions)
        frames = num_frames(self.lengths, self.frame_stride)
        own = np.concatenate([[0], np.cumsum(frames)[:-1]])
        self.frame_offsets = self.offsets if self.frame_stride == 1 else own
        """The row of the pictures at which each episode begins."""

    def close(self) -> None:
        """Let go of the file; whatever is read next opens it again."""
        self._stored.close()

    @property
    def format(self) -> str:
        """How the episodes are stored."""
        return self._stored.name

    @property
    def num_episodes(self) -> int:
        return len(self.lengths)

    @property
    def task(self) -> str | None:
        """The task's name, if the file tells."""
        return str(self.attributes["task"]) if "task" in self.attributes else None

    @property
    def render_quality(self) -> str | None:
        """How the pictures were drawn, if the file tells."""
        found = self.attributes.get("render_quality")
        return None if found is None else str(found)

    @property
    def image_size(self) -> int:
        """Height of the pictures."""
        return self.picture_shape[0]

    @property
    def cameras(self) -> tuple[str, ...]:
        """The columns that hold pictures."""
        return tuple(n for n, (shape, kind) in self.columns.items() if _is_picture(shape, kind))

    def episode_states(self, episode: int) -> NDArray[np.float64]:
        """All states of one episode."""
        if self.states is None:
            raise InputError(
                f"{self.path}: expected a column 'state', found {sorted(self.columns)}"
            )
        start = self.offsets[episode]
        return self.states[start : start + self.lengths[episode]]

    def read_frames(
        self, episode: int, camera: str = CAMERA, first: int = 0, last: int | None = None
    ) -> NDArray[np.uint8]:
        """Recorded pictures of one episode: all, or numbers `first` up to `last` (not included)."""
        count = num_frames(int(self.lengths[episode]), self.frame_stride)
        start, last = int(self.frame_offsets[episode]), count if last is None else last
        column = self.camera_column(camera)
        frames = self._stored.read(column, start + first, start + last)
        expected = (last - first, *self.columns[column][0][1:])
        if frames.shape != expected or frames.dtype != np.uint8:
            raise self._stored.fail(
                f"column {column!r}, episode {episode}",
                f"uint8 pictures of shape {expected}",
                f"{frames.dtype} {frames.shape}",
            )
        return self.source.fitted(frames)

    def read_numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """State variables of the file's task, columns of floats, or some of their numbers."""
        states, parts = self._state_names(), []
        for name in names:
            if name in states and self.states is not None:
                values: NDArray[Any] | None = self.states[:, [states.index(name)]]
            else:
                values = self._floats(name)
            if values is None:
                known = [n for n, (_, d) in self.columns.items() if d.startswith("float")]
                inside = [n for names in self._stored.element_names.values() for n in names]
                raise InputError(
                    f"{self.path}: proprioception: expected state variables "
                    f"({', '.join((*states, *inside)) or 'none known'}) or columns of "
                    f"{self._num_rows} floats ({', '.join(sorted(known))}), found {name!r}"
                )
            parts.append(values.astype(np.float32))
            self._check_rows(name, np.asarray(np.isfinite(parts[-1]).all(axis=1)))
        return np.concatenate(parts, axis=1)

    def check_camera(self, name: str) -> tuple[int, int]:
        """Refuse a column that does not hold pictures; returns their height and width."""
        name = self.camera_column(name)
        shape, column = self._stored.shape(name), f"column {name!r}"
        dtype, fail = self.columns[name][1], self._stored.fail
        if dtype != "uint8":
            raise fail(column, "dtype uint8", dtype, "store values 0 to 255")
        if len(shape) != 4 or shape[3] != 3:
            fix = "transpose to (rows, H, W, 3)" if len(shape) == 4 and shape[1] == 3 else ""
            raise fail(column, "shape (rows, H, W, 3)", str(shape), fix)
        if self.frame_stride < 1:
            raise fail("frame_stride", "at least 1", str(self.frame_stride))
        strided = int(num_frames(self.lengths, self.frame_stride).sum())
        expected = self._num_rows if self.frame_stride == 1 else strided
        if shape[0] != expected:
            raise fail(
                column,
                f"{expected} rows (frame_stride {self.frame_stride})",
                str(shape[0]),
                "the columns are ragged",
            )
        recorded = guard.whole_number(self.path, self.attributes, "image_size", shape[1])
        if recorded != shape[1]:
            raise fail(column, f"{recorded} px (image_size)", f"{shape[1]} px")
        found = self.source.fitted_shape(shape[1], shape[2])
        first = getattr(self, "picture_shape", found)
        if found != first:
            raise fail(
                column,
                f"pictures like the first camera's, {in_pixels(first)}",
                in_pixels(found),
                f"bring both to one size: '{self.path}?size={min(first)}'",
            )
        return found

    # Inside.

    @property
    def _num_rows(self) -> int:
        return self._stored.num_rows

    def camera_column(self, camera: str) -> str:
        """The column of a camera; `pixels` is the one that was chosen, or the only one."""
        if camera != CAMERA:
            return camera
        if self.source.camera is not None:
            return self.source.camera
        if CAMERA in self.columns or len(self.cameras) == 0:
            return CAMERA
        if len(self.cameras) > 1:
            raise InputError(
                f"{self.path}: camera: expected one of {', '.join(self.cameras)}, found none "
                f"chosen; give one: '{self.path}?camera={self.cameras[0]}'"
            )
        return self.cameras[0]

    def _floats(self, name: str) -> NDArray[Any] | None:
        """A column of floats, or one number of a column by its name, as (rows, n)."""
        shape, dtype = self.columns.get(name, ((), ""))
        if dtype.startswith("float") and shape[0] == self._num_rows and len(shape) <= 2:
            guard.check_memory(self.path, name, shape, dtype)
            return self._stored.read(name, 0, shape[0]).reshape(shape[0], -1)
        for column, names in self._stored.element_names.items():
            if name in names:
                whole = self._floats(column)
                return None if whole is None else whole[:, [names.index(name)]]
        return None

    def _state_names(self) -> tuple[str, ...]:
        """What the numbers of `states` are called, where the file's task is known here."""
        with contextlib.suppress(InputError):
            names = task_class(self.task or "").state_names
            if self.states is not None and len(names) == self.states.shape[1]:
                return names
        return ()

    def _read_actions(self) -> NDArray[np.float32]:
        name = self.source.action
        shape, dtype = self._stored.shape(name), self.columns[name][1]
        if len(shape) != 2 or shape[0] != self._num_rows or not dtype.startswith("float"):
            raise self._stored.fail(
                f"column {name!r}", "floats of shape (rows, n)", f"{dtype} {shape}"
            )
        guard.check_memory(self.path, name, shape, dtype)
        actions = self._stored.read_actions(name).astype(np.float32)
        finite = np.asarray(np.isfinite(actions).all(axis=1))
        finite[self.offsets + self.lengths - 1] = True  # nothing is done in the last row
        self._check_rows(name, finite)
        return actions

    def _read_states(self) -> NDArray[np.float64] | None:
        known = next((n for n in STATE_COLUMNS if all(c in self.columns for c in n)), ())
        names, parts = self.source.state or known, []
        for name in names:
            values = self._floats(name)
            if values is None:
                shape, dtype = self.columns.get(name, ((), "no such column"))
                raise self._stored.fail(
                    f"column {name!r}",
                    f"floats of shape ({self._num_rows}, n)",
                    f"{dtype} {shape}",
                )
            parts.append(values.astype(np.float64))
        if not parts:
            return None
        states = np.concatenate(parts, axis=1)
        self._check_rows(names[0], np.asarray(np.isfinite(states).all(axis=1)))
        return states

    def _check_rows(self, name: str, good: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(~good):
            inside = np.flatnonzero((self.offsets <= row) & (row < self.offsets + self.lengths))
            if len(inside):
                raise self._stored.fail(
                    f"column {name!r}, episode {inside[0]}, step {row - self.offsets[inside[0]]}",
                    "finite numbers",
                    "NaN or infinity",
                    "remove the episode",
                )


def _is_picture(shape: tuple[int, ...], dtype: str) -> bool:
    return dtype == "uint8" and len(shape) == 4 and shape[3] == 3


def in_pixels(shape: tuple[int, int]) -> str:
    """A picture's height and width in words."""
    return f"{shape[0]} px" if shape[0] == shape[1] else f"{shape[0]} x {shape[1]} px"
