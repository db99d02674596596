"""A task of your own: a cart on a rail that should stop at a mark.

    python examples/new_task.py
    bwm collect cart --out cart.h5 --plugin examples/new_task.py    # and so every other stage

How a step changes the state, what a state looks like, when it counts as the goal, where episodes
start, who acts while data is recorded. Pictures, goals, resets and checks come with `Task`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.registry import TASKS
from bilinear_wm.tasks.base import Action, GoalMotion, Pixels, Policy, State, Task

CLOSE = 0.05


class Cart(Task):
    """Push the cart to the goal's position."""

    name = "cart"
    state_names = ("position", "velocity")
    action_names = ("force",)
    goal_size = 1
    episode_steps = 60
    goal_motion = GoalMotion(axes=((0,),), v_max=0.1, speed=0.1)

    def _build(self) -> None:
        self._state = np.zeros(2)

    @property
    def state(self) -> State:
        return self._state.copy()

    def _restore(self, state: State) -> None:
        self._state = state.copy()

    def _simulate(self, action: Action) -> None:
        velocity = 0.9 * self._state[1] + 0.02 * float(np.clip(action[0], -1, 1))
        self._state = np.array([np.clip(self._state[0] + velocity, -1, 1), velocity])

    def picture(self, state: State) -> Pixels:
        grid = np.linspace(-1.1, 1.1, self.image_size)
        cart = np.exp(-((grid - state[0]) ** 2) / 0.01) * np.exp(-(grid[:, None] ** 2) / 0.02)
        return (255 * (1 - cart[..., None] * np.array([1.0, 0.4, 0.0]))).astype(np.uint8)

    @staticmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.abs(states[..., 0] - goals[..., 0]) < CLOSE

    @staticmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.abs(states[..., 0] - goals[..., 0]) / CLOSE

    @staticmethod
    def goal_may_move(before: State, after: State) -> bool:
        return bool(abs(after[0]) <= 1)

    def _complete_goal(self, goal: State) -> State:
        return np.array([goal[0], 0.0])

    def _sample_start(self) -> tuple[State, State]:
        start, goal = self.np_random.uniform(-0.9, 0.9, 2)
        return np.array([start, 0.0]), np.array([goal, 0.0])

    def behaviour(self) -> Policy:
        rng = self.np_random
        return lambda: rng.uniform(-1, 1, 1).astype(np.float32)


TASKS.register(Cart.name, Cart)


def main() -> None:
    # Imported here, so that processes which only simulate the cart need no torch.
    from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate

    env = Cart(image_size=48)
    pixels, _ = env.reset(seed=0)
    print(pixels.shape, "from", env.state.round(2), "to", env.goal.round(2))
    for step in range(200):
        error = env.goal[0] - env.state[0]
        _, _, solved, _, _ = env.step(np.array([3 * error - 20 * env.state[1]]))
        if solved:
            print(f"there after {step + 1} steps")
            break
    result = evaluate(EvaluateConfig(Cart.name, planner="random", episodes=20), progress=False)
    print(f"random actions reach goals 25 steps ahead in {result.success}")


if __name__ == "__main__":
    main()
