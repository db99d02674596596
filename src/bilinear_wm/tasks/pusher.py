"""A scripted demonstrator for PushT: purposeful, smooth, mostly in contact.

It has a pose in mind for the block and works towards it push by push, as a person does:
choose a contact point whose push turns and shifts the block the right way, walk round the
block to it without touching, push through it while following the block, then think again.
Now and then it changes its mind about the pose, or walks away and comes back.

The block has no friction with the disc and stops when nothing pushes it, so a push along
the inward normal n at the point r (from the centre of gravity) moves it by the twist

    (v, w) proportional to (n / mass, (r x n) / inertia).

Angles are compared with lengths through the block's radius of gyration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks import pusht
from bilinear_wm.tasks.base import Action, wrapped_angle

if TYPE_CHECKING:
    from bilinear_wm.tasks.pusht import PushT

Vector = NDArray[np.float64]

GYRATION_RADIUS = 54.8  # sqrt(inertia / mass) of the block
ARENA_LOW, ARENA_HIGH = 22.0, 490.0
AIM_LOW, AIM_HIGH = 115.0, 397.0
TOUCH = pusht.AGENT_RADIUS
STANDOFF = TOUCH + 7  # where an approach ends
CLEAR = TOUCH + 3  # what a walk keeps from the block
RING_RADIUS, RING_POINTS = 102.0, 16
PATH_SAMPLES = 12

TRAVEL_COST = 1 / 90  # alignment given up per pixel of walk
MIN_WORTH = 0.5
TEMPERATURE = 0.12
SLIDE, STEER_CHANCE = 20.0, 0.35
CARRY_ON_CHANCE = 0.6
LONG_PUSH = 200.0
CONTACT_SPACING = 6.0
CORNER_MARGIN = 4.0
SMOOTHING = 0.45
NOISE_STD, NOISE_MEMORY = 1.1, 0.8


@dataclass(frozen=True)
class Contact:
    """A point of the block's outline with its inward normal, in the block's frame."""

    face: int
    point: Vector
    normal: Vector

    @property
    def tangent(self) -> Vector:
        return np.array([-self.normal[1], self.normal[0]])


class Pusher:
    """Called once a step; returns the action of a person pushing the T about."""

    def __init__(self, env: PushT, rng: np.random.Generator) -> None:
        self._env, self._rng = env, rng
        self._phase: Literal["walk", "push", "leave"] = "walk"
        self._path: list[Vector] = []
        self._contact: Contact | None = None
        self._velocity = np.zeros(2)
        self._noise = np.zeros(2)
        self._steps_left = 0
        self._still_steps = 0
        self._last_pose = env.state[2:5]
        # Each episode is another person: quicker or slower, closer to or farther from the aim.
        self._walk_speed = rng.uniform(17, 27)
        self._push_speed = rng.uniform(4, 10)
        self._leave_chance = rng.uniform(0.0, 0.1)
        self._aim = self._new_aim()

    def __call__(self) -> Action:
        state = self._env.state
        agent, pose, speed = state[:2], state[2:5], state[5:7]
        wish = self._wish(agent, pose)
        shake = np.sqrt(1 - NOISE_MEMORY**2) * NOISE_STD
        self._noise = NOISE_MEMORY * self._noise + shake * self._rng.normal(size=2)
        self._velocity = SMOOTHING * self._velocity + (1 - SMOOTHING) * wish
        self._last_pose = pose
        lead = (self._velocity + self._noise - _DRIFT * speed) / _RESPONSE
        return np.clip(lead / pusht.ACTION_SCALE, -1, 1).astype(np.float32)

    def _wish(self, agent: Vector, pose: Vector) -> Vector:
        """The displacement wanted in this step."""
        self._steps_left -= 1
        if self._phase == "push" and self._push_is_over(agent, pose):
            if self._rng.random() < self._leave_chance:
                self._leave(agent, pose)
            else:
                self._choose_contact(agent, pose)
        elif self._phase == "leave" and (self._steps_left <= 0 or not self._path):
            self._choose_contact(agent, pose)
        elif self._phase == "walk":
            if self._contact is None or np.abs(pose - self._last_pose).max() > 0.5:
                self._choose_contact(agent, pose)  # the block was shoved: think again
            if not self._path:
                self._phase = "push"
                self._steps_left = int(self._rng.integers(12, 60))
                self._still_steps = 0
        return self._push(agent, pose) if self._phase == "push" else self._walk(agent)

    def _walk(self, agent: Vector) -> Vector:
        while self._path:
            way = self._path[0] - agent
            distance = float(np.linalg.norm(way))
            last = len(self._path) == 1
            if distance > (4.0 if last else 14.0):
                pace = min(self._walk_speed, 0.6 * distance + 2) if last else self._walk_speed
                return way * (pace / distance)
            self._path.pop(0)
        return np.zeros(2)

    def _push(self, agent: Vector, pose: Vector) -> Vector:
        """Press on along the normal, and slide along the face to follow the contact point."""
        self._contact = contact_now = self._steer(agent, pose)
        turn = pusht.rotation(pose[2])
        normal = turn @ contact_now.normal
        tangent = np.array([-normal[1], normal[0]])
        contact = pusht.to_world(contact_now.point, pose)
        along_face = float((contact - agent) @ tangent)
        gap = max(float((contact - agent) @ normal) - TOUCH, 0.0)
        return normal * (self._push_speed + min(gap, 4.0)) + tangent * (0.5 * along_face)

    def _steer(self, agent: Vector, pose: Vector) -> Contact:
        """The best contact point that a slide along the same face reaches."""
        assert self._contact is not None
        here = pusht.to_block(agent, pose)
        near = [
            c
            for c in _CONTACTS
            if c.face == self._contact.face and abs((c.point - here) @ c.tangent) < SLIDE
        ]
        if not near or self._rng.random() > STEER_CHANCE:
            return self._contact
        return near[int(_alignment(_twists(near, pose), self._error(pose)).argmax())]

    def _push_is_over(self, agent: Vector, pose: Vector) -> bool:
        assert self._contact is not None
        moved = np.linalg.norm(self._scaled(pose - self._last_pose))
        self._still_steps = self._still_steps + 1 if moved < 1.0 else 0
        slipped = np.linalg.norm(pusht.to_world(self._contact.point, pose) - agent) > TOUCH + 16
        outside = (agent < ARENA_LOW).any() or (agent > ARENA_HIGH).any()
        aligned = float(_alignment(_twists([self._contact], pose), self._error(pose))[0])
        return bool(
            self._steps_left <= 0 or self._still_steps > 3 or slipped or outside or aligned < 0.1
        )

    def _leave(self, agent: Vector, pose: Vector) -> None:
        """Walk off into the open for a moment."""
        away = agent - pusht.to_world(pusht.CENTRE_OF_GRAVITY, pose)
        heading = np.arctan2(away[1], away[0]) + self._rng.normal(0, 0.5)
        reach = self._rng.uniform(50, 110)
        target = agent + reach * np.array([np.cos(heading), np.sin(heading)])
        self._phase = "leave"
        self._path = [np.clip(target, ARENA_LOW, ARENA_HIGH)]
        self._steps_left = int(self._rng.integers(5, 12))

    def _choose_contact(self, agent: Vector, pose: Vector) -> None:
        """Pick where to push next, and the way there."""
        normals = np.array([c.normal for c in _CONTACTS]) @ pusht.rotation(pose[2]).T
        points = pusht.to_world(np.array([c.point for c in _CONTACTS]), pose)
        stands = points - STANDOFF * normals
        cost, route = _routes(agent, stands, pose)
        # Either a push towards the aim, or one that is near at hand and has room before it.
        carry_on = self._rng.random() < CARRY_ON_CHANCE
        ends = self._carried_on(pose)
        if carry_on:
            reach = np.linalg.norm(ends[:, :2] - self._centre(pose)[:2], axis=1)
            worth = reach / LONG_PUSH
        else:
            if np.linalg.norm(self._error(pose)) < 15:
                self._aim = self._new_aim()
            worth = _alignment(_twists(_CONTACTS, pose), self._error(pose))
        score = worth - TRAVEL_COST * cost + TEMPERATURE * self._rng.gumbel(size=len(cost))
        score[worth < MIN_WORTH] -= 5
        score[((stands < ARENA_LOW) | (stands > ARENA_HIGH)).any(axis=1)] -= 10
        choice = int(np.argmax(score))
        self._phase = "walk"
        self._contact = _CONTACTS[choice]
        self._path = [*route(choice), stands[choice]]
        if carry_on:
            self._aim = ends[choice]

    def _carried_on(self, pose: Vector) -> NDArray[np.float64]:
        """Where a long push at each contact takes the block, as far as there is room."""
        twists = _twists(_CONTACTS, pose) / np.array([1, 1, GYRATION_RADIUS])
        reaches = np.linspace(LONG_PUSH * self._rng.uniform(0.5, 1), 0, 12)
        ends = self._centre(pose) + reaches[:, None, None] * twists
        inside = ((ends[..., :2] > AIM_LOW) & (ends[..., :2] < AIM_HIGH)).all(axis=-1)
        farthest = np.where(inside.any(axis=0), inside.argmax(axis=0), len(reaches) - 1)
        return ends[farthest, np.arange(len(twists))]

    def _centre(self, pose: Vector) -> Vector:
        return np.array([*pusht.to_world(pusht.CENTRE_OF_GRAVITY, pose), pose[2]])

    def _new_aim(self) -> Vector:
        """A pose for the block's centre of gravity, away from the walls."""
        return np.array([*self._rng.uniform(AIM_LOW, AIM_HIGH, 2), self._rng.uniform(0, 2 * np.pi)])

    def _error(self, pose: Vector) -> Vector:
        return self._scaled(self._aim - self._centre(pose))

    @staticmethod
    def _scaled(change: Vector) -> Vector:
        return np.array([*change[:2], GYRATION_RADIUS * wrapped_angle(change[2])])


def _alignment(twists: NDArray[np.float64], error: Vector) -> NDArray[np.float64]:
    """Cosine between each twist and the wanted change."""
    length = np.linalg.norm(twists, axis=1) * max(float(np.linalg.norm(error)), 1e-9)
    result: NDArray[np.float64] = twists @ error / length
    return result


def _twists(contacts: list[Contact], pose: Vector) -> NDArray[np.float64]:
    """How each push moves the block: (vx, vy, gyration radius * w) on the canvas."""
    points = np.array([c.point for c in contacts]) - pusht.CENTRE_OF_GRAVITY
    normals = np.array([c.normal for c in contacts])
    spin = (points[:, 0] * normals[:, 1] - points[:, 1] * normals[:, 0]) / GYRATION_RADIUS
    return np.column_stack([normals @ pusht.rotation(pose[2]).T, spin])


def _routes(
    agent: Vector, stands: NDArray[np.float64], pose: Vector
) -> tuple[NDArray[np.float64], Callable[[int], list[Vector]]]:
    """Shortest walks from the agent to every standing place, on a ring round the block.

    Returns the lengths, and a function that gives the ring points on the way to place i.
    """
    angles = 2 * np.pi * np.arange(RING_POINTS) / RING_POINTS
    centre = pusht.to_world(pusht.CENTRE_OF_GRAVITY, pose)
    ring = centre + RING_RADIUS * np.column_stack([np.cos(angles), np.sin(angles)])
    ring = np.clip(ring, ARENA_LOW, ARENA_HIGH)
    start = _walks(agent[None], ring, pose)[0]
    around = _walks(ring, ring, pose)
    previous = np.full(RING_POINTS, -1)
    for _ in range(RING_POINTS // 2):
        through = start[:, None] + around
        best = through.argmin(axis=0)
        length = through[best, np.arange(RING_POINTS)]
        better = length < start - 1e-9
        start, previous = np.where(better, length, start), np.where(better, best, previous)
    direct = _walks(agent[None], stands, pose)[0]
    via = start[:, None] + _walks(ring, stands, pose)
    last = via.argmin(axis=0)
    cost = np.minimum(direct, via.min(axis=0))

    def route(index: int) -> list[Vector]:
        if direct[index] <= cost[index]:
            return []
        points, node = [], int(last[index])
        while node >= 0:
            points.append(ring[node])
            node = int(previous[node])
        return points[::-1]

    return cost, route


def _walks(
    sources: NDArray[np.float64], targets: NDArray[np.float64], pose: Vector
) -> NDArray[np.float64]:
    """Length of each straight walk; one that comes too close to the block costs much more."""
    share = np.linspace(0, 1, PATH_SAMPLES)[:, None]
    way = targets[None] - sources[:, None]
    points = sources[:, None, None] + share * way[:, :, None]
    gap = pusht.clearance(points, pose)
    # A walk may begin in contact: only what it does to the gap afterwards counts.
    allowed = np.minimum(CLEAR, gap[..., :1] + 12 * share[:, 0])
    blocked = (gap < allowed - 1e-6).any(axis=-1)
    return np.linalg.norm(way, axis=-1) + 1000.0 * blocked


def _outline() -> list[Contact]:
    """Contact points all round the T, leaving out corners and where the disc does not fit."""
    (left, right, top, under), (stem_left, stem_right, _, end) = pusht.BAR, pusht.STEM
    inner = TOUCH + 1  # room for the disc beside the inner corner
    faces = [
        ((left, top), (right, top), (0, 1)),
        ((left, top), (left, under), (1, 0)),
        ((right, top), (right, under), (-1, 0)),
        ((left, under), (stem_left - inner, under), (0, -1)),
        ((stem_right + inner, under), (right, under), (0, -1)),
        ((stem_left, under + inner), (stem_left, end), (1, 0)),
        ((stem_right, under + inner), (stem_right, end), (-1, 0)),
        ((stem_left, end), (stem_right, end), (0, -1)),
    ]
    contacts = []
    for face, (first, second, normal) in enumerate(faces):
        a, b = np.array(first, np.float64), np.array(second, np.float64)
        length = float(np.linalg.norm(b - a))
        count = max(int((length - 2 * CORNER_MARGIN) / CONTACT_SPACING) + 1, 1)
        for share in np.linspace(CORNER_MARGIN, length - CORNER_MARGIN, count) / length:
            contacts.append(Contact(face, a + share * (b - a), np.array(normal, np.float64)))
    return contacts


def _step_response() -> tuple[float, float]:
    """What one environment step makes of a target one pixel ahead, and of a unit velocity."""

    def travel(target: float, velocity: float) -> float:
        position = 0.0
        for _ in range(pusht.PHYSICS_STEPS):
            velocity += (pusht.KP * (target - position) - pusht.KV * velocity) * pusht.PHYSICS_DT
            position += velocity * pusht.PHYSICS_DT
        return position

    return travel(1.0, 0.0), travel(0.0, 1.0)


_CONTACTS = _outline()
_RESPONSE, _DRIFT = _step_response()
