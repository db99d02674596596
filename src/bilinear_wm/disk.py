"""Files and folders that are whole or absent, and written by one process at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from bilinear_wm.errors import InputError


@contextlib.contextmanager
def owned(path: Path, complaint: str) -> Iterator[None]:
    """Hold `path`, a file or a folder, for this process alone; refuse with `complaint` otherwise.

    The lock is a file beside a file, or inside a folder. It goes away with its owner.
    """
    place = path / ".lock" if path.is_dir() else path.with_name(f".{path.name}.lock")
    place.touch()  # a place where nothing can be written says so itself
    lock = FileLock(place, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(complaint) from None
    try:
        yield
    finally:
        place.unlink(missing_ok=True)  # while it is held: nobody else has it
        lock.release()


def check_writable(path: Path, argument: str) -> None:
    """Refuse a file or folder that could not be made, before any work is done for it."""
    place = path.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    if place != path.resolve() and not place.is_dir():
        raise InputError(f"{argument} {path}: expected a folder, found a file: {place}")
    effective = os.access in os.supports_effective_ids
    if not os.access(place, os.W_OK, effective_ids=effective):
        raise InputError(
            f"{argument} {path}: cannot be written: {place} is read-only; name another place"
        )


def read_text(path: Path, expected: str) -> str:
    """The text of a plain file; refuses what would hang, is binary or is not there."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected {expected}, found no plain file")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: expected {expected}, found no such file") from None
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: expected {expected}, found no text ({reason})") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file that is never seen half-written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text)
        sync(fresh)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to fill; it takes the place of `folder` if nothing goes wrong.

    A folder that is being replaced is never missing for longer than two renames take.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield fresh
        for path in fresh.iterdir():
            sync(path)
        sync(fresh)
        fresh.chmod(0o777 & ~_umask())  # mkdtemp's are private
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
            os.replace(folder, old)
            os.replace(fresh, folder)
            shutil.rmtree(old)
        else:
            os.replace(fresh, folder)
        sync(folder.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """What the process masks; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
