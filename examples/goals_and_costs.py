"""Goals as numbers, and costs of your own: where to be, where not to be, how to lie.

    python examples/goals_and_costs.py

A linear probe reads physical quantities off latents; it is fitted to pictures of random states,
which any simulator or labelled recording can give. Then a goal is `StateGoal` in the place of a
picture, a forbidden place is `KeepOut`, and a cost of your own is a class with one method.

1. TwoRoom: go to (x, y), given as two numbers.
2. The same, round an obstacle that no picture shows.
3. The same, with a cost of one's own: keep to the left.
4. PushT: a pose of the block (x, y and angle), wherever the agent ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import bilinear_wm as bwm
from bilinear_wm.analysis.probes import LinearProbe
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning.objective import Term
from bilinear_wm.planning.terms import KeepOut, ReadOut, StateGoal
from bilinear_wm.tasks.base import Task

PRETRAINED = Path(__file__).parents[1] / "pretrained"
START, TARGET, OBSTACLE = (35.0, 60.0), (70.0, 170.0), (52.0, 112.0)
RADIUS = 22.0
HORIZON, PICTURES = 6, 400
Read = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class KeepLeft(ReadOut):
    """A cost of one's own: the first quantity should not be more than `most`, after any block."""

    most: float
    unit: float = 10.0
    weight: float = 1.0

    def residual(self, latents: Tensor, actions: Tensor) -> Tensor:
        return (self.read(latents[..., 1:, :])[..., 0] - self.most).clamp_min(0) / self.unit


def fitted(model: WorldModel, task: Task, names: tuple[str, ...]) -> LinearProbe:
    """What can be read off a latent, from pictures of random states."""
    states = []
    for seed in range(PICTURES):
        task.begin(seed=seed)
        states.append(task.state)
    z = torch.cat([model.encode(np.stack([task.picture(s) for s in some]))
                   for some in np.array_split(np.stack(states), 8)])  # fmt: skip
    return LinearProbe.fitted(z, task.probe_targets(np.stack(states))).only(names)


def reach(
    model: WorldModel, task: Task, read: Read, target: Tensor, *costs: Term, unit: float = 15.0
) -> tuple[Tensor, np.ndarray]:
    """Plan from the task's state, and carry the plan out.

    Returns:
        The quantities that the plan expects after each block, and the states that came.
    """
    goal = StateGoal(*read, target, unit=torch.full_like(target, unit))
    planner = bwm.GaussNewtonPlanner(model.dynamics, bwm.GaussNewtonConfig(effort=5e-3))
    bounds = model.action_bounds(-1.0, 1.0)
    z = model.encode(task.render())
    plan = planner.plan(bwm.PlanProblem(z, None, HORIZON, *bounds, terms=(goal, *costs)))
    states = [task.state]
    for action in model.to_env_actions(plan.actions).numpy():
        task.advance(action)
        states.append(task.state)
    return goal.read(plan.latents), np.stack(states)


def tworoom() -> dict[str, float]:
    """Distances in pixels of 224: from the target at the end, from the obstacle on the way."""
    model = bwm.load_model(PRETRAINED / "tworoom")
    task = bwm.make_task("tworoom", model.config.image_size, "fast")
    probe = fitted(model, task, ("agent_x", "agent_y"))
    read = probe.matrix.float(), probe.offset.float()
    target = torch.tensor(TARGET)
    found: dict[str, float] = {}
    for name, costs in (
        ("two numbers", ()),
        ("round an obstacle", (KeepOut(*read, torch.tensor(OBSTACLE), RADIUS, weight=20.0),)),
        ("keep left", (KeepLeft(*read, most=40.0, weight=0.05),)),
    ):
        task.begin(seed=0, options={"state": START})
        _, states = reach(model, task, read, target, *costs)
        away = np.linalg.norm(states[:, :2] - OBSTACLE, axis=1).min()
        left = float(np.linalg.norm(states[-1, :2] - TARGET))
        found |= {name: left, f"{name}: obstacle": float(away), f"{name}: x": states[:, 0].mean()}
        print(f"TwoRoom, {name}: ends {left:.0f} px from {TARGET}, passes {away:.0f} px from "
              f"{OBSTACLE}, mean x {states[:, 0].mean():.0f}")  # fmt: skip
    return found


def pusht() -> tuple[float, float]:
    """How far the block is from its pose before and after, in pixels of 512 (position alone)."""
    model = bwm.load_model(PRETRAINED / "pusht")
    task = bwm.make_task("pusht", model.config.image_size, "fast")
    names = ("block_x", "block_y", "sin_block_angle", "cos_block_angle")
    probe = fitted(model, task, names)
    read = probe.matrix.float(), probe.offset.float()
    # The disc touches the block from the left; the block is wanted a little further to the right.
    task.begin(seed=0, options={"state": (160.0, 256.0, 240.0, 250.0, 0.0, 0.0, 0.0)})
    pose = np.array([task.state[2] + 40, task.state[3]])
    target = torch.tensor([pose[0], pose[1], 0.0, 1.0], dtype=torch.float32)
    before = float(np.linalg.norm(task.state[2:4] - pose))
    _, states = reach(model, task, read, target, unit=20.0)
    after = float(np.linalg.norm(states[:, 2:4] - pose, axis=1).min())
    print(f"PushT, a pose of the block: {before:.0f} px away, then {after:.0f} px")
    return before, after


if __name__ == "__main__":
    tworoom()
    pusht()
