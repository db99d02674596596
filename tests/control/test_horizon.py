"""Receding horizon."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bilinear_wm.control.horizon import MPCConfig, RecedingHorizon, plan_together
from bilinear_wm.errors import InputError
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner
from tests.planning.conftest import M, bilinear, problem


def test_a_whole_plan_is_executed_and_forgotten() -> None:
    loop = RecedingHorizon(MPCConfig(horizon=3))
    actions = torch.arange(3.0)[:, None].expand(3, M)
    assert torch.equal(loop.accept(actions), actions)
    assert loop.horizon == 3
    assert not loop.warm_start(actions, M).any()


def test_a_shrinking_horizon_arrives() -> None:
    loop = RecedingHorizon(MPCConfig(horizon=3, replan_every=1))
    horizons, actions = [], torch.arange(3.0)[:, None].expand(3, M)
    for _ in range(5):
        horizons.append(loop.horizon)
        loop.accept(actions[: loop.horizon])
    assert horizons == [3, 2, 1, 3, 2]


def test_before_a_deadline_plans_keep_their_length_until_it_is_near() -> None:
    loop = RecedingHorizon(MPCConfig(horizon=5, replan_every=2, arrive="deadline"))
    horizons, left = [], 10
    while left > 0:
        loop.limit(left)
        horizons.append(loop.horizon)
        left -= len(loop.accept(torch.zeros(loop.horizon, M)))
    assert horizons == [5, 5, 5, 4, 2]


def test_the_rest_is_the_next_warm_start() -> None:
    actions = torch.arange(3.0)[:, None].expand(3, M)
    ways: dict[Any, list[float]] = {"plan": [1.0, 2.0], "deadline": [1.0, 2.0, 0.0]}
    for arrive, expected in ways.items():
        loop = RecedingHorizon(MPCConfig(horizon=3, replan_every=1, arrive=arrive))
        loop.accept(actions)
        assert loop.warm_start(actions, M)[:, 0].tolist() == expected
        loop.restart()
        assert loop.warm_start(actions, M).shape == (3, M)
        assert not loop.warm_start(actions, M).any()


def test_episodes_at_different_points_plan_together() -> None:
    planner = GaussNewtonPlanner(bilinear(), GaussNewtonConfig(compiled=False))
    p = problem(batch=3)
    config = MPCConfig(horizon=3, replan_every=1)
    loops = [RecedingHorizon(config) for _ in range(3)]
    loops[1].accept(torch.zeros(3, M))
    assert p.action_low is not None
    assert p.action_high is not None
    bounds = (p.action_low, p.action_high)
    moves = plan_together(planner, loops, p.z0, p.z_goal, bounds)
    assert [len(move.blocks) for move in moves] == [1, 1, 1]
    assert [loop.horizon for loop in loops] == [2, 1, 2]
    for z, move in zip(p.z0, moves, strict=True):
        expected = planner.dynamics.rollout(z, move.blocks)[1:]
        torch.testing.assert_close(move.latents, expected.detach(), rtol=1e-4, atol=1e-4)
    alone = RecedingHorizon(config)
    (single,) = plan_together(planner, [alone], p.z0[2:], p.z_goal[2:], bounds)
    torch.testing.assert_close(single.blocks, moves[2].blocks, rtol=1e-4, atol=1e-4)


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="horizon"):
        MPCConfig(horizon=0)
    with pytest.raises(InputError, match="replan_every: expected 1 to 3"):
        MPCConfig(horizon=3, replan_every=4)
    with pytest.raises(InputError, match="arrive: expected one of plan, deadline"):
        MPCConfig(arrive="never")  # type: ignore[arg-type]
