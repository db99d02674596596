"""The loop on simulated time: an action on every tick, whatever happens to planning."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Loop
from bilinear_wm.errors import InputError
from tests.control.conftest import (
    LIMIT,
    PERIOD,
    PICTURE,
    SKIP,
    counting,
    delivery,
    hundredths,
    make_loop,
    numbered,
    simulate,
    sources,
)


def test_a_fast_planner_gives_every_tick_a_new_plan() -> None:
    ticks = simulate(make_loop(), 6)
    assert sources(ticks) == ["plan"] * 6
    assert hundredths(ticks) == [1, 2, 3, 4, 5, 6]


def test_the_rest_of_a_plan_bridges_a_slow_planner() -> None:
    ticks = simulate(make_loop(), 9, numbered(10), delay=lambda _: 3)
    assert sources(ticks) == [*["hold"] * 3, *["plan", "rest", "rest"] * 2]
    assert {tick.reason for tick in ticks[:3]} == {"no plan"}


def test_late_actions_are_dropped_or_kept() -> None:
    def executed(late: str) -> list[int]:
        delays = [2, 2, 3]
        return hundredths(
            simulate(make_loop(late=late), 9, counting(), lambda n: delays[min(n, 2)])
        )

    # The second plan comes two actions late and begins with its third, the third one three.
    assert executed("drop") == [0, 0, 1, 2, 3, 4, 5, 4, 5]
    assert executed("keep") == [0, 0, 1, 2, 1, 2, 3, 1, 2]


def test_a_plan_that_is_late_as_a_whole_is_executed_all_the_same() -> None:
    ticks = simulate(
        make_loop(), 9, lambda job: counting(3 if job.tick else 10)(job), lambda n: 5 if n else 0
    )
    assert hundredths(ticks) == [1, 2, 3, 4, 5, 6, 1, 2, 3]


def test_a_plan_is_executed_to_its_end_on_request() -> None:
    exhausted = simulate(make_loop(replan="exhausted"), 8, counting(3))
    assert hundredths(exhausted) == [1, 2, 3, 1, 2, 3, 1, 2]
    late = simulate(make_loop(replan="exhausted", late="keep"), 10, counting(3), lambda _: 2)
    assert hundredths(late) == [0, 0, 1, 2, 3, 0, 0, 1, 2, 3]  # the paper's protocol


def test_a_plan_is_replaced_after_some_blocks_on_request() -> None:
    ticks = simulate(make_loop(replan=2), 24, counting(25))
    assert hundredths(ticks) == [*range(1, 11)] * 2 + [1, 2, 3, 4]
    short = simulate(make_loop(replan=2), 8, counting(5))  # exhausted before
    assert hundredths(short) == [1, 2, 3, 4, 5, 1, 2, 3]


def test_horizons_shrink_grow_and_end_with_the_budget() -> None:
    def horizons(loop: Loop, ticks: int) -> list[int]:
        found = []

        def make(job):  # type: ignore[no-untyped-def]
            made = delivery(job, np.zeros((25, 2), np.float32))
            found.append(made.course.horizon)
            return made

        simulate(loop, ticks, make)
        return found

    shrinking = [*[3] * 5, *[2] * 5, *[1] * 5, *[3] * 5]
    assert horizons(make_loop(horizon=3), 20) == shrinking
    growing = make_loop(horizon=1, max_horizon=2)
    assert horizons(growing, 20) == [*[1] * 5, *[2] * 5, *[1] * 5, *[2] * 5]
    deadline = make_loop(50, replan=2, arrive="deadline")
    assert horizons(deadline, 50) == [5, 5, 5, 4, 2]
    # Nothing is continued when nothing is left: each plan begins at full length.
    exhausted = make_loop(horizon=5, replan="exhausted")
    assert horizons(exhausted, 60) == [5, 5, 5]


def test_a_deadline_gives_the_best_so_far() -> None:
    make = lambda job: delivery(job, np.zeros((2, 2), np.float32), "deadline")  # noqa: E731
    assert sources(simulate(make_loop(), 3, make)) == ["best-so-far"] * 3


def test_a_hanging_planner_ends_in_holding_and_recovery() -> None:
    loop = make_loop()
    ticks = simulate(loop, 80, delay=lambda n: 50 if n == 3 else 0)
    names = sources(ticks)
    assert names[3:7] == ["rest"] * 4  # four of five are left of the last plan
    assert set(names[7:53]) == {"hold"}
    assert loop.reasons["no plan"] == names.count("hold")
    assert names[-1] == "plan"


def test_a_planner_ten_times_too_slow_leaves_no_tick_without_action() -> None:
    ticks = simulate(make_loop(), 1000, numbered(25), delay=lambda _: 10)
    assert [tick.index for tick in ticks] == list(range(1000))
    assert "hold" not in sources(ticks)[10:]


def test_what_cannot_be_executed_is_a_failure() -> None:
    for make in (
        lambda job: delivery(job, np.full((5, 2), np.nan, np.float32)),
        lambda job: delivery(job, np.zeros((5, 2), np.float32), "bad_input"),
    ):
        loop = make_loop()
        assert set(sources(simulate(loop, 5, make))) == {"hold"}
        assert loop.failures == 5
        assert "not finite" in str(loop.last_error)


def test_a_failure_leaves_the_plan_at_hand() -> None:
    loop = make_loop()
    simulate(loop, 1, counting())
    loop.fail(SystemExit("planner"))
    assert hundredths([loop.tick()]) == [2]
    assert loop.failures == 1


def test_a_silent_camera_means_hold_until_it_comes_back() -> None:
    loop = make_loop(max_age_s=0.11)
    ticks = simulate(loop, 60, numbered(30), world=lambda i: None if 10 <= i < 40 else PICTURE)
    names = sources(ticks)
    assert "hold" not in names[:15]  # not older than 0.11 s
    assert set(names[15:40]) == {"hold"}
    assert {tick.reason for tick in ticks[15:40]} == {"stale observation"}
    assert "hold" not in names[40:]
    assert loop.reasons["stale observation"] == 25


def test_a_burst_of_nan_means_hold_at_once_and_forgets_the_plan() -> None:
    bad = np.full(PICTURE.shape, np.nan)
    loop = make_loop()
    ticks = simulate(
        loop, 30, numbered(30), lambda _: 1, lambda i: bad if 10 <= i < 15 else PICTURE
    )
    names = sources(ticks)
    assert set(names[10:15]) == {"hold"}
    assert {tick.reason for tick in ticks[10:15]} == {"observation is not finite"}
    assert ticks[15].reason == "no plan"  # those from before the burst do not count
    assert names[16] == "plan"


def test_actions_are_kept_in_bounds() -> None:
    make = lambda job: delivery(job, np.full((3, 2), 9.0, np.float32))  # noqa: E731
    assert simulate(make_loop(), 4, make)[-1].action == pytest.approx([1, 1])
    holding = Loop(LoopConfig(), -LIMIT, LIMIT, SKIP, hold=[5, 0])
    assert holding.tick().action == pytest.approx([1, 0])


def test_simulated_time_repeats_itself() -> None:
    first, second = (simulate(make_loop(), 40, delay=lambda n: n % 4) for _ in range(2))
    assert sources(first) == sources(second)
    np.testing.assert_array_equal([t.action for t in first], [t.action for t in second])


def test_lateness_is_told() -> None:
    assert make_loop().tick(now=1.0, due=0.75).late_s == 0.25
    assert max(tick.late_s for tick in simulate(make_loop(), 3)) == 0
    assert simulate(make_loop(), 3)[2].time == 2 * PERIOD


@pytest.mark.parametrize(
    ("low", "high", "options", "message"),
    [
        (-LIMIT, math.nan * LIMIT, {}, "action_low, action_high: expected one number or 2"),
        (LIMIT, -LIMIT, {}, "the first no larger than the second"),
        (-LIMIT, np.ones(3), {}, "action_low, action_high: expected one number or 2"),
        (-LIMIT, LIMIT, {"hold": [0, math.nan]}, "hold: expected 2 finite numbers"),
        (-LIMIT, LIMIT, {"max_age_s": math.nan}, "max_age_s: expected more than 0, found nan"),
        (-LIMIT, LIMIT, {"max_age_s": -1.0}, "max_age_s: expected more than 0"),
    ],
)
def test_bad_settings_are_refused(
    low: np.ndarray, high: np.ndarray, options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Loop(LoopConfig(), low, high, SKIP, **options)  # type: ignore[arg-type]


def test_a_goal_must_be_finite() -> None:
    with pytest.raises(InputError, match="goal: expected finite numbers"):
        make_loop().set_goal(np.full((8, 8, 3), np.inf))
