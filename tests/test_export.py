"""What can be exported, and what is refused; tests/deploy has what bundles do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from bilinear_wm.cli import main
from bilinear_wm.deploy import files
from bilinear_wm.errors import InputError
from bilinear_wm.export import ExportConfig, export, without_batch_norms
from bilinear_wm.models import load_model
from tests.deploy.test_bundle import Without

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("task", ["tworoom", "cube"])
def test_folding_batch_norms_changes_no_latent(task: str) -> None:
    model = load_model(ROOT / "pretrained" / task)
    pixels = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    folded = without_batch_norms(model.encoder)
    assert len(model.batch_norms()) > 0
    assert not any("BatchNorm" in type(part).__name__ for part in folded.modules())
    with torch.no_grad():
        torch.testing.assert_close(folded(pixels), model.encoder(pixels), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_command_writes_a_bundle_with_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    options = [
        "--horizon",
        "4",
        "--planner-options",
        '{"candidates": 9, "starts": 2}',
        "--portable",
    ]
    given = ["--checkpoint", str(ROOT / "pretrained/pusht"), "--out", str(out), *options]
    assert main(["export", *given, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["horizon"] == 4
    facts, arrays = files.read(out)
    assert (facts.task, facts.frame_skip, facts.horizon, facts.candidates) == ("pusht", 5, 4, 9)
    assert facts.effort == 5e-3  # the recipe's
    assert arrays["noise.10"].shape == (4, 10, 10)
    assert arrays["residual.0"].shape == (256, 42)
    assert {p.name for p in out.iterdir()} == {files.ENCODER, files.ARRAYS, files.MANIFEST}


def test_what_cannot_be_exported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"expected a bilinear model.*found kind lewm"):
        export(ExportConfig(GOLDEN / "lewm", out))
    with pytest.raises(InputError, match="max_horizon: expected at least 5, the horizon, found 4"):
        export(ExportConfig(ROOT / "pretrained/tworoom", out, max_horizon=4))
    with pytest.raises(InputError, match="planner_options: unknown speed"):
        export(ExportConfig(ROOT / "pretrained/tworoom", out, planner_options={"speed": 1}))
    with pytest.raises(InputError, match="horizon: expected at least 1"):
        ExportConfig(ROOT / "pretrained/tworoom", out, horizon=0)
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(InputError, match="expected no such folder, or a bundle to replace"):
        export(ExportConfig(ROOT / "pretrained/tworoom", taken))
    monkeypatch.setattr("sys.meta_path", [Without("onnxscript"), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "onnxscript", raising=False)
    with pytest.raises(InputError, match=r"bwm export: needs.*bilinear-world-models\[export\]"):
        export(ExportConfig(ROOT / "pretrained/tworoom", out))
    assert not out.exists()
