"""The pilot: what is encoded, watched, recalled and planned, for one loop or for many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Job, Loop, step_together
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.errors import InputError
from bilinear_wm.models.prior import BLOCKS
from tests.control.conftest import Camera, SlowPlanner, make_pilot
from tests.models.conftest import small_model


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (32, 32, 3), np.uint8)


def job_of(loop: Loop, seen: np.ndarray, goal: np.ndarray) -> Job:
    loop.set_goal(goal)
    loop.observe(seen)
    job = loop.next_job()
    assert job is not None
    return job


def noting(pilot: Pilot) -> list[int]:
    """How many pictures are encoded in each call."""
    counts: list[int] = []
    encode = pilot._encode

    def counted(pictures: np.ndarray) -> Any:
        counts.append(len(pictures))
        return encode(pictures)

    pilot._encode = counted
    return counts


def test_goals_are_encoded_once() -> None:
    pilot, _ = make_pilot()
    counts = noting(pilot)
    bodies = [(Camera(picture), pilot.loop(LoopConfig())) for _ in range(2)]
    for seed, (_, loop) in enumerate(bodies):
        loop.set_goal(picture(seed + 7))
    for _ in range(3):
        step_together(bodies, pilot.plan)
    bodies[0][1].set_goal(picture(50))
    step_together(bodies, pilot.plan)
    assert counts == [4, 2, 2, 3]


def test_what_is_seen_is_always_encoded() -> None:
    pilot, _ = make_pilot()
    loop, frame = pilot.loop(LoopConfig()), picture(1)
    body = Camera(lambda _: frame)  # a camera that writes over its picture
    loop.set_goal(picture(99))
    for seed in (1, 2):
        frame[:] = picture(seed)
        step_together([(body, loop)], pilot.plan)
        z = pilot.model.encode(picture(seed))
        torch.testing.assert_close(body.made[-1].plan.latents[0], z, rtol=1e-4, atol=1e-4)


def test_loops_with_different_horizons_plan_together() -> None:
    pilot, planner = make_pilot()
    loops = [pilot.loop(LoopConfig(horizon)) for horizon in (3, 2, 3)]
    jobs = [job_of(loop, picture(i), picture(i + 10)) for i, loop in enumerate(loops)]
    made = pilot.plan(jobs)
    assert [problem.horizon for problem in planner.problems] == [2, 3]
    assert [len(each.actions) for each in made] == [15, 10, 15]
    (alone,) = pilot.plan([jobs[2]])
    np.testing.assert_allclose(alone.actions, made[2].actions, atol=1e-4)
    for each in made:
        raw = pilot.model.to_env_actions(each.plan.actions).numpy()
        np.testing.assert_array_equal(each.actions, raw)
        rolled = pilot.model.dynamics.rollout(each.plan.latents[0], each.plan.actions)
        torch.testing.assert_close(each.plan.latents, rolled.detach(), rtol=1e-4, atol=1e-4)
        assert each.encode_seconds > 0
        assert each.plan_seconds > 0


def test_a_plan_that_continues_another_begins_from_its_rest() -> None:
    pilot, planner = make_pilot()
    loop = pilot.loop(LoopConfig(horizon=3))
    body = Camera(picture)
    loop.set_goal(picture(99))
    for _ in range(6):
        step_together([(body, loop)], pilot.plan)
    assert not planner.starts[0].any()
    torch.testing.assert_close(planner.starts[5][0], body.made[4].plan.actions[1:])


def test_on_a_long_way_plans_go_where_the_prior_would_be() -> None:
    model = small_model(
        "bilinear", prior_hidden=8, action_mean=(0.0, 0.0), action_std=(0.5, 0.5)
    ).eval()
    pilot = Pilot(model, SlowPlanner(model.dynamics, delay_s=0.0, every=0))
    z0, goal = torch.randn(2, 3, model.config.latent_size)
    near = pilot._problem(z0, goal, BLOCKS)
    assert near.prior is not None
    assert near.z_goal is not None
    torch.testing.assert_close(near.z_goal, goal)
    far = pilot._problem(z0, goal, BLOCKS + 3)
    told = model.propose(z0, goal, BLOCKS + 3)
    assert told is not None
    assert far.horizon == BLOCKS
    assert not torch.equal(told[:, :BLOCKS], near.prior)  # it knows that there is more time
    torch.testing.assert_close(far.prior, told[:, :BLOCKS].clamp(*pilot._bounds))
    assert far.prior is not None
    assert far.z_goal is not None
    torch.testing.assert_close(far.z_goal, model.dynamics.rollout(z0, far.prior)[:, -1])


@pytest.mark.parametrize("delay", [0, 1, 3])
@pytest.mark.parametrize("replan", ["always", "exhausted", 2])
def test_the_monitor_sees_every_block(delay: int, replan: Any) -> None:
    """Blocks are looked at whenever plans are made, and an alarm begins afresh."""
    pilot, planner = make_pilot()
    pilot.monitor = ActionMonitor(pilot.model.dynamics, -1.0)  # type: ignore[arg-type]
    loop = pilot.loop(LoopConfig(horizon=3, replan=replan))
    body = Camera(picture)
    loop.set_goal(picture(99))
    for _ in range(41):
        step_together([(body, loop)], pilot.plan, delay)
    looked = sum(made.alarms for made in body.made)
    assert looked >= (41 - 15 - 2 * delay) // 5  # all but those after the last plan
    assert looked <= 8
    alarmed = [i for i, made in enumerate(body.made) if made.alarms]
    assert all(planner.problems[i].horizon == 3 for i in alarmed)
    assert not any(planner.starts[i].any() for i in alarmed)


def test_the_monitor_compares_what_was_done_with_what_was_seen() -> None:
    pilot, _ = make_pilot()
    dynamics: Any = pilot.model.dynamics
    pilot.monitor = ActionMonitor(dynamics, math.inf)
    loop = pilot.loop(LoopConfig(horizon=2, replan=1))
    body = Camera(picture)
    loop.set_goal(picture(99))
    for _ in range(6):
        step_together([(body, loop)], pilot.plan)
    before, after = pilot.model.encode(np.stack([picture(0), picture(5)]))
    raw = torch.from_numpy(np.stack([tick.action for tick in body.ticks[:5]]))
    expected = pilot.monitor.disagreement(before, pilot.model.to_model_actions(raw)[0], after)
    assert body.made[0].disagreement is None
    assert body.made[1].disagreement == pytest.approx(float(expected), rel=1e-3)
    assert body.made[1].alarms == 0


def test_anything_may_be_observed_that_can_be_encoded() -> None:
    model = make_pilot()[0].model
    planner = make_pilot()[1]
    pilot = Pilot(model, planner, encode=lambda states: torch.from_numpy(states).float() / 10)
    made = pilot.plan([job_of(pilot.loop(LoopConfig(2)), np.arange(24.0), np.ones(24))])
    torch.testing.assert_close(made[0].plan.latents[0], torch.arange(24.0) / 10)


def test_a_deadline_counts_encoding() -> None:
    pilot, planner = make_pilot()
    seen: list[float | None] = []
    plan = planner.plan

    def noted(problem: Any, **options: Any) -> Any:
        seen.append(options["deadline_s"])
        return plan(problem, **options)

    planner.plan = noted  # type: ignore[method-assign]
    job = job_of(pilot.loop(LoopConfig(2)), picture(0), picture(1))
    pilot.plan([job])
    pilot.plan([job], deadline_s=5.0)
    pilot.plan([job], deadline_s=1e-9)
    assert seen[0] is None
    assert seen[1] is not None
    assert 0 < seen[1] < 5.0
    assert seen[2] == 1e-4


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((math.nan, 1.0), "action_low, action_high: expected"),
        ((1.0, -1.0), "the first no larger than the second"),
        ((-1.0, [1.0, 1.0, 1.0]), "action_high: expected one number or 2 each"),
    ],
)
def test_bad_bounds_are_refused(bounds: tuple[Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_pilot(action_low=bounds[0], action_high=bounds[1])
