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
    first: tuple[Tensor, Tensor] | None = None,
) -> tuple[Float[Tensor, "batch h+1 d"], Tangents]:
    """Carry the tangents along with the rollout: J <- [F J, M E].

    Only directions that have begun to act are carried, so F is never formed. For one problem
    `first` may hold `dynamics.affine(z0[0])`, which stays the same while plans change.
    """
    horizon, active = actions.shape[1], 0
    lifts = lift_blocks(lift, tuple(blocks), horizon)
    alone = len(z0) == 1  # products of matrices are faster than of batches of one
    z, plan = (z0[0], actions[0]) if alone else (z0, actions.transpose(0, 1))
    latents, tangents = [z], []
    z_dot = z.new_zeros(*z.shape[:-1], 0, z.shape[-1])
    for t in range(horizon):
        active += lift.shape[-1] if t in blocks else 0
        a_dot = lifts[t, :, :active].T.expand(*z.shape[:-1], -1, -1)
        if t == 0 and first is not None:
            drift, gain = first
            z, z_dot = drift + gain @ plan[0], a_dot @ gain.T
        else:
            z, z_dot = dynamics.step_jvp(z, plan[t], z_dot, a_dot)  # type: ignore[attr-defined]
        latents.append(z)
        tangents.append(z_dot.mT[None] if alone else z_dot.mT)
    path = torch.stack(latents, dim=-2)
    return path[None] if alone else path, Tangents(tangents, lifts)


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
        tangents.append(slopes[:, :active, t + 1].mT)
    return nominal, Tangents(tangents, lifts)
