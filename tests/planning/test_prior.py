"""A plan to begin from: where the search starts, and what effort counts from."""

from __future__ import annotations

import pytest
import torch

from bilinear_wm.errors import InputError
from bilinear_wm.planning import CEMConfig, CEMPlanner, GaussNewtonConfig, GaussNewtonPlanner
from bilinear_wm.planning.base import PlanProblem
from bilinear_wm.planning.prior import PriorPlanner
from tests.planning.conftest import D, M, bilinear

H = 3


def problem(batch: int = 2, scale: float = 0.3, **changes: torch.Tensor) -> PlanProblem:
    torch.manual_seed(1)
    z0, z_goal, prior = torch.randn(batch, D), torch.randn(batch, D), torch.randn(batch, H, M)
    return PlanProblem(z0, z_goal, H, **({"prior": scale * prior} | changes))  # type: ignore[arg-type]


def test_great_effort_keeps_to_the_prior_and_none_forgets_it() -> None:
    given = problem()
    assert given.prior is not None

    def away(effort: float) -> float:
        config = GaussNewtonConfig(effort=effort, coherent=False)
        plan = GaussNewtonPlanner(bilinear(), config).plan(given)
        assert given.prior is not None
        return float((plan.actions - given.prior).norm())

    distances = [away(effort) for effort in (1e-4, 1.0, 1e4)]
    assert distances[0] > 2 * distances[1] > 4 * distances[2]
    assert distances[2] < 1e-3


def test_effort_about_a_prior_is_the_effort_of_the_difference() -> None:
    """Gauss-Newton ends where the objective's slope along every action is zero."""
    given, dynamics = problem(1), bilinear(dtype=torch.float64)
    config = GaussNewtonConfig(effort=0.3, coherent=False, tolerance=1e-12, iterations=200)
    plan = GaussNewtonPlanner(dynamics, config).plan(given)
    assert given.prior is not None
    assert given.z_goal is not None
    actions = plan.actions.clone().requires_grad_()
    last = dynamics.rollout(given.z0.double(), actions)[:, -1]
    cost = 0.5 * (last - given.z_goal).square().sum()
    cost = cost + 0.15 * (actions - given.prior).square().sum()
    assert float(plan.cost) == pytest.approx(float(cost.detach()))
    (slope,) = torch.autograd.grad(cost, actions)
    assert slope.abs().max() < 1e-4 * max(float(cost.detach()), 1.0)


def test_one_problem_and_a_batch_agree() -> None:
    batch, planner = problem(2), GaussNewtonPlanner(bilinear(), GaussNewtonConfig(effort=0.1))
    together = planner.plan(batch).actions
    assert batch.z_goal is not None
    assert batch.prior is not None
    for i in range(2):
        alone = PlanProblem(batch.z0[i], batch.z_goal[i], H, prior=batch.prior[i])
        torch.testing.assert_close(planner.plan(alone).actions, together[i], atol=1e-2, rtol=1e-2)


def test_no_plan_costs_more_than_the_prior() -> None:
    given = problem()
    for planner in (
        GaussNewtonPlanner(bilinear(), GaussNewtonConfig(effort=0.1, iterations=1)),
        CEMPlanner(bilinear(), CEMConfig(effort=0.1, samples=8, elites=2, iterations=1)),
    ):
        proposed = PriorPlanner(planner.dynamics, planner.config).plan(given)
        assert (planner.plan(given).cost <= proposed.cost + 1e-5).all()


def test_the_prior_alone_is_what_was_proposed_inside_the_box() -> None:
    box = torch.full((M,), 0.2)
    given = problem(action_low=-box, action_high=box)
    assert given.prior is not None
    plan = PriorPlanner(bilinear()).plan(given, warm_start=torch.ones(2, H, M))
    torch.testing.assert_close(plan.actions, given.prior.clamp(-box, box))
    assert set(plan.status) == {"converged"}
    with pytest.raises(InputError, match="expected a problem with a prior"):
        PriorPlanner(bilinear()).plan(PlanProblem(given.z0, given.z_goal, H))


def test_bad_priors() -> None:
    planner = GaussNewtonPlanner(bilinear(), GaussNewtonConfig(effort=0.1))
    with pytest.raises(InputError, match="prior: expected shape"):
        planner.plan(problem(prior=torch.zeros(2, H + 1, M)))
    bad = torch.zeros(2, H, M)
    bad[1] = torch.nan
    plan = planner.plan(problem(prior=bad))
    assert plan.status[1] == "bad_input"
    assert plan.status[0] != "bad_input"
    assert plan.actions.isfinite().all()
