"""The points encoder and the drawing anchor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.encoders.points import PointsEncoder, shifted, strides
from tests.models.conftest import points_config, small_model


def spots(at: torch.Tensor, size: int = 32) -> torch.Tensor:
    """Pictures of a bright spot on grey, at (x, y) in pixels."""
    line = torch.arange(size) + 0.5
    across = torch.exp(-(line - at[:, :1]).square() / 4)
    down = torch.exp(-(line - at[:, 1:]).square() / 4)
    grey = 60 + 180 * down[:, :, None] * across[:, None, :]
    return grey[..., None].expand(-1, -1, -1, 3).to(torch.uint8)


def test_the_latent_is_the_scaled_points_inside_the_picture() -> None:
    torch.manual_seed(0)
    encoder = PointsEncoder(points_config()).eval()
    z = encoder(torch.randint(0, 256, (5, 2, 32, 32, 3), dtype=torch.uint8))
    assert z.shape == (5, 2, 8)
    points = encoder.points(z)
    assert points.shape == (5, 2, 4, 2)
    assert points.abs().max() < 1
    torch.testing.assert_close(points[..., 0], z[..., :4] / 3)
    encoder.scale.mul_(torch.arange(1.0, 9.0))
    doubled = encoder(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
    assert encoder.points(doubled).abs().max() < 1


def test_a_peak_in_a_map_becomes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PointsEncoder(points_config(num_points=1)).eval()
    heights = torch.zeros(1, 1, 8, 8)
    heights[0, 0, 2, 5] = 50.0
    monkeypatch.setattr(encoder.maps, "forward", lambda _: heights)
    found = encoder.points(encoder(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)))
    torch.testing.assert_close(found[0, 0], torch.tensor([5.5, 2.5]) / 4 - 1, atol=1e-6, rtol=0)


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 7, 8, 14])
def test_any_factor_is_made_of_two_strides(factor: int) -> None:
    first, second = strides(factor)
    assert first * second == factor
    made = PointsEncoder(points_config(num_points=2)).__class__(
        ModelConfig("t", 8 * factor, 5, (0.0,), (1.0,), num_points=2, grid=8, channels=8)
    )
    assert made(torch.zeros(2, 8 * factor, 8 * factor, 3, dtype=torch.uint8)).shape == (2, 4)


def test_shifting_moves_pictures_and_repeats_edges() -> None:
    pixels = torch.arange(2 * 4 * 4 * 3).view(2, 4, 4, 3).to(torch.uint8)
    moved = shifted(pixels, torch.tensor([[1, 0], [0, -2]]))
    assert torch.equal(moved[0, :, 1:], pixels[0, :, :-1])
    assert torch.equal(moved[0, :, 0], pixels[0, :, 0])
    assert torch.equal(moved[1, :2], pixels[1, 2:])
    assert torch.equal(moved[1, 3], pixels[1, 3])


@pytest.mark.slow
def test_it_finds_a_spot_without_labels_and_draws_it_elsewhere() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_points": 2, "grid": 8, "channels": 16, "drawing_weight": 60.0,
               "shift_weight": 3.0, "forward_unit": "motion", "gain_init": 0.3}  # fmt: skip
    model = small_model("bilinear", encoder="points", action_mean=(0.0,), action_std=(1.0,),
                        frame_skip=2, inverse_weight=3.0, **options)  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        at = 6 + 20 * torch.rand(count, 1, 2, generator=generator)
        a = torch.rand(count, 2, 2, generator=generator) - 0.5
        path = torch.cat([at, at + 6 * a.cumsum(1)], dim=1).clamp(3, 29)
        return spots(path.flatten(0, 1)).view(count, 3, 32, 32, 3), a, path

    model.prepare(batch(100)[0].flatten(0, 1))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(150):
        torch.manual_seed(step)
        pixels, actions, _ = batch(16)
        loss = model.loss(pixels, actions)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert loss.drawing is not None
    assert loss.drawing < 0.3  # of what the mean picture misses
    model.eval()
    for norm in model.batch_norms():
        norm.momentum = None
        norm.reset_running_stats()
    model.train()
    with torch.no_grad():
        model.loss(*batch(64)[:2])
    model.eval()
    pixels, _, path = batch(200)
    z = model.encode(pixels[:, 0])
    inputs = torch.cat([z, torch.ones(200, 1)], dim=1)
    read = torch.linalg.lstsq(inputs[:100], path[:100, 0]).solution
    missed = (inputs[100:] @ read - path[100:, 0]).square().mean().sqrt()
    assert missed < 1.0  # pixels
    drawn = model.draw(z[100:]).float()
    brightest = drawn.mean(-1).flatten(1).argmax(1)
    where = torch.stack([brightest % 32, brightest // 32], dim=1) + 0.5
    assert (where - path[100:, 0]).norm(dim=1).median() < 2.5
