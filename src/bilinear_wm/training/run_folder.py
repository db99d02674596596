"""A training folder: one run at a time, and nothing that a kill can break.

checkpoint-STEP/   whole checkpoints; `latest` names the newest
interrupted/       the state of a run that Ctrl-C stopped since then, to continue from
metrics.jsonl      a row per diagnosis
.lock              held while a run is going on
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from bilinear_wm import disk
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
            f"out {out}: holds a run already; continue it with `resume` or name another folder"
        )
    with contextlib.ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            owning = disk.owned(out, f"out {out}: another training is running there")
            stack.enter_context(owning)
        except OSError as error:
            raise InputError(f"out {out}: cannot be written ({error.strerror})") from error
        for leftover in (*out.glob(".checkpoint-*"), *out.glob(".interrupted.*")):
            shutil.rmtree(leftover, ignore_errors=True)
        yield


def forget_metrics_after(path: Path, step: int) -> None:
    """Drop rows that the resumed run will write again."""
    if not path.exists():
        return
    rows = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
    disk.write_text(path, "".join(row + "\n" for row in rows))


def _step_of(line: str) -> float:
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(line)["step"])
    return math.inf  # a line that a kill cut short
