"""Problems that nobody would pose: the promise of `planning/base.py` holds for all of them.

Actions are finite, of the right shape and inside the box, and never cost more than the start.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attack.common import Attack, Tally, refused_or
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.planning import (
    AdamConfig,
    AdamPlanner,
    CEMConfig,
    CEMPlanner,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    ICEMConfig,
    ICEMPlanner,
    MPPIConfig,
    MPPIPlanner,
    Plan,
    Planner,
    PlanProblem,
)
from bilinear_wm.planning.base import STATUSES

SLACK = 1e-4
"""Of a cost that is computed apart from the planner, in another order."""
SCALES = (0.0, 1e-30, 1e-6, 1e-2, 1.0, 1.0, 1.0, 1e2, 1e6, 1e15, 1e30, np.inf, np.nan)
PLANNERS: dict[str, tuple[int, Callable[[BilinearDynamics, float], Planner]]] = {
    "gauss-newton, compiled": (
        1500, lambda d, e: GaussNewtonPlanner(d, GaussNewtonConfig(effort=e, iterations=8))),
    "gauss-newton, torch": (
        500, lambda d, e: GaussNewtonPlanner(
            d, GaussNewtonConfig(effort=e, iterations=8, compiled=False))),
    "cem": (300, lambda d, e: CEMPlanner(d, CEMConfig(effort=e, samples=16, elites=4,
                                                      iterations=3))),
    "icem": (300, lambda d, e: ICEMPlanner(d, ICEMConfig(effort=e, samples=16, elites=5,
                                                         iterations=3))),
    "mppi": (300, lambda d, e: MPPIPlanner(d, MPPIConfig(effort=e, samples=16, iterations=3))),
    "adam": (200, lambda d, e: AdamPlanner(d, AdamConfig(effort=e, iterations=5))),
}  # fmt: skip
SHAPES = ((4, 2, 1), (12, 6, 2), (24, 10, 2), (3, 3, 1), (2, 6, 2))
"""Of a latent, a block and an action; in the last the block has more numbers than the latent."""


def attack_planners(attack: Attack) -> Iterator[Tally]:
    for name, (count, make) in PLANNERS.items():
        tally = Tally(f"problems for {name}")
        for _ in attack.times(count):
            with tally.case():
                _pose(make, attack.rng)
        yield tally


def _pose(make: Callable[[BilinearDynamics, float], Planner], rng: np.random.Generator) -> None:
    d, m, env = SHAPES[rng.integers(len(SHAPES))]
    planner = make(_dynamics(d, m, env, rng), float(rng.choice([0.0, 1e-3, 1.0])))
    batch = None if rng.random() < 0.5 else int(rng.integers(0, 4))
    horizon = int(rng.choice([1, 2, 5, 12]))
    lead = () if batch is None else (batch,)
    z0, goal = (_numbers((*lead, d), rng) for _ in range(2))
    low = high = None
    if rng.random() < 0.7:
        middle, half = rng.normal(0, 1, m), np.abs(rng.normal(0, 1, m)) * rng.integers(0, 2, m)
        low, high = (torch.tensor(middle + side * half).float() for side in (-1, 1))
    start = _numbers((*lead, horizon, m), rng) if rng.random() < 0.5 else None
    problem = refused_or(lambda: PlanProblem(z0, goal, horizon, low, high))
    if problem is None:
        return
    deadline = None if rng.random() < 0.8 else float(rng.choice([0.0, 1e-9, 1e-3]))
    _check(planner, problem, planner.plan(problem, warm_start=start, deadline_s=deadline), start)


def _dynamics(d: int, m: int, env: int, rng: np.random.Generator) -> BilinearDynamics:
    torch.manual_seed(int(rng.integers(1 << 30)))
    bounded = d >= m and rng.random() < 0.7
    made = BilinearDynamics(d, m, "cholqr" if bounded else "none", env_action_size=env)
    with torch.no_grad():
        made.A.add_(float(rng.choice([0.0, 0.03, 1.0])) * torch.randn(d, d))
        if rng.random() < 0.2:  # every action does the same
            made.B.copy_(made.B[:, :1].expand_as(made.B))
            made.C.zero_()
    return made.eval()


def _numbers(shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """Ordinary ones, or of a size that no model makes, or not numbers at all."""
    scale = SCALES[rng.integers(len(SCALES))] if rng.random() < 0.3 else 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        return torch.from_numpy((scale * rng.normal(0, 1, shape)).astype(np.float32))


def _check(planner: Planner, p: PlanProblem, plan: Plan, start: Tensor | None) -> None:
    batch, dynamics = p.z0.shape[:-1], planner.dynamics
    d, m = dynamics.latent_size, dynamics.action_size
    assert plan.actions.shape == (*batch, p.horizon, m), "actions of another shape"
    assert plan.latents.shape == (*batch, p.horizon + 1, d), "latents of another shape"
    assert plan.cost.shape == batch, "costs of another shape"
    assert torch.isfinite(plan.actions).all(), "actions that are not finite"
    statuses = (plan.status,) if isinstance(plan.status, str) else plan.status
    assert len(statuses) == p.z0[..., 0].numel(), "not one status a problem"
    assert set(statuses) <= set(STATUSES), "an unknown status"
    if p.action_low is not None and p.action_high is not None:
        inside = (plan.actions >= p.action_low) & (plan.actions <= p.action_high)
        assert inside.all(), "actions outside the box"
    cost, actions = plan.cost.view(-1), plan.actions.view(-1, p.horizon, m)
    begin = torch.zeros_like(actions) if start is None else start.view_as(actions)
    if p.action_low is not None:
        begin = begin.clamp(p.action_low, p.action_high)
    for i, status in enumerate(statuses):
        finite = bool(torch.isfinite(cost[i]))
        assert finite or status in ("diverged", "bad_input"), f"{status} at an infinite cost"
        if status == "bad_input" or not torch.isfinite(begin[i]).all():
            continue
        before, doubt = _cost(planner, p, i, begin[i])
        after, more = _cost(planner, p, i, actions[i])
        if np.isfinite(before + doubt):
            most = before + SLACK * abs(before) + SLACK + doubt + more
            assert after <= most, f"dearer than its start: {after:.6g} after {before:.6g}"


def _cost(planner: Planner, p: PlanProblem, i: int, actions: Tensor) -> tuple[float, float]:
    """The objective, and by how much single and double precision differ about it.

    Dynamics that blow up make the same plan cost this or that by rounding alone.
    """
    assert p.z_goal is not None
    values = []
    single: Any = planner.dynamics
    for dynamics in (single, copy.deepcopy(single).double()):
        z0, goal = (x.view(-1, x.shape[-1])[i] for x in (p.z0, p.z_goal))
        kind = next(iter(dynamics.parameters())).dtype
        with torch.no_grad():
            z = dynamics.rollout(z0[None].to(kind), actions[None].to(kind))[0].double()
        missed = (z[-1] - goal.double()).square().sum()
        effort = actions.double().square().sum()
        config = planner.config
        values.append(float(0.5 * config.goal_weight * missed + 0.5 * config.effort * effort))
    return values[0], abs(values[0] - values[1])
