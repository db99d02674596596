"""How far plans look ahead, and what they begin from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bilinear_wm.control.horizon import Course, LoopConfig
from bilinear_wm.errors import InputError

SKIP, M = 5, 10


def courses(
    ticks: range, distances: dict[int, float] | None = None, new_goals: tuple[int, ...] = (),
    budget: int | None = None, **changes: Any,
) -> list[Course]:  # fmt: skip
    """The courses of plans made at these ticks, each continuing the one before."""
    course, found = Course(LoopConfig(**changes), SKIP), []
    for tick in ticks:
        left = None if budget is None else budget - tick
        distance = (distances or {}).get(tick, 1.0)
        course = course.next(tick, distance, tick in (0, *new_goals), left)
        found.append(course)
        rows = torch.arange(float(course.horizon))[:, None].expand(-1, M)
        course = replace(course, blocks=rows)
    return found


def horizons(*args: Any, **options: Any) -> list[int]:
    return [course.horizon for course in courses(*args, **options)]


def test_plans_that_continue_another_arrive_with_it() -> None:
    assert horizons(range(0, 25, 5), horizon=3) == [3, 2, 1, 3, 2]
    assert horizons(range(20), horizon=3) == [3] * 5 + [2] * 5 + [1] * 5 + [3] * 5


def test_before_a_deadline_plans_keep_their_length_until_it_is_near() -> None:
    every_two = range(0, 50, 10)
    assert horizons(every_two, budget=50, arrive="deadline") == [5, 5, 5, 4, 2]
    assert horizons(every_two, arrive="deadline") == [5] * 5
    assert horizons(range(45, 50, 2), budget=50, arrive="deadline") == [1] * 3


def test_no_plan_looks_beyond_the_time_that_is_left_if_limited() -> None:
    assert horizons(range(0, 50, 26), budget=50, limited=True) == [5, 4]
    assert horizons(range(0, 50, 26), budget=50) == [5, 5]
    assert horizons(range(47, 50, 3), budget=50, limited=True) == [1]


def test_the_rest_is_the_next_warm_start() -> None:
    def starts(**changes: Any) -> list[list[float] | None]:
        found = courses(range(0, 15, 5), horizon=3, **changes)
        return [None if c.start is None else c.start[:, 0].tolist() for c in found]

    assert starts() == [None, [1.0, 2.0], [1.0]]
    assert starts(arrive="deadline") == [None, [1.0, 2.0], [1.0, 2.0]]
    assert starts(warm_start=False) == [None, None, None]
    second = courses(range(0, 14, 6), horizon=3)[2]  # ticks 0, 6 and 12: the plans end together
    assert second.start is not None
    assert second.start[:, 0].tolist() == [1.0]


def test_plans_that_do_not_arrive_get_more_time() -> None:
    sizes: dict[str, Any] = {"horizon": 1, "max_horizon": 3}
    assert horizons(range(40), **sizes)[::5] == [1, 2, 1, 3, 2, 1, 3, 2]
    arrived = dict.fromkeys(range(5, 10), 0.0)
    assert horizons(range(10), arrived, **sizes)[::5] == [1, 1]
    assert horizons(range(25), new_goals=(15,), **sizes)[::5] == [1, 2, 1, 1, 2]
    # A new goal does not wait for the long plan's end.
    assert horizons(range(15), new_goals=(10,), **sizes)[::5] == [1, 2, 1]


def test_afresh_forgets_plans_and_keeps_latents() -> None:
    known = ((torch.zeros(1).numpy(), torch.zeros(3)),)
    course = replace(courses(range(12), horizon=3)[-1], blocks=torch.ones(1, M), known=known)
    again = course.afresh()
    assert again.known == known
    assert again.next(12, 9.0, False, None).horizon == 3
    assert again.next(12, 9.0, False, None).start is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 0}, "horizon: expected at least one block, found 0"),
        ({"max_horizon": 3}, r"max_horizon: expected at least 5 \(the horizon\), found 3"),
        ({"horizon": 3, "replan": 4}, "replan_every: expected 1 to 3"),
        ({"replan": 0}, "replan_every: expected 1 to 5"),
        ({"replan": "sometimes"}, "replan: expected one of always, exhausted, found 'sometimes'"),
        ({"arrive": "never"}, "arrive: expected one of plan, deadline"),
        ({"late": "perhaps"}, "late: expected one of drop, keep"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LoopConfig(**changes)
