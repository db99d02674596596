"""Two results files side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.reporting.compare import compare
from bilinear_wm.reporting.results import EpisodeResult

HEADER = {"task": "tworoom", "planner": "cem", "offset": 25, "horizon": 5, "seed": 0, "episodes": 4}


def written(path: Path, outcomes: str, first: int = 0, **header: Any) -> Path:
    """A results file of solved (+) and missed (-) tasks."""
    lines = [json.dumps({"header": HEADER | header})]
    for i, outcome in enumerate(outcomes, start=first):
        row = EpisodeResult(i, i, 0, False, outcome == "+", 9, 0.5, 0.1, 2, 0.1, 0.1)
        lines.append(json.dumps(asdict(row)))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_names_and_rates_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = written(tmp_path / "ours.jsonl", "++++"), written(tmp_path / "cem.jsonl", "+---")
    assert main(["compare", str(ours), str(theirs), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "4 shared tasks"
    assert f"{ours}  100.0 % [" in printed[1]
    assert printed[1].endswith("3 solved by it alone")
    assert str(theirs) in printed[2]
    assert " 25.0 % [" in printed[2]
    assert json.loads(printed[-1])["p_value"] == 0.25
    assert "warning" not in "".join(printed)


def test_a_file_that_was_cut_is_pointed_out(tmp_path: Path) -> None:
    whole, cut = written(tmp_path / "a.jsonl", "++++"), written(tmp_path / "b.jsonl", "+-+-")
    cut.write_text(cut.read_text()[:-30])
    said = str(compare(whole, cut))
    assert "3 shared tasks" in said
    assert f"warning: {cut} has 3 of its 4 episodes" in said
    assert f"warning: {whole}" not in said


def test_files_must_share_tasks(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", "++")
    with pytest.raises(InputError, match="expected the offset"):
        compare(first, written(tmp_path / "b.jsonl", "++", offset=50))
    with pytest.raises(InputError, match=r"expected tasks that .* has too, found none"):
        compare(first, written(tmp_path / "c.jsonl", "++", first=7))
