"""TwoRoom: a dot in two rooms joined by a door, seen from above.

Lengths are pixels of the benchmark's 224-pixel picture, whatever size is drawn.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.base import Action, GoalMotion, Pixels, Policy, State, Task

CANVAS = 224
SPEED = 5.0
AGENT_RADIUS = 7.0
SUCCESS_DISTANCE = 16.0

BORDER = 14
BORDER_LINE = 4
WALL_X = 112
WALL_HALF = 5
DOOR_Y = 49
DOOR_HALF = 14
DOOR_MARGIN = 1.75
PUSH_BACK = 0.5

LOW, HIGH = BORDER + AGENT_RADIUS, CANVAS - BORDER - AGENT_RADIUS
WALL_LEFT, WALL_RIGHT = WALL_X - WALL_HALF - AGENT_RADIUS, WALL_X + WALL_HALF + AGENT_RADIUS

EXPERT_NOISE_STD = 2.0
DOOR_REACHED = 10.5
MIN_EXPERT_STEPS = 25


class TwoRoom(Task):
    """Move the dot to the goal position; walls block, the door lets through."""

    name = "tworoom"
    state_names = ("agent_x", "agent_y")
    action_names = ("dx", "dy")
    goal_size = 2
    episode_steps: ClassVar[int] = 100
    behaviour_ends_at_goal = True
    goal_motion = GoalMotion(axes=((0,), (1,)), v_max=7.07, speed=3.0)

    def _build(self) -> None:
        self._position = np.zeros(2, np.float32)
        scale = CANVAS / self.image_size
        self._grid = ((np.arange(self.image_size) + 0.5) * scale - 0.5).astype(np.float32)
        self._room = _draw_room(self.image_size)

    @property
    def state(self) -> State:
        return self._position.astype(np.float64)

    def _restore(self, state: State) -> None:
        # The benchmark keeps positions in single precision; so do we, to agree with it.
        self._position = state.astype(np.float32)

    def _simulate(self, action: Action) -> None:
        before = self._position
        after = np.clip(before + np.clip(action, -1, 1) * np.float32(SPEED), LOW, HIGH)
        if not _in_door(float(after[1])):
            if before[0] < WALL_X and after[0] > WALL_LEFT:
                after[0] = WALL_LEFT - PUSH_BACK
            elif before[0] >= WALL_X and after[0] < WALL_RIGHT:
                after[0] = WALL_RIGHT + PUSH_BACK
        self._position = after

    def picture(self, state: State) -> Pixels:
        bells = [
            np.exp(-((self._grid - np.float32(centre)) ** 2) / np.float32(2 * AGENT_RADIUS**2))
            for centre in state
        ]
        bell_x, bell_y = (bell / bell.max() for bell in bells)
        dot = bell_y[:, None] * bell_x
        dark = self._room * (1 - dot)
        pixels = np.empty((self.image_size, self.image_size, 3), np.uint8)
        pixels[..., 0] = dark + 255 * dot
        pixels[..., 1] = pixels[..., 2] = dark
        return pixels

    @staticmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.linalg.norm(states - goals, axis=-1) < SUCCESS_DISTANCE

    @staticmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.linalg.norm(states - goals, axis=-1) / SUCCESS_DISTANCE

    @staticmethod
    def goal_may_move(before: State, after: State) -> bool:
        """Inside the rooms, and from one to the other through the door."""
        if not ((after >= LOW) & (after <= HIGH)).all():
            return False
        if (before[0] < WALL_X) == (after[0] < WALL_X):
            return not WALL_LEFT < after[0] < WALL_RIGHT or _in_door(after[1])
        share = (WALL_X - before[0]) / (after[0] - before[0])
        return _in_door(before[1] + share * (after[1] - before[1])) and (
            not WALL_LEFT < after[0] < WALL_RIGHT or _in_door(after[1])
        )

    def _sample_start(self) -> tuple[State, State]:
        start = self._sample_position()
        while True:
            goal = self._sample_position()
            other_room = (start[0] < WALL_X) != (goal[0] < WALL_X)
            door = np.array([WALL_X, DOOR_Y])
            path = np.linalg.norm(start - door) + np.linalg.norm(goal - door)
            if other_room and path >= MIN_EXPERT_STEPS * SPEED:
                return start, goal

    def _sample_position(self) -> State:
        while True:
            position = self.np_random.uniform(BORDER, CANVAS - BORDER - 1, 2)
            if not WALL_LEFT <= position[0] <= WALL_RIGHT:
                return position

    def behaviour(self) -> Policy:
        """The benchmark's expert: to the door, then to the goal, under heavy noise."""
        rng, goal = self.np_random, self.goal
        door = np.array([WALL_X, DOOR_Y], np.float64)

        def act() -> Action:
            position = self.state
            same_room = (position[0] > WALL_X) == (goal[0] > WALL_X)
            at_door = np.linalg.norm(door - position) <= DOOR_REACHED
            way = (goal if same_room or at_door else door) - position
            direction = way / max(float(np.linalg.norm(way)), 1e-8)
            noisy = direction + rng.normal(0, EXPERT_NOISE_STD, 2)
            return np.clip(noisy, -1, 1).astype(np.float32)

        return act


def _in_door(y: float) -> bool:
    return abs(y - DOOR_Y) <= DOOR_HALF + DOOR_MARGIN


def _draw_room(image_size: int) -> NDArray[np.float32]:
    """Walls and border in black on white, each pixel the mean of the area it covers."""
    wall = np.zeros((CANVAS, CANVAS), np.float64)
    wall[:, WALL_X - WALL_HALF : WALL_X + WALL_HALF + 1] = 1
    wall[DOOR_Y - DOOR_HALF : DOOR_Y + DOOR_HALF + 1, :] = 0
    near, far = slice(BORDER - BORDER_LINE, BORDER), slice(CANVAS - BORDER, CANVAS - BORDER + 4)
    for line in (near, far):
        wall[line, :] = 1
        wall[:, line] = 1
    area = _area_weights(image_size)
    return (255 * (1 - area @ wall @ area.T)).astype(np.float32)


def _area_weights(image_size: int) -> NDArray[np.float64]:
    """Row i holds the share of each canvas pixel in picture pixel i."""
    edges = np.linspace(0, CANVAS, image_size + 1)
    canvas = np.arange(CANVAS)
    overlap = np.minimum(edges[1:, None], canvas + 1) - np.maximum(edges[:-1, None], canvas)
    return np.clip(overlap, 0, None) * image_size / CANVAS
