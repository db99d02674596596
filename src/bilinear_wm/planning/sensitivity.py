"""How predicted latents move with the actions: analytically, or by finite differences."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.planning.base import PlannableDynamics
from bilinear_wm.planning.objective import Tangents

FINITE_DIFFERENCE = 1e-3
"""The paper's epsilon."""


def coherent_lift(
    action_size: int, env_action_size: int, like: Tensor
) -> Float[Tensor, "m env_action_size"]:
    """E of one block: its environment actions move together, in directions of unit length."""
    repeats = action_size // env_action_size
    eye = torch.eye(env_action_size, dtype=like.dtype, device=like.device)
    return eye.repeat(repeats, 1) / repeats**0.5


@functools.lru_cache(maxsize=64)
def lift_blocks(
    lift: Float[Tensor, "m r"], blocks: tuple[int, ...], horizon: int
) -> Float[Tensor, "h m k"]:
    """E of a whole plan that is free in some of its blocks, in their order."""
    m, r = lift.shape
    with torch.inference_mode(False):
        whole = lift.new_zeros(horizon, m, len(blocks) * r)
        for place, block in enumerate(blocks):
            whole[block, :, place * r : (place + 1) * r] = lift
        return whole


def analytic(
    dynamics: PlannableDynamics,
    z0: Float[Tensor, "batch d"],
    actions: Float[Tensor, "batch h m"],
    lift: Float[Tensor, "m r"],
    blocks: list[int],
    first: tuple[Float[Tensor, " d"], Float[Tensor, "d m"]] | None = None,
) -> tuple[Float[Tensor, "batch h+1 d"], Tangents]:
    """Carry the tangents along with the rollout: J <- [F J, M E].

    Only directions that have begun to act are carried, so F is never formed. For one problem
    `first` may hold `dynamics.affine(z0[0])`, which stays the same while plans change.
    """
    (batch, d), horizon, active = z0.shape, actions.shape[1], 0
    lifts = lift_blocks(lift, tuple(blocks), horizon)
    a_dot = lifts.mT.expand(batch, -1, -1, -1)
    jets = torch.cat([actions.unsqueeze(2), a_dot], dim=2)  # actions above their tangents
    alone = batch == 1  # products of matrices are faster than of batches of one
    z, a = (z0, jets[0]) if alone else (z0[:, None], jets.transpose(0, 1))
    latents, tangents = [z], []
    for t in range(horizon):
        active += lift.shape[-1] if t in blocks else 0
        a_t = a[t].narrow(-2, 0, 1 + active)
        if t == 0 and first is not None:
            drift, gain = first
            z = a_t @ gain.T
            z[0].add_(drift)
        else:
            z = dynamics.step_jet(z, a_t)  # type: ignore[attr-defined]
        latents.append(z.narrow(-2, 0, 1))
        tangents.append(z.narrow(-2, 1, active).view(batch, active, d))
    path = torch.cat(latents, dim=-2).view(batch, horizon + 1, d)
    return path, Tangents(tangents, lifts)


def finite_difference(
    dynamics: PlannableDynamics,
    z0: Float[Tensor, "batch d"],
    actions: Float[Tensor, "batch h m"],
    lift: Float[Tensor, "m r"],
    blocks: list[int],
    epsilon: float = FINITE_DIFFERENCE,
) -> tuple[Float[Tensor, "batch h+1 d"], Tangents]:
    """Roll out the plan and all its perturbations in one batch; works for any dynamics."""
    lifts = lift_blocks(lift, tuple(blocks), actions.shape[1])
    shifts = torch.cat([torch.zeros_like(lifts[..., :1]), epsilon * lifts], dim=-1)
    perturbed = actions[:, None] + shifts.permute(2, 0, 1)
    latents = dynamics.rollout(z0[:, None].expand(-1, perturbed.shape[1], -1), perturbed)
    nominal = latents[:, 0]
    slopes = (latents[:, 1:] - latents[:, :1]) / epsilon
    tangents = []
    for t in range(actions.shape[1]):
        active = sum(block <= t for block in blocks) * lift.shape[-1]
        tangents.append(slopes[:, :active, t + 1])
    return nominal, Tangents(tangents, lifts)
