"""Processes that simulate episodes, and that never outlive the one that asked for them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from bilinear_wm.data.episode import episode_seed, run_episode
from bilinear_wm.data.file import Episode, Provenance
from bilinear_wm.registry import load_plugin, loaded_plugins
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task

CHECK_S = 0.1
"""How often it is looked whether Ctrl-C came while workers are at it."""


def record_all(
    wanted: Provenance, indices: range, workers: int, check: Callable[[], None]
) -> Generator[Episode]:
    """Episodes in order, simulated by so many processes.

    Args:
        wanted: What to record.
        indices: Which episodes.
        workers: Processes; with one it is this one.
        check: Called often: raises to stop.
    """
    if workers == 1:
        _start_worker(wanted)
        yield from (_record(index, check) for index in indices)
        return
    pool = ProcessPoolExecutor(
        min(workers, len(indices)) or 1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(wanted, loaded_plugins(), True),
    )
    waiting: deque[Future[Episode]] = deque()
    try:
        for index in indices:
            waiting.append(pool.submit(_record, index))
            if len(waiting) > 2 * workers:  # bounds what waits in memory
                yield _wait(waiting.popleft(), check)
        while waiting:
            yield _wait(waiting.popleft(), check)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.kill()  # what they are at is not wanted any more
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _wait(episode: Future[Episode], check: Callable[[], None]) -> Episode:
    while True:
        check()
        with contextlib.suppress(TimeoutError):
            return episode.result(timeout=CHECK_S)


_worker: tuple[Task, Provenance] | None = None


def _start_worker(
    wanted: Provenance, plugins: tuple[str, ...] = (), ignore_interrupts: bool = False
) -> None:
    global _worker
    if ignore_interrupts:  # the parent decides what Ctrl-C means
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, daemon=True).start()
    for plugin in plugins:
        load_plugin(plugin)
    quality: Any = wanted.render_quality
    _worker = make_task(wanted.task, wanted.image_size, quality), wanted


def _end_with_parent() -> None:
    """Nobody wants a worker's episodes when its parent is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _record(index: int, check: Callable[[], None] | None = None) -> Episode:
    assert _worker is not None
    env, wanted = _worker
    seed = episode_seed(wanted.seed, index)
    return run_episode(env, seed, wanted.frame_stride, wanted.disturbance, check)
