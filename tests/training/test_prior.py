"""The action prior: learned in hindsight, kept in the checkpoint, used by the pilot."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm.cli import main
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.models import load_model
from bilinear_wm.models.prior import BLOCKS
from bilinear_wm.planning.prior import PriorPlanner
from bilinear_wm.training.loop import TrainingInterrupted
from bilinear_wm.training.prior import PriorConfig, train_prior
from tests.training.conftest import assert_same, metrics, weights


def prior(run: Path, data: Path, out: Path, **changes: Any) -> PriorConfig:
    settings = {"hidden": 32, "steps": 60, "batch_size": 64, "eval_every": 20, "save_every": 7}
    return PriorConfig(run, data, out, **(settings | changes))


@pytest.fixture(scope="module")
def with_prior(trained: Path, tworoom_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prior") / "run"
    train_prior(prior(trained, tworoom_file, out), progress=False)
    return out


@pytest.mark.slow
def test_it_learns_and_leaves_the_rest_alone(trained: Path, with_prior: Path) -> None:
    errors = [row["prior_error_5"] for row in metrics(with_prior)]
    assert errors[-1] < min(errors[0], 1.0)  # better than the mean action
    before, after = weights(trained), weights(with_prior)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(name.startswith("prior.") for name in after if name not in before)


def test_proposals_have_the_length_that_is_asked_for(with_prior: Path, trained: Path) -> None:
    model = load_model(with_prior)
    z = torch.randn(2, 3, model.config.latent_size)
    for horizon in (1, BLOCKS, BLOCKS + 3):
        told = model.propose(z[0], z[1], horizon)
        assert told is not None
        assert told.shape == (3, horizon, model.config.block_size)
        assert (told[:, BLOCKS:] == 0).all()
        assert (told[:, :BLOCKS] != 0).all()
    assert load_model(trained).propose(z[0], z[1], 2) is None


def test_the_pilot_asks_for_it(with_prior: Path) -> None:
    model = load_model(with_prior)
    pilot = Pilot(model, PriorPlanner(model.dynamics), -10.0, 10.0)
    loop = pilot.loop(LoopConfig(horizon=2))
    rng = np.random.default_rng(0)
    seen, goal = rng.integers(0, 255, (2, *model.config.picture_shape, 3), np.uint8)
    loop.set_goal(goal)
    loop.observe(seen)
    job = loop.next_job()
    assert job is not None
    (made,) = pilot.plan([job])
    z = model.encode(np.stack([seen, goal]))
    told = model.propose(z[:1], z[1:], 2)
    assert told is not None
    torch.testing.assert_close(made.plan.actions, told[0])


@pytest.mark.slow
def test_it_resumes_to_the_bit(trained: Path, tworoom_file: Path, tmp_path: Path) -> None:
    from bilinear_wm.training import prior as module

    whole = prior(trained, tworoom_file, tmp_path / "whole", steps=6, eval_every=6)
    train_prior(whole, progress=False)
    cut, original = replace(whole, out=tmp_path / "cut", resume=True), module._Run.one_step

    def interrupted(self: Any) -> dict[str, float]:
        numbers = original(self)
        self._signals.received.append(signal.SIGTERM)
        return numbers

    stops = 0
    module._Run.one_step = interrupted  # type: ignore[method-assign]
    try:
        while stops < 20:
            try:
                train_prior(cut, progress=False)
                break
            except TrainingInterrupted:
                stops += 1
    finally:
        module._Run.one_step = original  # type: ignore[method-assign]
    assert stops == 6
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_it_is_measured_alone(with_prior: Path, trained: Path, tmp_path: Path) -> None:
    config = EvaluateConfig("tworoom", with_prior, planner="prior", episodes=2, floors=False)
    assert evaluate(config, progress=False).episodes == 2
    with pytest.raises(InputError, match="train-prior"):
        evaluate(replace(config, checkpoint=trained), progress=False)


def test_what_is_refused(
    with_prior: Path, tworoom_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="has a prior already"):
        train_prior(prior(with_prior, tworoom_file, tmp_path / "twice"), progress=False)
    arguments = ["--checkpoint", str(with_prior), "--data", str(tworoom_file), "--out", "x"]
    assert main(["train-prior", *arguments, "--steps", "0"]) == 2
    assert "--steps: expected at least 1" in capsys.readouterr().err
