"""How a person's mouse and eyes meet a task.

Points are shares of the picture, (0, 0) at its top left and (1, 1) at its bottom right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError
from bilinear_wm.tasks import task_class
from bilinear_wm.tasks.base import State, Task

Point = tuple[float, float]
ARM, HAND = 0.12, 0.12  # dm_control's reacher, in metres
UNPLANNED = 5
"""Actions that a push is, where a task has no better one."""
HALF_VIEW = 0.74 * np.tan(np.pi / 8)  # what its camera shows to each side at the arm's height


class Canvas:
    """One task on the page. As it is here it suits any task: goals are picked, not dragged."""

    drags: bool = False
    """Whether a click or a drag says where the goal is."""
    turns: bool = False
    """Whether dragging away from the click turns the goal."""
    hint: str = "New goal picks one that the recorded behaviour reached."

    def goal(self, x: float, y: float, angle: float, now: State) -> State:
        """The goal state for a click, moved to where it is possible."""
        raise InputError("goal: expected a wish for a new one: here it cannot be dragged")

    def goal_point(self, goal: State) -> Point | None:
        """Where to mark it, if anywhere."""
        return None

    def trails(self, seen: dict[str, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Where things are, from what a probe reads off latents (see `probe_targets`).

        The agent first, then what it moves.
        """
        return []

    def push(self, env: Task, rng: np.random.Generator) -> None:
        """A push from outside: actions that nobody planned."""
        space: Any = env.action_space
        action = rng.choice([-1, 1], space.shape) * np.abs(space.high)
        for _ in range(UNPLANNED):
            env.advance(action.astype(np.float32))


class TwoRoomCanvas(Canvas):
    drags = True
    hint = "Drag the goal. The wall is real: the door is the gap near the top."

    def goal(self, x: float, y: float, angle: float, now: State) -> State:
        from bilinear_wm.tasks import tworoom

        place = np.clip(np.array([x, y]) * tworoom.CANVAS, tworoom.LOW, tworoom.HIGH)
        if not tworoom.TwoRoom.goal_may_move(place, place):  # inside the wall: out to its side
            place[0] = tworoom.WALL_LEFT if place[0] < tworoom.WALL_X else tworoom.WALL_RIGHT
        return place

    def goal_point(self, goal: State) -> Point:
        return float(goal[0]) / 224, float(goal[1]) / 224

    def trails(self, seen: dict[str, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        return [np.stack([seen["agent_x"], seen["agent_y"]], axis=-1) / 224]

    def push(self, env: Task, rng: np.random.Generator) -> None:
        for _ in range(100):
            angle = rng.uniform(0, 2 * np.pi)
            moved = env.state + 45 * np.array([np.cos(angle), np.sin(angle)])
            if env.goal_may_move(env.state, moved):
                env.set_state(moved)
                return


class PushTCanvas(Canvas):
    drags = turns = True
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

    def trails(self, seen: dict[str, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        from bilinear_wm.tasks import pusht

        agent = np.stack([seen["agent_x"], seen["agent_y"]], axis=-1)
        angle = np.arctan2(seen["sin_block_angle"], seen["cos_block_angle"])
        poses = np.stack([seen["block_x"], seen["block_y"], angle], axis=-1)
        block = [pusht.to_world(pusht.CENTRE_OF_GRAVITY, pose) for pose in poses]
        return [agent / pusht.CANVAS, np.array(block) / pusht.CANVAS]

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
    drags = True
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

    def trails(self, seen: dict[str, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        shoulder = np.arctan2(seen["sin_shoulder"], seen["cos_shoulder"])
        wrist = np.arctan2(seen["sin_wrist"], seen["cos_wrist"])
        return [_fingertip(shoulder, wrist)]

    def push(self, env: Task, rng: np.random.Generator) -> None:
        state = env.state
        state[2:] += rng.choice([-1, 1], 2) * np.array([6.0, 10.0])
        env.set_state(state)


class CubeCanvas(Canvas):
    hint = "Press New goal: arm and cube are set to a start, and are to become like the ghost."

    def goal_point(self, goal: State) -> Point:
        from bilinear_wm.tasks import cube

        x, y = cube.in_picture(goal[cube.CUBE_QPOS : cube.CUBE_QPOS + 3])
        return float(x), float(y)

    def trails(self, seen: dict[str, NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        from bilinear_wm.tasks import cube

        return [
            cube.in_picture(np.stack([seen[f"{what}_{axis}"] for axis in "xyz"], axis=-1))
            for what in ("gripper", "cube")
        ]

    def push(self, env: Task, rng: np.random.Generator) -> None:
        """The cube is moved over the table, out of the hand if need be."""
        from bilinear_wm.tasks import cube

        for _ in range(100):
            state, angle = env.state, rng.uniform(0, 2 * np.pi)
            place = state[cube.CUBE_QPOS : cube.CUBE_QPOS + 3]
            place += [0.08 * np.cos(angle), 0.08 * np.sin(angle), 0]
            place[2] = cube.CUBE_HALF
            if env.goal_may_move(state, state):
                env.set_state(state)
                return


def _fingertip(shoulder: Any, wrist: Any) -> NDArray[np.float64]:
    x = ARM * np.cos(shoulder) + HAND * np.cos(shoulder + wrist)
    y = ARM * np.sin(shoulder) + HAND * np.sin(shoulder + wrist)
    return np.stack([x / HALF_VIEW + 1, 1 - y / HALF_VIEW], axis=-1) / 2


CANVASES: dict[str, type[Canvas]] = {
    "tworoom": TwoRoomCanvas,
    "pusht": PushTCanvas,
    "reacher": ReacherCanvas,
    "cube": CubeCanvas,
}


def make_canvas(task: str) -> Canvas:
    """The canvas of a task; one of your own has the general one."""
    task_class(task)  # refuses what is no task at all
    return CANVASES.get(task, Canvas)()
