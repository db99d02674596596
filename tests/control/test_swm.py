"""Our planners behind stable-worldmodel's seams; `make test-interop` has the package itself."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from bilinear_wm.control.swm import PlanSettings, SwmPolicy, SwmSolver
from bilinear_wm.errors import InputError
from bilinear_wm.planning import GaussNewtonPlanner, PlanProblem

from ..models.conftest import small_model


class Worlds:
    """What a pool of two worlds looks like to a policy."""

    num_envs = 2
    action_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)


@pytest.fixture(scope="module")
def solver() -> SwmSolver:
    model = small_model("bilinear")
    return SwmSolver(model, GaussNewtonPlanner(model.dynamics))


def pictures(solver: SwmSolver, seed: int = 0) -> dict[str, Any]:
    shape = (2, 1, *solver.model.config.picture_shape, 3)
    rng = np.random.default_rng(seed)
    return {key: rng.integers(0, 256, shape, np.uint8) for key in ("pixels", "goal")}


def configured(solver: SwmSolver, horizon: int = 3) -> SwmSolver:
    settings = PlanSettings(horizon, horizon, solver.model.config.frame_skip)
    solver.configure(action_space=Worlds.action_space, n_envs=2, config=settings)
    return solver


def test_a_solver_gives_the_planners_plans(solver: SwmSolver) -> None:
    info = pictures(solver)
    found = configured(solver)(info)
    model = solver.model
    z0, goal = (model.encode(info[key][:, 0]) for key in ("pixels", "goal"))
    low, high = model.action_bounds(-1.0, 1.0)
    wanted = solver.planner.plan(PlanProblem(z0, goal, 3, low, high))
    torch.testing.assert_close(found["actions"], wanted.actions)
    assert found["actions"].shape == (solver.n_envs, solver.horizon, solver.action_dim)
    again = solver.solve(info, init_action=wanted.actions[:, 1:])
    assert again["actions"].shape == wanted.actions.shape


def test_scaled_actions_come_back(solver: SwmSolver) -> None:
    raw = np.random.default_rng(0).uniform(-1, 1, (4, 2)).astype(np.float32)
    back = solver.scaler.inverse_transform(solver.scaler.transform(raw))
    np.testing.assert_allclose(back, raw, atol=1e-6)


def test_a_policy_plans_when_a_plan_is_used_up(solver: SwmSolver) -> None:
    policy = SwmPolicy(solver, horizon=3, receding_horizon=2)
    policy.set_env(Worlds)
    skip = solver.model.config.frame_skip
    seen = []
    for step in range(2 * skip + 1):
        info = pictures(solver, seed=step)
        seen.append(policy.get_action(info))
    first = configured(solver).solve(pictures(solver, seed=0))["actions"]
    raw = solver.model.to_env_actions(first).numpy()
    np.testing.assert_allclose(np.stack(seen[: 2 * skip], axis=1), raw[:, : 2 * skip], atol=1e-6)
    assert np.abs(seen[-1]).max() <= 1
    # A world that has begun anew drops its plan; one that has ended gets no action.
    info = pictures(solver, seed=99) | {
        "_needs_flush": np.array([True, False]),
        "terminated": np.array([False, True]),
    }
    actions = policy.get_action(info)
    assert np.isfinite(actions[0]).all()
    assert np.isnan(actions[1]).all()


def test_bad_input_is_said(solver: SwmSolver) -> None:
    info = pictures(configured(solver))
    scaled = info | {"pixels": info["pixels"].astype(np.float32)}
    with pytest.raises(InputError, match="pixels: expected uint8 pictures"):
        solver.solve(scaled)
    with pytest.raises(InputError, match="expected 'goal', found pixels"):
        solver.solve({"pixels": info["pixels"]})
    with pytest.raises(InputError, match="action_block: expected"):
        solver.configure(action_space=Worlds.action_space, n_envs=2, config=PlanSettings(3, 3, 99))
    wide = gymnasium.spaces.Box(-1, 1, (2, 7), np.float32)
    with pytest.raises(InputError, match="expected 2 numbers an action, found 7"):
        solver.configure(
            action_space=wide,
            n_envs=2,
            config=PlanSettings(3, 3, solver.model.config.frame_skip),
        )
    with pytest.raises(InputError, match="receding_horizon: expected 1 to 3"):
        SwmPolicy(solver, horizon=3, receding_horizon=4)
