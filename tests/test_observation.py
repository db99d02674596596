"""Observations: several cameras, proprioception and a history, recorded and while running."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from bilinear_wm.analysis.latents import episodes_for
from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.models import load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.observation import (
    History,
    Observation,
    ObservationSpec,
    concatenate,
    recent,
    stack,
)
from bilinear_wm.tasks import make_task
from bilinear_wm.training.residual import ResidualConfig, train_residual
from bilinear_wm.training.train import TrainConfig, train
from tests.data.conftest import numbered, values
from tests.models.conftest import small_model

TWO_CAMERAS = ObservationSpec(cameras=("pixels", "side"))


@pytest.fixture(scope="module")
def rich_file(dense_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded episodes of TwoRoom with a second camera and two further numbers."""
    path = tmp_path_factory.mktemp("rich") / "rich.h5"
    shutil.copyfile(dense_file, path)
    with h5py.File(path, "a") as file:
        file["side"] = file["pixels"][:][:, ::-1, ::-1]
        file["gauge"] = np.random.default_rng(0).normal(1, 2, (len(file["action"]), 2))
    return path


def test_records_are_indexed_stacked_and_joined() -> None:
    one = Observation({"pixels": numbered(4), "side": numbered(4) + 4}, np.eye(4, 2))
    both = stack([one, one])
    assert both.pictures["side"].shape == (2, 4, 8, 8, 3)
    assert both.proprioception.shape == (2, 4, 2)
    np.testing.assert_array_equal(both[1, 2].pictures["side"], one.pictures["side"][2])
    np.testing.assert_array_equal(both[1, 2].proprioception, [0, 0])
    joined = concatenate([one[:1], Observation(one.pictures, np.zeros((4, 2)))])
    assert values(joined.pictures["pixels"]) == [0, 0, 1, 2, 3]
    assert joined.proprioception[:, 0].tolist() == [1, 0, 0, 0, 0]
    assert stack([Observation({"pixels": numbered(1)})]).proprioception is None


def test_specs_are_checked() -> None:
    for options, message in [
        ({"cameras": ()}, "cameras: expected a list of at least one name"),
        ({"cameras": "pixels"}, "cameras: expected a list"),
        ({"cameras": ("a", "a")}, "each once"),
        ({"proprioception": "wrist"}, "proprioception: expected a list of names"),
        ({"num_observed": 0}, "observed: expected a whole number >= 1, found 0"),
        ({"num_observed": 2.0}, "observed: expected a whole number"),
        ({"every": 0}, "observed_every: expected a whole number"),
    ]:
        with pytest.raises(InputError, match=message):
            ObservationSpec(**options)  # type: ignore[arg-type]


def test_what_is_missing_is_named() -> None:
    picture = numbered(1)[0]
    with pytest.raises(InputError, match="pictures of pixels, side, found a plain array"):
        TWO_CAMERAS.of(picture)
    with pytest.raises(InputError, match="cameras pixels, side, found only pixels"):
        TWO_CAMERAS.of(Observation({"pixels": picture}))
    with pytest.raises(InputError, match=r"proprioception \(wrist\), found none"):
        ObservationSpec(proprioception=("wrist",)).of(Observation({"pixels": picture}))
    two = ObservationSpec(num_observed=2)
    with pytest.raises(InputError, match=r"history of 2, shape \(..., 2, H, W, 3\), found"):
        two.of(picture)
    with pytest.raises(InputError, match="history of 2"):
        two.of(torch.zeros(3, 8, 8, 3))
    assert two.of(numbered(2)).pictures["pixels"].shape == (2, 8, 8, 3)
    numbers = ObservationSpec(proprioception=("wrist",), num_observed=2)
    with pytest.raises(InputError, match=r"proprioception: expected a history of 2"):
        numbers.of(Observation({"pixels": numbered(2)}, np.zeros(2)))
    further = Observation({"pixels": picture, "side": picture}, np.zeros(1))
    assert list(ObservationSpec().of(further).pictures) == ["pixels"]
    assert ObservationSpec().of(further).proprioception is None


def test_the_first_observation_is_repeated() -> None:
    spec = ObservationSpec(num_observed=3, every=2)
    assert spec.looks_back([0, 1, 3, 9]).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 3], [5, 7, 9]]
    history, pictures = History(spec), numbered(10)
    with pytest.raises(InputError, match="history: expected at least one observation"):
        _ = history.now
    found = [values(history.add(picture).now.pictures["pixels"]) for picture in pictures]
    assert found == spec.looks_back(np.arange(10)).tolist()
    history.clear()
    assert values(history.add(pictures[7]).now.pictures["pixels"]) == [7, 7, 7]
    plain = recent(ObservationSpec(), list(pictures), lambda p: Observation({"pixels": p}))
    assert values(plain.pictures["pixels"]) == 9


def test_running_episodes_are_seen_as_recorded_ones(rich_file: Path) -> None:
    options: dict[str, Any] = {
        "observed": 3, "observed_every": 2, "proprioception": ("agent_x", "agent_y"),
               "proprioception_mean": (100.0, 100.0), "proprioception_std": (50.0, 40.0),
               "render_quality": "fast"}  # fmt: skip
    model = small_model("bilinear", encoder="points", **options).eval()
    data = episodes_for(model, rich_file, "validation")
    spec = model.config.observes
    assert data.spec == spec
    states = data.file.episode_states(int(data.episodes[0]))
    task = make_task("tworoom", image_size=32, render_quality="fast")
    history = History(spec)
    one = ObservationSpec(spec.cameras, spec.proprioception)
    checked = 0
    for step, state in enumerate(states):
        task.set_state(state)
        running = model.encode(history.add(task.observe(one)).now)
        assert torch.equal(running, model.encode(task.observe(spec, list(states[: step + 1]))))
        for index in np.flatnonzero((data._window_episode == 0) & (data._window_step == step)):
            recorded = data[int(index)].observation[0, 0]
            for name, array in task.observe(spec, list(states[: step + 1])).pictures.items():
                np.testing.assert_array_equal(recorded.pictures[name], array)
            assert torch.equal(model.encode(recorded), running)
            checked += 1
    assert checked > 10


def chain(path: Path, out: Path, **options: Any) -> WorldModel:
    small = {"num_points": 8, "grid": 8, "channels": 16, "drawing_weight": 5.0, "shift_weight": 1.0}
    config = TrainConfig(path, out / "run", options=small | options, steps=6, batch_size=8,
                         num_frames=3, eval_every=6, save_every=6)  # fmt: skip
    assert np.isfinite(train(config, progress=False)["val_forward"])
    settings: dict[str, Any] = {"hidden": 16, "steps": 12, "weigh_steps": 4, "refit_steps": 4,
                                "batch_size": 16, "eval_every": 12, "save_every": 5}  # fmt: skip
    train_residual(ResidualConfig(out / "run", path, out / "more", **settings), progress=False)
    before, after = load_model(out / "run"), load_model(out / "more")
    seen = episodes_for(after, path).batch([0, 9]).observation
    assert before.scale is not None
    assert after.scale is not None
    assert (after.scale / before.scale).std() > 1e-3
    torch.testing.assert_close(after.encode(seen) / after.scale, before.encode(seen) / before.scale)
    return after


@pytest.mark.slow
def test_training_sees_everything(rich_file: Path, tmp_path: Path) -> None:
    model = chain(
        rich_file, tmp_path, cameras=["pixels", "side"], proprioception=["agent_x", "gauge"],
        observed=2, observed_every=1,
    )  # fmt: skip
    assert model.config.latent_size == 2 * (16 + 16 + 3)
    assert model.config.proprioception_mean[1:] == pytest.approx((1, 1), abs=0.2)
    assert model.config.proprioception_std[1:] == pytest.approx((2, 2), rel=0.1)


@pytest.mark.slow
def test_a_model_with_a_history_is_evaluated(tworoom_file: Path, tmp_path: Path) -> None:
    chain(tworoom_file, tmp_path, observed=2, proprioception=["agent_y"])
    result = tmp_path / "result.jsonl"
    command = ["evaluate", "--task", "tworoom", "--checkpoint", str(tmp_path / "more"),
               "--episodes", "2",
               "--offset", "10", "--seed", "100", "--out", str(result)]  # fmt: skip
    assert main(command) == 0
    assert result.exists()


def test_bad_names_are_one_line(tworoom_file: Path, tmp_path: Path, capsys: Any) -> None:
    for options, message in [
        ('{"proprioception": ["wrist"]}', "expected state variables (agent_x, agent_y)"),
        ('{"cameras": ["pixels", "side"]}', "column 'side': expected it to exist"),
        ('{"observed": "two"}', "observed: expected a whole number >= 1, found 'two'"),
        ('{"observed": 2, "observed_every": 1}', "collect with --frame-stride 1"),
        ('{"camera": "side"}', "camera"),
    ]:
        command = ["train", "--data", str(tworoom_file), "--out", str(tmp_path / "run")]
        assert main([*command, "--options", options]) == 2
        found = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in found
