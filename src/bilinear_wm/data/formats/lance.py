"""stable-worldmodel's lance table: a row a step, pictures as JPEG, numbers as lists of floats.

`episode_idx` tells which rows belong together. The table is a folder `NAME.lance`, or the only one
in a folder.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data.formats.base import Format, episodes_of, one_line
from bilinear_wm.errors import needed

EXTRA = "swm"
FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


class Lance(Format):
    """One lance table."""

    name = "lance"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        lance = needed("lance", EXTRA, f"{path}")
        self._dataset: tuple[int, Any] | None = None
        try:
            self._open = lambda: lance.dataset(str(_table(path)))
            dataset = self._table()
        except (ValueError, OSError) as error:
            raise self.fail("table", "a readable lance table", one_line(error)) from error
        self._rows = int(dataset.count_rows())
        self._pictures = set[str]()
        for field in dataset.schema:
            found = self._describe(field)
            if found is not None:
                self.columns[field.name] = found

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return path.is_dir() and _table(path) is not None

    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self.shape("episode_idx")
        numbers = self.read("episode_idx", 0, self._rows).astype(np.int64)
        if (np.diff(numbers) < 0).any():
            raise self.fail(
                "column 'episode_idx'", "rows of one episode side by side", "them mixed"
            )
        return episodes_of(numbers)

    def read(self, column: str, first: int, last: int) -> NDArray[Any]:
        try:
            found = self._table().to_table(columns=[column], offset=first, limit=last - first)
        except (ValueError, OSError) as error:
            raise self.fail(f"column {column!r}", "readable data", one_line(error)) from error
        values = found.column(column).combine_chunks()
        if column in self._pictures:
            return np.stack([self._decode(column, blob) for blob in values.to_pylist()])
        if hasattr(values.type, "list_size"):
            return values.flatten().to_numpy(zero_copy_only=False).reshape(len(values), -1)
        return values.to_numpy(zero_copy_only=False)

    def _describe(self, field: Any) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of a column, where it is one that can be read."""
        kind = str(field.type)
        if kind in ("binary", "large_binary"):
            if self._rows == 0:
                return None
            self._pictures.add(field.name)
            return (self._rows, *self.read(field.name, 0, 1).shape[1:]), "uint8"
        if hasattr(field.type, "list_size"):
            return (self._rows, field.type.list_size), FLOATS.get(
                str(field.type.value_type), str(field.type.value_type)
            )
        if hasattr(field.type, "bit_width") and kind != "bool":
            return (self._rows,), FLOATS.get(kind, kind)
        return None

    def _decode(self, column: str, blob: bytes | None) -> NDArray[np.uint8]:
        image = needed("PIL.Image", EXTRA, f"{self.path}")
        try:
            return np.asarray(image.open(io.BytesIO(blob or b"")).convert("RGB"))
        except OSError as error:
            raise self.fail(
                f"column {column!r}", "pictures (JPEG, PNG)", one_line(error)
            ) from error

    def _table(self) -> Any:
        """The table, opened in this process."""
        if self._dataset is None or self._dataset[0] != os.getpid():
            self._dataset = os.getpid(), self._open()
        return self._dataset[1]


def _table(path: Path) -> Path | None:
    """The folder of the table that is meant."""
    if (path / "_versions").is_dir():
        return path
    inside = [p for p in path.glob("*.lance") if not p.stem.endswith("_episodes")]
    return inside[0] if len(inside) == 1 else None
