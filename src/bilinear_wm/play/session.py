"""What one page shows: a task, one planner or two beside each other, and what it wishes for."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any, NamedTuple

import numpy as np

from bilinear_wm.errors import InputError
from bilinear_wm.play.shared import OFFSET, PLANNERS_SHOWN, VIEW, SharedModel
from bilinear_wm.play.shelf import Shelf
from bilinear_wm.play.world import Send, World

log = logging.getLogger(__name__)

BOTH = "both"
MODES = (*PLANNERS_SHOWN, BOTH)
LOOK_S = 0.2
"""How often a page that waits for a model is told what is being done."""


class Scene(NamedTuple):
    """What a page is to show."""

    task: str
    planner: str


class Session:
    """One page. Worlds are set up and taken down in a thread of their own.

    Args:
        shelf: The models.
        send: Takes a message and perhaps a picture, from any thread.
        control_hz: Ticks a second.
        seed: Of the tasks and the pushes.
        task: The tab that is open at first.
    """

    def __init__(
        self,
        shelf: Shelf,
        send: Send,
        control_hz: float = 20.0,
        seed: int = 0,
        task: str | None = None,
    ) -> None:
        self._shelf, self._send, self._control_hz = shelf, send, control_hz
        self._rng = np.random.default_rng(seed)
        self._changed = threading.Condition()  # guards what follows
        self._wanted = Scene(task if task in shelf.folders else shelf.first, PLANNERS_SHOWN[0])
        self._shown: Scene | None = None
        self._closed = False
        self._shared: SharedModel | None = None
        self._worlds: dict[str, World] = {}
        self._acting: list[World] = []
        self._task = 0
        self._thread = threading.Thread(target=self._keep_stage, name="bwm-stage", daemon=True)

    def start(self) -> None:
        self._send(
            {"kind": "hello", "tasks": list(self._shelf.folders), "planners": PLANNERS_SHOWN,
             "modes": MODES, "size": VIEW}, None)  # fmt: skip
        self._thread.start()

    def stop(self) -> None:
        """End everything."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # Wishes.

    def wish(self, message: Any) -> None:
        """Something from the page; the newest of each kind is done at the next tick."""
        if not isinstance(message, dict):
            raise InputError(f"message: expected an object, found {type(message).__name__}")
        wishes = {"task": self._change, "planner": self._change, "goal": self._aim,
                  "push": self._push, "block": self._block, "new": self._begin,
                  "reset": self._begin}  # fmt: skip
        kind = next((kind for kind in wishes if kind in message), None)
        if kind is None:
            found = ", ".join(sorted(message))[:100]
            raise InputError(f"message: expected one of {', '.join(wishes)}, found {found!r}")
        wishes[kind](kind, message[kind])

    def _change(self, kind: str, value: Any) -> None:
        known = tuple(self._shelf.folders) if kind == "task" else MODES
        if value not in known:
            raise InputError(f"{kind}: expected one of {', '.join(known)}, found {_short(value)}")
        with self._changed:
            self._wanted = self._wanted._replace(**{kind: value})
            self._changed.notify_all()

    def _aim(self, _: str, value: Any) -> None:
        x, y, angle = _goal(value)
        with self._changed:
            if self._shared is not None and self._acting:
                state, _goal_before = self._acting[0].now
                goal = self._shared.canvas.goal(x, y, angle, state)
                for world in self._acting:
                    world.wish(goal=goal)

    def _push(self, _kind: str, _: Any) -> None:
        seed = int(self._rng.integers(2**32))
        with self._changed:
            for world in self._acting:
                world.wish(push=seed)

    def _block(self, _: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise InputError(f"block: expected true or false, found {_short(value)}")
        with self._changed:
            for world in self._acting:
                world.wish(blocked=value)

    def _begin(self, kind: str, _: Any) -> None:
        """A start and a goal that was reached from there: another, or the same again."""
        with self._changed:
            if self._shared is None:
                return
            if kind == "new":
                self._task = int(self._rng.integers(len(self._shared.tasks)))
            for world in self._acting:
                world.wish(begin=self._shared.tasks[self._task])

    # The stage.

    def _keep_stage(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._wanted != self._shown)
                    if self._closed:
                        return
                    wanted = self._wanted
                try:
                    shared = self._obtain(wanted.task)
                    if shared is not None:
                        self._set_up(shared, wanted)
                        self._shown = wanted
                except Exception as error:
                    # Whatever it is: the page says so, and other tabs may be fine.
                    if not isinstance(error, InputError):
                        log.exception("the scene %s could not be set up", wanted)
                    self._clear()
                    self._send(
                        {"kind": "failed", "task": wanted.task, "error": str(error)[:300]}, None
                    )
                    self._shown = wanted
        finally:
            self._clear()

    def _obtain(self, task: str) -> SharedModel | None:
        """What is shared of a task, once it is loaded; None if it is not wanted any more."""
        coming, said = self._shelf.load(task), ""
        if not coming.done():
            self._clear()  # what is left behind would only slow the loading down
            self._shown = None
        while not coming.done():
            doing = self._shelf.progress(task)
            if doing != said:
                said = doing
                self._send({"kind": "loading", "task": task, "doing": doing}, None)
            with self._changed:
                left = self._changed.wait_for(
                    lambda: self._closed or self._wanted.task != task, timeout=LOOK_S
                )
            if left:
                return None
        return coming.result()

    def _set_up(self, shared: SharedModel, scene: Scene) -> None:
        """Worlds of this scene act from now on; planners of one task go on where they were."""
        with self._changed:
            acting, self._acting = self._acting, []
        for world in acting:
            world.stop()
        if shared is not self._shared:
            self._clear()
            self._task = int(self._rng.integers(len(shared.tasks)))
        begin = acting[0].now if acting and self._worlds else shared.tasks[self._task]
        names = PLANNERS_SHOWN if scene.planner == BOTH else (scene.planner,)
        for name in names:
            if name not in self._worlds:
                self._worlds[name] = World(shared, name, self._send, self._control_hz)
        chosen = [self._worlds[name] for name in names]
        for world in chosen:
            world.place(*begin)
        with self._changed:
            self._shared, self._acting = shared, chosen
        # Whoever reads this may wish at once.
        self._send(_description(shared, scene), None)
        for world in chosen:
            world.start(leads=world is chosen[0])

    def _clear(self) -> None:
        """Stop and close all worlds."""
        with self._changed:
            acting, self._acting, self._shared = self._acting, [], None
            worlds, self._worlds = self._worlds, {}
        for world in acting:
            world.stop()
        for world in worlds.values():
            world.close()


def _description(shared: SharedModel, scene: Scene) -> dict[str, Any]:
    canvas = shared.canvas
    return {
        "kind": "scene", "task": scene.task, "planner": scene.planner, "hint": canvas.hint,
        "drags": canvas.drags, "turns": canvas.turns, "points": shared.has_points,
        "draws": shared.model.draws, "monitor": shared.monitor is not None,
        "cloud": shared.cloud, "offset": OFFSET,
        "measured": {name: found and str(found) for name, found in shared.measured.items()},
    }  # fmt: skip


def _goal(given: Any) -> tuple[float, float, float]:
    """A place, not far outside the picture, and an angle."""
    try:
        x, y, angle = (float(number) for number in given if type(number) in (int, float))
        finite = len(given) == 3 and all(map(math.isfinite, (x, y, angle)))
    except (TypeError, ValueError, OverflowError):
        finite = False
    if not finite:
        raise InputError(f"goal: expected three numbers x, y, angle, found {_short(given)}")
    return min(max(x, -1.0), 2.0), min(max(y, -1.0), 2.0), math.remainder(angle, 2 * math.pi)


def _short(found: Any) -> str:
    text = repr(found)
    return text if len(text) < 100 else f"{text[:100]}..."
