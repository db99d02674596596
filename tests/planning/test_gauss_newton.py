"""The Gauss-Newton step: its derivatives, its two engines, its options."""

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
    Reach,
    Smoothness,
    Tangents,
    Term,
)
from bilinear_wm.planning.sensitivity import (
    analytic,
    coherent_lift,
    finite_difference,
    lift_blocks,
)
from tests.planning.conftest import ENV, D, M, bilinear, problem, with_residual

H = 4


def plan_inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(3, D, generator=generator).to(dtype),
        torch.randn(3, H, M, generator=generator).to(dtype),
    )


@pytest.mark.parametrize("make", [bilinear, with_residual])
@pytest.mark.parametrize("blocks", [[0, 1, 2, 3], [1, 3]])
def test_analytic_tangents_equal_autograd(make: Any, blocks: list[int]) -> None:
    dynamics = make().double()
    z0, actions = plan_inputs(torch.float64)
    lift = coherent_lift(M, ENV, z0)
    latents, tangents = analytic(dynamics, z0, actions, lift, blocks)
    torch.testing.assert_close(latents, dynamics.rollout(z0, actions), rtol=0, atol=1e-10)
    whole = lift_blocks(lift, tuple(blocks), H).flatten(0, 1)
    for i in range(3):
        jacobian = torch.autograd.functional.jacobian(
            lambda a, i=i: dynamics.rollout(z0[i], a), actions[i]
        ).flatten(-2)
        for t in range(H):
            exact = jacobian[t + 1] @ whole
            ours = tangents.latents[t][i].T
            torch.testing.assert_close(ours, exact[:, : ours.shape[1]], rtol=0, atol=1e-10)


def test_finite_differences_come_close_in_single_precision() -> None:
    dynamics = bilinear()
    z0, actions = plan_inputs(torch.float32)
    lift = coherent_lift(M, ENV, z0)
    blocks = list(range(H))
    _, exact = analytic(dynamics.double(), z0.double(), actions.double(), lift.double(), blocks)
    _, rough = finite_difference(dynamics.float(), z0, actions, lift, blocks)
    for t in range(H):
        scale = exact.latents[t].norm()
        assert (rough.latents[t] - exact.latents[t]).norm() < 2e-2 * scale


def test_each_term_has_the_right_derivatives() -> None:
    z0, actions = plan_inputs(torch.float64)
    dynamics = bilinear(dtype=torch.float64)
    lift = coherent_lift(M, ENV, z0)
    blocks = [0, 2, 3]
    latents, tangents = analytic(dynamics, z0, actions, lift, blocks)
    targets = torch.randn(3, H, D, generator=torch.Generator().manual_seed(2)).double()
    terms = (Reach(targets, (0.3, 0.0, 0.1, 1.0)), Effort(0.2), Smoothness(0.7, ENV))
    for term in terms:
        local = term.quadratic(latents, actions, tangents)

        def value(delta: torch.Tensor, term: Any = term) -> torch.Tensor:
            moved = actions + (tangents.actions @ delta[:, None, :, None]).squeeze(-1)
            rolled = dynamics.rollout(z0, moved)
            return term.value(rolled[:, None], moved[:, None]).sum()

        delta = torch.zeros(3, len(blocks) * ENV, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(value(delta), delta)
        torch.testing.assert_close(local.gradient, gradient, rtol=0, atol=1e-10)
        if not isinstance(term, Reach):  # quadratic in the actions: the Hessian is exact
            exact = torch.autograd.functional.hessian(value, delta.detach())
            hessian = local.hessian.expand(3, -1, -1)
            for i in range(3):
                torch.testing.assert_close(exact[i, :, i], hessian[i], rtol=0, atol=1e-10)
    total = Objective(terms).value(latents[:, None], actions[:, None])
    parts = sum(term.value(latents[:, None], actions[:, None]) for term in terms)
    torch.testing.assert_close(total, parts)


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
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize("make_dynamics", [bilinear, with_residual])
def test_both_engines_and_both_sensitivities_agree(
    name: str, box: bool, make_dynamics: Any
) -> None:
    dynamics = make_dynamics(seed=4)
    problems = reachable(dynamics, box)
    settings = SETTINGS[name] | {"iterations": 60}
    make = lambda **more: GaussNewtonPlanner(  # noqa: E731
        dynamics, GaussNewtonConfig(**settings, **more)
    )
    torch_plans = make(compiled=False).plan(problems)
    rough_plans = make(compiled=False, sensitivities="finite-difference").plan(problems)
    before = 0.5 * (problems.z0 - problems.z_goal).square().sum(-1)
    assert ((rough_plans.cost - torch_plans.cost).abs() < 1e-2 * before).all()
    compiled = make()
    assert compiled._kernel is not None
    differ = 0
    for i in range(6):
        one = PlanProblem(
            problems.z0[i], problems.z_goal[i], 5, problems.action_low, problems.action_high
        )
        plan = compiled.plan(one)
        differ += not torch.isclose(plan.cost, torch_plans.cost[i], rtol=1e-4, atol=1e-5)
        rolled = dynamics.rollout(one.z0, plan.actions).detach()
        torch.testing.assert_close(plan.latents, rolled, rtol=1e-4, atol=1e-4)
    # Without effort a long step that the box cuts short can end a search early, in either engine
    # and for another problem in each: rounding decides which.
    assert differ <= (name == "no effort" and box)


def reachable(dynamics: BilinearDynamics, box: bool) -> PlanProblem:
    """Goals near what some coherent plan reaches, as goals of recorded episodes are."""
    p, generator = problem(batch=6, horizon=5, box=box), torch.Generator().manual_seed(9)
    held = torch.randn(6, 5, ENV, generator=generator).repeat(1, 1, M // ENV)
    goal = dynamics.rollout(p.z0, 0.7 * held)[:, -1].detach()
    goal = goal + 0.05 * torch.randn(goal.shape, generator=generator)
    return PlanProblem(p.z0, goal, 5, p.action_low, p.action_high)


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


def test_the_kernel_ranks_the_candidates_that_torch_ranks() -> None:
    """The same starts, before anything is descended."""
    dynamics, p = with_residual(seed=2), problem(horizon=4)
    config = GaussNewtonConfig(candidates=11, starts=5, spread=0.8)
    planner = GaussNewtonPlanner(dynamics, config)
    kernel = planner._kernel
    assert kernel is not None
    z0, goal, path, start, low, high = planner._tensors(p, torch.full((4, M), 0.1))
    search = Search(z0, planner._objective(p, goal, path), start, low, high, float("inf"))
    expected = planner._starts(search)[0].detach()
    kernel.search(replace(search, stop_at=0.0))  # ranks, and has no time for more
    _, crowd = kernel._memory(4)
    torch.testing.assert_close(torch.tensor(crowd.chosen).float(), expected)


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


@pytest.mark.parametrize("compiled", [True, False])
def test_a_cost_beyond_single_precision_has_not_converged(compiled: bool) -> None:
    config = GaussNewtonConfig(goal_weight=1e30, compiled=compiled)
    p = problem()
    plan = GaussNewtonPlanner(bilinear(), config).plan(replace(p, z_goal=1e6 * p.z_goal))
    assert plan.cost == torch.inf
    assert plan.status == "diverged"


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
    z0, goal = p.z0.double(), p.z_goal.double()
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
    config = GaussNewtonConfig(candidates=16, starts=17)
    many = GaussNewtonPlanner(bilinear(seed=7), config).plan(p).cost
    assert (many <= alone * 1.001).all()


def test_the_kernel_sees_new_weights() -> None:
    dynamics, p = bilinear(), problem()
    planner = GaussNewtonPlanner(dynamics)
    planner.plan(p)
    with torch.no_grad():
        dynamics.gain.values.mul_(2)
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
