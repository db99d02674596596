"""Cube: a robot arm with a gripper picks and places a cube (OGBench's manipspace)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.base import Action, GoalMotion, Pixels, Policy, State, Task
from bilinear_wm.tasks.scene import Scene, mujoco

from dm_control import mjcf  # isort: skip  (after scene, which picks the GL backend)
from ogbench.manipspace import lie  # isort: skip
from ogbench.manipspace.envs.cube_env import CubeEnv  # isort: skip
from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle  # isort: skip

NUM_QPOS, NUM_QVEL = 21, 20
CUBE_QPOS = 14  # the cube's free joint: position, then quaternion
SUCCESS_DISTANCE = 0.04
CUBE_HALF = 0.02
WORKSPACE_LOW, WORKSPACE_HIGH = np.array([0.25, -0.35]), np.array([0.6, 0.35])  # OGBench's

ORACLE_MIN_NORM = 0.4
ORACLE_NOISE = 0.1
ORACLE_NOISE_SCALE = np.array([1.0, 1.0, 1.0, 3.0, 10.0])
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
            "front_pixels",
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
        return {"cube moves (> 1 cm)": shift > 0.01}

    @classmethod
    def probe_targets(cls, states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        cube = {f"cube_{axis}": states[..., CUBE_QPOS + i] for i, axis in enumerate("xyz")}
        joints = {f"joint_{i}": states[..., i] for i in range(6)}
        return cube | joints | {"gripper": states[..., 6]}

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

    def close(self) -> None:
        self._scene.close()
