"""The whole chain, tiny: every stage, resumable, and refusing what does not fit."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.reproduce import ReproduceConfig, plan_steps, reproduce


@pytest.mark.slow
def test_tiny_from_nothing_to_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    command = ["reproduce", "--scale", "tiny", "--tasks", "tworoom", "--out", str(out)]
    command += ["--against", str(tmp_path / "nothing")]
    assert main([*command, "--dry-run"]) == 0
    outline = capsys.readouterr().out.splitlines()
    assert outline[2] == "tworoom"
    assert outline[3].split()[:2] == ["collect", "about"]
    assert any(line.split()[:3] == ["evaluate", "(10", "steps)"] for line in outline)
    assert not out.exists()

    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr().out
    summary = json.loads(printed.splitlines()[-1])
    # Data, models, floors, own planners, others, whole plans, the paper's settings.
    assert len(summary) == 1 + 3 + 2 + 3 + 3 + 1 + 1 + (1 + 2 + 4) + 3 + 1
    table = (out / "report" / "results.md").read_text()
    for words in ("| @25 | lewm | cem | 2 |", "| @25 | smwm | gauss-newton | 2 |",
                  "| moving | bilinear |", "| @25 | - | random |"):  # fmt: skip
        assert words in table
    assert (out / "report" / "controllers.png").exists()
    rows = list(csv.DictReader((out / "results" / "summary.csv").read_text().splitlines()))
    assert {row["floor_random"] for row in rows if row["protocol"] == "fixed"} <= {
        "0.0",
        "0.5",
        "1.0",
    }
    assert "" not in {row["ms_per_plan_p50"] for row in rows if row["model"]}

    assert main(command) == 0  # nothing but the report is made again
    again = capsys.readouterr().out
    assert f"{len(summary)} steps, 1 to do" in again
    assert again.count(": done before") == len(summary) - 1
    assert "reproduced against" not in again

    assert main([*command, "--against", str(out / "results")]) == 0
    compared = capsys.readouterr().out.partition("reproduced against")[2]
    assert "tworoom-bilinear-gauss-newton-25.jsonl" in compared


@pytest.mark.slow
def test_a_kill_after_the_last_row_is_recovered_from(tmp_path: Path) -> None:
    """The product is there, and what says that it is done is not."""
    stages = ("collect", "train", "residual", "evaluate", "realtime")
    config = ReproduceConfig(tmp_path, "tiny", ("tworoom",), stages=stages)
    first = [step.name for step, _ in reproduce(config)]
    for marker in (tmp_path / "steps").iterdir():
        marker.unlink()
    again = reproduce(config)
    assert [step.name for step, _ in again] == first
    assert "done before" not in {ended for _, ended in again}


@pytest.mark.slow
def test_what_was_made_from_other_settings_is_not_passed_off(tmp_path: Path) -> None:
    config = ReproduceConfig(tmp_path, "tiny", ("tworoom",), stages=("collect",))
    reproduce(config)
    marker = next((tmp_path / "steps").iterdir())
    marker.write_text(marker.read_text().replace("20", "21"))
    with pytest.raises(InputError, match="made from other settings"):
        reproduce(config)


def test_the_papers_scale_and_several_seeds_make_a_plan(tmp_path: Path) -> None:
    steps = plan_steps(ReproduceConfig(tmp_path, "paper", seeds=3, data=tmp_path))
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    assert "train lewm on cube, seed 0" in names
    assert "train lewm on cube, seed 2" not in names  # one seed for baselines
    assert "evaluate cube-bilinear-gauss-newton-75-s2" in names
    assert not any(name.startswith("collect") for name in names)  # the official files are used
    assert names[-1] == "report"


def test_parts_of_it(tmp_path: Path) -> None:
    config = ReproduceConfig(tmp_path, only=("residual",), tasks=("pusht",), models=("bilinear",))
    names = [step.name for step in plan_steps(config)]
    assert names == [
        "collect pusht", "train bilinear on pusht, seed 0", "train the residual on pusht, seed 0",
        *(f"evaluate pusht-bilinear-gauss-newton-{o}-structured" for o in (25, 50, 75)), "report",
    ]  # fmt: skip
    given = ReproduceConfig(tmp_path, pretrained=tmp_path, only=("fig7",), tasks=("cube",))
    (step,) = [s for s in plan_steps(given) if s.name == "evaluate cube-lewm-icem-25"]
    assert step.settings["checkpoint"] == str(tmp_path / "cube-lewm")
    assert not any(step.stage == "train" for step in plan_steps(given))
    quick = ReproduceConfig(tmp_path, quick=True)
    assert quick.scale == "quick"
    assert 30 < sum(step.minutes for step in plan_steps(quick)) < 90


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tasks": ("chess",)},
            "tasks: expected some of tworoom, pusht, reacher, cube, found chess",
        ),
        ({"stages": ()}, "stages: expected some of collect"),
        ({"scale": "huge"}, "scale: expected one of tiny, quick, compact, paper"),
        ({"seeds": 0}, "seeds: expected at least 1"),
        ({"only": ("fig9",)}, "only: expected some of fig1, fig2"),
        ({"quick": True, "scale": "paper"}, "quick: expected with the scale compact"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        ReproduceConfig(tmp_path, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_the_container_runs(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    assert 'ENTRYPOINT ["sh", "docker/entrypoint.sh"]' in (root / "Dockerfile").read_text()
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["sh", "docker/entrypoint.sh", "--scale", "compact", "--dry-run", "--out", str(tmp_path)],
        cwd=root, env=os.environ | {"PATH": places}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "torch" in result.stdout
    assert re.search(r"\ncube\n  collect .*\n  train \(3 steps\) +about", result.stdout)
