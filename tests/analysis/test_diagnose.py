"""Diagnoses tell a latent that says something from one that does not."""

from __future__ import annotations

import pytest
import torch

from bilinear_wm.analysis.diagnose import latent_geometry
from bilinear_wm.analysis.probes import probe


def test_diagnostics_see_collapse_and_content() -> None:
    torch.manual_seed(0)
    states = torch.rand(200, 4, 2).double() * 200
    noise = 1e-3 * torch.randn(200, 4, 6)
    seen = torch.cat([states.float() / 100, noise], dim=-1)
    scores = probe("tworoom", seen[:100], states[:100].numpy(), seen[100:], states[100:].numpy())
    assert all(score > 0.99 for score in scores.values())
    blind = probe("tworoom", noise[:100], states[:100].numpy(), noise[100:], states[100:].numpy())
    assert all(score < 0.1 for score in blind.values())
    shape = latent_geometry(seen.flatten(0, 1), 2)
    assert shape["share_action_size"] > 0.99
    assert 1.5 < shape["effective_rank"] < 2.5
    assert latent_geometry(torch.randn(4000, 8), 2)["effective_rank"] == pytest.approx(8, rel=0.05)
