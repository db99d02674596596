"""PushT: a disc pushes a T-shaped block, seen from above.

Lengths are pixels of the benchmark's 512-pixel canvas, whatever size is drawn. The disc
is steered by a PD controller towards `position + 100 * action`; the block stops as soon
as nothing pushes it.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import numpy as np
import pymunk
from numpy.typing import NDArray

from bilinear_wm.tasks.base import (
    Action,
    GoalMotion,
    Pixels,
    Policy,
    State,
    Task,
    sine_cosine,
    wrapped_angle,
)

F = TypeVar("F", np.float32, np.float64)

CANVAS = 512
ACTION_SCALE = 100.0
PHYSICS_DT = 0.01
PHYSICS_STEPS = 10
KP, KV = 100, 20

AGENT_RADIUS = 15.0
WALL_NEAR, WALL_FAR, WALL_RADIUS = 5, 506, 2
# The T in its own frame, as (x low, x high, y low, y high).
BAR = (-60.0, 60.0, 0.0, 30.0)
STEM = (-15.0, 15.0, 30.0, 120.0)
CENTRE_OF_GRAVITY = np.array([0.0, 45.0])
MARK = np.array([256.0, 256.0, np.pi / 4])  # the green T: always drawn, never the goal

SUCCESS_DISTANCE = 20.0
SUCCESS_ANGLE = np.pi / 9

GREEN = (144, 238, 144)
GREY = (211, 211, 211)
BLOCK, BLOCK_EDGE = (143, 163, 184), (119, 136, 153)
AGENT, AGENT_EDGE = (78, 126, 255), (65, 105, 225)
EDGE_HALF = 2.0
AGENT_RIM = 4.0


class PushT(Task):
    """Bring disc and block to where the goal picture shows them."""

    name = "pusht"
    state_names = (
        "agent_x",
        "agent_y",
        "block_x",
        "block_y",
        "block_angle",
        "agent_vx",
        "agent_vy",
    )
    action_names = ("dx", "dy")
    goal_size = 7
    episode_steps: ClassVar[int] = 125
    goal_motion = GoalMotion(axes=((0, 2), (1, 3)), v_max=22.4, speed=0.1)
    """Disc and block of the goal move together, so that they never overlap; it does not turn."""

    def _build(self) -> None:
        self._restore(np.array([256, 400, 256, 256, 0, 0, 0], np.float64))
        self._background = self._draw_background()

    @property
    def state(self) -> State:
        agent, block = self._agent, self._block
        angle = block.angle % (2 * np.pi)
        return np.array([*agent.position, *block.position, angle, *agent.velocity], np.float64)

    def _restore(self, state: State) -> None:
        self._space, self._agent, self._block = _make_space()
        values = state.tolist()
        self._agent.velocity = tuple(values[5:7])
        self._agent.position = tuple(values[0:2])
        self._block.angle = values[4]
        self._block.position = tuple(values[2:4])
        # The benchmark runs one physics step here, so that overlaps begin to resolve.
        self._space.step(PHYSICS_DT)

    def _simulate(self, action: Action) -> None:
        agent = self._agent
        # Single precision up to the velocity, like the benchmark's arithmetic.
        scale, kp, dt = np.float32(ACTION_SCALE), np.float32(KP), np.float32(PHYSICS_DT)
        target_x = np.float32(agent.position.x) + action[0] * scale
        target_y = np.float32(agent.position.y) + action[1] * scale
        for _ in range(PHYSICS_STEPS):
            (x, y), (vx, vy) = agent.position, agent.velocity
            ax = kp * (target_x - np.float32(x)) + np.float32(-KV * vx)
            ay = kp * (target_y - np.float32(y)) + np.float32(-KV * vy)
            agent.velocity = float(np.float32(vx) + ax * dt), float(np.float32(vy) + ay * dt)
            self._space.step(PHYSICS_DT)

    def picture(self, state: State) -> Pixels:
        canvas = self._background.copy()
        self._paint_block(canvas, state[2:5], BLOCK, BLOCK_EDGE)
        self._paint_agent(canvas, state[:2])
        return np.rint(canvas).astype(np.uint8)

    @staticmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        distance = np.linalg.norm(states[..., :4] - goals[..., :4], axis=-1)
        angle = np.abs(wrapped_angle(states[..., 4] - goals[..., 4]))
        return (distance < SUCCESS_DISTANCE) & (angle < SUCCESS_ANGLE)

    @staticmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        shift = np.linalg.norm(states[..., :4] - goals[..., :4], axis=-1)
        turn = np.abs(wrapped_angle(states[..., 4] - goals[..., 4]))
        return np.maximum(shift / SUCCESS_DISTANCE, turn / SUCCESS_ANGLE)

    @staticmethod
    def goal_may_move(before: State, after: State) -> bool:
        """Disc and block stay between the walls."""
        corners = [(x, y) for box in (BAR, STEM) for x in box[:2] for y in box[2:]]
        block = to_world(np.array(corners), after[2:5])
        near, far = WALL_NEAR + WALL_RADIUS, WALL_FAR - WALL_RADIUS
        disc_inside = (after[:2] >= near + AGENT_RADIUS) & (after[:2] <= far - AGENT_RADIUS)
        return bool(((block >= near) & (block <= far)).all() and disc_inside.all())

    @staticmethod
    def window_shares(
        states: NDArray[np.float64], later: NDArray[np.float64]
    ) -> dict[str, NDArray[np.bool_]]:
        shift = np.linalg.norm(later[..., 2:4] - states[..., 2:4], axis=-1)
        turn = np.abs(wrapped_angle(later[..., 4] - states[..., 4]))
        return {"block moves (> 5 px or 5 deg)": (shift > 5) | (turn > np.deg2rad(5))}

    @classmethod
    def probe_targets(cls, states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        positions = {name: states[..., i] for i, name in enumerate(cls.state_names[:4])}
        return positions | sine_cosine("block_angle", states[..., 4])

    def _sample_start(self) -> tuple[State, State]:
        return self._sample_state(), self._sample_state()

    def _sample_state(self) -> State:
        """The benchmark's start distribution, without a disc inside the block."""
        while True:
            agent = self.np_random.uniform(50, 450, 2)
            block = self.np_random.uniform(100, 400, 2)
            angle = self.np_random.uniform(0, 2 * np.pi)
            if clearance(agent, np.array([*block, angle])) > AGENT_RADIUS + 1:
                return np.array([*agent, *block, angle, 0, 0])

    def behaviour(self) -> Policy:
        from bilinear_wm.tasks.pusher import Pusher

        return Pusher(self, self.np_random)

    # Drawing: every shape is a signed distance, every pixel the share that it covers.

    def _draw_background(self) -> NDArray[np.float32]:
        canvas = np.full((self.image_size, self.image_size, 3), 255, np.float32)
        self._paint_block(canvas, MARK, GREEN, None)
        grid = self._grid(0, self.image_size)
        near, far = np.abs(grid - WALL_NEAR), np.abs(grid - WALL_FAR)
        line = np.minimum(near, far)
        inside = np.clip(np.maximum(WALL_NEAR - grid, grid - WALL_FAR), 0, None)
        distance = np.minimum(np.hypot(line[:, None], inside), np.hypot(inside[:, None], line))
        self._blend(canvas, distance - WALL_RADIUS, GREY)
        return canvas

    def _paint_block(
        self,
        canvas: NDArray[np.float32],
        pose: NDArray[np.float64],
        fill: tuple[int, int, int],
        edge: tuple[int, int, int] | None,
    ) -> None:
        centre = to_world(CENTRE_OF_GRAVITY, pose)
        patch, dx, dy = self._patch(canvas, centre, 100.0)
        cos, sin = np.float32(np.cos(pose[2])), np.float32(np.sin(pose[2]))
        along = cos * dx + sin * dy[:, None] + np.float32(CENTRE_OF_GRAVITY[0])
        across = cos * dy[:, None] - sin * dx + np.float32(CENTRE_OF_GRAVITY[1])
        for box in (BAR, STEM):
            distance = box_distance(along, across, box)
            self._blend(patch, distance, fill)
            if edge is not None:
                self._blend(patch, np.abs(distance) - np.float32(EDGE_HALF), edge)

    def _paint_agent(self, canvas: NDArray[np.float32], centre: NDArray[np.float64]) -> None:
        patch, dx, dy = self._patch(canvas, centre, AGENT_RADIUS + 2)
        distance = np.hypot(dx, dy[:, None])
        self._blend(patch, distance - np.float32(AGENT_RADIUS), AGENT_EDGE)
        self._blend(patch, distance - np.float32(AGENT_RADIUS - AGENT_RIM), AGENT)

    def _patch(
        self, canvas: NDArray[np.float32], centre: NDArray[np.float64], reach: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """The part of the canvas within `reach`, and its offsets from `centre`."""
        scale = self.image_size / CANVAS
        low = np.clip(np.floor((centre - reach) * scale - 1), 0, self.image_size).astype(int)
        high = np.clip(np.ceil((centre + reach) * scale + 2), 0, self.image_size).astype(int)
        dx = self._grid(low[0], high[0]) - np.float32(centre[0])
        dy = self._grid(low[1], high[1]) - np.float32(centre[1])
        return canvas[low[1] : high[1], low[0] : high[0]], dx, dy

    def _grid(self, low: int, high: int) -> NDArray[np.float32]:
        return ((np.arange(low, high) + 0.5) * (CANVAS / self.image_size) - 0.5).astype(np.float32)

    def _blend(
        self,
        canvas: NDArray[np.float32],
        distance: NDArray[np.float32],
        colour: tuple[int, int, int],
    ) -> None:
        # The benchmark's shapes own every canvas pixel that they touch: half a pixel more.
        scale = np.float32(self.image_size / CANVAS)
        cover = np.clip(0.5 - (distance - np.float32(0.5)) * scale, 0, 1)[..., None]
        canvas += cover * (np.array(colour, np.float32) - canvas)


def box_distance(
    x: NDArray[F], y: NDArray[F], box: tuple[float, float, float, float]
) -> NDArray[F]:
    """Signed distance to a rectangle: negative inside."""
    x_low, x_high, y_low, y_high = box
    dx = np.abs(x - x.dtype.type((x_low + x_high) / 2)) - x.dtype.type((x_high - x_low) / 2)
    dy = np.abs(y - y.dtype.type((y_low + y_high) / 2)) - y.dtype.type((y_high - y_low) / 2)
    return np.hypot(np.maximum(dx, 0), np.maximum(dy, 0)) + np.minimum(np.maximum(dx, dy), 0)


def rotation(angle: float) -> NDArray[np.float64]:
    """The matrix that turns a vector by `angle`."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]])


def to_world(point: NDArray[np.float64], pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """A point of the block's frame (or rows of them) on the canvas; pose is (x, y, angle)."""
    return point @ rotation(pose[2]).T + pose[:2]


def to_block(point: NDArray[np.float64], pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """A point of the canvas (or rows of them) in the block's frame."""
    return (point - pose[:2]) @ rotation(pose[2])


def clearance(point: NDArray[np.float64], pose: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance from a point (or rows of them) to the block at `pose`, negative inside."""
    local = to_block(point, pose)
    x, y = local[..., 0], local[..., 1]
    return np.minimum(box_distance(x, y, BAR), box_distance(x, y, STEM))


def _make_space() -> tuple[pymunk.Space, pymunk.Body, pymunk.Body]:
    space = pymunk.Space()
    space.gravity = 0, 0
    space.damping = 0
    near, far = WALL_NEAR, WALL_FAR
    corners = [
        ((near, far), (near, near)),
        ((near, near), (far, near)),
        ((far, near), (far, far)),
        ((near, far), (far, far)),
    ]
    space.add(*(pymunk.Segment(space.static_body, a, b, WALL_RADIUS) for a, b in corners))

    agent = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
    space.add(agent, pymunk.Circle(agent, AGENT_RADIUS))

    bar, stem = (
        [(x_low, y_high), (x_high, y_high), (x_high, y_low), (x_low, y_low)]
        for x_low, x_high, y_low, y_high in (BAR, STEM)
    )
    mass = 1.0
    block = pymunk.Body(mass, 2 * pymunk.moment_for_poly(mass, bar))
    block.center_of_gravity = tuple(CENTRE_OF_GRAVITY)
    space.add(block, pymunk.Poly(block, bar), pymunk.Poly(block, stem))
    return space, agent, block
