"""What every format offers: columns to read from."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError

Columns = dict[str, tuple[tuple[int, ...], str]]
"""Shape and dtype by name, as if each column were one array: rows first."""


class Format(abc.ABC):
    """Episodes of one format, opened for reading.

    Pictures are columns of uint8, (rows, H, W, 3), whatever they are stored as. What was done is in
    a column named `action`, unless the user names another; all others are taken by name.
    """

    name: ClassVar[str]
    attributes: Mapping[str, Any]
    """What the file tells of itself: `task`, `render_quality`, `frame_stride`, ..."""
    columns: Columns
    element_names: Mapping[str, tuple[str, ...]]
    """What the numbers of a column are called, where the file tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attributes, self.columns, self.element_names = {}, {}, {}

    def __reduce__(self) -> tuple[type[Format], tuple[Path]]:
        """What is open stays here: another process opens the file itself."""
        return type(self), (self.path,)

    @classmethod
    @abc.abstractmethod
    def recognises(cls, path: Path) -> bool:
        """Whether this is how an existing file or folder is stored; needs no further package."""

    @abc.abstractmethod
    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each episode its rows, and the first of them."""

    @abc.abstractmethod
    def read(self, column: str, first: int, last: int) -> NDArray[Any]:
        """Rows `first` up to `last` (not included) of a column; pictures within one episode.

        May be called in another process than the one that opened it.
        """

    @property
    def num_rows(self) -> int:
        """Rows of all episodes: steps at which something is done."""
        return self.shape("action")[0]

    def read_actions(self, column: str) -> NDArray[Any]:
        """What was done in each row, from a column of commands."""
        return self.read(column, 0, self.num_rows)

    def checked_index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`index`, once every episode is known to have rows of its own."""
        (lengths, offsets), rows, fail = self.index(), self.num_rows, self.fail
        if len(lengths) == 0:
            raise fail("ep_len", "at least one episode", "none")
        empty = np.flatnonzero(lengths < 2)
        if len(empty):
            raise fail(
                f"episode {empty[0]}", "at least 2 rows", str(lengths[empty[0]]), "remove it"
            )
        ends = offsets + lengths
        outside = np.flatnonzero((offsets < 0) | (lengths > rows) | (offsets > rows - lengths))
        if len(outside):
            episode = outside[0]
            raise fail(
                f"episode {episode}",
                f"rows within 0..{rows}",
                f"{offsets[episode]}..{ends[episode]}",
                "the columns are shorter than ep_len says",
            )
        order = np.argsort(offsets, kind="stable")
        overlap = np.flatnonzero(ends[order][:-1] > offsets[order][1:])
        if len(overlap):
            raise fail(f"episode {order[overlap[0] + 1]}", "its own rows", "an overlap")
        return lengths, offsets

    def close(self) -> None:  # noqa: B027  (most keep nothing open)
        """Let go of what is open; it is opened again when it is needed."""

    def fail(self, what: str, expected: str, found: str, fix: str = "") -> InputError:
        """The error for something amiss in the file."""
        return InputError(
            f"{self.path}: {what}: expected {expected}, found {found}" + (f"; {fix}" if fix else "")
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a column that must be there."""
        if name not in self.columns:
            raise self.fail(
                f"column {name!r}",
                "it to exist",
                f"only {', '.join(sorted(self.columns)) or 'no columns'}",
                "see docs/data.md for what is read",
            )
        return self.columns[name][0]


def episodes_of(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and first rows of runs of equal episode numbers."""
    first = np.flatnonzero(np.diff(numbers, prepend=-1 if len(numbers) else []))
    return np.diff(first, append=len(numbers)), first


def one_line(error: BaseException) -> str:
    """An error of another library as part of a sentence."""
    return " ".join(str(error).split())
