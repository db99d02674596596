"""Pictures that are not square."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.load import checked_camera
from bilinear_wm.models import load_model
from bilinear_wm.models.encoders.points import PointsEncoder, shifted
from bilinear_wm.training.train import TrainConfig, train

from .conftest import small_model

FIXTURE = Path(__file__).parents[1] / "fixtures" / "lerobot"


def oblong(count: int = 4, frames: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, frames, 32, 48, 3), generator=generator)
    return pixels.to(torch.uint8), torch.randn(count, frames - 1, 10, generator=generator)


def test_every_encoder_takes_them(encoder: str) -> None:
    model = small_model("bilinear", encoder=encoder, image_width=48)
    pixels, actions = oblong()
    assert model.encode(pixels).shape == (4, 3, model.config.latent_size)
    loss = model.loss(pixels, actions)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    if encoder == "points":
        assert model.draw(model.encode(pixels)).shape == pixels.shape


def test_a_square_is_a_square(encoder: str) -> None:
    """Saying the width of a square changes nothing."""
    plain = small_model("bilinear", encoder=encoder)
    told = small_model("bilinear", encoder=encoder, image_width=32)
    pixels, actions = oblong()
    pixels = pixels[..., :32, :]
    torch.manual_seed(1)
    one = plain.loss(pixels, actions).total
    torch.manual_seed(1)
    torch.testing.assert_close(told.loss(pixels, actions).total, one, atol=0, rtol=0)


def test_points_are_where_things_are() -> None:
    """Each axis runs from -1 to 1 over its own length: a cell across is 2 / 12, down 2 / 8."""
    model = small_model("bilinear", encoder="points", image_width=48).eval()
    encoder = model.encoder
    assert isinstance(encoder, PointsEncoder)
    with torch.no_grad():
        for parameter in encoder.maps[-1].parameters():
            parameter.zero_()
    flat = model.points(model.encode(torch.zeros(32, 48, 3, dtype=torch.uint8)))
    torch.testing.assert_close(flat, torch.zeros_like(flat), atol=1e-6, rtol=0)
    assert (encoder.grid_x.unique().numel(), encoder.grid_y.unique().numel()) == (12, 8)
    picture = torch.zeros(1, 32, 48, 3, dtype=torch.uint8)
    picture[0, 10, 20] = 255
    moved = shifted(picture, torch.tensor([[4, -4]]))
    assert moved[0, 6, 24].tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("encoder", "width", "message"),
    [
        ("points", 50, "whose cells also divide the width 50, found 8"),
        ("vit", 50, "divisor of image_size 32 and image_width 50, found 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(encoder: str, width: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_model("bilinear", encoder=encoder, image_width=width)


@pytest.mark.slow
def test_training_on_a_lerobot_folder(tmp_path: Path) -> None:
    """Straight from the neighbours' videos, in their shape; no task draws such pictures."""
    config = TrainConfig(
        Path(f"{FIXTURE}?camera=observation.images.top&state=which.pos,when.pos"),
        tmp_path / "run",
        steps=2,
        batch_size=2,
        num_frames=2,
        options={"num_points": 6, "grid": 8, "channels": 8, "drawing_weight": 1.0},
        task="tworoom",
    )
    numbers = train(config, progress=False)
    assert numbers
    model = load_model(tmp_path / "run")
    assert model.config.picture_shape == (32, 48)
    with pytest.raises(InputError, match="square pictures, which tasks draw, found one of 32 x 48"):
        checked_camera(model, "tworoom", tmp_path / "run")
