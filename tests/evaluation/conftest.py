"""A model that has learned nothing, and one that knows everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.evaluation import attempt, live, moving
from bilinear_wm.evaluation.attempt import Attempt, run, side_by_side
from bilinear_wm.evaluation.goals import StartGoal, simulated_goals
from bilinear_wm.evaluation.load import LoadedPlanner
from bilinear_wm.evaluation.moving import RealtimeConfig
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task
from bilinear_wm.tasks.tworoom import WALL_X
from tests.models.conftest import small_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TwoRoom model of 32 px that has learned nothing."""
    folder = tmp_path_factory.mktemp("model") / "tworoom"
    small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)).save_pretrained(folder)
    return folder


class Oracle:
    """A model that reads the dot's position off the picture, with exact dynamics in free space."""

    def __init__(self) -> None:
        model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(1.0, 1.0))
        self.config, self._model = model.config, model
        dynamics = BilinearDynamics(12, 10, "none", env_action_size=2)
        with torch.no_grad():
            dynamics.C.zero_()
            dynamics.B.zero_()
            for i in range(10):
                dynamics.B[i % 2, i] = 5.0 / 100  # five pixels a step, in hundreds of pixels
        self.dynamics = dynamics

    def encode(self, observation: object) -> torch.Tensor:
        pixels = self.config.observes.of(observation).pictures["pixels"]
        red = pixels[..., 0].astype(float) - pixels[..., 1]
        scale = 224 / pixels.shape[-2]
        grid = (np.arange(pixels.shape[-2]) + 0.5) * scale - 0.5
        total = red.sum((-2, -1))
        x, y = (red.sum(-2) @ grid) / total, (red.sum(-1) @ grid) / total
        z = torch.zeros(*pixels.shape[:-3], 12)
        z[..., 0], z[..., 1] = torch.from_numpy(x / 100), torch.from_numpy(y / 100)
        return z

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


def oracle_pilot() -> Pilot:
    model: WorldModel = Oracle()  # type: ignore[assignment]
    return Pilot(model, GaussNewtonPlanner(model.dynamics, GaussNewtonConfig(effort=1e-4)))


def attempts(
    tasks: list[StartGoal], camera: Task, size: int, config: LoopConfig
) -> Iterator[Attempt]:
    """By a perfect model, so many side by side."""
    envs = [make_task("tworoom", 8) for _ in range(size)]
    groups = side_by_side(tasks, envs, lambda task, env: Attempt(task, env, camera, 50))
    return run(groups, oracle_pilot(), config)


def tworoom_tasks(same_room: bool, count: int = 12) -> list[StartGoal]:
    tasks = simulated_goals("tworoom", 25, 60, seed=1)
    fitting = [t for t in tasks if ((t.start[0] < WALL_X) == (t.goal[0] < WALL_X)) == same_room]
    return [replace(t, index=i) for i, t in enumerate(fitting[:count])]


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that knows the position and, in free space, the dynamics."""

    def load_planner(*_: object) -> LoadedPlanner:
        model = Oracle()
        planner = GaussNewtonPlanner(model.dynamics, GaussNewtonConfig(effort=1e-4))
        camera = make_task("tworoom", image_size=32)
        bounds = model.action_bounds(-1, 1)  # type: ignore[operator]
        return LoadedPlanner(model, planner, camera, bounds)  # type: ignore[arg-type]

    monkeypatch.setattr(moving, "load_planner", load_planner)
    monkeypatch.setattr(live, "load_planner", load_planner)
    monkeypatch.setattr(attempt, "weights_hash", lambda _: "of no file")


def moving_config(**changes: object) -> RealtimeConfig:
    settings = {"checkpoint": Path("oracle"), "horizon": 1, "episodes": 30, "latency_ms": 20.0}
    return RealtimeConfig("tworoom", **(settings | changes))  # type: ignore[arg-type]


@pytest.fixture
def alarmed(monkeypatch: pytest.MonkeyPatch, tworoom_file: Path) -> Path:
    """A monitor that is never content, set by an episode file."""

    def calibrated(model: object, *_: object) -> ActionMonitor:
        return ActionMonitor(model.dynamics, -1.0)  # type: ignore[attr-defined]

    monkeypatch.setattr(ActionMonitor, "calibrated", calibrated)
    monkeypatch.setattr("bilinear_wm.evaluation.load.episodes_for", lambda *_: None)
    nothing = torch.zeros(1, 2, 12), torch.zeros(1, 1, 10), None
    monkeypatch.setattr("bilinear_wm.evaluation.load.encode_windows", lambda *_: nothing)
    return tworoom_file
