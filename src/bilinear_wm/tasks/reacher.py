"""Reacher: a planar arm with two joints, driven by torques (dm_control's model)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.base import (
    Action,
    GoalMotion,
    Pixels,
    Policy,
    State,
    Task,
    sine_cosine,
)
from bilinear_wm.tasks.scene import Scene

from dm_control.suite import reacher  # isort: skip  (after scene, which picks the GL backend)

PHYSICS_STEPS = 2
SUCCESS_ANGLE = 0.05
WRIST_LIMIT = np.deg2rad(160)


class Reacher(Task):
    """Turn both joints to the goal's angles."""

    name = "reacher"
    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    state_names = ("shoulder", "wrist", "shoulder_velocity", "wrist_velocity")
    action_names = ("shoulder_torque", "wrist_torque")
    goal_size = 2
    episode_steps: ClassVar[int] = 200
    goal_motion = GoalMotion(axes=((0,), (1,)), v_max=0.169, speed=0.05)
    """Both joints of the goal turn; it is always at rest."""

    def _build(self) -> None:
        self._physics = reacher.Physics.from_xml_string(*reacher.get_model_and_assets())
        model = self._physics.model.ptr
        model.mat("target").rgba[3] = 0  # the goal is a picture, not a ball in the scene
        self._wrist_range = model.joint("wrist").range.copy()
        self._scene = Scene(model, 0, self.image_size, self.render_quality)

    @property
    def state(self) -> State:
        data = self._physics.data
        return np.concatenate([data.qpos, data.qvel])

    def _restore(self, state: State) -> None:
        with self._physics.reset_context():
            self._physics.data.qpos[:] = state[:2]
            self._physics.data.qvel[:] = state[2:]

    def _simulate(self, action: Action) -> None:
        # The motors are driven in double precision, from the torque clipped to its range.
        self._physics.set_control(np.clip(action.astype(np.float64), -1, 1))
        for _ in range(PHYSICS_STEPS):
            self._physics.step()
            if self.solved:
                break  # the benchmark's step ends at the goal

    def picture(self, state: State) -> Pixels:
        return self._scene.picture(state[:2])

    @staticmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray((np.abs(states[..., :2] - goals[..., :2]) < SUCCESS_ANGLE).all(axis=-1))

    @staticmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.abs(states[..., :2] - goals[..., :2]).max(axis=-1) / SUCCESS_ANGLE

    @staticmethod
    def goal_may_move(before: State, after: State) -> bool:
        """The wrist stays in its range; the shoulder turns freely."""
        return bool(abs(after[1]) <= WRIST_LIMIT)

    @classmethod
    def probe_targets(cls, states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        return sine_cosine("shoulder", states[..., 0]) | sine_cosine("wrist", states[..., 1])

    def _complete_goal(self, goal: State) -> State:
        return np.concatenate([goal, np.zeros(2)])

    def _sample_start(self) -> tuple[State, State]:
        return self._sample_state(), self._sample_state()

    def _sample_state(self) -> State:
        shoulder = self.np_random.uniform(-np.pi, np.pi)
        wrist = self.np_random.uniform(*self._wrist_range)
        return np.array([shoulder, wrist, 0, 0])

    def behaviour(self) -> Policy:
        """Uniform random torques, a new one each step."""
        rng = self.np_random
        return lambda: rng.uniform(-1, 1, 2).astype(np.float32)

    def close(self) -> None:
        self._scene.close()
