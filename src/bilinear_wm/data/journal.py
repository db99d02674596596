"""A file that can always go back to its last commit, whatever ends the process that writes it.

HDF5 overwrites its index as a file grows: killed in between, or on a full disk, it leaves a file
that nobody can open. So what is overwritten or cut off since the last commit is first kept in a
journal beside the file (`NAME.undo`), and `restore` puts it back:

    bytes 0..8        the file's size at the last commit
    then, each time   offset, length (8 bytes each) and the bytes that were there

An empty journal means that a commit has just been made.
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

SIZE, RECORD = struct.Struct("<q"), struct.Struct("<qq")


def journal_of(path: Path) -> Path:
    """The journal's place."""
    return path.with_name(path.name + ".undo")


def begin(path: Path) -> None:
    """Until the first commit, `restore` leaves nothing of what is at `path`."""
    journal_of(path).write_bytes(SIZE.pack(0))


def restore(path: Path) -> None:
    """Bring a file back to its last commit; without a journal it counts as never committed."""
    journal = journal_of(path)
    content = journal.read_bytes() if journal.exists() else SIZE.pack(0)
    if len(content) < SIZE.size:
        return
    (size,) = SIZE.unpack_from(content)
    saved, at = [], SIZE.size
    while at + RECORD.size <= len(content):
        offset, length = RECORD.unpack_from(content, at)
        at += RECORD.size
        if at + length > len(content):
            break  # cut short: then nothing was overwritten yet
        saved.append((offset, content[at : at + length]))
        at += length
    with path.open("r+b") as file:
        for offset, data in reversed(saved):
            file.seek(offset)
            file.write(data)
        file.truncate(size)


class JournaledFile(io.FileIO):
    """A file with a journal, whose failures are kept for `check`.

    HDF5 cannot recover from a write that fails (it crashes when it is closed), so it never
    hears of one: the writer asks after every episode and gives the file up.
    """

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._error: OSError | None = None
        self._journal = journal_of(path).open("w+b", buffering=0)
        self.commit()

    def commit(self) -> None:
        """What is in the file now is what `restore` brings back."""
        self.check()
        self._committed = os.fstat(self.fileno()).st_size
        os.ftruncate(self._journal.fileno(), 0)
        os.pwrite(self._journal.fileno(), SIZE.pack(self._committed), 0)
        self._journal.seek(0, os.SEEK_END)

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._error is None:
            try:
                self._keep(self.tell(), len(view))
                _write_all(super().write, view)
            except OSError as error:
                self._error = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        if self._error is None:
            try:
                self._keep(size, self._committed - size)
                return super().truncate(size)
            except OSError as error:
                self._error = error
        return size

    def _keep(self, offset: int, length: int) -> None:
        """Save what is about to go, as far as it was there at the last commit."""
        length = min(length, self._committed - offset)
        if length > 0:
            old = os.pread(self.fileno(), length, offset)
            _write_all(self._journal.write, memoryview(RECORD.pack(offset, len(old)) + old))

    def close(self) -> None:
        super().close()
        if hasattr(self, "_journal"):
            self._journal.close()


def _write_all(write: Any, view: memoryview) -> None:
    written = 0
    while written < len(view):
        written += write(view[written:]) or 0
