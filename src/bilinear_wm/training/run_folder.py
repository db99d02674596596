"""A training folder: one run at a time, and nothing that a kill can break.

checkpoint-STEP/   whole checkpoints; `latest` names the newest
metrics.jsonl      a row per diagnosis
.lock              held while a run is going on
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint

METRICS = "metrics.jsonl"


def begun(out: Path) -> bool:
    """Whether a run has been begun in `out`."""
    return (out / checkpoint.LATEST).exists()


@contextlib.contextmanager
def locked(out: Path, resume: bool) -> Iterator[None]:
    """Hold the training folder for this process alone, and clear what a kill left in it."""
    if begun(out) and not resume:
        raise InputError(
            f"--out {out}: holds a run already; continue it with --resume or name another folder"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"--out {out}: another training is running there") from None
        for leftover in out.glob(".checkpoint-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted and acted on between two steps."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if caught:  # asked twice: do not wait
            raise KeyboardInterrupt
        caught.append(number)

    previous = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def forget_metrics_after(path: Path, step: int) -> None:
    """Drop rows that the resumed run will write again."""
    if not path.exists():
        return
    rows = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
    fresh = path.with_suffix(".tmp")
    fresh.write_text("".join(row + "\n" for row in rows))
    os.replace(fresh, path)


def _step_of(line: str) -> float:
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(line)["step"])
    return math.inf  # a line that a kill cut short
