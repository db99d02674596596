"""The report: from files alone, complete, and honest about what is missing."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.reporting import cells, charts
from bilinear_wm.reporting.findings import gather, main_runs
from bilinear_wm.reporting.report import make_report
from bilinear_wm.reporting.results import EpisodeResult

HEADER = {"task": "tworoom", "planner": "gauss-newton", "horizon": 5, "offset": 25, "seed": 1}


def write_run(path: Path, solved: int, count: int = 10, **header: object) -> None:
    rows = [
        EpisodeResult(
            i, i, 0, False, i < solved, 20, 0.5, 0.1 + 0.01 * i, 2, 0.01, 0.004,
            trajectory=[[30.0 + i, 40.0], [60.0, 50.0]],
        )
        for i in range(count)
    ]  # fmt: skip
    lines = [{"header": HEADER | header}, *(asdict(row) for row in rows)]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")


def write_geometry(folder: Path) -> None:
    folder.mkdir()
    found = {
        "task": "tworoom", "model": "bilinear", "action_size": 2, "variance": [0.6, 0.3, 0.1],
        "points": [[0.1 * i, 0.2, -0.1 * i] for i in range(9)],
        "variables": {"agent_x": list(range(9)), "agent_y": list(range(9))},
        "controllable": {"singular_values": [1.0, 0.5, 0.001], "rank": 2, "threshold": 0.01},
    }  # fmt: skip
    (folder / "geometry.json").write_text(json.dumps(found))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Something for every figure."""
    made = tmp_path / "made"
    made.mkdir()
    write_run(made / "a.jsonl", 9)
    write_run(made / "b.jsonl", 7, offset=75, horizon=15)
    write_run(made / "c.jsonl", 4, model="lewm", planner="cem")
    write_run(made / "d.jsonl", 1, planner="random")
    write_run(made / "e.jsonl", 6, moving=True, replan="exhausted")
    write_run(made / "f.jsonl", 8, moving=True, replan="always")
    write_geometry(made / "geometry")
    (made / "run").mkdir()
    rows = [{"step": s, "val_forward": 10 / s, "sigma_min": 0.1 / s} for s in (1, 10, 100)]
    (made / "run" / "metrics.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in rows) + '{"st'
    )
    return made


def axes(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return figure.axes


def test_everything_is_drawn_and_listed(folder: Path, tmp_path: Path) -> None:
    files = make_report([folder], tmp_path / "report")
    assert {path.name for path in files} == {
        "results.csv", "results.md", "summary.csv", "success.png", "variance.png", "jerk.png",
        "paths.png", "horizons.png",
        "moving.png", "training.png", "controllers.png", "controllable.png",
        "projections-tworoom-bilinear.png", "report.html",
    }  # fmt: skip
    assert all(path.stat().st_size > 0 for path in files)
    with (tmp_path / "report" / "results.csv").open() as file:
        table = {row["file"]: row for row in csv.DictReader(file)}
    assert table["a.jsonl"]["success"] == "90 %"
    assert table["a.jsonl"]["interval"] == "60-98"
    assert table["a.jsonl"]["paper"] == "100 %"
    assert table["a.jsonl"]["ms a plan"] == "5.0"
    assert table["c.jsonl"]["paper"] == "92.6 %"
    assert table["d.jsonl"]["paper"] == "30 %"
    assert table["e.jsonl"]["paper"] == "68 %"
    assert table["f.jsonl"]["replans after"] == "always"
    assert table["b.jsonl"]["paper"] == ""  # the text gives none
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("<img") == 10
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert (
        "TwoRoom: 90.0 % [59.6, 98.2] @25; below the paper&#39;s 100 %; "
        "no different from LEWM with cem, 40 % (p = 0.062)." in page
    )


def test_what_is_missing_comes_with_its_command(folder: Path, tmp_path: Path) -> None:
    for name in ("e.jsonl", "f.jsonl", "b.jsonl"):
        (folder / name).unlink()
    make_report([folder], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    missing = page.partition('id="missing">What is missing')[2]
    assert "bwm reproduce --only fig4" in missing
    assert "bwm reproduce --only fig5" in missing
    assert "fig7" not in missing


def test_figures_keep_to_one_protocol(tmp_path: Path) -> None:
    """Not to whatever has the shortest name."""
    write_run(tmp_path / "a.jsonl", 10, replan_every=None)
    for i, model in enumerate(("bilinear", "lewm", "smwm")):
        planner = "gauss-newton" if model == "bilinear" else "cem"
        write_run(tmp_path / f"longer-{i}.jsonl", 5, model=model, planner=planner, replan_every=2)
    write_run(tmp_path / "b.jsonl", 9, replan_every=2, memory=True)
    write_run(tmp_path / "c.jsonl", 9, replan_every=2, without_residual=True)
    write_run(tmp_path / "d.jsonl", 1, planner="random")
    runs = gather([tmp_path]).runs
    chosen = {run.path.name for run in main_runs(runs)}
    assert chosen == {"longer-0.jsonl", "longer-1.jsonl", "longer-2.jsonl", "d.jsonl"}
    paper = {run.path.name: run.paper for run in runs}
    assert paper["longer-0.jsonl"] == 100
    assert paper["b.jsonl"] is None  # the paper's planner has no memory


def test_the_papers_figure_is_of_its_own_planner(tmp_path: Path) -> None:
    write_run(tmp_path / "a.jsonl", 10, planner="cem")
    (run,) = gather([tmp_path]).runs
    assert run.paper is None


def test_jerk_is_of_those_who_had_to_act(tmp_path: Path) -> None:
    write_run(tmp_path / "a.jsonl", 10, count=2)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    lines[1] |= {"solved_at_start": True, "steps": 0, "jerk": 0.0}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (run,) = gather([tmp_path]).runs
    assert run.cells()["jerk"] == "0.110"


def test_names_are_escaped(tmp_path: Path) -> None:
    write_run(tmp_path / "a.jsonl", 3, model="<script>alert(1)</script>", machine={"cpu": "A & B"})
    make_report([tmp_path], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<p>cpu A &amp; B</p>" in page


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a.jsonl", 3)
    files = make_report([tmp_path], tmp_path / "report")
    assert {path.name for path in files} == {
        "results.csv", "results.md", "summary.csv", "success.png", "jerk.png", "paths.png",
        "report.html",
    }  # fmt: skip


def test_parts_of_ones_own_come_after_the_known_ones(folder: Path, tmp_path: Path) -> None:
    own: dict[str, Any] = {"task": "cart", "model": "linear", "planner": "grid"}
    write_run(folder / "0.jsonl", 5, **own)
    write_run(folder / "1.jsonl", 3, **own | {"offset": 10, "horizon": 2})
    write_run(folder / "2.jsonl", 2, **own | {"moving": True})
    write_run(folder / "3.jsonl", 8, model="linear")
    write_run(folder / "4.jsonl", 8, planner="grid")
    write_run(folder / "5.jsonl", 8, planner="adam")
    files = make_report([folder], tmp_path / "report")
    assert {"success.png", "horizons.png", "moving.png", "controllers.png"} <= {
        path.name for path in files
    }
    with (tmp_path / "report" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows if row["goal"] == "@25"] == [
        "d.jsonl", "a.jsonl", "5.jsonl", "4.jsonl", "c.jsonl", "3.jsonl", "0.jsonl",
    ]  # fmt: skip
    assert all(row["paper"] == "" for row in rows if row["task"] == "cart")

    found = gather([folder])
    bars, times, _ = axes(charts.draw_success(found))
    assert [tick.get_text() for tick in bars.get_xticklabels()] == ["TwoRoom", "cart"]
    drawn = [text.get_text() for text in bars.figure.legends[0].get_texts()]
    assert drawn == ["paper", "random", "bilinear, gauss-newton", "bilinear, grid",
                     "lewm, cem", "linear, gauss-newton", "linear, grid"]  # fmt: skip
    assert len(times.containers) == 6
    panels = axes(charts.draw_controllers(found))
    assert [panel.get_title() for panel in panels] == ["TwoRoom", "cart"]
    rows_, columns = panels[0].get_yticklabels(), panels[0].get_xticklabels()
    assert [tick.get_text() for tick in rows_] == ["bilinear", "lewm", "linear"]
    assert [tick.get_text() for tick in columns] == ["gauss-newton", "cem", "adam", "grid"]
    (_, horizons) = axes(charts.draw_horizons(found))
    assert horizons.get_title() == "cart"
    assert list(horizons.get_xticks()) == [10, 25]
    (moving,) = axes(charts.draw_moving(found))
    assert [tick.get_text() for tick in moving.get_xticklabels()] == ["M-TwoRoom", "M-cart"]


def test_every_line_has_a_colour(tmp_path: Path) -> None:
    for i in range(30):
        write_run(tmp_path / f"{i}.jsonl", 5, model=f"m{i:02}")
    bars, _, _ = axes(charts.draw_success(gather([tmp_path])))
    assert len([c for c in bars.containers if str(c.get_label()).startswith("m")]) == 30


def test_the_committed_results_are_read() -> None:
    found = gather([Path(__file__).parents[2] / "results"])
    assert {run.header["task"] for run in found.runs} >= {"tworoom", "reacher", "pusht"}


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="expected a folder with results, found none"):
        gather([tmp_path / "nowhere"])
    assert main(["report", str(tmp_path)]) == 2
    assert "found none" in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    code = "import sys, bilinear_wm.reporting.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_training_seeds_are_averaged(tmp_path: Path) -> None:
    for seed, solved in enumerate((6, 8, 10)):
        write_run(tmp_path / f"{seed}.jsonl", solved, checkpoint=f"runs/tworoom-bilinear-s{seed}")
    write_run(tmp_path / "other.jsonl", 1, checkpoint="runs/tworoom-lewm-s0", model="lewm")
    files = make_report([tmp_path], tmp_path / "report")
    with next(path for path in files if path.name == "seeds.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["training seeds"], row["each"]) == ("3", "60, 80, 100")
    assert row["mean success"] == "80.0 %"
    # 20 / sqrt(3) * t(0.975; 2) = 49.7
    assert row["interval"] == "30.3-100.0"
    assert "Over training seeds" in (tmp_path / "report" / "report.html").read_text()


HOSTILE = "<script>alert(1)</script> =cmd|x $\\frac{"


def test_names_from_files_are_only_names(tmp_path: Path) -> None:
    for number, name in enumerate((HOSTILE, "=cmd|' /C calc'!A0")):
        write_run(tmp_path / f"{number}.jsonl", 5, planner=name)
    out = tmp_path / "report"
    make_report([tmp_path], out)
    markdown = (out / "results.md").read_text()
    assert "<script>" not in markdown
    assert "&lt;script&gt;" in markdown
    assert all(line.count(" | ") == markdown.splitlines()[0].count(" | ")
               for line in markdown.splitlines()[2:])  # fmt: skip
    with (out / "results.csv").open() as file:
        planners = [row["planner"] for row in csv.DictReader(file)]
    assert not any(planner.startswith("=") for planner in planners)
    assert "<script>" not in (out / "report.html").read_text()


def test_cells() -> None:
    assert [cells.csv(value) for value in ("-", "-1.5", "+x", "@x", 3)] == [
        "-", "-1.5", "'+x", "'@x", 3,
    ]  # fmt: skip
    assert "</script>" not in cells.script({"title": "</script><script>"})
    assert json.loads(cells.script({"title": "</script>"})) == {"title": "</script>"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\xff\xfe", "expected a results file, found no text"),
        ("a.jsonl", b'{"header": {"planner": "cem"}}', "line 1: task: expected str, found None"),
        ("a.jsonl", b'{"header": 3}', "line 1: task: expected str"),
        ("a.jsonl", b'{"header": {}', "line 1: expected JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1: expected JSON"),
        ("metrics.jsonl", b'{"step": "one"}', "line 1: expected numbers of a step"),
        ("metrics.jsonl", b"[1]", "line 1: expected numbers of a step"),
        ("geometry.json", b"garbage", "expected what `bwm geometry` writes"),
        ("geometry.json", b'{"task": "../../x"}', "expected what `bwm geometry` writes"),
        ("geometry.json", b"\xff", "expected a geometry file, found no text"),
    ],
)
def test_garbage_is_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        make_report([tmp_path], tmp_path / "report")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", "20"), ("success", 1), ("trajectory", [[1], [1, 2]]), ("jerk", [])],
)
def test_rows_of_other_types_are_refused(field: str, value: object, tmp_path: Path) -> None:
    write_run(tmp_path / "a.jsonl", 5)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    lines[3] = json.dumps(json.loads(lines[3]) | {field: value})
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match=f"line 4: {field}: expected"):
        gather([tmp_path])
