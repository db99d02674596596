"""Where work is done: in this process, in others of this machine, or on a cluster.

Whatever is a `concurrent.futures.Executor` will do. What is submitted carries all that it depends
on, so that nothing but time depends on who does it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from bilinear_wm.errors import InputError, needed

CHECK_S = 0.1
"""How often it is looked whether Ctrl-C came while others are at it."""
CONNECT_S = 20
"""How long a scheduler has to answer."""
WORKERS_S = 60
"""How long a cluster has to have its first worker."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Helpers:
    """An executor and how much it does at once."""

    executor: Executor
    count: int


@contextlib.contextmanager
def helpers(workers: int, cluster: str | None = None) -> Iterator[Helpers | None]:
    """Processes of this machine, or a dask cluster's; none for one worker: this process.

    Args:
        workers: Processes, where there is no cluster.
        cluster: The address of a dask scheduler, such as tcp://10.0.0.1:8786.
    """
    if cluster is not None:
        with _dask(cluster) as found:
            yield found
    elif workers == 1:
        yield None
    else:
        with _local(workers) as found:
            yield found


def in_order(
    do: Callable[[T], R], work: Iterable[T], by: Helpers, check: Callable[[], None]
) -> Generator[R]:
    """What `do` makes of each piece of work, in its order; little of it waits at a time.

    Args:
        do: A function that other processes can import, with all that it needs in its argument.
        work: The pieces.
        by: Who does them.
        check: Called often: raises to stop.
    """
    waiting: deque[Future[R]] = deque()
    try:
        for piece in work:
            waiting.append(by.executor.submit(do, piece))
            if len(waiting) > 2 * by.count:  # bounds what waits in memory
                yield _wait(waiting.popleft(), check)
        while waiting:
            yield _wait(waiting.popleft(), check)
    finally:
        for future in waiting:
            future.cancel()


def _wait(future: Future[R], check: Callable[[], None]) -> R:
    while True:
        check()
        with contextlib.suppress(TimeoutError):
            return future.result(timeout=CHECK_S)


@contextlib.contextmanager
def _local(workers: int) -> Iterator[Helpers]:
    """Processes that never outlive this one."""
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
    )
    try:
        yield Helpers(pool, workers)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()  # what they are at is not wanted any more
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody wants what a worker makes when its parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Helpers]:
    """The workers of a dask cluster. What a lost one was at, others do again."""
    distributed: Any = needed("distributed", "cluster", f"cluster {address}")
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"cluster: expected the address of a dask scheduler, such as tcp://10.0.0.1:8786, that "
            f"answers; found {address!r} ({' '.join(str(error).split())[:120]})"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError as error:
            raise InputError(
                f"cluster {address}: expected a worker within {WORKERS_S} s, found none; "
                f"start some: dask worker {address}"
            ) from error
        executor = client.get_executor(pure=False)
        try:
            yield Helpers(executor, max(sum(client.ncores().values()), 1))
        finally:
            executor.shutdown(wait=False)
