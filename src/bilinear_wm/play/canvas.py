"""How a person's mouse and eyes meet a task.

Points are shares of the picture, (0, 0) at its top left and (1, 1) at its bottom right.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError
from bilinear_wm.tasks import task_class
from bilinear_wm.tasks.base import State, Task

Point = tuple[float, float]
ARM, HAND = 0.12, 0.12  # dm_control's reacher, in metres
HALF_VIEW = 0.74 * np.tan(np.pi / 8)  # what its camera shows to each side at the arm's height


class Canvas(abc.ABC):
    """One task on the page."""

    turns: bool = False
    """Whether dragging away from the click turns the goal."""
    hint: str

    @abc.abstractmethod
    def goal(self, x: float, y: float, angle: float, now: State) -> State:
        """The goal state for a click, moved to where it is possible."""

    @abc.abstractmethod
    def goal_point(self, goal: State) -> Point:
        """Where to mark it."""

    @abc.abstractmethod
    def points(self, seen: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Where the agent is, from what a probe reads off latents (see `probe_targets`)."""

    @abc.abstractmethod
    def push(self, env: Task, rng: np.random.Generator) -> None:
        """A push from outside."""


class TwoRoomCanvas(Canvas):
    hint = "Drag the goal. The wall is real: the door is the gap near the top."

    def goal(self, x: float, y: float, angle: float, now: State) -> State:
        from bilinear_wm.tasks import tworoom

        place = np.clip(np.array([x, y]) * tworoom.CANVAS, tworoom.LOW, tworoom.HIGH)
        if not tworoom.TwoRoom.goal_may_move(place, place):  # inside the wall: out to its side
            place[0] = tworoom.WALL_LEFT if place[0] < tworoom.WALL_X else tworoom.WALL_RIGHT
        return place

    def goal_point(self, goal: State) -> Point:
        return float(goal[0]) / 224, float(goal[1]) / 224

    def points(self, seen: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.stack([seen["agent_x"], seen["agent_y"]], axis=-1) / 224

    def push(self, env: Task, rng: np.random.Generator) -> None:
        for _ in range(100):
            angle = rng.uniform(0, 2 * np.pi)
            moved = env.state + 45 * np.array([np.cos(angle), np.sin(angle)])
            if env.goal_may_move(env.state, moved):
                env.set_state(moved)
                return


class PushTCanvas(Canvas):
    turns = True
    hint = "Click where the block should be; drag away from the click to turn it."

    def goal(self, x: float, y: float, angle: float, now: State) -> State:
        from bilinear_wm.tasks import pusht

        middle = np.clip(np.array([x, y]) * pusht.CANVAS, 110, pusht.CANVAS - 110)
        corner = middle - pusht.rotation(angle) @ pusht.CENTRE_OF_GRAVITY
        pose = np.array([*corner, angle % (2 * np.pi)])
        disc = pusht.to_world(np.array([0.0, -35.0]), pose)  # above the bar, where it pushes
        return np.array([*disc, *pose, 0, 0])

    def goal_point(self, goal: State) -> Point:
        from bilinear_wm.tasks import pusht

        middle = pusht.to_world(pusht.CENTRE_OF_GRAVITY, goal[2:5])
        return float(middle[0]) / pusht.CANVAS, float(middle[1]) / pusht.CANVAS

    def points(self, seen: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.stack([seen["agent_x"], seen["agent_y"]], axis=-1) / 512

    def push(self, env: Task, rng: np.random.Generator) -> None:
        from bilinear_wm.tasks import pusht

        state = env.state
        for _ in range(100):
            angle = rng.uniform(0, 2 * np.pi)
            disc = state[:2] + 80 * np.array([np.cos(angle), np.sin(angle)])
            inside = ((disc > 30) & (disc < 480)).all()
            if inside and pusht.clearance(disc, state[2:5]) > pusht.AGENT_RADIUS + 1:
                env.set_state([*disc, *state[2:]])
                return


class ReacherCanvas(Canvas):
    hint = "Click where the fingertip should be."

    def goal(self, x: float, y: float, angle: float, now: State) -> State:
        """Both joints by the law of cosines; of the two elbows the nearer one."""
        reach = np.array([2 * x - 1, 1 - 2 * y]) * HALF_VIEW
        distance = float(np.clip(np.linalg.norm(reach), abs(ARM - HAND) + 0.05, ARM + HAND))
        cosine = (distance**2 - ARM**2 - HAND**2) / (2 * ARM * HAND)
        bend = np.arccos(np.clip(cosine, np.cos(2.7), 1.0))  # the wrist ends at 160 degrees
        found = []
        for wrist in (bend, -bend):
            inner = np.arctan2(HAND * np.sin(wrist), ARM + HAND * np.cos(wrist))
            shoulder = np.arctan2(reach[1], reach[0]) - inner
            shoulder += 2 * np.pi * np.round((now[0] - shoulder) / (2 * np.pi))
            found.append(np.array([shoulder, wrist, 0.0, 0.0]))
        return min(found, key=lambda goal: float(np.abs(goal[:2] - now[:2]).sum()))

    def goal_point(self, goal: State) -> Point:
        (x, y) = _fingertip(goal[0], goal[1])
        return float(x), float(y)

    def points(self, seen: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        shoulder = np.arctan2(seen["sin_shoulder"], seen["cos_shoulder"])
        wrist = np.arctan2(seen["sin_wrist"], seen["cos_wrist"])
        return _fingertip(shoulder, wrist)

    def push(self, env: Task, rng: np.random.Generator) -> None:
        state = env.state
        state[2:] += rng.choice([-1, 1], 2) * np.array([6.0, 10.0])
        env.set_state(state)


def _fingertip(shoulder: Any, wrist: Any) -> NDArray[np.float64]:
    x = ARM * np.cos(shoulder) + HAND * np.cos(shoulder + wrist)
    y = ARM * np.sin(shoulder) + HAND * np.sin(shoulder + wrist)
    return np.stack([x / HALF_VIEW + 1, 1 - y / HALF_VIEW], axis=-1) / 2


CANVASES: dict[str, type[Canvas]] = {
    "tworoom": TwoRoomCanvas,
    "pusht": PushTCanvas,
    "reacher": ReacherCanvas,
}


def make_canvas(task: str) -> Canvas:
    """The canvas of a task; Cube has none, because a mouse does not say where its arm should be."""
    task_class(task)  # refuses what is no task at all
    if task not in CANVASES:
        raise InputError(f"task: expected one of {', '.join(CANVASES)}, found {task!r}")
    return CANVASES[task]()
