"""Workers read ahead, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models import load_model
from bilinear_wm.training.loader import default_workers, read
from bilinear_wm.training.train import TrainConfig, train


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tworoom.h5"
    collect(CollectConfig("tworoom", path, 6, 32, workers=1), progress=False)
    return path


def test_workers_give_the_same_batches_in_the_same_order(episodes: Path) -> None:
    data = EpisodeDataset(episodes, 3, in_memory=False)
    data.batch([0])  # the file is open here; workers open their own
    rng = np.random.default_rng(0)
    order = [rng.integers(0, len(data), 5) for _ in range(7)]
    made = list(read(data, iter(order), workers=2))
    assert len(made) == len(order)
    for found, expected in zip(made, read(data, order, workers=0), strict=True):
        assert isinstance(found.observation.pictures["pixels"], torch.Tensor)
        np.testing.assert_array_equal(found.observation.pictures["pixels"], expected.pixels)
        for name in ("actions", "states", "episodes", "steps"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.slow
def test_who_reads_changes_no_weight(episodes: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        episodes, tmp_path / "one", steps=4, batch_size=8, num_frames=2, eval_every=4,
        save_every=2, options={"num_points": 8, "grid": 8, "channels": 8}, workers=0,
    )  # fmt: skip
    train(config, progress=False)
    train(replace(config, out=tmp_path / "two", workers=1), progress=False)
    expected = load_model(tmp_path / "one").state_dict()
    for name, tensor in load_model(tmp_path / "two").state_dict().items():
        assert torch.equal(tensor, expected[name]), name


DYING = """
import os, signal, sys
import numpy as np
import torch
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.training.loader import read, watched

if __name__ == "__main__":
    data = EpisodeDataset(sys.argv[1], 2, in_memory=False)
    batches = read(data, (np.array([0]) for _ in range(10_000)), workers=1)
    next(batches)
    (worker,) = torch.multiprocessing.active_children()
    with watched(data.file.path):
        os.kill(worker.pid, signal.SIGKILL)
        list(batches)
"""


@pytest.mark.slow
def test_a_worker_that_dies_is_one_sentence(episodes: Path, tmp_path: Path) -> None:
    """In a process of its own: torch raises it wherever that is."""
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    ran = subprocess.run(
        [sys.executable, str(script), str(episodes)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert f"InputError: workers: one that reads {episodes} died" in ran.stderr


def test_pictures_in_memory_need_no_workers(episodes: Path) -> None:
    assert default_workers(EpisodeDataset(episodes, 2, in_memory=True)) == 0
    assert default_workers(EpisodeDataset(episodes, 2, in_memory=False)) >= 1
