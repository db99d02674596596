"""Geometry: known spaces give the numbers that they must, and every figure is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bilinear_wm.analysis.geometry import (
    controllable,
    correlations,
    describe,
    distances,
    points_sheet,
    probes,
)
from bilinear_wm.cli import main
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.models.base import WorldModel
from bilinear_wm.reporting.media import FONT, GAP, PAPER, with_points
from tests.models.conftest import small_model


def test_probes_find_what_is_there() -> None:
    rng = np.random.default_rng(0)
    z, z_fit = rng.normal(size=(2, 400, 3))
    truth, fit = ({"line": x @ [1, 2, 0.5], "ring": np.abs(x[:, 0]), "noise": rng.normal(size=400)}
                  for x in (z, z_fit))  # fmt: skip
    linear = probes(z_fit, fit, z, truth, linear=True)
    near = probes(z_fit, fit, z, truth, linear=False)
    assert linear["line"] > 0.999
    assert abs(linear["ring"]) < 0.1
    assert near["ring"] > 0.6
    assert max(linear["noise"], near["noise"]) < 0.1
    assert correlations(z, truth)["ring"][1] == pytest.approx(0, abs=0.15)


def test_distances_agree_in_rank_where_the_latent_is_the_state() -> None:
    states = np.random.default_rng(0).uniform(20, 200, (300, 2))
    assert distances(0.01 * states, states, "tworoom")["spearman"] == pytest.approx(1)
    shuffled = np.random.default_rng(1).permutation(states)
    assert abs(distances(shuffled, states, "tworoom")["spearman"]) < 0.1


def test_controllable_directions_are_the_singular_values_of_the_gain() -> None:
    model = small_model("bilinear").eval()
    assert isinstance(model.dynamics, BilinearDynamics)
    with torch.no_grad():
        model.dynamics.R.copy_(torch.diag(torch.linspace(1, 0.1, model.dynamics.action_size)))
    found = controllable(model, torch.randn(5, model.config.latent_size), horizon=1)
    assert found == pytest.approx(torch.linspace(1, 0.1, len(found)).tolist(), rel=1e-4)
    lewm: WorldModel = small_model("lewm").eval()  # by finite differences
    assert len(controllable(lewm, torch.randn(3, lewm.config.latent_size), 2)) > 1


def test_the_sheet_shows_points_where_they_are_and_what_is_drawn() -> None:
    model = small_model("bilinear", encoder="points").eval()
    pixels = np.zeros((3, 32, 32, 3), np.uint8)
    sheet = points_sheet(model, pixels)
    line = 192 + GAP + FONT + GAP
    assert sheet.shape[0] == 2 * line
    left = sheet.shape[1] - 3 * (192 + GAP)
    assert (sheet[GAP : GAP + 192, left + 192 : left + 192 + GAP] == PAPER).all(), "no gap"
    assert (sheet[:line, :left] < 128).any(), "no label"
    marked = with_points(pixels[0], np.array([[-0.5, 0.5]]), 192)
    rows, columns = np.nonzero(marked.any(-1))
    assert (columns.mean(), rows.mean()) == pytest.approx((48, 144), abs=1)
    blind = small_model("bilinear", encoder="points", drawing_weight=0.0).eval()
    assert points_sheet(blind, pixels).shape[0] == line


@pytest.mark.slow
def test_the_command(
    tworoom_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = tmp_path / "model", tmp_path / "geometry"
    small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)).save_pretrained(
        checkpoint
    )
    command = ["geometry", "--checkpoint", str(checkpoint), "--data", str(tworoom_file)]
    assert main([*command, "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1])["effective_rank"] >= 1
    found = json.loads((out / "geometry.json").read_text())
    assert describe(found) in printed
    assert sum(found["variance"]) <= 1 + 1e-9
    assert set(found["linear_probes"]) == {"agent_x", "agent_y"}
    pictures = {path.name for path in out.glob("*.png")}
    assert pictures == {"variance.png", "components.png", "projections.png", "distances.png",
                        "controllable.png"}  # fmt: skip
    page = (out / "projection.html").read_text()
    assert "{{data}}" not in page
    assert "http" not in page
    wrong = tmp_path / "other"
    small_model("bilinear", task="pusht").save_pretrained(wrong)
    assert (
        main(["geometry", "--checkpoint", str(wrong), "--data", str(tworoom_file), "--out", "x"])
        == 2
    )
    assert "expected episodes of pusht, found tworoom" in capsys.readouterr().err
