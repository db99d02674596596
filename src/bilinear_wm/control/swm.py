"""Our planners in stable-worldmodel: as its `Solver`, or as a policy of its `World`.

    world = swm.World("swm/TwoRoom-v1", num_envs=10, image_shape=(64, 64), max_episode_steps=50)
    world.set_policy(SwmPolicy(SwmSolver(model, planner), horizon=5))
    world.evaluate(episodes=30, seed=0)

or, with its own policy,

    solver = SwmSolver(model, planner)
    config = swm.PlanConfig(horizon=5, receding_horizon=5, action_block=model.config.frame_skip)
    policy = swm.policy.WorldModelPolicy(solver, config, process={"action": solver.scaler})

Nothing of the package is imported: its modules move between versions, and its seams are shapes of
objects (protocols) anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning.base import Planner, PlanProblem

PIXELS, GOAL = "pixels", "goal"


@dataclass(frozen=True)
class PlanSettings:
    """What a solver is told of the planning; stable-worldmodel's `PlanConfig` has more."""

    horizon: int
    receding_horizon: int
    action_block: int


class ActionScaler:
    """Model actions to raw ones and back, one environment step a row."""

    def __init__(self, model: WorldModel) -> None:
        self._mean = np.asarray(model.config.action_mean, np.float32)
        self._std = np.asarray(model.config.action_std, np.float32)

    def transform(self, x: NDArray[Any]) -> NDArray[Any]:
        """Raw to z-scored."""
        return (np.asarray(x) - self._mean) / self._std

    def inverse_transform(self, x: NDArray[Any]) -> NDArray[Any]:
        """z-scored to raw."""
        return np.asarray(x) * self._std + self._mean


class SwmSolver:
    """A model and a planner behind the protocol of a solver.

    Args:
        model: Sees one picture of one camera.
        planner: Plans with its dynamics.
    """

    def __init__(self, model: WorldModel, planner: Planner) -> None:
        model.config.observes.must_be_picture("solver")
        self.model, self.planner = model.eval(), planner
        self.scaler = ActionScaler(model)
        self.action_dim = model.config.block_size
        self.n_envs, self.horizon = 0, 0
        self._bounds: tuple[Tensor, Tensor] | None = None

    def configure(self, *, action_space: Any, n_envs: int, config: Any) -> None:
        """Take the number of worlds, their action space and the horizon (a `PlanConfig`)."""
        facts = self.model.config
        if config.action_block != facts.frame_skip:
            raise InputError(
                f"action_block: expected {facts.frame_skip}, the model's frame_skip, found "
                f"{config.action_block}"
            )
        low, high = np.atleast_2d(action_space.low), np.atleast_2d(action_space.high)
        if low.shape[-1] != facts.action_size:
            raise InputError(
                f"action_space: expected {facts.action_size} numbers an action, found "
                f"{low.shape[-1]}"
            )
        self.n_envs, self.horizon = int(n_envs), int(config.horizon)
        bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
        self._bounds = self.model.action_bounds(low[0], high[0]) if bounded else None

    def solve(
        self, info_dict: Mapping[str, Any], init_action: Tensor | None = None
    ) -> dict[str, Any]:
        """Plans from `pixels` to `goal`, (worlds, 1, H, W, 3) each, a batch of them at once.

        Returns:
            `actions`, z-scored blocks (worlds, horizon, action_dim); `costs`; `status`.
        """
        if self.horizon < 1:
            raise InputError("solver: expected `configure` before `solve`")
        z0, z_goal = (self._encode(info_dict, key) for key in (PIXELS, GOAL))
        low, high = self._bounds or (None, None)
        problem = PlanProblem(z0, z_goal, self.horizon, low, high)
        plan = self.planner.plan(problem, warm_start=self._start(init_action, len(z0)))
        return {"actions": plan.actions, "costs": plan.cost.tolist(), "status": plan.status}

    __call__ = solve

    def _encode(self, info: Mapping[str, Any], key: str) -> Tensor:
        if key not in info:
            raise InputError(
                f"info: expected {key!r}, found {', '.join(sorted(info)) or 'nothing'}"
            )
        pictures = torch.as_tensor(info[key])
        height, width = self.model.config.picture_shape
        if pictures.ndim == 5:
            pictures = pictures[:, -1]
        if pictures.dtype != torch.uint8 or pictures.shape[1:] != (height, width, 3):
            raise InputError(
                f"info: {key}: expected uint8 pictures (worlds, 1, {height}, {width}, 3), found "
                f"{pictures.dtype} {tuple(torch.as_tensor(info[key]).shape)}; make the world with "
                f"image_shape=({height}, {width}), and leave `transform` to the model"
            )
        return self.model.encode(pictures)

    def _start(self, given: Tensor | None, count: int) -> Tensor | None:
        """What is left of the last plans, with nothing after it."""
        if given is None:
            return None
        start = torch.zeros(count, self.horizon, self.action_dim, device=self.model.device)
        kept = min(given.shape[1], self.horizon)
        start[:, :kept] = given[:, :kept].to(start)
        return start


class SwmPolicy:
    """A policy for `World.set_policy`: plans, carries out some blocks, plans again.

    Args:
        solver: What plans.
        horizon: Blocks a plan.
        receding_horizon: Blocks carried out before the next; by default all.
    """

    type = "world_model"

    def __init__(
        self, solver: SwmSolver, horizon: int = 5, receding_horizon: int | None = None
    ) -> None:
        kept = horizon if receding_horizon is None else receding_horizon
        if not 1 <= kept <= horizon:
            raise InputError(
                f"receding_horizon: expected 1 to {horizon} blocks, the horizon, found {kept}"
            )
        self.solver, self.env = solver, None
        self._config = PlanSettings(horizon, kept, solver.model.config.frame_skip)
        self._waiting: list[deque[NDArray[Any]]] = []
        self._rest: dict[int, Tensor] = {}

    def set_env(self, env: Any) -> None:
        """Take the worlds; `World.set_policy` calls it."""
        self.env = env
        count = int(getattr(env, "num_envs", 1))
        self.solver.configure(action_space=env.action_space, n_envs=count, config=self._config)
        self._waiting, self._rest = [deque() for _ in range(count)], {}

    def get_action(self, info_dict: dict[str, Any], **_: Any) -> NDArray[Any]:
        """Raw actions for all worlds; NaN for those that have ended."""
        count = len(self._waiting)
        begun = np.asarray(info_dict.pop("_needs_flush", np.zeros(count)), bool).reshape(-1)
        for world in np.flatnonzero(begun):
            self._waiting[world].clear()
            self._rest.pop(int(world), None)
        ended = np.asarray(info_dict.get("terminated", np.zeros(count)), bool).reshape(-1)
        empty = [i for i in range(count) if not self._waiting[i] and not ended[i]]
        if empty:
            self._plan(info_dict, empty)
        actions = np.full((count, self.solver.model.config.action_size), np.nan, np.float32)
        for world in np.flatnonzero(~ended):
            actions[world] = self._waiting[world].popleft()
        return actions

    def _plan(self, info: Mapping[str, Any], worlds: list[int]) -> None:
        kept, block = self._config.receding_horizon, self.solver.action_dim
        some = {key: np.asarray(info[key])[worlds] for key in (PIXELS, GOAL) if key in info}
        left = self._config.horizon - kept
        rest = [self._rest.get(world, torch.zeros(left, block)) for world in worlds]
        plans = self.solver.solve(some, torch.stack(rest) if self._rest and left else None)
        raw = self.solver.model.to_env_actions(plans["actions"]).cpu().numpy()
        for row, world in enumerate(worlds):
            self._waiting[world].extend(raw[row, : kept * self._config.action_block])
            self._rest[world] = plans["actions"][row, kept:].cpu()
