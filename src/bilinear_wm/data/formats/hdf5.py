"""HDF5, the public stable-worldmodel/LeWM schema; what `bwm collect` writes.

Every column holds one row per environment step, episodes laid end to end:

    pixels       uint8   (rows, H, W, 3)
    action       float32 (rows, action_size)   the action taken in that row; NaN in the last
    state        float64 (rows, state_size)
    episode_idx, step_idx                      where the row is from
    ep_len, ep_offset                          per episode: its rows, and the first of them

With `frame_stride` s > 1 (a file attribute) only the pictures at steps 0, s, 2s, ... of each
episode are kept. They are then in a group, `thinned/pixels`: readers that know only the public
schema find no pictures, or refuse, where a shorter column `pixels` would give them wrong ones.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data import guard
from bilinear_wm.data.formats.base import Format, one_line
from bilinear_wm.errors import InputError

with contextlib.suppress(ImportError):
    import hdf5plugin  # noqa: F401  (for compressed public files)

FORMAT_VERSION = 2
THINNED = "thinned"
"""The group of the cameras of which not every picture is kept."""
SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Hdf5(Format):
    """One HDF5 file."""

    name = "hdf5"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._handle: tuple[int, h5py.File] | None = None
        with self._open() as file, guard.damage_named(path):
            self.attributes = {name: file.attrs[name] for name in file.attrs}
            self._check_version()
            self.columns = guard.columns(path, file)
            found = file.get(THINNED)
            thinned = guard.columns(path, found) if isinstance(found, h5py.Group) else {}
            self.columns |= thinned
            self._thinned = set(thinned)

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(SIGNATURE)) == SIGNATURE

    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        found = []
        for name in ("ep_len", "ep_offset"):
            (shape, dtype) = self.shape(name), self.columns[name][1]
            if len(shape) != 1 or not dtype.lstrip("u").startswith("int"):
                raise self.fail(f"column {name!r}", "a list of integers", f"{dtype} {shape}")
            guard.check_memory(self.path, name, shape, dtype)
            found.append(self.read(name, 0, shape[0]).astype(np.int64))
        lengths, offsets = found
        if len(lengths) != len(offsets):
            raise self.fail(
                "ep_len and ep_offset", "equal lengths", f"{len(lengths)}, {len(offsets)}"
            )
        return lengths, offsets

    def read(self, column: str, first: int, last: int) -> NDArray[Any]:
        name = f"{THINNED}/{column}" if column in self._thinned else column
        try:
            values: NDArray[Any] = self._file()[name][first:last]
        except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
            raise self.fail(
                f"column {column!r}",
                "readable data",
                one_line(error),
                "the file is damaged, or its compression needs `pip install hdf5plugin`",
            ) from error
        return values

    def close(self) -> None:
        if self._handle is not None and self._handle[0] == os.getpid():
            self._handle[1].close()
        self._handle = None

    def _check_version(self) -> None:
        version = guard.whole_number(self.path, self.attributes, "format_version", FORMAT_VERSION)
        if version > FORMAT_VERSION:
            raise self.fail(
                "format_version", f"at most {FORMAT_VERSION}", str(version), "update the package"
            )

    def _open(self) -> h5py.File:
        try:
            return h5py.File(self.path, "r")
        except OSError as error:
            raise InputError(
                f"{self.path}: expected an HDF5 file, found something unreadable "
                f"({one_line(error)}); it may be truncated or of another format: "
                "collect or download it again"
            ) from error

    def _file(self) -> h5py.File:
        """An open file that belongs to this process (HDF5 handles do not survive a fork)."""
        if self._handle is None or self._handle[0] != os.getpid():
            self._handle = os.getpid(), self._open()
        return self._handle[1]
