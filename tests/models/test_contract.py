"""What every world model promises, through one suite."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm import recipes
from bilinear_wm.errors import InputError
from bilinear_wm.models import MODELS
from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.lewm import SIGReg

from .conftest import small_model, windows


def test_loss_reaches_every_parameter(kind: str, encoder: str) -> None:
    model = small_model(kind, encoder=encoder)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(2):  # gates that start at zero open after one step
        loss = model.loss(*windows(seed=step))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        if "qkv.bias" not in name:  # a bias of all keys cancels in attention
            assert parameter.grad.abs().max() > 0, name


def test_shapes(kind: str, encoder: str) -> None:
    model = small_model(kind, encoder=encoder).eval()
    pixels, actions = windows()
    z = model.encode(pixels.numpy())
    assert z.shape == (6, 4, 24)
    assert z.dtype == torch.float32
    assert model.encode(pixels[0, 0]).shape == (24,)
    latents = model.dynamics.rollout(z[:, 0], actions)
    assert latents.shape == (6, 4, 24)
    torch.testing.assert_close(latents[:, 1], model.dynamics.step(z[:, 0], actions[:, 0]))
    torch.testing.assert_close(latents[0], model.dynamics.rollout(z[0, 0], actions[0]))


def test_env_actions_round_trip(kind: str) -> None:
    model = small_model(kind)
    actions = torch.randn(3, 2, 10)
    raw = model.to_env_actions(actions)
    assert raw.shape == (3, 10, 2)
    torch.testing.assert_close(model.to_model_actions(raw), actions)
    # one row per environment step, in order: the first pair of numbers is the first action
    expected = actions[0, 0, :2] * model.action_std + model.action_mean
    torch.testing.assert_close(raw[0, 0], expected)


def test_finalizing_changes_no_prediction(kind: str) -> None:
    model = small_model(kind).eval()
    pixels, actions = windows()
    z = model.encode(pixels)
    other = copy.deepcopy(model)
    other.finalize(z.flatten(0, 1))
    torch.testing.assert_close(
        other.dynamics.rollout(z[:, 0], actions),
        model.dynamics.rollout(z[:, 0], actions),
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.slow
def test_it_learns_a_fixed_batch(kind: str, encoder: str) -> None:
    model = small_model(kind, encoder=encoder)
    pixels, actions = windows(16)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for step in range(60):
        torch.manual_seed(step)
        loss = model.loss(pixels, actions).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_papers_size_takes_two_steps(model: str) -> None:
    """ViT-Tiny at 224 px, with each predictor at its published size."""
    config = recipes.paper(Path("x.h5"), Path("out"), model, "pusht", windows=10_000)
    cls = MODELS[model]
    facts: dict[str, Any] = {
        "task": "pusht",
        "image_size": 224,
        "frame_skip": 5,
        "action_mean": (0.0, 0.0),
        "action_std": (1.0, 1.0),
    }
    torch.manual_seed(0)
    made = cls(cls.config_class(**facts, **config.options))
    vit = sum(p.numel() for n, p in made.encoder.named_parameters() if "project" not in n)
    assert vit == pytest.approx(5.5e6, rel=0.01)
    optimizer = torch.optim.AdamW(made.parameters(), config.learning_rate)
    pixels = torch.randint(0, 256, (2, config.num_frames, 224, 224, 3), dtype=torch.uint8)
    actions = torch.randn(2, config.num_frames - 1, 10)
    for _ in range(2):
        loss = made.loss(pixels, actions)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        assert torch.isfinite(loss.total)


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("image_size", [64, 224])
def test_the_compact_recipe_takes_a_step(model: str, image_size: int) -> None:
    """One small encoder for all three models, at both sizes of picture."""
    config = recipes.compact(Path("x.h5"), Path("out"), model, "pusht")
    cls = MODELS[model]
    facts: dict[str, Any] = {
        "task": "pusht",
        "image_size": image_size,
        "frame_skip": 5,
        "action_mean": (0.0, 0.0),
        "action_std": (1.0, 1.0),
    }
    torch.manual_seed(0)
    made = cls(cls.config_class(**facts, **config.options))
    assert made.config.encoder == "points"
    assert sum(p.numel() for p in made.encoder.parameters()) <= 2e5
    shape = (2, config.num_frames, image_size, image_size, 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    loss = made.loss(pixels, torch.randn(2, config.num_frames - 1, 10))
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert loss.drawing is not None
    assert made.eval().draw(made.encode(pixels[0])).shape == shape[1:]


def test_the_papers_recipe_adds_nothing_to_the_paper() -> None:
    config = recipes.paper(Path("x.h5"), Path("out"), "bilinear", "pusht", windows=25_600)
    made = MODELS["bilinear"].config_class(
        task="pusht",
        image_size=224,
        frame_skip=5,
        action_mean=(0.0,),
        action_std=(1.0,),
        **config.options,
    )
    found = made.to_dict()
    assert found["normalization"] == "cholqr"
    assert found["min_singular"] == 0
    assert found["inverse_weight"] == 30
    assert found["residual_hidden"] == 0
    assert found["forward_unit"] == "latent"
    assert found["gain_init"] == 1
    assert found["encoder"] == "vit"
    assert found["drawing_weight"] == found["shift_weight"] == 0
    assert (config.num_frames, config.batch_size, config.steps) == (2, 256, 1000)


def test_sigreg_tells_samples_apart() -> None:
    torch.manual_seed(0)
    measure, n, d = SIGReg(512), 512, 16
    gaussian = measure(torch.randn(n, d))
    collapsed = measure(torch.zeros(n, d) + 0.1)
    bimodal = measure(torch.randn(n, d) * 0.1 + torch.sign(torch.randn(n, 1)))
    scaled = measure(3 * torch.randn(n, d))
    # For a true normal the statistic is O(1) whatever the sample size; for anything else O(n).
    assert gaussian < 1.5
    assert measure(torch.randn(4 * n, d)) < 1.5
    for other in (collapsed, bimodal, scaled):
        assert other > 10 * gaussian


def test_sigreg_against_the_integral() -> None:
    """One sample at x: |exp(itx) - exp(-t^2/2)|^2 integrated by hand on a fine grid."""
    measure = SIGReg(1)
    t = torch.linspace(-3, 3, 20_001, dtype=torch.float64)
    x = 0.7
    value = 1 + torch.exp(-t.square()) - 2 * torch.cos(t * x) * torch.exp(-t.square() / 2)
    expected = torch.trapezoid(value * torch.exp(-t.square() / 2), t)
    found = measure(torch.full((1, 1), x))  # in one dimension every projection is +-x
    assert float(found) == pytest.approx(float(expected), rel=2e-3)


def test_bad_configurations_are_named() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("vit", {"patch_size": 12}, "patch_size: expected a divisor"),
        ("vit", {"heads": 3}, "heads: expected a divisor"),
        ("vit", {"image_size": 48, "patch_size": 24, "stem": "conv"}, "power of two"),
        ("vit", {"action_std": (0.0, 1.0)}, "positive stds"),
        ("vit", {"drawing_weight": 1.0}, "drawing_weight: expected 0 for the encoder 'vit'"),
        ("vit", {"shift_weight": 1.0}, "shift_weight: expected 0 for the encoder 'vit'"),
        ("points", {"grid": 12}, "grid: expected a divisor of image_size 32, found 12"),
        ("points", {"grid": 0}, "grid: expected a divisor"),
        ("points", {"num_points": 0}, "num_points, channels: expected at least 1 point"),
        ("points", {"num_points": 4}, "num_points: expected at least 5"),
    ]
    for encoder, options, message in cases:
        with pytest.raises(InputError, match=message):
            small_model("bilinear", encoder=encoder, **options)
    with pytest.raises(
        InputError, match="encoder: expected one of points, vit, frozen, found 'eyes'"
    ):
        ModelConfig("t", 32, 5, (0.0,), (1.0,), encoder="eyes")


@pytest.mark.parametrize("as_tensor", [False, True])
def test_pictures_that_would_mean_something_else_are_refused(
    kind: str, encoder: str, as_tensor: bool
) -> None:
    model = small_model(kind, encoder=encoder).eval()
    pixels = np.full((32, 32, 3), 200, np.uint8)
    wrong: list[tuple[Any, str]] = [
        (pixels / np.float32(255), "expected uint8, from 0 to 255, found float32"),
        (pixels.astype(np.int64), "expected uint8, from 0 to 255, found int64"),
        (np.zeros((64, 64, 3), np.uint8), r"expected pictures of shape \(32, 32, 3\), found \(64"),
        (pixels.transpose(2, 0, 1), r"found \(3, 32, 32\)"),
    ]
    for pictures, message in wrong:
        with pytest.raises(InputError, match=message):
            model.encode(torch.from_numpy(pictures.copy()) if as_tensor else pictures)
    assert model.encode(pixels).shape == (24,)
