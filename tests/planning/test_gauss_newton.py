"""The Gauss-Newton search: its step, its options, its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner, PlanProblem
from tests.planning.conftest import ENV, D, M, bilinear, goal_of, problem


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hundred_problems_at_once_are_planned_as_one_by_one(
    compiled: bool, dtype: torch.dtype
) -> None:
    dynamics = bilinear(seed=4, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(100, D, generator=generator).to(dtype)
    held = torch.randn(100, 5, ENV, generator=generator).repeat(1, 1, M // ENV).to(dtype)
    goal = dynamics.rollout(z0, 0.7 * held)[:, -1].detach()
    box = torch.full((M,), 2.0)
    planner = GaussNewtonPlanner(dynamics, GaussNewtonConfig(compiled=compiled))
    together = planner.plan(PlanProblem(z0, goal, 5, -box, box))
    alone = [planner.plan(PlanProblem(*pair, 5, -box, box)) for pair in zip(z0, goal, strict=True)]
    cost = torch.stack([plan.cost for plan in alone])
    torch.testing.assert_close(cost, together.cost, rtol=1e-5, atol=0)
    if dtype == torch.float64:  # single precision leaves flat directions open
        actions = torch.stack([plan.actions for plan in alone])
        torch.testing.assert_close(actions, together.actions, rtol=0, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_cost_beyond_single_precision_has_not_converged(compiled: bool) -> None:
    config = GaussNewtonConfig(goal_weight=1e30, compiled=compiled)
    p = problem()
    plan = GaussNewtonPlanner(bilinear(), config).plan(replace(p, z_goal=1e6 * goal_of(p)))
    assert plan.cost == torch.inf
    assert plan.status == "diverged"


def test_a_path_is_followed() -> None:
    p = problem(horizon=5)
    dynamics = bilinear()
    reachable = dynamics.rollout(p.z0, 0.5 * torch.randn(5, M, generator=torch.Generator()))
    path = reachable[1:].detach()
    through = PlanProblem(p.z0, path[-1], 5, path=path)
    for compiled in (True, False):
        config = GaussNewtonConfig(effort=0, path_weight=1.0, coherent=False, compiled=compiled)
        plan = GaussNewtonPlanner(dynamics, config).plan(through)
        assert (plan.latents[1:] - path).norm() < 0.05 * (path - p.z0).norm()


def test_the_step_solves_a_linear_model_at_once() -> None:
    dynamics = bilinear(dtype=torch.float64)
    with torch.no_grad():
        dynamics.C.zero_()  # constant directions: the endpoint is affine in the actions
    p = problem(horizon=3, box=False)
    config = GaussNewtonConfig(effort=0.1, damping=1e-12, coherent=False)
    plan = GaussNewtonPlanner(dynamics, config).plan(p)
    assert plan.status == "converged"
    assert isinstance(plan.iterations, int)
    assert plan.iterations <= 2
    z0, goal = p.z0.double(), goal_of(p).double()
    at_rest = dynamics.rollout(z0, torch.zeros(3, M).double())[-1]
    j = torch.autograd.functional.jacobian(
        lambda a: dynamics.rollout(z0, a)[-1], torch.zeros(3, M).double()
    ).flatten(-2)
    exact = torch.linalg.solve(j.T @ j + 0.1 * torch.eye(3 * M), j.T @ (goal - at_rest))
    torch.testing.assert_close(plan.actions.flatten(), exact, rtol=0, atol=1e-6)


def test_smoothness_smooths() -> None:
    p = problem(horizon=5, box=False)
    rough, smooth = (
        GaussNewtonPlanner(bilinear(), GaussNewtonConfig(smoothness=s)).plan(p).actions
        for s in (0.0, 1.0)
    )
    jerk = [a.view(-1, ENV).diff(dim=0).norm() for a in (rough, smooth)]
    assert jerk[1] < 0.5 * jerk[0]


def test_more_candidates_and_starts_never_hurt() -> None:
    p = problem(batch=8, horizon=5, box=False)
    alone = GaussNewtonPlanner(bilinear(seed=7), GaussNewtonConfig()).plan(p).cost
    config = GaussNewtonConfig(candidates=16, starts=17, screening=0)
    many = GaussNewtonPlanner(bilinear(seed=7), config).plan(p).cost
    assert (many <= alone * 1.001).all()


def test_a_real_time_tick_is_one_iteration_from_the_shifted_plan() -> None:
    """Warm started single iterations arrive where a long search does."""
    p = problem()
    dynamics = bilinear()
    tick = GaussNewtonPlanner(dynamics, GaussNewtonConfig(iterations=1))
    plan = tick.plan(p)
    for _ in range(20):
        plan = tick.plan(p, warm_start=plan.actions)
    thorough = GaussNewtonPlanner(dynamics, GaussNewtonConfig(iterations=60)).plan(p)
    torch.testing.assert_close(plan.cost, thorough.cost, rtol=1e-3, atol=1e-5)
