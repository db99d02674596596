"""The compiled kernel plans what torch plans, and leaves the rest to it."""

from __future__ import annotations

import builtins
import logging
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner, PlanProblem
from bilinear_wm.planning.base import Search
from bilinear_wm.planning.objective import (
    Effort,
    Objective,
    Quadratic,
    Smoothness,
    Tangents,
    Term,
)
from tests.planning.conftest import ENV, M, bilinear, goal_of, problem, with_residual

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three of five blocks": {"refreshed_blocks": 3},
    "smooth": {"smoothness": 0.1},
    "path": {"path_weight": 0.1},
    "every action by itself": {"coherent": False},
    "no effort": {"effort": 0.0},
    "candidates": {"candidates": 16, "spread": 0.5},
    "starts": {"candidates": 9, "spread": 1.5, "starts": 3},
    "starts, blocks in turn": {"candidates": 8, "starts": 2, "refreshed_blocks": 2},
    "starts to the end": {"candidates": 9, "starts": 5, "screening": 0},
    "slow screening": {"candidates": 9, "starts": 5, "screening": 3},
    "a prior": {"effort": 0.3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize("make_dynamics", [bilinear, with_residual])
def test_both_engines_and_both_sensitivities_agree(
    name: str, box: bool, make_dynamics: Any
) -> None:
    dynamics = make_dynamics(seed=4)
    problems = reachable(dynamics, box)
    if name == "a prior":
        problems = replace(problems, prior=torch.full((6, 5, M), 0.2))
    settings = SETTINGS[name] | {"iterations": 60}
    make = lambda **more: GaussNewtonPlanner(  # noqa: E731
        dynamics, GaussNewtonConfig(**settings, **more)
    )
    torch_plans = make(compiled=False).plan(problems)
    rough_plans = make(compiled=False, sensitivities="finite-difference").plan(problems)
    before = 0.5 * (problems.z0 - goal_of(problems)).square().sum(-1)
    assert ((rough_plans.cost - torch_plans.cost).abs() < 1e-2 * before).all()
    compiled = make()
    assert compiled._kernel is not None
    for i in range(6):
        prior = None if problems.prior is None else problems.prior[i]
        one = replace(problems, z0=problems.z0[i], z_goal=goal_of(problems)[i], prior=prior)
        plan = compiled.plan(one)
        torch.testing.assert_close(plan.cost, torch_plans.cost[i], rtol=1e-4, atol=1e-5)
        rolled = dynamics.rollout(one.z0, plan.actions).detach()
        torch.testing.assert_close(plan.latents, rolled, rtol=1e-4, atol=1e-4)


def reachable(dynamics: BilinearDynamics, box: bool) -> PlanProblem:
    """Goals near what some coherent plan reaches, as goals of recorded episodes are."""
    p, generator = problem(batch=6, horizon=5, box=box), torch.Generator().manual_seed(9)
    held = torch.randn(6, 5, ENV, generator=generator).repeat(1, 1, M // ENV)
    goal = dynamics.rollout(p.z0, 0.7 * held)[:, -1].detach()
    goal = goal + 0.05 * torch.randn(goal.shape, generator=generator)
    return PlanProblem(p.z0, goal, 5, p.action_low, p.action_high)


def test_the_kernel_ranks_the_candidates_that_torch_ranks() -> None:
    """The same starts, before anything is descended."""
    dynamics, p = with_residual(seed=2), problem(horizon=4)
    config = GaussNewtonConfig(candidates=11, starts=5, spread=0.8)
    planner = GaussNewtonPlanner(dynamics, config)
    kernel = planner._kernel
    assert kernel is not None
    z0, goal, path, start, low, high = planner._tensors(p, torch.full((4, M), 0.1))
    objective = planner._objective(p, goal, path)
    search = Search(z0, objective, start, low, high, float("inf"))
    expected = planner._starts(search)[0][0].detach()
    kernel.search(replace(search, stop_at=0.0))  # ranks, and has no time for more
    crowd = kernel.kernel.memory(4).crowd
    chosen = crowd.plans[crowd.costs.argsort()[:5]]
    torch.testing.assert_close(torch.tensor(chosen).float(), expected)


class Pull(Term):
    """1/2 |a - 1|^2, which no planner knows."""

    def value(self, latents: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return 0.5 * (actions - 1).square().sum((-2, -1))

    def quadratic(
        self, latents: torch.Tensor, actions: torch.Tensor, tangents: Tangents
    ) -> Quadratic:
        e = tangents.actions.flatten(0, 1)
        return Quadratic((actions.flatten(1) - 1) @ e, e.mT @ e)


class TwiceTheEffort(Effort):
    """Of a known kind, but not it."""

    def value(self, latents: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return 2 * super().value(latents, actions)


@pytest.mark.parametrize(
    "further",
    [Pull(), TwiceTheEffort(0.5), Effort(0.5), Smoothness(0.5, 1)],
    ids=lambda t: type(t).__name__,
)
def test_terms_that_the_kernel_does_not_know_count(further: Term) -> None:
    """An own term, a variation of a known one, a second one, one of another action size."""

    class Own(GaussNewtonPlanner):
        def _objective(
            self, problem: PlanProblem, goal: torch.Tensor, path: torch.Tensor
        ) -> Objective:
            return Objective((*super()._objective(problem, goal, path).terms, further))

    config = GaussNewtonConfig(smoothness=0.0)
    planner, p = Own(bilinear(), config), problem()
    assert planner._kernel is not None
    plain = GaussNewtonPlanner(bilinear(), config).plan(p)
    expected = Own(bilinear(), replace(config, compiled=False)).plan(p)
    plan = planner.plan(p)
    torch.testing.assert_close(plan.actions, expected.actions)
    assert (plan.actions - plain.actions).abs().max() > 1e-2


def test_the_kernel_with_a_residual_keeps_a_deadline() -> None:
    planner = GaussNewtonPlanner(
        with_residual(), GaussNewtonConfig(candidates=4, starts=3, tolerance=0.0)
    )
    assert planner._kernel is not None
    plan = planner.plan(problem(), deadline_s=0.0)
    assert plan.status == "deadline"
    assert torch.isfinite(plan.cost)
    thorough = planner.plan(problem())
    assert thorough.cost <= plan.cost


@pytest.mark.parametrize("seed", range(5))
def test_directions_that_are_mostly_rounding_are_left_to_torch(seed: int) -> None:
    """All actions push one way: two engines would not agree where a plan leads."""
    dynamics, p = bilinear(seed), problem()
    with torch.no_grad():
        dynamics.B.copy_(dynamics.B[:, :1].expand(-1, M))
        dynamics.C.copy_(dynamics.C[:, :1].expand(-1, M, -1))
    config = GaussNewtonConfig(candidates=4, starts=2)
    planner = GaussNewtonPlanner(dynamics, config)
    assert planner._kernel is not None
    plan = planner.plan(p)
    expected = GaussNewtonPlanner(dynamics, replace(config, compiled=False)).plan(p)
    assert torch.equal(plan.actions, expected.actions)
    assert plan.status == expected.status


def test_more_actions_than_latents_are_left_to_torch() -> None:
    planner = GaussNewtonPlanner(BilinearDynamics(3, M, env_action_size=ENV))
    assert planner._kernel is None


def test_the_kernel_sees_new_weights() -> None:
    dynamics, p = bilinear(), problem()
    planner = GaussNewtonPlanner(dynamics)
    planner.plan(p)
    with torch.no_grad():
        dynamics.R.mul_(2)
    fresh = GaussNewtonPlanner(dynamics).plan(p)
    torch.testing.assert_close(planner.plan(p).actions, fresh.actions)


def test_without_numba_torch_plans_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "numba":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in ("_compiled", "_compiled_rollout", "_compiled_products"):
        monkeypatch.delitem(sys.modules, f"bilinear_wm.planning.{name}", raising=False)
        monkeypatch.delattr(f"bilinear_wm.planning.{name}", raising=False)
    monkeypatch.setattr(builtins, "__import__", fake)
    with caplog.at_level(logging.WARNING):
        planner = GaussNewtonPlanner(bilinear())
        planner.plan(problem())
        planner.plan(problem())
    assert [r.message for r in caplog.records] == [caplog.records[0].message]
    assert "bilinear-world-models[fast]" in caplog.text
