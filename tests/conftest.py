"""Shared fixtures: small recorded files, made once per test process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests import shapes

shapes.install()

import numpy as np
import pytest

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.registry import ENCODERS, FORMATS, MODELS, PLANNERS, TASKS
from bilinear_wm.tasks import TASK_NAMES

REFERENCE = Path(__file__).parent / "reference"


@pytest.fixture(params=TASK_NAMES)
def task_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    for registry in (TASKS, FORMATS, MODELS, ENCODERS, PLANNERS):
        for kept in ("_addresses", "_things"):
            monkeypatch.setattr(registry, kept, dict(getattr(registry, kept)))


@pytest.fixture(scope="session")
def reference() -> Callable[[str], dict[str, np.ndarray]]:
    return lambda name: dict(np.load(REFERENCE / f"{name}.npz"))


@pytest.fixture(scope="session")
def tworoom_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 episodes with every fifth picture of 32 px."""
    path = tmp_path_factory.mktemp("data") / "tworoom.h5"
    collect(CollectConfig("tworoom", path, 20, image_size=32, workers=1), progress=False)
    return path


@pytest.fixture(scope="session")
def dense_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same episodes with every picture: the public schema to the letter."""
    path = tmp_path_factory.mktemp("data") / "dense.h5"
    config = CollectConfig("tworoom", path, 20, image_size=32, frame_stride=1, workers=1)
    collect(config, progress=False)
    return path
