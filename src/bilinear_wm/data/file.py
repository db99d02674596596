"""Episodes on disk: one HDF5 file, the public stable-worldmodel/LeWM schema.

Every column holds one row per environment step, episodes laid end to end:

    pixels       uint8   (rows, H, W, 3)
    action       float32 (rows, action_size)   the action taken in that row; NaN in the last
    state        float64 (rows, state_size)
    episode_idx, step_idx                      where the row is from
    ep_len, ep_offset                          per episode: its rows, and the first of them

Further cameras are further columns like `pixels`, further sensors columns of floats, (rows,) or
(rows, n); both are read where a model asks for them by name.

With `frame_stride` s > 1 (a file attribute) `pixels` keeps only the rows at steps
0, s, 2s, ... of each episode; all other columns stay complete. A file with stride 1 is the
public schema to the letter. Further attributes tell where the data came from.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data import guard
from bilinear_wm.errors import InputError
from bilinear_wm.observation import CAMERA
from bilinear_wm.tasks import task_class

with contextlib.suppress(ImportError):
    import hdf5plugin  # noqa: F401  (for compressed public files)

FORMAT_VERSION = 1
STATE_COLUMNS = (("state",), ("qpos", "qvel"), ("proprio",), ("observation",), ("pos_agent",))


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
    """An episode file that has been checked: whatever is read from it is what it should be.

    Everything but the pictures is read and verified here. Problems raise `InputError` with
    the file, column, episode and step.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.open() as file, guard.damage_named(self.path):
            self.attributes = {name: file.attrs[name] for name in file.attrs}
            self.columns = guard.columns(self.path, file)
            self._check_version()
            self.lengths, self.offsets = self._read_index(file)
            self.frame_stride = self._whole_number("frame_stride", 1)
            self.image_size = self.check_camera(CAMERA)
            self.actions = self._read_actions(file)
            self.states = self._read_states(file)
            guard.check_task(self.path, self.task, self.states, self.actions)
        frames = num_frames(self.lengths, self.frame_stride)
        own = np.concatenate([[0], np.cumsum(frames)[:-1]])
        self.frame_offsets = self.offsets if self.frame_stride == 1 else own
        """The row of `pixels` at which each episode begins."""

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

    def open(self) -> h5py.File:
        """Open for reading."""
        guard.check_plain(self.path)
        try:
            return h5py.File(self.path, "r")
        except OSError as error:
            raise InputError(
                f"{self.path}: expected an HDF5 file, found something unreadable "
                f"({guard.one_line(error)}); it may be truncated or of another format: "
                "collect or download it again"
            ) from error

    def episode_states(self, episode: int) -> NDArray[np.float64]:
        """All states of one episode."""
        if self.states is None:
            raise InputError(
                f"{self.path}: expected a column 'state', found {sorted(self.columns)}"
            )
        start = self.offsets[episode]
        return self.states[start : start + self.lengths[episode]]

    def read_frames(self, file: h5py.File, episode: int, camera: str = CAMERA) -> NDArray[np.uint8]:
        """All pictures of one episode, from a file opened by `open`."""
        start = self.frame_offsets[episode]
        count = num_frames(int(self.lengths[episode]), self.frame_stride)
        frames: NDArray[np.uint8] = self._read(file, camera, slice(start, start + count))
        return frames

    def read_numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """State variables of the file's task, or whole columns of floats, side by side."""
        rows = self._shape("action")[0]
        states = self._state_names()
        parts = []
        for name in names:
            shape, dtype = self.columns.get(name, ((), ""))
            if name in states and self.states is not None:
                values = self.states[:, states.index(name)]
            elif dtype.startswith("float") and shape[0] == rows and len(shape) <= 2:
                with self.open() as file:
                    values = self._read(file, name)
            else:
                floats = [n for n, (s, d) in self.columns.items() if d.startswith("float")]
                raise InputError(
                    f"{self.path}: proprioception: expected state variables "
                    f"({', '.join(states) or 'none known'}) or columns of {rows} floats "
                    f"({', '.join(sorted(floats))}), found {name!r}"
                )
            parts.append(values.reshape(rows, -1).astype(np.float32))
            self._check_rows(name, np.asarray(np.isfinite(parts[-1]).all(axis=1)))
        return np.concatenate(parts, axis=1)

    def _state_names(self) -> tuple[str, ...]:
        """What the numbers of `states` are called, where the file's task is known here."""
        with contextlib.suppress(InputError):
            names = task_class(self.task or "").state_names
            if self.states is not None and len(names) == self.states.shape[1]:
                return names
        return ()

    # Checks.

    def _fail(self, what: str, expected: str, found: str, fix: str = "") -> InputError:
        return InputError(
            f"{self.path}: {what}: expected {expected}, found {found}" + (f"; {fix}" if fix else "")
        )

    def _whole_number(self, name: str, default: int) -> int:
        return guard.whole_number(self.path, self.attributes, name, default)

    def _check_version(self) -> None:
        version = self._whole_number("format_version", FORMAT_VERSION)
        if version > FORMAT_VERSION:
            raise self._fail(
                "format_version", f"at most {FORMAT_VERSION}", str(version), "update the package"
            )

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.columns:
            raise self._fail(
                f"column {name!r}",
                "it to exist",
                f"only {', '.join(sorted(self.columns)) or 'no columns'}",
                "see docs/architecture.md for the schema",
            )
        shape: tuple[int, ...] = self.columns[name][0]
        return shape

    def _read(self, file: h5py.File, name: str, rows: slice = slice(None)) -> NDArray[Any]:
        if rows == slice(None):
            guard.check_memory(self.path, name, *self.columns[name])
        try:
            values: NDArray[Any] = file[name][rows]
        except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
            raise self._fail(
                f"column {name!r}",
                "readable data",
                guard.one_line(error),
                "the file is damaged, or its compression needs `pip install hdf5plugin`",
            ) from error
        return values

    def _read_index(self, file: h5py.File) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        for name in ("ep_len", "ep_offset"):
            if len(self._shape(name)) != 1 or not self.columns[name][1].lstrip("u").startswith(
                "int"
            ):
                raise self._fail(f"column {name!r}", "a list of integers", str(self.columns[name]))
        lengths = self._read(file, "ep_len").astype(np.int64)
        offsets = self._read(file, "ep_offset").astype(np.int64)
        if len(lengths) != len(offsets):
            raise self._fail(
                "ep_len and ep_offset", "equal lengths", f"{len(lengths)}, {len(offsets)}"
            )
        if len(lengths) == 0:
            raise self._fail("ep_len", "at least one episode", "none")
        empty = np.flatnonzero(lengths < 2)
        if len(empty):
            raise self._fail(
                f"episode {empty[0]}", "at least 2 rows", str(lengths[empty[0]]), "remove it"
            )
        rows = self._shape("action")[0]
        ends = offsets + lengths
        outside = np.flatnonzero((offsets < 0) | (lengths > rows) | (offsets > rows - lengths))
        if len(outside):
            episode = outside[0]
            raise self._fail(
                f"episode {episode}",
                f"rows within 0..{rows}",
                f"{offsets[episode]}..{ends[episode]}",
                "the columns are shorter than ep_len says",
            )
        order = np.argsort(offsets, kind="stable")
        overlap = np.flatnonzero(ends[order][:-1] > offsets[order][1:])
        if len(overlap):
            raise self._fail(f"episode {order[overlap[0] + 1]}", "its own rows", "an overlap")
        return lengths, offsets

    def check_camera(self, name: str) -> int:
        """Refuse a column that does not hold a camera's pictures; returns their size."""
        shape, column = self._shape(name), f"column {name!r}"
        dtype = self.columns[name][1]
        if dtype != "uint8":
            raise self._fail(column, "dtype uint8", dtype, "store values 0 to 255")
        if len(shape) != 4 or shape[3] != 3:
            fix = "transpose to (rows, H, W, 3)" if len(shape) == 4 and shape[1] == 3 else ""
            raise self._fail(column, "shape (rows, H, W, 3)", str(shape), fix)
        if shape[1] != shape[2]:
            raise self._fail(column, "square pictures", f"{shape[1]} x {shape[2]}")
        if self.frame_stride < 1:
            raise self._fail("frame_stride", "at least 1", str(self.frame_stride))
        rows = self._shape("action")[0]
        strided = int(num_frames(self.lengths, self.frame_stride).sum())
        expected = rows if self.frame_stride == 1 else strided
        if shape[0] != expected:
            raise self._fail(
                column,
                f"{expected} rows (frame_stride {self.frame_stride})",
                str(shape[0]),
                "the columns are ragged",
            )
        first = self.columns[CAMERA][0][1]
        recorded = self._whole_number("image_size", first)
        if recorded != shape[1]:
            raise self._fail(column, f"{recorded} px (image_size)", f"{shape[1]} px")
        return shape[1]

    def _read_actions(self, file: h5py.File) -> NDArray[np.float32]:
        shape, dtype = self.columns["action"]
        if len(shape) != 2 or not dtype.startswith("float"):
            raise self._fail("column 'action'", "floats of shape (rows, n)", f"{dtype} {shape}")
        actions = self._read(file, "action").astype(np.float32)
        finite = np.asarray(np.isfinite(actions).all(axis=1))
        finite[self.offsets + self.lengths - 1] = True  # nothing is done in the last row
        self._check_rows("action", finite)
        return actions

    def _read_states(self, file: h5py.File) -> NDArray[np.float64] | None:
        names = next((n for n in STATE_COLUMNS if all(c in self.columns for c in n)), None)
        if names is None:
            return None
        rows = self._shape("action")[0]
        parts = []
        for name in names:
            shape, dtype = self.columns[name]
            if len(shape) != 2 or shape[0] != rows or not dtype.startswith("float"):
                raise self._fail(
                    f"column {name!r}", f"floats of shape ({rows}, n)", f"{dtype} {shape}"
                )
            parts.append(self._read(file, name).astype(np.float64))
        states = np.concatenate(parts, axis=1)
        self._check_rows(names[0], np.asarray(np.isfinite(states).all(axis=1)))
        return states

    def _check_rows(self, name: str, good: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(~good):
            inside = np.flatnonzero((self.offsets <= row) & (row < self.offsets + self.lengths))
            if len(inside):
                step = row - self.offsets[inside[0]]
                raise self._fail(
                    f"column {name!r}, episode {inside[0]}, step {step}",
                    "finite numbers",
                    "NaN or infinity",
                    "remove the episode",
                )
