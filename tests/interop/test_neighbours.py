"""Our files and planners in the neighbours' own packages. Run by `make test-interop`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_worldmodel as swm
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from stable_worldmodel.data.formats.hdf5 import HDF5Dataset

import bilinear_wm as bwm
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.convert import ConvertConfig, convert
from bilinear_wm.data.file import EpisodeFile

PRETRAINED = Path(__file__).parents[2] / "pretrained" / "tworoom"
EPISODES, OFFSET = 10, 25


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A few episodes, with every picture and with every fifth."""
    folder = tmp_path_factory.mktemp("recorded")
    files = {}
    for stride in (1, 5):
        files[stride] = folder / f"every-{stride}.h5"
        config = CollectConfig("tworoom", files[stride], 3, image_size=32, workers=1)
        config = CollectConfig(**vars(config) | {"frame_stride": stride})
        collect(config, progress=False)
    return files


def test_ours_opens_in_stable_worldmodel(recorded: dict[int, Path]) -> None:
    ours = EpisodeFile(recorded[1])
    theirs = HDF5Dataset(path=recorded[1], frameskip=5, num_steps=2)
    np.testing.assert_array_equal(theirs.lengths, ours.lengths)
    last = theirs[len(theirs) - 1]
    episode, start = theirs.clip_indices[-1]
    wanted = ours.read_frames(episode)[[start, start + 5]]
    np.testing.assert_array_equal(last["pixels"].permute(0, 2, 3, 1).numpy(), wanted)
    row = ours.offsets[episode] + start
    np.testing.assert_array_equal(
        last["action"].numpy().reshape(10, -1)[:9], ours.actions[row : row + 9]
    )


def test_thinned_pictures_are_refused_by_stable_worldmodel(recorded: dict[int, Path]) -> None:
    """As a column `pixels` they were opened, and the last windows were empty."""
    with pytest.raises(Exception):  # noqa: B017, PT011  (which one is theirs to choose)
        HDF5Dataset(path=recorded[5], frameskip=5, num_steps=2)[0]
    with pytest.raises(Exception):  # noqa: B017, PT011
        HDF5Dataset(path=recorded[5], keys_to_load=["pixels", "action"])[0]
    numbers = HDF5Dataset(path=recorded[5], keys_to_load=["action", "state"])
    assert numbers[0]["state"].shape[-1] == 2


def test_ours_opens_in_lerobot(recorded: dict[int, Path], tmp_path: Path) -> None:
    out = tmp_path / "converted"
    convert(ConvertConfig(recorded[1], out), progress=False)
    ours, theirs = EpisodeFile(recorded[1]), LeRobotDataset("local/converted", root=out)
    assert theirs.num_episodes == ours.num_episodes
    assert theirs.num_frames == int((ours.lengths - 1).sum())
    for index in (0, theirs.num_frames - 1):
        item = theirs[index]
        episode, step = int(item["episode_index"]), int(item["frame_index"])
        row = ours.offsets[episode] + step
        np.testing.assert_array_equal(item["action"].numpy(), ours.actions[row])
        picture = (item["observation.images.pixels"] * 255).round().byte().permute(1, 2, 0)
        np.testing.assert_array_equal(picture.numpy(), ours.read_frames(episode)[step])
        assert item["task"] == "tworoom"


@pytest.fixture(scope="module")
def solver() -> bwm.SwmSolver:
    model = bwm.load_model(PRETRAINED)
    config = bwm.GaussNewtonConfig(effort=5e-3)
    return bwm.SwmSolver(model, bwm.GaussNewtonPlanner(model.dynamics, config))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, solver: bwm.SwmSolver) -> dict[str, Any]:
    """Starts and goals of recorded episodes, as their planning script takes them."""
    path = tmp_path_factory.mktemp("tasks") / "tworoom.h5"
    size = solver.model.config.image_size
    collect(CollectConfig("tworoom", path, EPISODES, size, 1, workers=1, seed=1), progress=False)
    dataset = HDF5Dataset(path=path, keys_to_load=["pixels", "action", "state"])
    starts = np.minimum(20, dataset.lengths - OFFSET - 2)
    return {
        "dataset": dataset,
        "episodes_idx": list(range(EPISODES)),
        "start_steps": starts.tolist(),
        "goal_offset": OFFSET,
        "eval_budget": 2 * OFFSET,
        "callables": [
            {"method": "_set_state", "args": {"state": {"value": "state"}}},
            {"method": "_set_goal_state", "args": {"goal_state": {"value": "goal_state"}}},
        ],
    }


def success(policy: object, tasks: dict[str, Any], size: int) -> float:
    """Of TwoRoom in their world, in percent."""
    world = swm.World(
        "swm/TwoRoom-v1", num_envs=EPISODES, image_shape=(size, size), max_episode_steps=100
    )
    world.set_policy(policy)
    found = world.evaluate(**tasks)
    world.close()
    return float(found["success_rate"])


def test_our_planner_is_a_solver_there(solver: bwm.SwmSolver, tasks: dict[str, Any]) -> None:
    facts = solver.model.config
    config = swm.PlanConfig(horizon=5, receding_horizon=5, action_block=facts.frame_skip)
    policy = swm.policy.WorldModelPolicy(solver, config, process={"action": solver.scaler})
    ours = success(policy, tasks, facts.image_size)
    random = success(swm.policy.RandomPolicy(seed=0), tasks, facts.image_size)
    print(f"TwoRoom @{OFFSET}: our solver {ours:.0f} %, random actions {random:.0f} %")
    assert ours >= random + 30


def test_our_policy_runs_in_their_world(solver: bwm.SwmSolver, tasks: dict[str, Any]) -> None:
    policy = bwm.SwmPolicy(solver, horizon=5, receding_horizon=2)
    ours = success(policy, tasks, solver.model.config.image_size)
    print(f"TwoRoom @{OFFSET}: our policy {ours:.0f} %")
    assert ours >= 70
