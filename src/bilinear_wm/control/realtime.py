"""The controller that a robot would use: an action on every tick, whatever planning does.

    controller = RealTimeController(model, planner, control_hz=20, act=robot.send)
    controller.set_goal(goal_picture)
    with controller:
        while working:
            controller.observe(camera.read())

Two threads: one ticks on a steady clock and hands out actions, the other encodes and plans. What a
tick does, in this order: the newest plan's first action; the best that a plan's deadline allowed;
the rest of the plan at hand; hold. An observation that is stale or not finite means hold at once,
because nobody knows any more what the plan at hand would do.

All decisions are `loop.py`'s and all plans `pilot.py`'s: here are only the threads and the clock.
CPython gives no hard real time: see docs/realtime.md for what to expect.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike

from bilinear_wm.control.box import Action
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Delivery, Tick
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel
from bilinear_wm.observation import Observation, Seen
from bilinear_wm.planning.base import Planner

log = logging.getLogger(__name__)

PERIODS_UNTIL_STALE = 5


class RealTimeController:
    """Ticks and plans in threads of their own.

    Args:
        model: Encodes what is seen.
        planner: Plans on the model's dynamics.
        control_hz: Ticks a second: how often the environment takes an action.
        config: When and how far to plan.
        act: Called with the action on every tick, in the ticking thread; must return soon.
        action_low: Smallest action, a number or one an entry.
        action_high: Largest action.
        pilot: In the place of one made of all that: with a monitor, say, or shared.
        hold: What holding means; zeros by default.
        deadline_s: Time a plan may take; one period by default.
        max_age_s: Observations older than this are stale; five periods by default.
        on_tick: Called with every decision, for logs.
        on_plan: Called with every plan, in the planning thread.
    """

    def __init__(
        self,
        model: WorldModel,
        planner: Planner,
        control_hz: float,
        config: LoopConfig | None = None,
        *,
        act: Callable[[Action], Any] | None = None,
        action_low: ArrayLike = -1.0,
        action_high: ArrayLike = 1.0,
        pilot: Pilot | None = None,
        hold: ArrayLike | None = None,
        deadline_s: float | None = None,
        max_age_s: float | None = None,
        on_tick: Callable[[Tick], Any] | None = None,
        on_plan: Callable[[Delivery], Any] | None = None,
    ) -> None:
        if not (0 < control_hz < math.inf and math.isfinite(1 / control_hz)):
            raise InputError(f"control_hz: expected a number above 0, found {control_hz}")
        self.period_s = 1 / control_hz
        self._deadline_s = self.period_s if deadline_s is None else deadline_s
        if not self._deadline_s > 0:
            raise InputError(f"deadline_s: expected more than 0, found {deadline_s}")
        if max_age_s is None:
            max_age_s = PERIODS_UNTIL_STALE * self.period_s
        self.pilot = pilot or Pilot(model, planner, action_low, action_high)
        self.loop = self.pilot.loop(config or LoopConfig(), hold=hold, max_age_s=max_age_s)
        self._changed = threading.Condition()  # guards the loop
        self._act, self._on_tick, self._on_plan = act, on_tick, on_plan
        self._stop = threading.Event()
        self._ticking: threading.Thread | None = None
        self._planning: threading.Thread | None = None
        self.missed = 0
        """Ticks that came more than a period late and were left out."""
        self._broken: BaseException | None = None

    def observe(self, seen: ArrayLike | Observation) -> None:
        """Take what is seen now, a picture or all that the model wants; from any thread."""
        at, seen = time.perf_counter(), self._checked(seen)
        with self._changed:
            self.loop.observe(seen, at)
            self._changed.notify_all()

    def _checked(self, seen: ArrayLike | Observation) -> Seen:
        spec = self.pilot.model.config.observes
        return as_seen(seen) if spec.is_picture else spec.of(seen)

    def set_goal(self, goal: ArrayLike | Observation) -> None:
        """Go there from now on; from any thread."""
        goal = self._checked(goal)
        with self._changed:
            self.loop.set_goal(goal)
            self._changed.notify_all()

    def start(self) -> None:
        """Begin to tick."""
        with self._changed:
            if self._ticking is not None:
                raise InputError("controller: expected one that is stopped, found it running")
            # Each run has a stop of its own: what was begun under an earlier one is not delivered.
            self._stop, self._broken = threading.Event(), None
            self._ticking = threading.Thread(
                target=self._keep_ticking, args=(self._stop,), name="bwm-tick", daemon=True
            )
            self._ticking.start()
            if self._planning is None:  # a planner that still hangs goes on when it is back
                self._planning = threading.Thread(
                    target=self._keep_planning, name="bwm-plan", daemon=True
                )
                self._planning.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End both threads; a planner that hangs is left behind. Raises what `act` raised."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
            ticking, planning = self._ticking, self._planning
        for thread in (ticking, planning):
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout_s)
        if planning is not None and planning.is_alive():
            log.warning("the planner did not end within %g s and is left behind", timeout_s)
        self._ticking = None
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._ticking is not None and self._ticking.is_alive()

    def _keep_ticking(self, stop: threading.Event) -> None:
        due = time.perf_counter()
        try:
            while not stop.is_set():
                with self._changed:
                    tick = self.loop.tick(time.perf_counter(), due)
                    self._changed.notify_all()
                if self._act is not None:
                    self._act(tick.action)
                if self._on_tick is not None:
                    self._on_tick(tick)
                due += self.period_s
                behind = time.perf_counter() - due
                if behind > self.period_s:  # after a long pause go on, do not catch up in a burst
                    skipped = int(behind / self.period_s)
                    self.missed += skipped
                    due += skipped * self.period_s
                elif behind < 0:
                    stop.wait(-behind)
        except BaseException as error:
            log.exception("the control loop ended")
            with self._changed:
                self._broken = error
                stop.set()
                self._changed.notify_all()

    def _keep_planning(self) -> None:
        """One thread in all: planners are never called twice at a time."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stop.is_set() or self.loop.ready)
                stop = self._stop
                if stop.is_set():
                    self._planning = None
                    return
                job, failed = self.loop.next_job(), self.loop.failures
            if job is None:
                continue
            try:
                (made,) = self.pilot.plan([job], self._deadline_s)
                with self._changed:
                    if stop.is_set():
                        continue  # perhaps long ago: nobody waits for this plan any more
                    self.loop.deliver(job, made)
                if self._on_plan is not None:
                    self._on_plan(made)
            except BaseException as error:  # whatever it is, the next plan may be a good one
                with self._changed:
                    if not stop.is_set():
                        self.loop.fail(error)
            if self.loop.failures != failed:  # said without the lock: a log may be slow
                log.warning("planning failed: %s", self.loop.last_error)


def as_seen(picture: ArrayLike | Observation) -> Seen:
    """A copy of a picture as bytes, but for what is not finite, which a loop reports."""
    if isinstance(picture, Observation):
        return picture
    pixels = picture.cpu().numpy() if isinstance(picture, torch.Tensor) else np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise InputError(f"picture: expected (height, width, 3), found shape {pixels.shape}")
    if pixels.dtype == np.uint8 or not np.isfinite(pixels).all():
        return pixels.copy()
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
