"""The models of all tabs, each loaded when it is first wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from bilinear_wm import recipes
from bilinear_wm.errors import InputError
from bilinear_wm.play.shared import STUDY_STEPS, SharedModel


class Shelf:
    """What pages share, by task. Loading is done once, by one thread at a time.

    Args:
        folders: Checkpoints by task.
        first: The tab that is open at first.
        horizon: Blocks a plan looks ahead; each task's recipe by default.
        device: Where the models run.
        study_steps: See `SharedModel`.
        say: Told what is being loaded.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        first: str | None = None,
        horizon: int | None = None,
        device: str = "cpu",
        study_steps: int = STUDY_STEPS,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.folders, self.first = dict(folders), first or next(iter(folders))
        self._horizon, self._device, self._study_steps = horizon, device, study_steps
        self._say = say or (lambda _: None)
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._loads: dict[str, Future[SharedModel]] = {}
        self._doing: dict[str, tuple[str, float | None]] = {}
        self._closed = threading.Event()

    def load(self, task: str) -> Future[SharedModel]:
        """What is or will be loaded; what failed is tried again."""
        with self._lock:
            known = self._loads.get(task)
            if known is not None and not (known.done() and known.exception()):
                return known
            self._doing[task] = "waiting for another tab", None
            coming = self._loads[task] = Future[SharedModel]()
        # A daemon: Ctrl-C does not wait for it.
        thread = threading.Thread(
            target=self._load, args=(task, coming), name="bwm-load", daemon=True
        )
        self._threads = [*(old for old in self._threads if old.is_alive()), thread]
        thread.start()
        return coming

    def progress(self, task: str) -> str:
        """What is being done for a task, and how much of it is done."""
        line, share = self._doing.get(task, ("", None))
        return line if share is None else f"{line}, {share:.0%}"

    def close(self, timeout_s: float = 10.0) -> None:
        """Load no more; a thread inside torch would crash a process that ends."""
        self._closed.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def _load(self, task: str, coming: Future[SharedModel]) -> None:
        with self._turn:
            begun = time.perf_counter()

            def say(line: str, share: float | None = None) -> None:
                if self._closed.is_set():
                    raise InputError(f"{task}: not loaded: the server is ending")
                self._doing[task] = line, share
                if share is None:
                    self._say(f"{task}: {line}")

            try:
                options, loop = recipes.playing(task)
                if self._horizon is not None:
                    loop = replace(loop, horizon=self._horizon, max_horizon=None)
                shared = SharedModel(
                    task, self.folders[task], options, loop, self._device, self._study_steps, say
                )
            except BaseException as error:
                if not self._closed.is_set():
                    self._say(f"{task}: {error}")
                coming.set_exception(error)
                return
            say(f"ready after {time.perf_counter() - begun:.1f} s")
            coming.set_result(shared)
