"""Derivatives of a plan: exact in the latents, in the actions and in each term of the objective."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bilinear_wm.planning.objective import (
    Effort,
    Objective,
    Reach,
    Smoothness,
)
from bilinear_wm.planning.sensitivity import (
    analytic,
    coherent_lift,
    finite_difference,
    lift_blocks,
)
from tests.planning.conftest import ENV, D, M, bilinear, with_residual

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
