"""What an HDF5 file of unknown origin must not do: reach outside, lie about its size, hang."""

from __future__ import annotations

import contextlib
import math
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil

from bilinear_wm.errors import InputError
from bilinear_wm.registry import TASKS

MEMORY_SHARE = 0.5
"""Of the free memory that a column may fill."""


def check_plain(path: Path) -> None:
    """Refuse what would hang or is no file: pipes, devices, folders, nothing."""
    if not path.exists():
        raise InputError(f"{path}: no such file; `bwm collect` makes one")
    if path.is_dir():
        raise InputError(f"{path}: expected an HDF5 file, found a folder")
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path}: expected an HDF5 file, found a pipe or a device")


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Whatever HDF5 makes of a damaged file is one sentence."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: expected a readable HDF5 file, found {one_line(error)}; it is damaged or "
            "forged: collect or download it again"
        ) from error
    except MemoryError:
        raise InputError(f"{path}: expected columns that fit into memory, found more") from None


def columns(path: Path, file: h5py.File) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of the datasets in a file that holds all of them itself."""
    found = {}
    for name in file:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            raise InputError(
                f"{path}: column {name!r}: expected data in the file, found a link; copy the data"
            )
        item = file[name]
        if isinstance(item, h5py.Dataset):
            _check_own(path, name, item)
            found[name] = item.shape, str(item.dtype)
    return found


def _check_own(path: Path, name: str, item: h5py.Dataset) -> None:
    """Refuse data in other files, and rows that were announced and never written."""
    if item.external or item.is_virtual:
        raise InputError(
            f"{path}: column {name!r}: expected data in the file, found a reference to another; "
            "copy the data"
        )
    if item.chunks is None:
        stored, wanted = item.id.get_storage_size(), item.nbytes
    else:
        sides = zip(item.shape, item.chunks, strict=True)
        stored = item.id.get_num_chunks()
        wanted = math.prod(-(-side // chunk) for side, chunk in sides)
    if stored < wanted:
        raise InputError(
            f"{path}: column {name!r}: expected {item.shape[0] if item.shape else 1} rows, found "
            f"{stored / wanted:.1%} of their storage; the file was cut short or is forged"
        )


def check_memory(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse a column that is read as a whole and does not fit."""
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    free = psutil.virtual_memory().available
    if needed > MEMORY_SHARE * free:
        raise InputError(
            f"{path}: column {name!r}: expected at most {MEMORY_SHARE * free / 2**30:.1f} GiB "
            f"(half of the free memory), found {needed / 2**30:.1f} GiB; split the file"
        )


def whole_number(path: Path, attributes: Mapping[str, Any], name: str, default: int) -> int:
    """An attribute that must be a whole number."""
    found = attributes.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | np.integer):
        raise InputError(f"{path}: {name}: expected a whole number, found {found!r}")
    return int(found)


def check_task(path: Path, task: str | None, states: Any, actions: Any) -> None:
    """Refuse episodes that are not those of a known task."""
    if task is None or task not in TASKS:
        return
    cls = TASKS[task]
    for column, values, names in (
        ("state", states, cls.state_names),
        ("action", actions, cls.action_names),
    ):
        if values is not None and values.shape[-1] != len(names):
            raise InputError(
                f"{path}: column {column!r}: expected the {len(names)} numbers of {task} "
                f"({', '.join(names)}), found {values.shape[-1]}"
            )


def one_line(error: BaseException) -> str:
    """A library's message without its line breaks."""
    return " ".join(str(error).split())[:300]
