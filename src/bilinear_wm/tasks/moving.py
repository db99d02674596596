"""Moving goals: M-TwoRoom, M-PushT, M-Reacher, M-Cube (paper, Appendix B.3).

Each environment step the goal moves by sigma * v_max * u, u a uniformly random direction; moves
that leave the workspace or cross an obstacle are drawn again. Each task says in `goal_motion` which
numbers of its state move, and how fast. A walk depends on its start and seed alone, so that every
method meets the same goals.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinear_wm.tasks.base import Action, GoalMotion, Pixels, State, Task

ATTEMPTS = 100
"""Draws until a goal that can go nowhere stays where it is."""


class GoalWalk:
    """The path of one goal, drawn as far as it is asked for."""

    def __init__(
        self, task: type[Task], start: State, seed: list[int], motion: GoalMotion | None = None
    ) -> None:
        self._task, self._motion = task, motion or task.goal_motion
        self._path = [start.copy()]
        self._rng = np.random.default_rng(seed)

    def __getitem__(self, step: int) -> State:
        """Where the goal is after that many environment steps."""
        while len(self._path) <= step:
            self._path.append(self._next(self._path[-1]))
        return self._path[step].copy()

    def _next(self, goal: State) -> State:
        motion = self._motion
        for _ in range(ATTEMPTS):
            shift = motion.speed * motion.v_max * self._direction(len(motion.axes))
            moved = goal.copy()
            for axis, entries in enumerate(motion.axes):
                moved[list(entries)] += shift[axis]
            if self._task.goal_may_move(goal, moved):
                return moved
        return goal

    def _direction(self, size: int) -> NDArray[np.float64]:
        """Uniform on the sphere: a normal vector's direction."""
        drawn = self._rng.normal(size=size)
        return drawn / np.linalg.norm(drawn)


class MovingGoal(gymnasium.Wrapper[Pixels, Action, Pixels, Action]):
    """A task whose goal wanders: it moves, then the agent acts, then success is judged."""

    env: Task

    def __init__(self, env: Task, seed: int = 0, motion: GoalMotion | None = None) -> None:
        super().__init__(env)
        self._seed, self._motion = seed, motion
        self.steps = 0
        self._walk: GoalWalk | None = None

    def follow(self, walk: GoalWalk) -> None:
        """Begin a walk; the goal is at its start."""
        self._walk, self.steps = walk, 0
        self.env.set_goal(walk[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Pixels, dict[str, Any]]:
        pixels, info = self.env.reset(seed=seed, options=options)
        entropy = [self._seed if seed is None else seed]
        self.follow(GoalWalk(type(self.env), self.env.goal, entropy, self._motion))
        return pixels, info

    def advance(self, action: ArrayLike) -> bool:
        """One step without a picture: returns whether the goal, where it is now, is reached."""
        self._move_goal()
        return self.env.advance(action)

    def step(self, action: ArrayLike) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        self._move_goal()
        return self.env.step(action)

    def _move_goal(self) -> None:
        if self._walk is None:
            raise gymnasium.error.ResetNeeded("call reset() or follow() first")
        self.steps += 1
        self.env.set_goal(self._walk[self.steps])
