"""Picture components in the latent."""

from __future__ import annotations

import numpy as np
import torch

from bilinear_wm.models.components import SHRUNKEN, PictureComponents, shrunken
from bilinear_wm.tasks import make_task
from tests.models.conftest import small_model, windows


def pictures(count: int = 300) -> torch.Tensor:
    env = make_task("tworoom", 32)
    rng = np.random.default_rng(0)
    return torch.from_numpy(np.stack([env.picture(rng.uniform(25, 200, 2)) for _ in range(count)]))


def test_components_are_uncorrelated_and_large_features_count_more() -> None:
    parts = PictureComponents(8)
    parts.fit(pictures())
    told = (shrunken(pictures()) - parts.mean) @ parts.basis
    covariance = torch.cov(told.T)
    torch.testing.assert_close(covariance, covariance.diag().diag(), rtol=0, atol=1e-3)
    assert covariance[0, 0] == covariance.diag().max()
    assert abs(float(covariance[0, 0]) - 1) < 0.02


def test_a_latent_that_tells_the_components_has_no_error_and_draws_the_picture() -> None:
    parts = PictureComponents(64)
    seen = pictures()
    parts.fit(seen)
    z = torch.randn(len(seen), 80)
    z[:, :64] = (shrunken(seen) - parts.mean) @ parts.basis
    assert parts.error(z, seen) < 1e-9
    assert parts.error(torch.zeros_like(z), seen) > 0.05
    drawn = parts.draw(z)
    assert drawn.shape == (len(seen), SHRUNKEN, SHRUNKEN, 3)
    exact = shrunken(seen).unflatten(1, (3, SHRUNKEN, SHRUNKEN)).movedim(1, -1) * 255
    still = parts.mean.unflatten(0, (3, SHRUNKEN, SHRUNKEN)).movedim(0, -1) * 255
    assert (drawn - exact).square().mean() < 0.2 * (still - exact).square().mean()


def test_the_term_reaches_the_encoder_and_is_off_by_default() -> None:
    pixels, actions = windows()
    plain = small_model("bilinear")
    assert plain.loss(pixels, actions).regularizer is None
    model = small_model("bilinear", picture_weight=2.0, picture_components=6)
    model.prepare(pixels.flatten(0, 1))
    loss = model.loss(pixels, actions)
    assert loss.regularizer is not None
    assert loss.inverse is not None
    expected = loss.forward + model.config.inverse_weight * loss.inverse + 2 * loss.regularizer
    torch.testing.assert_close(loss.total, expected)
    gradient = torch.autograd.grad(loss.regularizer, model.encoder.class_token)[0]
    assert gradient.abs().max() > 0
