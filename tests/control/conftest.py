"""Loops, pilots and planners for the controller's tests."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bilinear_wm.control.horizon import Course, LoopConfig
from bilinear_wm.control.loop import Delivery, Job, Loop, Tick, step_together
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.planning import GaussNewtonPlanner
from bilinear_wm.planning.base import Plan, PlanProblem, Status
from tests.models.conftest import small_model

SKIP = 5
PERIOD = 0.02
PICTURE = np.zeros((32, 32, 3), np.uint8)
LIMIT = np.ones(2, np.float32)

Make = Callable[[Job], Delivery]


def make_loop(budget: int | None = None, max_age_s: float = math.inf, **changes: Any) -> Loop:
    return Loop(LoopConfig(**changes), -LIMIT, LIMIT, SKIP, budget, max_age_s=max_age_s)


def delivery(job: Job, actions: np.ndarray, status: Status = "converged") -> Delivery:
    """A plan of these raw actions."""
    course = job.course.next(job.tick, 1.0, False, job.ticks_left)
    blocks = torch.zeros(course.horizon, 10)
    plan = Plan(blocks, torch.zeros(course.horizon + 1, 12), torch.zeros(()), status, 1, 0.0)
    return Delivery(actions, plan, with_plan(course, blocks))


def with_plan(course: Course, blocks: torch.Tensor) -> Course:
    return Course(**(vars(course) | {"blocks": blocks}))


def numbered(length: int = 5) -> Make:
    """Plans that say which observation they were made from, in hundredths."""
    return lambda job: delivery(job, np.full((length, 2), job.number / 100, np.float32))


def counting(length: int = 10) -> Make:
    """Plans whose actions are 1, 2, 3, ... hundredths."""
    actions = np.arange(1, length + 1, dtype=np.float32)[:, None].repeat(2, axis=1) / 100
    return lambda job: delivery(job, actions)


class Camera:
    """A body that only looks: at what a function of the tick's number shows, None for nothing."""

    def __init__(self, world: Callable[[int], Any] = lambda _: PICTURE) -> None:
        self._world = world
        self.ticks: list[Tick] = []
        self.made: list[Delivery] = []

    def look(self, loop: Loop) -> None:
        seen = self._world(len(self.ticks))
        if seen is not None:
            loop.observe(seen, len(self.ticks) * PERIOD)

    def planned(self, made: Delivery) -> None:
        self.made.append(made)

    def act(self, tick: Tick) -> None:
        assert np.isfinite(tick.action).all()  # what is true of every tick in every test
        assert (np.abs(tick.action) <= 1).all()
        self.ticks.append(tick)


def simulate(
    loop: Loop,
    ticks: int,
    make: Make | None = None,
    delay: Callable[[int], int] = lambda _: 0,
    world: Callable[[int], Any] = lambda _: PICTURE,
) -> list[Tick]:
    """A loop on simulated time; the n-th plan takes `delay(n)` ticks."""
    body = Camera(world)
    loop.set_goal(PICTURE)
    for index in range(ticks):
        step_together(
            [(body, loop)],
            lambda jobs: [(make or numbered())(job) for job in jobs],
            delay(len(body.made)),
            index * PERIOD,
        )
    return body.ticks


def sources(ticks: list[Tick]) -> list[str]:
    return [tick.source for tick in ticks]


def hundredths(ticks: list[Tick]) -> list[int]:
    return [round(100 * float(tick.action[0])) for tick in ticks]


class SlowPlanner(GaussNewtonPlanner):
    """Takes so long, hangs until told, or raises now and then."""

    def __init__(self, *args: Any, delay_s: float = 0.0, every: int = 0) -> None:
        super().__init__(*args)
        self.delay_s, self.every, self.calls = delay_s, every, 0
        self.error: BaseException = RuntimeError("out of luck")
        self.gate, self.held = threading.Event(), threading.Event()
        self.gate.set()
        self.problems: list[PlanProblem] = []
        self.starts: list[torch.Tensor] = []

    def plan(self, problem: PlanProblem, **options: Any) -> Plan:
        self.calls += 1
        self.problems.append(problem)
        self.starts.append(options["warm_start"])
        if not self.gate.is_set():
            self.held.set()
            self.gate.wait()
        time.sleep(self.delay_s)
        if self.every and self.calls % self.every == 0:
            raise self.error
        return super().plan(problem, **options)


def make_pilot(**options: Any) -> tuple[Pilot, SlowPlanner]:
    model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)).eval()
    planner = SlowPlanner(model.dynamics, delay_s=options.pop("delay_s", 0.0),
                          every=options.pop("every", 0))  # fmt: skip
    return Pilot(model, planner, **options), planner


def make_controller(
    control_hz: float = 200, config: LoopConfig | None = None, delay_s: float = 0.0,
    every: int = 0, **options: Any,
) -> tuple[RealTimeController, SlowPlanner]:  # fmt: skip
    pilot, planner = make_pilot(delay_s=delay_s, every=every)
    # No deadline: on a busy machine all plans would miss a period's.
    options = {"deadline_s": math.inf} | options
    return RealTimeController(
        pilot.model, pilot.planner, control_hz, config, pilot=pilot, **options
    ), planner


def wait_until(happened: Callable[[], bool], meanwhile: Callable[[], object] = bool) -> None:
    """Until something has happened, however busy the machine is."""
    ends = time.perf_counter() + 300
    while not happened():
        assert time.perf_counter() < ends, "it did not happen"
        meanwhile()
        time.sleep(0.002)


def drive(made: RealTimeController, until: Callable[[], bool]) -> None:
    """Show pictures until something has happened."""
    rng = np.random.default_rng(0)
    made.set_goal(rng.integers(0, 255, (32, 32, 3), np.uint8))
    wait_until(until, lambda: made.observe(rng.integers(0, 255, (32, 32, 3), np.uint8)))
