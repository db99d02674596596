"""Costs of the user, in every planner."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bilinear_wm.errors import InputError
from bilinear_wm.planning import (
    PLANNERS,
    ActionLimit,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    KeepOut,
    PlanProblem,
    StateGoal,
    StatePath,
)
from bilinear_wm.planning.objective import Tangents
from bilinear_wm.planning.terms import Residuals
from tests.planning.conftest import D, M, bilinear

HORIZON = 3


def read_out() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, D, generator=generator) / D**0.5, torch.tensor([0.1, -0.2])


def terms() -> dict[str, Residuals]:
    matrix, offset = read_out()
    return {
        "goal": StateGoal(matrix, offset, torch.tensor([0.5, 0.3]), torch.tensor([1.0, 2.0]), 3.0),
        "path": StatePath(matrix, offset, torch.full((HORIZON, 2), 0.2)),
        "keep out": KeepOut(matrix, offset, torch.tensor([0.0, 0.0]), radius=2.0, weight=0.7),
        "limit": ActionLimit(torch.full((HORIZON, M), -0.1), torch.full((HORIZON, M), 0.1)),
    }


@pytest.mark.parametrize("name", terms())
def test_derivatives_are_those_of_autograd(name: str) -> None:
    term, k, batch = terms()[name], 4, 2
    torch.manual_seed(1)
    latents, actions = torch.randn(batch, HORIZON + 1, D), torch.randn(batch, HORIZON, M)
    moves = [torch.randn(batch, min(t + 2, k), D) for t in range(HORIZON)]
    lift = torch.randn(HORIZON, M, k)
    found = term.quadratic(latents, actions, Tangents(moves, lift))

    def residual(x: torch.Tensor) -> torch.Tensor:
        z = [latents[:, 0]]
        for t, rows in enumerate(moves):
            z.append(latents[:, t + 1] + torch.einsum("bk,bkd->bd", x[:, : rows.shape[1]], rows))
        a = actions + torch.einsum("bk,hmk->bhm", x, lift)
        return term.residual(torch.stack(z, 1)[:, None], a[:, None])[:, 0]

    start = torch.zeros(batch, k)
    slopes = torch.stack(
        [torch.autograd.functional.jacobian(residual, start)[b, :, b] for b in range(batch)]
    )
    r = residual(start)
    assert torch.allclose(found.gradient, term.weight * torch.einsum("bnk,bn->bk", slopes, r),
                          atol=1e-5)  # fmt: skip
    assert torch.allclose(found.hessian, term.weight * slopes.mT @ slopes, atol=1e-5)


@pytest.mark.parametrize("kind", ["gauss-newton", "cem", "adam"])
def test_a_state_is_a_goal(kind: str) -> None:
    options: dict[str, Any] = {"iterations": 300, "learning_rate": 0.05} if kind == "adam" else {}
    cls = PLANNERS[kind]
    planner = cls(bilinear(), cls.config_class(effort=1e-4, **options))
    matrix, offset = read_out()
    torch.manual_seed(2)
    z0 = torch.randn(2, D)
    now = z0 @ matrix.T + offset
    target = now + torch.tensor([[0.3, 0.1], [-0.2, 0.2]])
    goal = StateGoal(matrix, offset, target)
    plan = planner.plan(PlanProblem(z0, None, HORIZON, terms=(goal,)))
    reached = plan.latents[:, -1] @ matrix.T + offset
    assert (reached - target).norm(dim=-1).max() < 0.05
    alone = planner.plan(
        PlanProblem(z0[1], None, HORIZON, terms=(StateGoal(matrix, offset, target[1]),))
    )
    assert (alone.latents[-1] @ matrix.T + offset - target[1]).norm() < 0.05


def test_plans_go_round_what_is_kept_out() -> None:
    matrix, offset = read_out()
    dynamics = bilinear()
    planner = GaussNewtonPlanner(dynamics, GaussNewtonConfig(effort=1e-4, candidates=16, starts=4))
    torch.manual_seed(3)
    z0 = torch.randn(D)
    straight = planner.plan(
        PlanProblem(z0, None, 4, terms=(StateGoal(matrix, offset, torch.tensor([1.0, 1.0])),))
    )
    middle = (straight.latents[2] @ matrix.T + offset).detach()
    keep = KeepOut(matrix, offset, middle, radius=0.2, weight=50.0)
    round_it = planner.plan(
        PlanProblem(z0, None, 4, terms=(StateGoal(matrix, offset, torch.tensor([1.0, 1.0])), keep))
    )

    def nearest(latents: torch.Tensor) -> float:
        return float((latents[1:] @ matrix.T + offset - middle).norm(dim=-1).min())

    assert nearest(straight.latents) < 0.01
    assert nearest(round_it.latents) > 0.15
    end = round_it.latents[-1] @ matrix.T + offset
    assert (end - torch.tensor([1.0, 1.0])).norm() < 0.2


def test_compiled_and_torch_agree_beside_terms_of_the_user() -> None:
    dynamics = bilinear()
    torch.manual_seed(4)
    z0, z_goal = torch.randn(D), torch.randn(D)
    limit = ActionLimit(torch.full((HORIZON, M), -0.01), torch.full((HORIZON, M), 0.01), 1e4)
    plans = [
        GaussNewtonPlanner(dynamics, GaussNewtonConfig(compiled=compiled)).plan(
            PlanProblem(z0, z_goal, HORIZON, terms=(limit,))
        )
        for compiled in (True, False)
    ]
    assert torch.allclose(plans[0].actions, plans[1].actions, atol=1e-5)
    assert plans[0].actions.abs().max() < 0.05


def test_bad_terms_are_named() -> None:
    matrix, offset = read_out()
    z = torch.zeros(D)
    with pytest.raises(InputError, match="z_goal: expected a latent to reach, or terms"):
        PlanProblem(z, None, HORIZON)
    with pytest.raises(InputError, match="terms: expected objects of class Term"):
        PlanProblem(z, z, HORIZON, terms=("far",))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="matrix, offset: expected shapes"):
        StateGoal(matrix, offset[:1], offset)
    with pytest.raises(InputError, match="target: expected finite numbers"):
        StateGoal(matrix, offset, offset / 0)
    with pytest.raises(InputError, match="radius: expected more than 0"):
        KeepOut(matrix, offset, offset, radius=0.0)
    with pytest.raises(InputError, match="low, high: expected equal shapes"):
        ActionLimit(torch.zeros(2, M), torch.zeros(3, M))
    path = StatePath(matrix, offset, torch.zeros(HORIZON + 1, 2))
    with pytest.raises(InputError, match="path: expected a row for each of 3 blocks, found 4"):
        GaussNewtonPlanner(bilinear()).plan(PlanProblem(z, z, HORIZON, terms=(path,)))
