"""From a recording of your own to a plan: any pictures and actions will do.

    python examples/own_episodes.py

The world here is a red dot that moves by a tenth of the action; all that the package sees of it are
arrays. The file has the public schema: `pixels` and `action` end to end, `ep_len` and `ep_offset`
to tell episodes apart. The action of an episode's last row is NaN: nothing follows it.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

import bilinear_wm as bwm
from bilinear_wm import recipes
from bilinear_wm.training.train import train

SIZE, LENGTH = 32, 30


def picture(position: np.ndarray) -> np.ndarray:
    """A red dot on white."""
    grid = (np.arange(SIZE) + 0.5) / SIZE * 2 - 1
    far = (grid - position[0]) ** 2 + (grid[:, None] - position[1]) ** 2
    dot = np.exp(-far / 0.03)[..., None]
    return (255 * (1 - dot * np.array([0, 1, 1]))).astype(np.uint8)


def record(path: Path, episodes: int, rng: np.random.Generator) -> None:
    """What a robot would log: pictures, and the actions taken in between."""
    pixels, actions = [], []
    for _ in range(episodes):
        position = rng.uniform(-0.8, 0.8, 2)
        for step in range(LENGTH + 1):
            pixels.append(picture(position))
            action = rng.uniform(-1, 1, 2) if step < LENGTH else np.full(2, np.nan)
            actions.append(action)
            position = np.clip(position + 0.1 * np.nan_to_num(action), -0.9, 0.9)
    with h5py.File(path, "w") as file:
        file["pixels"] = np.stack(pixels)
        file["action"] = np.array(actions, np.float32)
        file["ep_len"] = np.full(episodes, LENGTH + 1)
        file["ep_offset"] = (LENGTH + 1) * np.arange(episodes)


def main(folder: Path, episodes: int = 200, steps: int = 150) -> float:
    rng = np.random.default_rng(0)
    record(folder / "mine.h5", episodes, rng)
    recipe = recipes.compact(folder / "mine.h5", folder / "run", "bilinear", "mine")
    train(replace(recipe, steps=steps, eval_every=steps))

    model = bwm.load_model(folder / "run").eval()
    position, goal = np.array([-0.5, 0.4]), np.array([0.3, -0.2])
    z, z_goal = model.encode(np.stack([picture(position), picture(goal)]))
    planner = bwm.GaussNewtonPlanner(model.dynamics, bwm.GaussNewtonConfig(effort=1e-4))
    low, high = model.action_bounds(-1, 1)
    plan = planner.plan(bwm.PlanProblem(z, z_goal, horizon=4, action_low=low, action_high=high))
    before = float(np.linalg.norm(position - goal))
    for action in model.to_env_actions(plan.actions).numpy():
        position = np.clip(position + 0.1 * action, -0.9, 0.9)
    after = float(np.linalg.norm(position - goal))
    print(
        f"distance to the goal {before:.2f} -> {after:.2f}, planned in {1e3 * plan.seconds:.1f} ms"
    )
    return after / before


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))
