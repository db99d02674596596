"""Drawings: what anchors points without labels."""

from __future__ import annotations

import pytest
import torch

from bilinear_wm.errors import InputError
from bilinear_wm.models.drawing import Drawing, motion
from bilinear_wm.models.encoders.points import as_maps
from tests.models.conftest import points_config, small_model, windows


def test_motion_is_the_larger_change_to_a_neighbour() -> None:
    pictures = torch.zeros(1, 3, 3, 2, 2)
    pictures[0, 1, 0, 0, 0] = 0.25  # comes and goes
    pictures[0, 2, 1, 1, 1] = 9.0  # comes
    found = motion(pictures)[0, :, 0]
    assert found[:, 0, 0].tolist() == [0.25, 0.25, 0.25]
    assert found[:, 1, 1].tolist() == [0.0, 1.0, 1.0]
    assert motion(pictures[:, :1]).abs().max() == 0


def test_noise_is_for_training_and_the_error_is_a_share() -> None:
    torch.manual_seed(0)
    drawing = Drawing(points_config(drawing_weight=1.0))
    pixels = torch.randint(0, 256, (3, 2, 32, 32, 3), dtype=torch.uint8)
    drawing.prepare(pixels.flatten(0, 1))
    torch.testing.assert_close(drawing.mean, as_maps(pixels.flatten(0, 1)).mean(0))
    for layer in drawing.decoder.parameters():
        torch.nn.init.zeros_(layer)  # draws the mean picture
    points = torch.zeros(3, 2, 4, 2)
    assert float(drawing.error(points, pixels).detach()) == pytest.approx(1.0, abs=1e-5)
    drawing.eval()
    assert torch.equal(drawing.draw(points), drawing.draw(points))


def test_the_shift_term_does_not_need_the_anchor() -> None:
    pixels, actions = windows()
    totals = []
    for weight in (0.0, 1.0):
        model = small_model("bilinear", encoder="points", drawing_weight=0.0, shift_weight=weight)
        torch.manual_seed(0)
        totals.append(float(model.loss(pixels, actions).total.detach()))
    assert totals[1] > totals[0] + 1e-3


def test_what_cannot_draw_says_so() -> None:
    pixels, _ = windows()
    blind = small_model("bilinear", encoder="vit").eval()
    assert not blind.draws
    with pytest.raises(InputError, match="draw: expected a model with a decoder"):
        blind.draw(blind.encode(pixels[:, 0]))
    with pytest.raises(InputError, match="points: expected a model with the points encoder"):
        blind.points(blind.encode(pixels[:, 0]))
    without = small_model("bilinear", encoder="points", drawing_weight=0.0).eval()
    with pytest.raises(InputError, match="draw: expected a model with a decoder"):
        without.draw(without.encode(pixels[:, 0]))
    assert without.points(without.encode(pixels[:, 0])).shape == (6, 12, 2)
