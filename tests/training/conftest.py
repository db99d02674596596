"""Small trainings, and what they leave behind."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bilinear_wm.models import checkpoint
from bilinear_wm.training.train import TrainConfig, train

SMALL = {"num_points": 8, "grid": 8, "channels": 16, "drawing_weight": 5.0, "projector_hidden": 32}
PREDICTOR = {"predictor_depth": 1, "predictor_hidden": 32, "action_hidden": 32}
SCRIPT = """
import json, sys
from pathlib import Path
from bilinear_wm.cli import main
sys.exit(main(json.loads(sys.argv[1])))
"""


def small(data: Path, out: Path, model: str = "bilinear", **changes: Any) -> TrainConfig:
    options = SMALL | (PREDICTOR if model != "bilinear" else {})
    config = TrainConfig(
        data,
        out,
        model,
        options=options,
        steps=12,
        batch_size=8,
        num_frames=3,
        eval_every=6,
        save_every=5,
    )
    return replace(config, **changes)


@pytest.fixture(scope="session")
def trained(tworoom_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run to read from."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train(small(tworoom_file, out), progress=False)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.resolve(out) / checkpoint.WEIGHTS)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def last_step(out: Path) -> int:
    try:
        return int((out / checkpoint.LATEST).read_text().strip().removeprefix("checkpoint-"))
    except FileNotFoundError:
        return -1


def assert_same(first: Path, second: Path) -> None:
    one, two = weights(first), weights(second)
    assert set(one) == set(two)
    for name in one:
        assert torch.equal(one[name], two[name]), name


def command(data: Path, out: Path, steps: int, *more: str) -> list[str]:
    arguments = ["train", "--data", str(data), "--out", str(out), "--steps", str(steps)]
    arguments += ["--batch-size", "8", "--num-frames", "3", "--eval-every", "10"]
    arguments += ["--save-every", "1", "--options", json.dumps(SMALL), *more]
    return [sys.executable, "-c", SCRIPT, json.dumps(arguments)]
