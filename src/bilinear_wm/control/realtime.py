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

`loop.py` is all of that without threads and clocks.
CPython gives no hard real time: see docs/realtime.md for what to expect.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bilinear_wm.control.loop import Action, ControlState, Job, Tick
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning.base import Plan, Planner, PlanProblem

log = logging.getLogger(__name__)

PERIODS_UNTIL_STALE = 5
PROGRESS = 0.5
"""What a plan must leave of the goal's distance at most, or the next one gets more time."""


class RealTimeController:
    """Ticks and plans in threads of their own.

    Args:
        model: Encodes pictures.
        planner: Plans on the model's dynamics.
        control_hz: Ticks a second: how often the environment takes an action.
        act: Called with the action on every tick, in the ticking thread; must return soon.
        horizon: Blocks a plan looks ahead when it begins.
        shrink: Let the plans that continue another look ahead shorter by what has passed, until it
            is used up. A plan uses all its time to arrive: begun anew on every tick at full
            length it would creep, and never get there.
        max_horizon: Give plans twice the time, up to this, when those before used theirs up without
            halving the latent distance to the goal: past an obstacle the way may be long. A new
            goal begins with `horizon` again. By default all get the same.
        action_low: Smallest action, a number or one an entry.
        action_high: Largest action.
        hold: What holding means; zeros by default.
        deadline_s: Time a plan may take; one period by default.
        max_age_s: Observations older than this are stale; five periods by default.
        replan: Plan from every new observation, or only when the plan at hand is `exhausted`.
        on_tick: Called with every decision, for logs.
    """

    def __init__(
        self,
        model: WorldModel,
        planner: Planner,
        control_hz: float,
        *,
        act: Callable[[Action], Any] | None = None,
        horizon: int = 5,
        shrink: bool = True,
        max_horizon: int | None = None,
        action_low: ArrayLike = -1.0,
        action_high: ArrayLike = 1.0,
        hold: ArrayLike | None = None,
        deadline_s: float | None = None,
        max_age_s: float | None = None,
        replan: Literal["always", "exhausted"] = "always",
        on_tick: Callable[[Tick], Any] | None = None,
    ) -> None:
        if not control_hz > 0:
            raise InputError(f"control_hz: expected more than 0, found {control_hz}")
        model.config.observes.must_be_picture("controller")
        longest = horizon if max_horizon is None else max_horizon
        if not 1 <= horizon <= longest:
            raise InputError(
                "horizon, max_horizon: expected at least 1, and the second no smaller, "
                f"found {horizon}, {longest}"
            )
        size = model.config.action_size
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), (size,)).copy()
            for bound in (action_low, action_high)
        )
        self.period_s = 1 / control_hz
        if max_age_s is None:
            max_age_s = PERIODS_UNTIL_STALE * self.period_s
        self.state = ControlState(low, high, hold, max_age_s, replan)
        self._plan = PlanMaker(
            model, planner, (horizon, longest), (low, high), deadline_s or self.period_s, shrink
        )
        self._act, self._on_tick = act, on_tick
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.missed = 0
        """Ticks that came more than a period late and were left out."""
        self._broken: BaseException | None = None

    def observe(self, picture: ArrayLike) -> None:
        """Take what a camera sees now; from any thread."""
        self.state.observe(picture, time.perf_counter())

    def set_goal(self, picture: ArrayLike) -> None:
        """Go there from now on; from any thread."""
        self.state.set_goal(picture)

    def use(self, planner: Planner) -> None:
        """Plan with another planner from now on; from any thread."""
        self._plan.use(planner)

    @property
    def last_plan(self) -> Plan | None:
        """The newest plan, in the model's units."""
        return self._plan.last

    def start(self) -> None:
        """Begin to tick."""
        if self._threads:
            raise InputError("controller: expected one that is stopped, found it running")
        self._stop.clear()
        self._broken = None
        self._threads = [
            threading.Thread(target=self._keep_planning, name="bwm-plan", daemon=True),
            threading.Thread(target=self._keep_ticking, name="bwm-tick", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End both threads; a planner that hangs is left behind. Raises what `act` raised."""
        self._stop.set()
        self.state.wake()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
            if thread.is_alive() and thread.name == "bwm-plan":
                log.warning("the planner did not end within %g s and is left behind", timeout_s)
        self._threads = []
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
        return any(thread.name == "bwm-tick" and thread.is_alive() for thread in self._threads)

    def _keep_ticking(self) -> None:
        due = time.perf_counter()
        try:
            while not self._stop.is_set():
                tick = self.state.tick(time.perf_counter(), due)
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
                    self._stop.wait(-behind)
        except BaseException as error:
            self._broken = error
            log.exception("the control loop ended")
            self._stop.set()

    def _keep_planning(self) -> None:
        while not self._stop.is_set():
            job = self.state.next_job(timeout=0.1)
            if job is None:
                continue
            try:
                actions, complete = self._plan(job)
            except Exception as error:
                self.state.fail(error)
            else:
                self.state.deliver(job, actions, complete)


class PlanMaker:
    """From pictures to raw actions, each plan begun from the one before."""

    def __init__(
        self,
        model: WorldModel,
        planner: Planner,
        horizons: tuple[int, int],
        bounds: tuple[Action, Action],
        deadline_s: float,
        shrink: bool = True,
    ) -> None:
        self._model, self._planner = model, planner
        self._horizons, self._shrink = horizons, shrink
        self._bounds = model.action_bounds(*bounds)
        self._deadline_s = deadline_s
        self._goal: tuple[NDArray[np.uint8], Tensor] | None = None
        self.last: Plan | None = None
        # Of the plans now continued: the tick at which they began, how far ahead they looked and
        # how far the goal was.
        self._begun, self._ahead, self._distance = 0, horizons[0], math.inf

    def use(self, planner: Planner) -> None:
        self._planner = planner

    def __call__(self, job: Job) -> tuple[Action, bool]:
        """Actions, and whether the search came to its own end."""
        begun = time.perf_counter()
        if self._goal is None or self._goal[0] is not job.goal:
            both = self._model.encode(np.stack([job.picture, job.goal]))
            z, self._goal = both[0], (job.goal, both[1])
            self._ahead, self._distance = min(self._ahead, self._horizons[0]), math.inf
        else:
            z = self._model.encode(job.picture)
        low, high = self._bounds
        horizon, warm_start = self._continue(job.tick, float((z - self._goal[1]).norm()))
        problem = PlanProblem(z, self._goal[1], horizon, low, high)
        left = max(self._deadline_s - (time.perf_counter() - begun), 1e-4)
        plan = self._planner.plan(problem, warm_start=warm_start, deadline_s=left)
        if plan.status == "bad_input":
            raise ValueError("the encoder's latents are not finite")
        self.last = plan
        actions = self._model.to_env_actions(plan.actions).cpu().numpy()
        return actions, plan.status != "deadline"

    def _continue(self, tick: int, distance: float) -> tuple[int, Tensor | None]:
        """Blocks that the next plan looks ahead, and what to begin it from."""
        left = self._ahead
        if self._shrink:
            left -= (tick - self._begun) // self._model.config.frame_skip
        if self.last is not None and left >= 1:
            return left, self.last.actions[-left:]
        shortest, longest = self._horizons
        stuck = distance > PROGRESS * self._distance
        self._ahead = min(2 * self._ahead, longest) if stuck else shortest
        self._begun, self._distance = tick, distance
        return self._ahead, None
