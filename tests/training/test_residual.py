"""The planning residual: learned on a frozen model, resumable to the bit."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from bilinear_wm.analysis.latents import encode_windows
from bilinear_wm.cli import main
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.models import load_model
from bilinear_wm.training.loop import TrainingInterrupted
from bilinear_wm.training.residual import ResidualConfig, coordinate_weights, train_residual
from bilinear_wm.training.train import train
from tests.training.conftest import (
    assert_same,
    metrics,
    small,
    weights,
)


def residual(run: Path, data: Path, out: Path, **changes: Any) -> ResidualConfig:
    settings: dict[str, Any] = {
        "hidden": 32, "steps": 40, "weigh_steps": 10, "refit_steps": 10, "batch_size": 32,
        "eval_every": 20, "save_every": 7,
    }  # fmt: skip
    return ResidualConfig(run, data, out, **(settings | changes))


@pytest.mark.slow
def test_the_residual_learns_and_leaves_the_encoder_alone(
    trained: Path, tworoom_file: Path, tmp_path: Path
) -> None:
    config = residual(
        trained, tworoom_file, tmp_path / "more", steps=400, weigh_steps=0, refit_steps=0
    )
    numbers = train_residual(config, progress=False)
    before, after = weights(trained), weights(tmp_path / "more")
    inside = {name.replace(".structured", ""): t for name, t in after.items()}
    changed = {n for n, t in before.items() if not torch.equal(inside[n], t)}
    assert changed <= {"dynamics.B", "dynamics.C"}  # their gauge alone: no plan changes
    assert {name for name in inside if name not in before} == {
        f"dynamics.residual.{layer}.{part}" for layer in (0, 2, 4) for part in ("weight", "bias")
    }
    assert numbers["open_loop_1"] < metrics(trained)[-1]["open_loop_1"]
    model = load_model(tmp_path / "more")
    z, actions, _ = encode_windows(model, EpisodeDataset(tworoom_file, 3), 10)
    assert torch.isfinite(model.dynamics.rollout(z[:, 0], actions)).all()
    with pytest.raises(InputError, match="has a residual already"):
        train_residual(replace(config, checkpoint=config.out, out=tmp_path / "third"))
    with pytest.raises(InputError, match="holds a run already"):
        train_residual(config)


def test_weights_go_into_the_scale_and_nowhere_else(
    trained: Path, tworoom_file: Path, tmp_path: Path
) -> None:
    train_residual(residual(trained, tworoom_file, tmp_path / "more"), progress=False)
    plain, weighed = load_model(trained), load_model(tmp_path / "more")
    pixels = EpisodeDataset(tworoom_file, 2).batch([0, 1, 2]).pixels
    z, scaled = plain.encode(pixels), weighed.encode(pixels)
    ratio = weighed.encoder.get_buffer("scale") / plain.encoder.get_buffer("scale")
    assert ratio.std() > 1e-3
    torch.testing.assert_close(scaled, z * ratio)
    torch.testing.assert_close(weighed.points(scaled), plain.points(z))
    assert torch.equal(weighed.draw(scaled), plain.draw(z))


def test_coordinates_are_weighed_by_how_well_they_are_predicted() -> None:
    error = torch.tensor([0.1, 0.2, 0.4, 0.001, 0.01])
    std = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.01])
    weight = coordinate_weights(error, std)
    assert weight[0] == 1.0  # the median
    torch.testing.assert_close(weight[1:3], torch.tensor([0.5, 0.25]))
    assert weight[3] == 2.0  # bounded
    assert weight[4] == pytest.approx(0.1)  # stands still: says nothing


@pytest.mark.slow
def test_residual_training_resumes_to_the_bit(
    trained: Path, tworoom_file: Path, tmp_path: Path
) -> None:
    """Stopped after every step, phases' ends included, and continued."""
    from bilinear_wm.training import residual as module

    steps = {"steps": 9, "weigh_steps": 3, "refit_steps": 2, "eval_every": 9}
    whole = residual(trained, tworoom_file, tmp_path / "whole", **steps)
    module.train_residual(whole, progress=False)
    cut, original, stops = (
        replace(whole, out=tmp_path / "cut", resume=True),
        module._Run.one_step,
        0,
    )

    def interrupted(self: Any) -> dict[str, float]:
        numbers = original(self)
        self._signals.received.append(signal.SIGTERM)
        return numbers

    module._Run.one_step = interrupted  # type: ignore[method-assign]
    try:
        while True:
            try:
                module.train_residual(cut, progress=False)
                break
            except TrainingInterrupted as stop:
                assert stop.exit_status == 143  # noqa: PT017
                stops += 1
    finally:
        module._Run.one_step = original  # type: ignore[method-assign]
    assert stops == 9
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_episodes_of_another_task_are_refused(
    trained: Path, tworoom_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.h5"
    shutil.copyfile(tworoom_file, other)
    with h5py.File(other, "a") as file:
        file.attrs["task"] = "of-your-own"
    config = residual(trained, other, tmp_path / "more")
    with pytest.raises(InputError, match="expected episodes of tworoom, found of-your-own"):
        train_residual(config, progress=False)
    assert not list((tmp_path / "more").iterdir())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_before_the_first_step_says_how_to_go_on(
    number: int, status: int, trained: Path, tworoom_file: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def stopped(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("bilinear_wm.training.residual.recorded", stopped)
    command = ["train-residual", "--checkpoint", str(trained), "--data", str(tworoom_file)]
    assert main([*command, "--out", str(tmp_path / "more")]) == status
    said = capsys.readouterr().err.strip()
    assert said.endswith(f"interrupted; the same command with --resume continues {tmp_path}/more")


@pytest.mark.slow
def test_a_residual_run_is_not_continued_for_another_model(
    trained: Path, tworoom_file: Path, tmp_path: Path
) -> None:
    train(small(tworoom_file, tmp_path / "other", seed=1), progress=False)
    config = residual(trained, tworoom_file, tmp_path / "more")
    train_residual(config, progress=False)
    with pytest.raises(InputError, match="expected the run's data"):
        train_residual(replace(config, checkpoint=tmp_path / "other", resume=True), progress=False)
    with pytest.raises(InputError, match="expected the run's config"):
        train_residual(replace(config, hidden=16, resume=True), progress=False)
    with pytest.raises(InputError, match="steps: expected more than `weigh_steps` 10"):
        residual(trained, tworoom_file, tmp_path / "x", steps=20)
