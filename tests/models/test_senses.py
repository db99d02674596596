"""Latents of several cameras, proprioception and a history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm.errors import InputError
from bilinear_wm.models import MODELS, load_model
from bilinear_wm.models.config import LATER
from bilinear_wm.models.encoders.points import PointsEncoder
from bilinear_wm.models.senses import Senses
from bilinear_wm.observation import (
    History,
    Observation,
    ObservationSpec,
)
from tests.models.conftest import small_model

ROOT = Path(__file__).parents[2]


EVERYTHING: dict[str, Any] = {
    "cameras": ("pixels", "side"),
    "proprioception": ("agent_x", "gauge"),
    "proprioception_mean": (100.0, 0.0, 1.0),
    "proprioception_std": (50.0, 1.0, 2.0),
    "observed": 3,
    "observed_every": 2,
}


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
        ({"observed": 0}, "observed: expected at least 1"),
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


@pytest.mark.parametrize("task", ["tworoom", "pusht", "reacher"])
def test_older_checkpoints_see_one_picture(task: str) -> None:
    folder = ROOT / "pretrained" / task
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
