"""Observations: several cameras, proprioception and a history, recorded and while running."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from bilinear_wm.analysis.latents import episodes_for
from bilinear_wm.cli import main
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.data.windows import EpisodeDataset, split_episodes
from bilinear_wm.errors import InputError
from bilinear_wm.models import MODELS, load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.config import LATER
from bilinear_wm.models.encoders.points import PointsEncoder
from bilinear_wm.models.senses import Senses
from bilinear_wm.observation import (
    History,
    Observation,
    ObservationSpec,
    concatenate,
    recent,
    stack,
)
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner
from bilinear_wm.tasks import make_task
from bilinear_wm.training.residual import ResidualConfig, train_residual
from bilinear_wm.training.train import TrainConfig, train
from tests.models.conftest import small_model

ROOT = Path(__file__).parents[1]
TWO_CAMERAS = ObservationSpec(cameras=("pixels", "side"))
EVERYTHING: dict[str, Any] = {
    "cameras": ("pixels", "side"),
    "proprioception": ("agent_x", "gauge"),
    "proprioception_mean": (100.0, 0.0, 1.0),
    "proprioception_std": (50.0, 1.0, 2.0),
    "observed": 3,
    "observed_every": 2,
}


def numbered(count: int, size: int = 8) -> np.ndarray:
    """Pictures that say which they are."""
    return np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, size, size, 3), np.uint8
    )


def hand_made(path: Path, lengths: tuple[int, ...] = (7, 9), stride: int = 1) -> Path:
    """Two episodes; picture i of the file has the value i, its second camera 100 + i."""
    rows, offsets = sum(lengths), np.concatenate([[0], np.cumsum(lengths)[:-1]])
    kept = sum(-(-length // stride) for length in lengths)
    with h5py.File(path, "w") as file:
        file.attrs["frame_stride"] = stride
        file["pixels"], file["side"] = numbered(kept), numbered(kept) + np.uint8(100)
        file["action"] = np.random.default_rng(0).normal(size=(rows, 1)).astype(np.float32)
        file["joints"] = np.stack([np.arange(rows), -np.arange(rows)], 1).astype(np.float32)
        file["force"] = np.arange(rows, dtype=np.float64) / 10
        file["ep_len"], file["ep_offset"] = np.array(lengths), offsets
    return path


def window(data: EpisodeDataset, episode: int, step: int) -> Observation:
    everything = data.batch(range(len(data)))
    at = np.flatnonzero((everything.episodes == episode) & (everything.steps == step))
    return everything.observation[int(at[0])]


def values(pictures: np.ndarray) -> Any:
    return pictures[..., 0, 0, 0].tolist()


@pytest.fixture(scope="module")
def rich_file(dense_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded episodes of TwoRoom with a second camera and two further numbers."""
    path = tmp_path_factory.mktemp("rich") / "rich.h5"
    shutil.copyfile(dense_file, path)
    with h5py.File(path, "a") as file:
        file["side"] = file["pixels"][:][:, ::-1, ::-1]
        file["gauge"] = np.random.default_rng(0).normal(1, 2, (len(file["action"]), 2))
    return path


# The record.


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


# Windows.


@pytest.mark.parametrize("in_memory", [True, False])
def test_windows_with_a_history(tmp_path: Path, in_memory: bool) -> None:
    path = hand_made(tmp_path / "hand.h5")
    spec = ObservationSpec(("side", "pixels"), ("joints", "force"), num_observed=2, every=3)
    data = EpisodeDataset(path, 2, frame_skip=2, spec=spec, split="all", in_memory=in_memory)
    assert len(data) == 5 + 7  # as many as without a history
    seen = window(data, 1, 2)
    assert list(seen.pictures) == ["side", "pixels"]
    assert values(seen.pictures["pixels"]) == [[7, 9], [8, 11]]  # the first one of it repeated
    assert values(seen.pictures["side"]) == [[107, 109], [108, 111]]
    assert seen.proprioception[..., 0].tolist() == [[7, 9], [8, 11]]
    assert seen.proprioception[..., 1].tolist() == [[-7, -9], [-8, -11]]
    np.testing.assert_allclose(seen.proprioception[..., 2], [[0.7, 0.9], [0.8, 1.1]])
    assert values(data.batch([0]).pixels) == [[100, 102]]  # present ones of the first camera
    (trained,) = split_episodes(2)[0]
    rows = slice(0, 7) if trained == 0 else slice(7, 16)
    np.testing.assert_allclose(data.proprioception_mean[0], np.arange(16)[rows].mean())
    np.testing.assert_allclose(data.proprioception_std[1], np.arange(16)[rows].std(), rtol=1e-6)


def test_every_recorded_moment_once(tmp_path: Path) -> None:
    path = hand_made(tmp_path / "hand.h5", (7, 9), stride=2)
    spec = ObservationSpec(proprioception=("force",), num_observed=2, every=4)
    data = EpisodeDataset(path, 2, frame_skip=2, spec=spec, split="all")
    parts = list(data.observations(4))
    assert [len(part.pictures["pixels"]) for part in parts] == [4, 5]
    moments = concatenate(parts)
    assert values(moments.pictures["pixels"])[4:] == [[4, 4], [4, 5], [4, 6], [5, 7], [6, 8]]
    for index in range(len(data)):
        held = moments[data.frames_of([index])[0]]
        np.testing.assert_array_equal(
            held.pictures["pixels"], data[index].observation.pictures["pixels"][0]
        )
        np.testing.assert_array_equal(
            held.proprioception, data[index].observation.proprioception[0]
        )


def test_what_a_file_lacks_is_named(tmp_path: Path, dense_file: Path) -> None:
    path = hand_made(tmp_path / "hand.h5", (8, 10), stride=2)
    for spec, message in [
        (ObservationSpec(("pixels", "top")), "column 'top': expected it to exist, found only"),
        (ObservationSpec(("pixels", "force")), "column 'force': expected dtype uint8"),
        (ObservationSpec(num_observed=2, every=3), "observed_every: expected a multiple of the fi"),
        (ObservationSpec(proprioception=("elbow",)), r"columns of 18 floats \(action, force, join"),
        (ObservationSpec(proprioception=("side",)), "found 'side'"),
    ]:
        with pytest.raises(InputError, match=message):
            EpisodeDataset(path, 2, frame_skip=2, spec=spec)
    with pytest.raises(InputError, match=r"state variables \(agent_x, agent_y\) or col.*'elbow'"):
        EpisodeDataset(dense_file, spec=ObservationSpec(proprioception=("elbow",)))
    with h5py.File(path, "a") as file:
        file["small"] = numbered(9, size=4)
        file["force"][3] = np.nan
    with pytest.raises(InputError, match="column 'small': expected 8 px"):
        EpisodeDataset(path, 2, frame_skip=2, spec=ObservationSpec(("pixels", "small")))
    with pytest.raises(InputError, match="column 'force', episode 0, step 3: expected finite"):
        EpisodeDataset(path, 2, frame_skip=2, spec=ObservationSpec(proprioception=("force",)))


# Models.


def observation(count: int = 5, seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    pictures = {
        camera: rng.integers(0, 256, (count, 4, 3, 32, 32, 3), np.uint8)
        for camera in ("pixels", "side")
    }
    return Observation(pictures, rng.normal(size=(count, 4, 3, 3)).astype(np.float32))


@pytest.mark.parametrize("encoder", ["points", "vit"])
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_the_latent_is_made_of_everything(kind: str, encoder: str) -> None:
    model = small_model(kind, encoder=encoder, **EVERYTHING).eval()
    seen = observation()
    z = model.encode(seen)
    assert model.config.latent_size == 3 * (24 + 24 + 3)
    assert z.shape == (5, 4, model.config.latent_size)
    assert z.dtype == torch.float32
    plain = small_model(kind, encoder=encoder).eval()
    plain.encoder.load_state_dict(model.encoder.state_dict())
    before, earlier, now = (plain.encode(seen.pictures["pixels"][:, :, i]) for i in (1, 0, 2))
    close = torch.testing.assert_close
    close(z[..., :24], now)
    close(z[..., 48], torch.from_numpy(seen.proprioception[:, :, 2, 0] - 100) / 50)
    moved = z.unflatten(-1, (3, -1))[..., :24]
    close(moved[..., 1, :], (now - earlier) * (5 / 4), atol=1e-5, rtol=1e-4)
    close(moved[..., 2, :], (now - before) * (5 / 2), atol=1e-5, rtol=1e-4)
    loss = model.train().loss(seen, torch.randn(5, 3, 10))
    loss.total.backward()
    lost = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not [n for n in lost if n.startswith(("encoder", "senses", "drawing"))]


def test_a_goal_at_rest_has_no_velocity() -> None:
    model = small_model("bilinear", encoder="points", observed=2).eval()
    z = model.encode(History(model.config.observes).add(np.zeros((32, 32, 3), np.uint8)).now)
    assert z.shape == (48,)
    assert not z[24:].any()
    assert z[:24].any()


def test_each_camera_has_its_points_and_is_drawn() -> None:
    model = small_model("bilinear", encoder="points", **EVERYTHING).eval()
    assert isinstance(model.senses, Senses)
    second = model.senses.encoders[0]
    assert isinstance(second, PointsEncoder)
    with torch.no_grad():
        model.senses.scale.uniform_(0.5, 2.0)
    seen = observation()
    model.prepare(seen[:, 0])
    z = model.encode(seen)
    assert isinstance(model.encoder, PointsEncoder)
    for camera, encoder in (("pixels", model.encoder), ("side", second)):
        pictures = torch.from_numpy(seen.pictures[camera][:, :, 2])
        assert torch.equal(model.present(seen, camera), pictures)
        torch.testing.assert_close(model.points(z, camera), encoder.points(encoder(pictures)))
        assert model.draw(z, camera).shape == pictures.shape
    torch.testing.assert_close(model.points(z), model.points(z, "pixels"))
    assert not torch.equal(model.draw(z, "side"), model.draw(z))
    with pytest.raises(InputError, match="camera: expected one of pixels, side, found 'top'"):
        model.points(z, "top")


def test_bad_observations_and_configurations_are_named() -> None:
    model = small_model("bilinear", **EVERYTHING)
    seen = observation()
    with pytest.raises(InputError, match=r"expected 3 numbers \(agent_x, gauge\), found shape"):
        model.encode(Observation(seen.pictures, seen.proprioception[..., :2]))
    with pytest.raises(InputError, match="expected pictures of pixels, side and the numbers"):
        model.encode(seen.pictures["pixels"])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"observed": 0}, "observed: expected a whole number"),
        ({"cameras": ()}, "cameras: expected a list"),
        ({"proprioception": ("x",)}, "proprioception_mean, proprioception_std: expected equally"),
        ({"proprioception_mean": (1.0,), "proprioception_std": (1.0,)}, "proprioception_mean"),
        (EVERYTHING | {"proprioception_std": (1.0, 0.0, 1.0)}, "positive stds"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            small_model("bilinear", **options)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_checkpoints_keep_what_is_observed(tmp_path: Path, kind: str) -> None:
    model = small_model(kind, encoder="points", **EVERYTHING).eval()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert torch.equal(loaded.encode(observation()), model.encode(observation()))


@pytest.mark.parametrize("folder", sorted(ROOT.glob("pretrained/*")), ids=lambda p: p.name)
def test_older_checkpoints_see_one_picture(folder: Path) -> None:
    written = json.loads((folder / "config.json").read_text())
    assert not LATER & set(written)
    model = load_model(folder)
    assert model.config.observes == ObservationSpec()
    rng = np.random.default_rng(0)
    size = model.config.image_size
    pictures = rng.integers(0, 256, (2, size, size, 3), np.uint8)
    with torch.no_grad():
        plain = model.encoder(torch.from_numpy(pictures))
    assert torch.equal(model.encode(pictures), plain)
    assert torch.equal(model.encode(Observation({"pixels": pictures})), plain)


# Recorded and running.


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


def test_tasks_name_what_they_cannot_show(task_name: str) -> None:
    task = make_task(task_name, image_size=8)
    task.reset(seed=0)
    seen = task.observe(ObservationSpec(proprioception=task.state_names[:2]))
    np.testing.assert_array_equal(seen.pictures["pixels"], task.picture(task.state))
    np.testing.assert_array_equal(seen.proprioception, task.state[:2].astype(np.float32))
    with pytest.raises(InputError, match=f"{task_name}: cameras: expected some of pixels"):
        task.observe(ObservationSpec(cameras=("behind",)))
    with pytest.raises(InputError, match=f"{task_name}: proprioception: expected some of .*'?hope"):
        task.observe(ObservationSpec(proprioception=("hope",)))
    task.close()


def test_a_controller_takes_histories_and_refuses_single_pictures() -> None:
    model = small_model("bilinear", observed=2).eval()
    config = GaussNewtonConfig(compiled=False)
    controller = RealTimeController(
        model, GaussNewtonPlanner(model.dynamics, config), control_hz=20
    )
    size, history = model.config.image_size, History(model.config.observes)
    picture = np.zeros((size, size, 3), np.uint8)
    with pytest.raises(InputError, match="expected a history of 2"):
        controller.observe(picture)
    controller.set_goal(history.add(picture).now)
    controller.observe(history.add(picture + 50).now)
    job = controller.loop.next_job()
    assert job is not None
    (made,) = controller.pilot.plan([job])
    assert np.isfinite(made.actions).all()


# The whole chain.


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


def test_training_sees_everything(rich_file: Path, tmp_path: Path) -> None:
    model = chain(
        rich_file, tmp_path, cameras=["pixels", "side"], proprioception=["agent_x", "gauge"],
        observed=2, observed_every=1,
    )  # fmt: skip
    assert model.config.latent_size == 2 * (16 + 16 + 3)
    assert model.config.proprioception_mean[1:] == pytest.approx((1, 1), abs=0.2)
    assert model.config.proprioception_std[1:] == pytest.approx((2, 2), rel=0.1)


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
