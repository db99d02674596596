"""A bead that is moved along a rail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.base import Action, GoalMotion, Pixels, Policy, State, Task

CLOSE = 0.1


class Rail(Task):
    """Bring the bead to the goal's place."""

    name = "rail"
    state_names = ("position",)
    action_names = ("move",)
    goal_size = 1
    episode_steps = 60
    goal_motion = GoalMotion(axes=((0,),), v_max=0.05, speed=0.1)

    def _build(self) -> None:
        self._state = np.zeros(1)

    @property
    def state(self) -> State:
        return self._state.copy()

    def _restore(self, state: State) -> None:
        self._state = state.copy()

    def _simulate(self, action: Action) -> None:
        self._state = np.clip(self._state + 0.05 * float(np.clip(action[0], -1, 1)), -1, 1)

    def picture(self, state: State) -> Pixels:
        grid = np.linspace(-1.1, 1.1, self.image_size)
        bead = np.exp(-((grid - state[0]) ** 2 + grid[:, None] ** 2) / 0.02)
        return (255 * bead[..., None] * np.array([1.0, 0.8, 0.2])).astype(np.uint8)

    @staticmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.abs(states[..., 0] - goals[..., 0]) < CLOSE

    @staticmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.abs(states[..., 0] - goals[..., 0]) / CLOSE

    @staticmethod
    def goal_may_move(before: State, after: State) -> bool:
        return bool(abs(after[0]) <= 1)

    def _sample_start(self) -> tuple[State, State]:
        start, goal = self.np_random.uniform(-0.9, 0.9, (2, 1))
        return start, goal

    def behaviour(self) -> Policy:
        rng = self.np_random
        drift = rng.uniform(-0.5, 0.5)
        return lambda: (drift + rng.uniform(-0.5, 0.5, 1)).astype(np.float32)
