"""Cube: a robot arm with a gripper picks and places a cube (OGBench's manipspace)."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.base import (
    DISTURBED_STEPS,
    Action,
    GoalMotion,
    Pixels,
    Policy,
    State,
    Task,
    sine_cosine,
)
from bilinear_wm.tasks.scene import Scene, mujoco

from dm_control import mjcf  # isort: skip  (after scene, which picks the GL backend)
from ogbench.manipspace import lie  # isort: skip
from ogbench.manipspace.envs.cube_env import CubeEnv  # isort: skip
from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle  # isort: skip

NUM_QPOS, NUM_QVEL = 21, 20
CAMERA_NAME = "front_pixels"
CUBE_QPOS = 14  # the cube's free joint: position, then quaternion
SUCCESS_DISTANCE = 0.04
CUBE_HALF = 0.02
ON_TABLE = 0.03
"""Height of the cube's centre below which it lies on the table."""
DRIVER_QPOS, DRIVER_CLOSED = 6, 0.8
"""The joint that closes the fingers, and where it ends if nothing is between them."""
WORKSPACE_LOW, WORKSPACE_HIGH = np.array([0.25, -0.35]), np.array([0.6, 0.35])  # OGBench's

ORACLE_MIN_NORM = 0.4
ORACLE_NOISE = 0.1
ORACLE_NOISE_SCALE = np.array([1.0, 1.0, 1.0, 3.0, 10.0])
NEAR, NEAR_SHARE, FAR_SHARE = 0.08, 0.7, 0.4
"""Metres from the cube within which mishaps are more frequent, and how frequent they are."""
MISHAPS = (0.3, 0.3, 0.25, 0.15)
"""Shares of the kinds of mishaps: replaced, pushed, fingers, turned."""
FAST_PITCH = 0.031  # 4 mm at 64 px, where a pixel shows 16 mm; larger pictures forgive more


class _Simulator(CubeEnv):  # type: ignore[misc]
    """OGBench's single-cube environment with the benchmark's purple gripper."""

    def __init__(self) -> None:
        super().__init__(env_type="single", mode="data_collection", visualize_info=False)
        self.reset(seed=0)

    def modify_mjcf_model(self, mjcf_model: mjcf.RootElement) -> mjcf.RootElement:
        for material in ("ur5e/robotiq/black", "ur5e/robotiq/pad_gray"):
            mjcf_model.find("material", material).rgba[:3] = self._colors["purple"][:3]
        return mjcf_model


@functools.cache
def _simulator_for_poses() -> _Simulator:
    return _Simulator()


def _pinch_poses(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """Place and yaw of the point between the fingers."""
    sim = _simulator_for_poses()
    poses = np.empty((len(states), 4))
    for pose, state in zip(poses, states, strict=True):
        sim.data.qpos[:] = state[:NUM_QPOS]
        mujoco.mj_kinematics(sim.model, sim.data)
        turn = lie.SO3.from_matrix(sim.data.site_xmat[sim._pinch_site_id].reshape(3, 3))
        pose[:3], pose[3] = sim.data.site_xpos[sim._pinch_site_id], turn.compute_yaw_radians()
    return poses


def in_picture(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where places of the world are in the picture: shares of its width and height."""
    sim = _simulator_for_poses()
    camera = sim.model.camera(CAMERA_NAME)
    turn = sim.data.cam_xmat[camera.id].reshape(3, 3)
    right, up, behind = np.moveaxis((places - sim.data.cam_xpos[camera.id]) @ turn, -1, 0)
    half_view = -behind * math.tan(math.radians(float(camera.fovy[0])) / 2)
    return 0.5 + 0.5 * np.stack([right, -up], axis=-1) / half_view[..., None]


class Cube(Task):
    """Bring the cube to the goal's position; its orientation does not count."""

    name = "cube"
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    state_names = tuple(
        [f"qpos_{i}" for i in range(NUM_QPOS)] + [f"qvel_{i}" for i in range(NUM_QVEL)]
    )
    action_names = ("dx", "dy", "dz", "dyaw", "gripper")
    goal_size = 3
    episode_steps: ClassVar[int] = 200
    goal_motion = GoalMotion(axes=((CUBE_QPOS,), (CUBE_QPOS + 1,)), v_max=0.028, speed=0.25)
    """The goal's cube slides over the table; the arm of the goal picture stays where it is."""

    def _build(self) -> None:
        self._sim = _Simulator()
        self._model, self._data = self._sim.model, self._sim.data
        self._scene = Scene(
            self._model,
            CAMERA_NAME,
            self.image_size,
            self.render_quality,
            fast_pitch=FAST_PITCH / math.sqrt(self.image_size),
        )

    @property
    def state(self) -> State:
        return np.concatenate([self._data.qpos, self._data.qvel])

    def _restore(self, state: State) -> None:
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[:] = state[:NUM_QPOS]
        self._data.qvel[:] = state[NUM_QPOS:]
        mujoco.mj_forward(self._model, self._data)

    def _simulate(self, action: Action) -> None:
        self._sim.set_control(action)
        mujoco.mj_step(self._model, self._data, nstep=self._sim._n_steps)
        mujoco.mj_rnePostConstraint(self._model, self._data)  # the oracle feels its grip

    def picture(self, state: State) -> Pixels:
        return self._scene.picture(state[:NUM_QPOS])

    @staticmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        cube = slice(CUBE_QPOS, CUBE_QPOS + 3)
        return np.linalg.norm(states[..., cube] - goals[..., cube], axis=-1) <= SUCCESS_DISTANCE

    @staticmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        cube = slice(CUBE_QPOS, CUBE_QPOS + 3)
        return np.linalg.norm(states[..., cube] - goals[..., cube], axis=-1) / SUCCESS_DISTANCE

    @staticmethod
    def goal_may_move(before: State, after: State) -> bool:
        """The cube stays in the arm's workspace."""
        cube = after[CUBE_QPOS : CUBE_QPOS + 2]
        return bool(((cube >= WORKSPACE_LOW) & (cube <= WORKSPACE_HIGH)).all())

    @staticmethod
    def window_shares(
        states: NDArray[np.float64], later: NDArray[np.float64]
    ) -> dict[str, NDArray[np.bool_]]:
        cube = slice(CUBE_QPOS, CUBE_QPOS + 3)
        shift = np.linalg.norm(later[..., cube] - states[..., cube], axis=-1)
        before, after = states[..., CUBE_QPOS + 2], later[..., CUBE_QPOS + 2]
        return {
            "cube moves (> 1 cm)": shift > 0.01,
            "cube is lifted": (before < ON_TABLE) & (after > ON_TABLE),
            "cube is put down or dropped": (before > ON_TABLE) & (after < ON_TABLE),
            "fingers closed on nothing": later[..., DRIVER_QPOS] > 0.95 * DRIVER_CLOSED,
        }

    @classmethod
    def probe_targets(cls, states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """What a grasp depends on: the gripper's place, turn and opening, and the cube's.

        A gripper looks the same after half a turn, a cube after a quarter.
        """
        pinch = _pinch_poses(states.reshape(-1, states.shape[-1])).reshape(*states.shape[:-1], 4)
        found = {f"gripper_{axis}": pinch[..., i] for i, axis in enumerate("xyz")}
        found["opening"] = states[..., DRIVER_QPOS]
        found |= {f"cube_{axis}": states[..., CUBE_QPOS + i] for i, axis in enumerate("xyz")}
        w, x, y, z = np.moveaxis(states[..., CUBE_QPOS + 3 : NUM_QPOS], -1, 0)
        turn = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        return (
            found
            | sine_cosine("two_gripper_turns", 2 * pinch[..., 3])
            | sine_cosine("four_cube_turns", 4 * turn)
        )

    def _complete_goal(self, goal: State) -> State:
        """The current state with the cube moved to the goal position."""
        state = self.state
        state[CUBE_QPOS : CUBE_QPOS + 3] = goal
        return state

    def _sample_start(self) -> tuple[State, State]:
        """OGBench's start: the arm anywhere above the table, the cube anywhere on it."""
        self._sim.np_random = self.np_random
        start = self._sample_state()
        goal = start.copy()
        goal[CUBE_QPOS:NUM_QPOS] = self._sample_cube()
        return start, goal

    def _sample_state(self) -> State:
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[self._sim._arm_joint_ids] = self._sim._home_qpos
        mujoco.mj_kinematics(self._model, self._data)
        self._sim.initialize_arm()
        self._data.qpos[CUBE_QPOS:NUM_QPOS] = self._sample_cube()
        return self.state

    def _sample_cube(self) -> NDArray[np.float64]:
        """A pose on the table: position and quaternion."""
        low, high = self._sim._object_sampling_bounds
        position = self.np_random.uniform(low, high)
        turn = lie.SO3.from_z_radians(self.np_random.uniform(0, 2 * np.pi))
        return np.array([*position, CUBE_HALF, *turn.wxyz])

    def behaviour(self) -> Policy:
        """OGBench's Markov oracle: pick, place at a new spot, retreat, again; with noise."""
        rng = self.np_random
        noise = rng.uniform(0, ORACLE_NOISE) * ORACLE_NOISE_SCALE
        oracle = CubeMarkovOracle(env=self._sim, min_norm=ORACLE_MIN_NORM)
        info = self._sim.compute_ob_info

        def restart() -> None:
            place = self._sample_cube()
            self._data.mocap_pos[0], self._data.mocap_quat[0] = place[:3], place[3:]
            oracle.reset(None, None)
            # The oracle draws these from numpy's global generator; ours is the episode's.
            oracle._final_pos = rng.uniform(*self._sim._arm_sampling_bounds)
            oracle._final_yaw = rng.uniform(-np.pi, np.pi)

        restart()

        def act() -> Action:
            if oracle.done:
                restart()
            action: Any = oracle.select_action(None, info()) + rng.normal(0, noise)
            return np.clip(action, -1, 1).astype(np.float32)

        return act

    def disturbed(self, act: Policy, strength: float, rng: np.random.Generator) -> Policy:
        """The oracle, led astray: a model must see grasps that fail, or it believes in all.

        Each episode has a strength of its own, between none and twice `strength`. For a few steps
        at a time, more often while the gripper is near the cube, one thing happens: a random
        action takes the oracle's place, or is added to it; the fingers open or close at the wrong
        time; or the gripper turns. In between the oracle tries again from wherever that led.
        """
        size = len(self.action_names)
        strength *= rng.uniform(0, 2)
        keep, add, left = np.ones(size), np.zeros(size), 0

        def astray() -> Action:
            nonlocal keep, add, left
            if left == 0:
                left = int(rng.integers(*DISTURBED_STEPS))
                keep, add = self._mishap(strength, rng)
            left -= 1
            return np.clip(keep * act() + add, -1, 1).astype(np.float32)

        return astray

    def _mishap(
        self, strength: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What is kept of the oracle's actions for a while, and what is added to them."""
        size = len(self.action_names)
        keep, add = np.ones(size), np.zeros(size)
        gap = self._data.site_xpos[self._sim._pinch_site_id] - self.state[CUBE_QPOS:][:3]
        share = NEAR_SHARE if np.linalg.norm(gap) < NEAR else FAR_SHARE
        if rng.random() > share * min(strength, 0.5) / 0.5:
            return keep, add
        kind = rng.choice(["replaced", "pushed", "fingers", "turned"], p=MISHAPS)
        if kind == "replaced":
            return np.zeros(size), rng.uniform(-1, 1, size)
        if kind == "pushed":
            return keep, rng.normal(0, strength, size)
        if kind == "fingers":
            keep[4], add[4] = 0.0, rng.choice([-1.0, 1.0])
        else:
            keep[3], add[3] = 0.0, rng.uniform(-1, 1)
        return keep, add

    def close(self) -> None:
        self._scene.close()
