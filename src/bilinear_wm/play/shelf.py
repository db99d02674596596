"""The models of all tabs, each loaded when it is first wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from bilinear_wm import recipes
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
        self._loads: dict[str, Future[SharedModel]] = {}
        self._progress: dict[str, str] = {}

    def load(self, task: str) -> Future[SharedModel]:
        """What is or will be loaded; what failed is tried again."""
        with self._lock:
            known = self._loads.get(task)
            if known is not None and not (known.done() and known.exception()):
                return known
            self._progress[task] = f"waiting to load {task}"
            coming = self._loads[task] = Future[SharedModel]()
        # A daemon: Ctrl-C does not wait for it.
        threading.Thread(
            target=self._load, args=(task, coming), name="bwm-load", daemon=True
        ).start()
        return coming

    def progress(self, task: str) -> str:
        """What is being done for a task."""
        return self._progress.get(task, "")

    def _load(self, task: str, coming: Future[SharedModel]) -> None:
        with self._turn:
            begun = time.perf_counter()

            def say(line: str) -> None:
                self._progress[task] = line
                self._say(f"{task}: {line}")

            try:
                options, loop = recipes.playing(task)
                if self._horizon is not None:
                    loop = replace(loop, horizon=self._horizon, max_horizon=None)
                shared = SharedModel(
                    task, self.folders[task], options, loop, self._device, self._study_steps, say
                )
            except BaseException as error:
                self._say(f"{task}: {error}")
                coming.set_exception(error)
                return
            say(f"ready after {time.perf_counter() - begun:.1f} s")
            coming.set_result(shared)
