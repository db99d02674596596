"""Training: deterministic, the same on several processes, particular about its options."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from bilinear_wm.errors import InputError, InputWarning
from bilinear_wm.evaluation.goals import choose_goals
from bilinear_wm.models import load_model
from bilinear_wm.training.train import TrainConfig, learning_rate, train
from tests.training.conftest import (
    SMALL,
    assert_same,
    metrics,
    small,
    weights,
)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bilinear", "lewm", "smwm"])
def test_same_seed_same_weights(model: str, tworoom_file: Path, tmp_path: Path) -> None:
    config = small(tworoom_file, tmp_path / "a", model)
    numbers = train(config, progress=False)
    train(replace(config, out=tmp_path / "b"), progress=False)
    assert_same(tmp_path / "a", tmp_path / "b")
    train(replace(config, out=tmp_path / "c", seed=1), progress=False)
    assert not torch.equal(
        weights(tmp_path / "a")["encoder.maps.0.weight"],
        weights(tmp_path / "c")["encoder.maps.0.weight"],
    )
    rows = metrics(tmp_path / "a")
    assert [row["step"] for row in rows] == [6, 12]
    wanted = {"val_forward", "latent_std", "effective_rank", "share_pc1", "probe_agent_x"}
    wanted |= {f"open_loop_{i}" for i in range(1, 6)}
    wanted |= {"val_inverse", "sigma_min", "sigma_max"} if model == "bilinear" else set()
    assert wanted <= set(numbers)
    assert all(np.isfinite(value) for value in numbers.values())


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tworoom_file: Path, tmp_path: Path) -> None:
    """The same global batch; batch norms average over processes (see dynamics/layers.py)."""
    arguments = [
        *["--data", str(tworoom_file), "--steps", "6", "--batch-size", "8", "--num-frames", "3"],
        *["--eval-every", "1", "--options", json.dumps(SMALL)],
    ]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for count in (1, 2):
        result = subprocess.run(
            [
                *launch,
                *["--num_processes", str(count), "--main_process_port", "0"],
                *["-m", "bilinear_wm.cli", "train", "--out", str(tmp_path / str(count))],
                *arguments,
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
    one, two = (metrics(tmp_path / str(count)) for count in (1, 2))
    for first, second in zip(one, two, strict=True):
        for name in ("train_total", "train_forward", "train_inverse", "val_forward"):
            assert first[name] == pytest.approx(second[name], rel=2e-3), name


def test_refusals(tworoom_file: Path, tmp_path: Path) -> None:
    config = small(tworoom_file, tmp_path / "run", steps=2)
    train(config, progress=False)
    for wrong, message in [
        (config, "holds a run already"),
        (replace(config, resume=True, seed=5), "give the options of the first run"),
        (replace(config, out=tmp_path / "x", model="nosuch"), "model: expected one of"),
        (replace(config, out=tmp_path / "y", batch_size=10**6), "batch_size: expected at most"),
        (replace(config, out=Path("/proc/run")), "cannot be written"),
        (replace(config, out=tmp_path / "z", options={"nosuch": 1}), "options: .*nosuch"),
        (replace(config, out=tmp_path / "w", task="cube"), "task: expected tworoom"),
        (replace(config, out=tmp_path / "v", trackers=("foo",)), "trackers: .*tensorboard.*'foo'"),
        (replace(config, out=tmp_path / "v", trackers=("comet_ml",)), "comet_ml needs its package"),
    ]:
        with pytest.raises(InputError, match=message):
            train(wrong, progress=False)
    for name, value in {"steps": 0, "eval_every": 0, "learning_rate": -1.0, "seed": -1}.items():
        with pytest.raises(InputError, match=f"{name}: expected"):
            replace(config, **{name: value})  # type: ignore[arg-type]


def test_files_that_do_not_tell_their_task(tworoom_file: Path, tmp_path: Path) -> None:
    silent = tmp_path / "silent.h5"
    shutil.copyfile(tworoom_file, silent)
    with h5py.File(silent, "a") as file:
        del file.attrs["task"]
    numbers = train(small(silent, tmp_path / "run", steps=1, task="tworoom"), progress=False)
    assert "probe_agent_x" in numbers
    assert load_model(tmp_path / "run").config.task == "tworoom"
    with h5py.File(silent, "a") as file:
        file.attrs["task"] = "of-your-own"
    numbers = train(small(silent, tmp_path / "own", steps=1), progress=False)
    assert "open_loop_1" in numbers
    assert not any(name.startswith("probe_") for name in numbers)


def test_other_data_is_not_resumed_on(tworoom_file: Path, dense_file: Path, tmp_path: Path) -> None:
    config = small(tworoom_file, tmp_path / "run", steps=3)
    train(config, progress=False)
    other = tmp_path / "other.h5"
    shutil.copyfile(tworoom_file, other)
    with h5py.File(other, "a") as file:
        file["action"][0] = 0.123
    with pytest.raises(InputError, match="expected the run's data"):
        train(replace(config, data=other, resume=True), progress=False)
    shutil.copyfile(tworoom_file, other)
    with h5py.File(other, "a") as file:
        pictures = file["thinned/pixels"]
        pictures[:] = 255 - pictures[:]
    with pytest.raises(InputError, match="expected the run's data"):
        train(replace(config, data=other, resume=True), progress=False)


def test_trackers_are_fed(tworoom_file: Path, tmp_path: Path) -> None:
    train(small(tworoom_file, tmp_path / "run", trackers=("tensorboard",)), progress=False)
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_schedule() -> None:
    config = TrainConfig(Path("x"), Path("y"), steps=1000, learning_rate=1.0)
    rates = [learning_rate(config, step) for step in range(1000)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert max(rates) == pytest.approx(1.0)
    assert rates[505] == pytest.approx(0.5, abs=0.01)
    assert rates[-1] < 1e-5


def test_actions_that_never_change_are_pointed_out(tworoom_file: Path, tmp_path: Path) -> None:
    still = tmp_path / "still.h5"
    shutil.copyfile(tworoom_file, still)
    with h5py.File(still, "a") as file:
        actions = file["action"][:]
        actions[np.isfinite(actions[:, 1]), 1] = 0.3
        file["action"][:] = actions
    with pytest.warns(InputWarning, match="actions have no variance in column 1"):
        train(small(still, tmp_path / "run", steps=1), progress=False)


def test_one_episode_is_too_few(tworoom_file: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.h5"
    with h5py.File(tworoom_file) as source, h5py.File(one, "w") as file:
        rows = int(source["ep_len"][0])
        for name in ("action", "state", "step_idx", "episode_idx"):
            file[name] = source[name][:rows]
        file["pixels"] = np.zeros((rows, 32, 32, 3), np.uint8)
        file["ep_len"], file["ep_offset"] = np.array([rows]), np.array([0])
    with pytest.raises(InputError, match=r"expected at least two episodes, .* found 1"):
        train(small(one, tmp_path / "run", task="tworoom"), progress=False)
    with pytest.raises(InputError, match=r"expected at least 4 episodes, .* found 1"):
        choose_goals(one, "tworoom", 25, 1, 0)
