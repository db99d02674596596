"""One row a cell, the README's table, and the commands that make results again."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest

from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.reporting.findings import gather
from bilinear_wm.reporting.summary import (
    BEGIN,
    END,
    cells,
    command,
    full_table,
    readme_table,
    write_between_markers,
)
from tests.reporting.test_report import write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results"
    made.mkdir()
    measured = {"ms_per_plan_p50": 1.5, "ms_per_plan_p99": 2.0, "ms_encode_p50": 0.4}
    write_run(made / "a.jsonl", 10, replan_every=2, measured=measured, checkpoint="runs/a-s0")
    write_run(made / "b.jsonl", 8, replan_every=2, measured=measured, checkpoint="runs/a-s1")
    write_run(made / "c.jsonl", 1, model="smwm", planner="cem", replan_every=2)
    write_run(made / "d.jsonl", 2, planner="random")
    write_run(made / "e.jsonl", 1, planner="none")
    write_run(made / "f.jsonl", 7, moving=True, replan="exhausted")
    return made


def test_a_row_a_cell(folder: Path) -> None:
    rows = [cell.row() for cell in cells(gather([folder]).runs)]
    ours = next(row for row in rows if row["model"] == "bilinear" and row["protocol"] == "fixed")
    assert (ours["seeds"], ours["n"], ours["success"]) == (2, 20, 0.9)
    assert ours["low"] == 0.0  # two seeds say little
    assert (ours["floor_random"], ours["floor_none"]) == (0.2, 0.1)
    assert (ours["ms_per_plan_p50"], ours["ms_per_plan_p99"]) == (1.5, 2.0)
    assert ours["ms_per_episode"] == 14.0
    assert ours["file"] == "a.jsonl b.jsonl"
    chased = next(row for row in rows if row["protocol"] == "moving")
    assert (chased["replan"], chased["floor_none"], chased["floor_random"]) == ("exhausted", 0, "")
    wanted = "task model planner protocol offset replan n success low high success_unsolved"
    wanted += " floor_random floor_none solved_at_start ms_per_plan_p50 ms_per_plan_p99"
    wanted += " ms_per_episode jerk seeds file command"
    assert set(wanted.split()) <= set(ours)


def test_the_table_is_bold_where_the_test_says_so(folder: Path) -> None:
    table = readme_table(gather([folder]).runs)
    assert "| success @25 | **100 %** [72, 100] |" in table
    assert "| best baseline @25 | 10 % [2, 40] (SMWM, cem) |" in table
    assert "| random actions, none @25 | 20 %, 10 % |" in table
    assert "| one plan | 1.5 ms |" in table
    write_run(folder / "c.jsonl", 9, model="smwm", planner="cem", replan_every=2)
    assert "| success @25 | 100 % [72, 100] |" in readme_table(gather([folder]).runs)


def test_the_table_goes_between_its_markers(folder: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    out = tmp_path / "report"
    assert main(["report", str(folder), "--out", str(out), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| success @25 |" in text
    readme.write_text("no markers")
    with pytest.raises(InputError, match=r"README\.md: expected the lines"):
        write_between_markers(readme, "x")


def test_commands_are_understood(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to the model that is not there; floors need none."""
    monkeypatch.chdir(tmp_path)
    for run in gather([folder]).runs:
        words = shlex.split(command(run))
        assert words[0] == "bwm"
        if run.header.get("checkpoint"):
            assert main(words[1:]) == 2
            assert "runs/a-s" in capsys.readouterr().err
        elif run.planner == "none":
            assert main(words[1:]) == 0
            assert (tmp_path / run.path.name).exists()


def test_what_is_committed_is_what_results_say(tmp_path: Path) -> None:
    """`make tables` writes both: no figure is copied by hand."""
    out = tmp_path / "report"
    assert main(["report", str(ROOT / "results"), "--out", str(out)]) == 0
    committed = (ROOT / "results" / "summary.csv").read_text()
    assert committed == (out / "summary.csv").read_text()
    assert len(list(csv.DictReader(committed.splitlines()))) > 10
    runs = gather([ROOT / "results"]).runs
    for path, table in (("README.md", readme_table), ("docs/experiments.md", full_table)):
        assert f"{BEGIN}\n\n{table(runs)}\n\n{END}" in (ROOT / path).read_text()
