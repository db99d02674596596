"""Bundles of the pretrained models, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bilinear_wm.export import ExportConfig, export

PRETRAINED = Path(__file__).parents[2] / "pretrained"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A portable bundle of a task's model."""
    folder = tmp_path_factory.mktemp("bundles")

    def made(task: str) -> Path:
        if not (folder / task).exists():
            export(ExportConfig(PRETRAINED / task, folder / task, portable=True))
        return folder / task

    return made


@pytest.fixture(scope="session")
def native_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PushT's, with the kernel compiled ahead of time."""
    out = tmp_path_factory.mktemp("native") / "pusht"
    export(ExportConfig(PRETRAINED / "pusht", out))
    return out
