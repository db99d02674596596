"""Counting, and processes that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bilinear_wm.errors import InputError

OK, BROKEN, REFUSED = 0, 1, 2
"""How a forked run ends: well, in an exception, or with an `InputError`."""
PATIENCE_S = 900


class HungError(Exception):
    """A case that took too long."""


@dataclass
class Tally:
    """The cases of one attack, and what failed in them."""

    name: str
    cases: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @contextlib.contextmanager
    def case(self) -> Iterator[None]:
        """Count a case; whatever escapes from it is a failure."""
        self.cases += 1
        begun = time.perf_counter()
        try:
            with limited(PATIENCE_S):
                yield
        except Exception as error:
            self.failed[f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"] += 1
        finally:
            self.seconds += time.perf_counter() - begun


@dataclass(frozen=True)
class Attack:
    """What every section is given."""

    folder: Path
    """An empty one of its own."""
    rng: np.random.Generator
    scale: float

    def times(self, count: int) -> range:
        """So many cases, more or fewer as asked for, at least one."""
        return range(max(round(count * self.scale), 1))


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `HungError` in what takes longer."""

    def ring(_number: int, _frame: Any) -> None:
        raise HungError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fork(work: Callable[[], Any], log: Path) -> int:
    """Run something in a process of its own, which has everything imported; returns its number."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = BROKEN
    try:
        signal.alarm(0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        work()
        status = OK
    except InputError as error:
        os.write(2, f"{error}\n".encode())
        status = REFUSED
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def ended(child: int) -> int:
    """The exit status of a process once it is over; negative for a signal."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except HungError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def killed(work: Callable[[], Any], after_s: float, log: Path) -> bool:
    """Run something and kill it after a while; whether it was still at it."""
    child = fork(work, log)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


def completed(work: Callable[[], Any], log: Path) -> None:
    """Run something to its end, which must be a good one."""
    status = ended(fork(work, log))
    if status != OK:
        raise AssertionError(f"ended with {status}: {log.read_text().splitlines()[-1:]}")


def refused_or(read: Callable[[], Any]) -> Any:
    """What something reads, or None if it is refused in one line."""
    try:
        return read()
    except InputError as error:
        if "\n" in str(error):
            raise AssertionError("the complaint has several lines") from error
        return None
