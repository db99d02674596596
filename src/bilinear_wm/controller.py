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

`ControlState` is all of that without threads and clocks, and `simulate` runs it on simulated time.
CPython gives no hard real time: see docs/realtime.md for what to expect.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning.base import Plan, Planner, PlanProblem

log = logging.getLogger(__name__)

Action = NDArray[np.float32]
Source = Literal["plan", "best-so-far", "rest", "hold"]
PERIODS_UNTIL_STALE = 5


@dataclass(frozen=True)
class Tick:
    """What one tick decided."""

    index: int
    time: float
    late_s: float
    """How long after it was due."""
    source: Source
    reason: str
    """Why it holds; empty otherwise."""
    action: Action


@dataclass(frozen=True)
class Job:
    """Something to plan."""

    picture: NDArray[np.uint8]
    goal: NDArray[np.uint8]
    observation: int
    """Number of the observation it starts from."""
    tick: int
    """Number of the next tick."""
    executed: int
    """Planned actions that were executed before it."""


class ControlState:
    """What is seen, wanted and planned; decides ticks. Safe to use from several threads.

    Args:
        action_low: Smallest action.
        action_high: Largest action.
        hold: What holding means; zeros by default.
        max_age_s: Observations older than this are stale.
        replan: Plan from every new observation, or only when the plan at hand is `exhausted`.
    """

    def __init__(
        self,
        action_low: Action,
        action_high: Action,
        hold: ArrayLike | None = None,
        max_age_s: float = math.inf,
        replan: Literal["always", "exhausted"] = "always",
    ) -> None:
        self._low, self._high = action_low, action_high
        wanted = np.zeros_like(action_low) if hold is None else np.asarray(hold, np.float32)
        if wanted.shape != action_low.shape or not np.isfinite(wanted).all():
            raise InputError(f"hold: expected {action_low.size} finite numbers, found {hold!r}")
        self._hold = np.clip(wanted, action_low, action_high)
        self._max_age_s, self._replan = max_age_s, replan
        self._changed = threading.Condition()
        self._picture: NDArray[np.uint8] | None = None
        self._goal: NDArray[np.uint8] | None = None
        self._seen_at = -math.inf
        self._problem = "no observation"
        self._observations = self._planned = self._valid_from = self._executed = 0
        self._queue: deque[Action] = deque()
        self._arrived: Source | None = None
        self._ticks = 0
        self.sources: Counter[str] = Counter()
        """How often each source was used."""
        self.reasons: Counter[str] = Counter()
        """Why it held, and how often."""
        self.failures = 0
        """Plans that ended in an exception or were not finite."""
        self.last_error: Exception | None = None

    def observe(self, picture: ArrayLike, at: float) -> None:
        """Take what a camera saw at a time; what is not finite is reported, not planned from."""
        pixels, problem = _checked(picture)
        with self._changed:
            self._picture, self._problem, self._seen_at = pixels, problem, at
            self._observations += 1
            self._changed.notify_all()

    def set_goal(self, picture: ArrayLike) -> None:
        pixels, problem = _checked(picture)
        if pixels is None:
            raise InputError(f"goal: {problem}")
        with self._changed:
            self._goal = pixels
            self._changed.notify_all()

    def next_job(self, timeout: float | None = 0.0) -> Job | None:
        """Something worth planning, waiting for it at most so long."""
        with self._changed:
            self._changed.wait_for(self._worth_planning, timeout)
            if not self._worth_planning() or self._picture is None or self._goal is None:
                return None
            self._planned = self._observations
            return Job(self._picture, self._goal, self._observations, self._ticks, self._executed)

    def wake(self) -> None:
        """End the wait in `next_job`."""
        with self._changed:
            self._changed.notify_all()

    def _worth_planning(self) -> bool:
        if self._picture is None or self._goal is None or self._planned == self._observations:
            return False
        return self._replan == "always" or not self._queue

    def deliver(self, job: Job, actions: Action, complete: bool) -> None:
        """A plan is there: raw actions, one row a tick.

        While it was made, the plan before it went on. As many of its own first actions are left
        out, unless that would be all of them.
        """
        if not np.isfinite(actions).all():
            self.fail(ValueError("the plan has actions that are not finite"))
            return
        with self._changed:
            if job.observation < self._valid_from:
                return  # made from what is not true any more
            passed = self._executed - job.executed
            left = actions[passed:] if passed < len(actions) else actions
            self._queue = deque(np.clip(left, self._low, self._high))
            self._arrived = "plan" if complete else "best-so-far"

    def fail(self, error: Exception) -> None:
        """Planning raised; the plan at hand goes on."""
        with self._changed:
            self.failures += 1
            self.last_error = error
        log.warning("planning failed: %s", error)

    def tick(self, now: float, due: float | None = None) -> Tick:
        """Decide what to do now."""
        with self._changed:
            reason = self._why_hold(now)
            if reason:
                source, action = "hold", self._hold
                if reason != "no plan":
                    self._queue.clear()
                    self._valid_from = self._observations + 1
            else:
                source, action = self._arrived or "rest", self._queue.popleft()
                self._executed += 1
                if self._replan == "exhausted" and not self._queue:
                    self._changed.notify_all()
            self._arrived = None
            self.sources[source] += 1
            if reason:
                self.reasons[reason] += 1
            self._ticks += 1
            late = 0.0 if due is None else now - due
            return Tick(self._ticks - 1, now, late, source, reason, action.copy())  # type: ignore[arg-type]

    def _why_hold(self, now: float) -> str:
        if self._problem:
            return self._problem
        if now - self._seen_at > self._max_age_s:
            return "stale observation"
        return "" if self._queue else "no plan"


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
            model, planner, horizon, (low, high), deadline_s or self.period_s, shrink
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
        horizon: int,
        bounds: tuple[Action, Action],
        deadline_s: float,
        shrink: bool = True,
    ) -> None:
        self._model, self._planner = model, planner
        self._horizon, self._shrink = horizon, shrink
        self._bounds = model.action_bounds(*bounds)
        self._deadline_s = deadline_s
        self._goal: tuple[NDArray[np.uint8], Tensor] | None = None
        self.last: Plan | None = None
        self._begun = 0  # the tick at which the plans now continued began

    def use(self, planner: Planner) -> None:
        self._planner = planner

    def __call__(self, job: Job) -> tuple[Action, bool]:
        """Actions, and whether the search came to its own end."""
        begun = time.perf_counter()
        if self._goal is None or self._goal[0] is not job.goal:
            both = self._model.encode(np.stack([job.picture, job.goal]))
            z, self._goal = both[0], (job.goal, both[1])
        else:
            z = self._model.encode(job.picture)
        low, high = self._bounds
        horizon, warm_start = self._continue(job.tick)
        problem = PlanProblem(z, self._goal[1], horizon, low, high)
        left = max(self._deadline_s - (time.perf_counter() - begun), 1e-4)
        plan = self._planner.plan(problem, warm_start=warm_start, deadline_s=left)
        if plan.status == "bad_input":
            raise ValueError("the encoder's latents are not finite")
        self.last = plan
        actions = self._model.to_env_actions(plan.actions).cpu().numpy()
        return actions, plan.status != "deadline"

    def _continue(self, tick: int) -> tuple[int, Tensor | None]:
        """Blocks that the next plan looks ahead, and what to begin it from."""
        horizon = self._horizon
        if self._shrink:
            horizon -= (tick - self._begun) // self._model.config.frame_skip
        if self.last is None or horizon < 1:
            self._begun = tick
            return self._horizon, None
        return horizon, self.last.actions[-horizon:]


def simulate(
    state: ControlState,
    plan: Callable[[Job], tuple[Action, bool]],
    planning_time: Callable[[int], float],
    world: Callable[[int, Action], ArrayLike | None],
    ticks: int,
    period_s: float,
) -> list[Tick]:
    """The controller on simulated time, one thread, the same every time.

    Args:
        state: Has a goal already.
        plan: What the planner would do; may raise.
        planning_time: Seconds that the n-th plan takes.
        world: Takes the number of a tick and its action, gives the next observation, or None
            while the camera is silent.
        ticks: How many.
        period_s: Time between them.
    """
    done: list[Tick] = []
    busy: tuple[float, Job] | None = None
    planned = 0
    for index in range(ticks):
        now = index * period_s
        while busy is not None and busy[0] <= now + 1e-12:
            at, job = busy
            try:
                actions, complete = plan(job)
            except Exception as error:
                state.fail(error)
            else:
                state.deliver(job, actions, complete)
            following = state.next_job()
            busy = None if following is None else (at + planning_time(planned), following)
            planned += following is not None
        tick = state.tick(now, now)
        done.append(tick)
        picture = world(index, tick.action)
        if picture is not None:
            state.observe(picture, now)
        if busy is None and (waiting := state.next_job()) is not None:
            busy = now + planning_time(planned), waiting
            planned += 1
    return done


def _checked(picture: ArrayLike) -> tuple[NDArray[np.uint8] | None, str]:
    """A picture as bytes, or what is wrong with it."""
    pixels = picture.cpu().numpy() if isinstance(picture, torch.Tensor) else np.asarray(picture)
    if pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise InputError(f"picture: expected (height, width, 3), found shape {pixels.shape}")
    if pixels.dtype == np.uint8:
        return pixels.copy(), ""
    if not np.isfinite(pixels).all():
        return None, "observation is not finite"
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8), ""
