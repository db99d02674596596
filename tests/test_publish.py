"""Publishing a training run."""

from __future__ import annotations

from pathlib import Path

import pytest

import bilinear_wm as bwm
from bilinear_wm import recipes
from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.publish import publish
from bilinear_wm.training.train import TrainConfig, train


@pytest.mark.slow
def test_a_run_becomes_a_folder_with_a_card(
    tworoom_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"num_points": 8, "grid": 8, "channels": 16}
    run, out, results = tmp_path / "run", tmp_path / "pretrained", tmp_path / "none.jsonl"
    train(
        TrainConfig(tworoom_file, run, options=options, steps=2, batch_size=8, eval_every=1),
        progress=False,
    )
    evaluate(EvaluateConfig("tworoom", planner="none", episodes=5, out=results), progress=False)
    arguments = ["--run", str(run), "--out", str(out), "--command", "bwm train ...; bwm evaluate"]
    assert main(["publish", *arguments, "--results", str(results)]) == 0
    model = bwm.load_model(out)
    assert model.config.task == "tworoom"
    assert {file.name for file in out.iterdir()} == {
        "README.md", "config.json", "manifest.json", "model.safetensors",
    }  # fmt: skip
    card = (out / "README.md").read_text()
    for expected in ("`bwm train ...`, `bwm evaluate`", "2 steps of 8 windows", "seed 0",
                     "agent_x", "| 25 | none |", "of 5 |"):  # fmt: skip
        assert expected in card
    with pytest.raises(InputError, match="expected a training folder"):
        publish(out, tmp_path / "again", [], "")
    assert not (tmp_path / "again").exists()
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main(["publish", *arguments]) == 2
    assert "holds a checkpoint already" in (said := capsys.readouterr().err)
    assert "replace it with --force" in said
    assert before == {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    assert main(["publish", *arguments, "--force"]) == 0  # other folders are never replaced
    assert out.stat().st_mode & 0o777 == (tmp_path / "run").stat().st_mode & 0o777
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()
    with pytest.raises(InputError, match="expected no folder, or a checkpoint to replace"):
        publish(run, tmp_path / "mine", [], "", force=True)
    assert (tmp_path / "mine" / "precious").exists()
    assert not list(tmp_path.glob(".*"))
    sheet = tmp_path / "points.png"
    sheet.write_bytes(b"a picture")
    publish(run, out, [], "", sheet, force=True)
    assert (out / "points.png").read_bytes() == b"a picture"
    assert "(points.png)" in (out / "README.md").read_text()
    with pytest.raises(InputError, match="expected a picture, such as"):
        publish(run, out, [], "", tmp_path / "none.png", force=True)


def test_what_ships_is_small() -> None:
    folders = list((Path(__file__).parents[1] / "pretrained").iterdir())
    assert len(folders) == 4
    for folder in folders:
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 8e6, folder


def test_every_task_has_its_settings() -> None:
    for task in bwm.TASK_NAMES:
        for offset in (25, 50, 75):
            assert recipes.evaluation(task, "gauss-newton", offset).horizon >= 1
    assert recipes.evaluation("tworoom", "gauss-newton", 75).horizon == 15
    assert recipes.evaluation("reacher", "gauss-newton", 75).horizon == 2
    whole = recipes.evaluation("pusht", "gauss-newton", paper_settings=True)
    assert (whole.replan_every, whole.arrive) == (None, "plan")
    assert recipes.evaluation("reacher", "gauss-newton", 50, paper_settings=True).horizon == 6
    assert recipes.evaluation("tworoom", "cem").planner_options == {}
