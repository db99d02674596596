"""The controller: an action on every tick, finite and in bounds, whatever happens to planning."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm.control.loop import ControlState, Job, Tick, simulate
from bilinear_wm.control.realtime import PlanMaker, RealTimeController
from bilinear_wm.errors import InputError
from bilinear_wm.planning import GaussNewtonPlanner
from bilinear_wm.planning.base import Plan, PlanProblem
from tests.models.conftest import small_model

PERIOD = 0.02
PICTURE = np.zeros((32, 32, 3), np.uint8)
LIMIT = np.ones(2, np.float32)


def state(**changes: Any) -> ControlState:
    made = ControlState(-LIMIT, LIMIT, max_age_s=0.11, **changes)
    made.set_goal(PICTURE)
    return made


def numbered(length: int = 5) -> Callable[[Job], tuple[np.ndarray, bool]]:
    """Plans that say which observation they were made from, in hundredths."""
    return lambda job: (np.full((length, 2), job.observation / 100, np.float32), True)


def sources(ticks: list[Tick]) -> list[str]:
    return [tick.source for tick in ticks]


def run(
    made: ControlState,
    ticks: int,
    plan: Callable[[Job], tuple[np.ndarray, bool]] | None = None,
    planning_time: Callable[[int], float] = lambda _: 0.01,
    world: Callable[[int, np.ndarray], Any] = lambda _index, _action: PICTURE,
) -> list[Tick]:
    done = simulate(made, plan or numbered(), planning_time, world, ticks, PERIOD)
    for tick in done:  # what is true of every tick in every test
        assert np.isfinite(tick.action).all()
        assert (np.abs(tick.action) <= 1).all()
    return done


def test_a_fast_planner_gives_every_tick_a_new_plan() -> None:
    ticks = run(state(), 6)
    assert sources(ticks) == ["hold", *["plan"] * 5]
    assert [round(100 * float(t.action[0])) for t in ticks] == [0, 1, 2, 3, 4, 5]
    assert ticks[0].reason == "no observation"


def test_the_rest_of_a_plan_bridges_a_slow_planner() -> None:
    ticks = run(state(), 12, planning_time=lambda _: 3.5 * PERIOD)
    assert sources(ticks[:8]) == [*["hold"] * 4, "plan", "rest", "rest", "plan"]
    assert ticks[1].reason == "no plan"


def test_what_has_passed_while_a_plan_was_made_is_left_out() -> None:
    counting = np.arange(1, 11, dtype=np.float32)[:, None].repeat(2, axis=1) / 100
    ticks = run(state(), 10, lambda _: (counting, True), planning_time=lambda _: 2.5 * PERIOD)
    executed = [round(100 * float(t.action[0])) for t in ticks]
    # The second plan comes two actions late and begins with its third, the third one three.
    assert executed == [0, 0, 0, 1, 2, 3, 4, 5, 4, 5]


def test_a_plan_is_executed_to_its_end_on_request() -> None:
    ticks = run(state(replan="exhausted"), 14, numbered(3))
    assert sources(ticks[1:5]) == ["plan", "rest", "rest", "plan"]


def test_a_deadline_gives_the_best_so_far() -> None:
    ticks = run(state(), 3, lambda _: (np.zeros((2, 2), np.float32), False))
    assert sources(ticks) == ["hold", "best-so-far", "best-so-far"]


def test_a_hanging_planner_ends_in_holding_and_recovery() -> None:
    made = state()
    slow = {3: 1.0}
    ticks = run(made, 80, planning_time=lambda n: slow.get(n, 0.01))
    names = sources(ticks)
    assert names[4:8] == ["rest"] * 4  # four of five are left of the last plan
    assert set(names[8:53]) == {"hold"}
    assert made.reasons["no plan"] == names[1:].count("hold")
    assert names[-1] == "plan"


def test_a_raising_planner_is_reported_and_tried_again() -> None:
    made = state()

    def plan(job: Job) -> tuple[np.ndarray, bool]:
        if job.observation % 3 == 0:
            raise RuntimeError("singular")
        return numbered()(job)

    ticks = run(made, 30, plan)
    assert set(sources(ticks[1:])) == {"plan", "rest"}
    assert made.failures == 9
    assert str(made.last_error) == "singular"


def test_a_plan_that_is_not_finite_is_a_failure() -> None:
    made = state()
    ticks = run(made, 5, lambda _: (np.full((5, 2), np.nan, np.float32), True))
    assert set(sources(ticks)) == {"hold"}
    assert made.failures == 4


def test_a_silent_camera_means_hold_until_it_comes_back() -> None:
    made = state()
    ticks = run(made, 60, numbered(30), world=lambda i, _: None if 10 <= i < 40 else PICTURE)
    names = sources(ticks)
    assert "hold" not in names[1:15]  # not older than 0.11 s
    assert set(names[15:41]) == {"hold"}
    assert {tick.reason for tick in ticks[16:40]} == {"stale observation"}
    assert "hold" not in names[42:]
    assert made.reasons["stale observation"] == 26


def test_a_burst_of_nan_means_hold_at_once_and_forgets_the_plan() -> None:
    bad = np.full(PICTURE.shape, np.nan)
    made = state()
    ticks = run(
        made,
        30,
        numbered(30),
        lambda _: 1.5 * PERIOD,
        lambda i, _: bad if 10 <= i < 15 else PICTURE,
    )
    names = sources(ticks)
    assert set(names[11:16]) == {"hold"}
    assert {tick.reason for tick in ticks[11:16]} == {"observation is not finite"}
    assert ticks[16].reason == "no plan"  # those from before the burst do not count
    assert names[18] == "plan"


def test_actions_are_kept_in_bounds() -> None:
    ticks = run(state(), 4, lambda _: (np.full((3, 2), 9.0, np.float32), True))
    assert ticks[-1].action == pytest.approx([1, 1])
    assert ControlState(-LIMIT, LIMIT, hold=[5, 0]).tick(0).action == pytest.approx([1, 0])


def test_simulated_time_repeats_itself() -> None:
    first, second = (run(state(), 40, planning_time=lambda n: 0.013 * n) for _ in range(2))
    assert sources(first) == sources(second)
    np.testing.assert_array_equal([t.action for t in first], [t.action for t in second])


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"picture: expected \(height, width, 3\), found shape"):
        state().observe(np.zeros((3, 3)), 0.0)
    with pytest.raises(InputError, match="goal: observation is not finite"):
        state().set_goal(np.full((8, 8, 3), np.inf))
    with pytest.raises(InputError, match="hold: expected 2 finite numbers"):
        ControlState(-LIMIT, LIMIT, hold=[0, np.nan])
    with pytest.raises(InputError, match="control_hz: expected more than 0"):
        controller(control_hz=0)


class SlowPlanner(GaussNewtonPlanner):
    """Takes so long, hangs until told, or raises now and then."""

    def __init__(self, *args: Any, delay_s: float = 0.0, every: int = 0) -> None:
        super().__init__(*args)
        self.delay_s, self.every, self.calls = delay_s, every, 0
        self.gate = threading.Event()
        self.gate.set()

    def plan(self, problem: PlanProblem, **options: Any) -> Plan:
        self.calls += 1
        self.gate.wait()
        time.sleep(self.delay_s)
        if self.every and self.calls % self.every == 0:
            raise RuntimeError("out of luck")
        return super().plan(problem, **options)


def controller(
    control_hz: float = 200, delay_s: float = 0.0, every: int = 0, **options: Any
) -> RealTimeController:
    model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)).eval()
    planner = SlowPlanner(model.dynamics, delay_s=delay_s, every=every)
    # No deadline: on a busy machine all plans would miss a period's.
    return RealTimeController(model, planner, control_hz, deadline_s=math.inf, **options)


def drive(made: RealTimeController, until: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Show pictures until something has happened."""
    rng = np.random.default_rng(0)
    made.set_goal(rng.integers(0, 255, (32, 32, 3), np.uint8))
    ends = time.perf_counter() + limit_s
    while not until():
        assert time.perf_counter() < ends, "nothing happened"
        made.observe(rng.integers(0, 255, (32, 32, 3), np.uint8))
        time.sleep(0.002)


def test_a_planner_ten_times_too_slow_leaves_no_tick_without_action() -> None:
    ticks = run(state(), 1000, numbered(25), planning_time=lambda _: 10 * PERIOD)
    assert [tick.index for tick in ticks] == list(range(1000))
    assert max(tick.late_s for tick in ticks) == 0
    assert "hold" not in sources(ticks)[11:]


def test_the_clock_ticks_on_while_plans_are_made() -> None:
    ticks: list[Tick] = []
    sent: list[np.ndarray] = []
    made = controller(50, delay_s=0.2, act=sent.append, on_tick=ticks.append, max_age_s=1.0)
    with made:  # ten periods a plan
        drive(made, lambda: len(ticks) >= 200)
    assert len(sent) >= 200
    assert all(np.isfinite(a).all() and (np.abs(a) <= 1).all() for a in sent)
    assert made.state.sources["rest"] > made.state.sources["plan"] > 5
    # Whoever else uses the machine may pause it; benchmarks/realtime.py measures how steady it is.
    late = sum(tick.late_s > made.period_s for tick in ticks) + made.missed
    assert late <= 0.5 * len(ticks)


def test_threads_survive_hanging_and_raising() -> None:
    made = controller(200, every=4, max_age_s=1.0)
    planner: Any = made._plan._planner
    with made:
        drive(made, lambda: made.state.failures >= 3)
        assert made.state.sources["plan"] > 0
        planner.gate.clear()
        before = made.state.reasons["no plan"]
        drive(made, lambda: made.state.reasons["no plan"] > before + 5)
        planner.gate.set()
        planned = made.state.sources["plan"]
        drive(made, lambda: made.state.sources["plan"] > planned)
    assert not made.running


def horizons_of_plans(
    pictures: list[tuple[np.ndarray, np.ndarray]], horizons: tuple[int, int], shrink: bool = True
) -> list[int]:
    """How far ahead the plans look that are made tick after tick, seeing one and wanting one."""
    model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)).eval()
    noted: list[int] = []

    class Noting(GaussNewtonPlanner):
        def plan(self, problem: PlanProblem, **options: Any) -> Plan:
            noted.append(problem.horizon)
            return super().plan(problem, **options)

    make = PlanMaker(model, Noting(model.dynamics), horizons, (-LIMIT, LIMIT), 1.0, shrink)
    for tick, (seen, wanted) in enumerate(pictures):
        make(Job(seen, wanted, tick, tick, tick))
    return noted


def test_plans_that_continue_another_look_ahead_shorter() -> None:
    still = [(PICTURE, PICTURE + 255)] * 20
    assert horizons_of_plans(still, (3, 3)) == [3] * 5 + [2] * 5 + [1] * 5 + [3] * 5
    assert horizons_of_plans(still, (3, 3), shrink=False) == [3] * 20


def test_plans_that_do_not_arrive_get_more_time() -> None:
    goal, other = PICTURE + 255, PICTURE + 100
    still = [(PICTURE, goal)] * 40
    assert horizons_of_plans(still, (1, 3))[::5] == [1, 2, 1, 3, 2, 1, 3, 2]
    arrived = [(PICTURE, goal)] * 5 + [(goal, goal)] * 5
    assert horizons_of_plans(arrived, (1, 3))[::5] == [1, 1]
    wished = [(PICTURE, goal)] * 15 + [(PICTURE, other)] * 10
    assert horizons_of_plans(wished, (1, 3))[::5] == [1, 2, 1, 1, 2]
    amid = [(PICTURE, goal)] * 10 + [(PICTURE, other)] * 5  # does not wait for the long plan's end
    assert horizons_of_plans(amid, (1, 3))[::5] == [1, 2, 1]
    with pytest.raises(InputError, match="the second no smaller, found 5, 3"):
        controller(max_horizon=3)


def test_it_starts_and_stops_again_and_again() -> None:
    before = threading.active_count()
    made = controller(500)
    for _ in range(5):
        with made, pytest.raises(InputError, match="found it running"):
            made.start()
    assert threading.active_count() == before
    made.stop()  # once more does no harm


def test_an_actuator_that_raises_ends_the_loop_and_is_heard() -> None:
    def act(_: np.ndarray) -> None:
        raise OSError("cable")

    made = controller(200, act=act)
    made.start()
    while made.running:
        time.sleep(0.001)
    with pytest.raises(OSError, match="cable"):
        made.stop()


def test_a_stopped_planner_thread_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    made = controller(200)
    planner: Any = made._plan._planner
    planner.gate.clear()
    made.start()
    drive(made, lambda: planner.calls > 0)
    made.stop(timeout_s=0.05)
    planner.gate.set()
    assert "left behind" in caplog.text


def test_pictures_may_be_tensors_and_floats() -> None:
    made = state()
    made.observe(torch.zeros(8, 8, 3, dtype=torch.uint8), 0.0)
    assert made.next_job() is not None
    made.observe(np.full((8, 8, 3), 300.0), 0.1)
    job = made.next_job()
    assert job is not None
    assert job.picture.dtype == np.uint8
    assert job.picture.max() == 255
