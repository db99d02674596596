"""Results files to one row a cell (summary.csv), and to the table that a README shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.reporting import figures, published
from bilinear_wm.reporting.compare import paired
from bilinear_wm.reporting.findings import FLOORS, Run, in_order, main_runs
from bilinear_wm.reporting.results import mean_jerk, rate

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their training seed alone."""

    runs: tuple[Run, ...]
    floors: dict[str, Run]
    """On the same tasks."""

    def row(self) -> dict[str, Any]:
        """Flat; shares between 0 and 1, empty where nothing was measured."""
        first = self.runs[0]
        measured = first.header.get("measured") or {}
        p50 = measured.get("ms_per_plan_p50", measured.get("latency_ms_p50"))
        p99 = measured.get("ms_per_plan_p99", measured.get("latency_ms_p99"))
        value, low, high = self.success()
        unsolved = rate([r.success for r in self.rows if not r.solved_at_start])
        return {
            "task": first.header["task"],
            "model": "" if first.model == "-" else first.model,
            "planner": first.planner,
            "protocol": "moving" if first.moving else "fixed",
            "offset": first.header["offset"],
            "replan": first.replan,
            "options": ", ".join(first.options),
            "residual": first.header.get("residual", ""),
            "n": len(self.rows),
            "success": _short(value),
            "low": _short(low),
            "high": _short(high),
            "success_unsolved": _short(unsolved.value),
            **{f"floor_{name}": self._floor(name) for name in FLOORS},
            "solved_at_start": _short(float(np.mean([r.solved_at_start for r in self.rows]))),
            "ms_per_plan_p50": "" if p50 is None else round(p50, 3),
            "ms_per_plan_p99": "" if p99 is None else round(p99, 3),
            "ms_per_episode": _short(float(np.mean([r.ms_per_episode for r in self.runs])), 2),
            "jerk": _short(mean_jerk(self.rows)),
            "seeds": len(self.runs),
            "file": " ".join(run.path.name for run in self.runs),
            "command": command(first),
        }

    @property
    def rows(self) -> list[Any]:
        return [row for run in self.runs for row in run.rows]

    def success(self) -> tuple[float, float, float]:
        """With its 95 % interval: Wilson's, or Student's t over training seeds."""
        if len(self.runs) == 1:
            found = self.runs[0].success
            return found.value, found.low, found.high
        values = [run.success.value for run in self.runs]
        mean = float(np.mean(values))
        reach = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        return mean, max(mean - reach, 0.0), min(mean + reach, 1.0)

    def _floor(self, name: str) -> Any:
        if self.runs[0].moving and name == "none":
            return 0.0  # tasks that standing still solves do not count
        return _short(self.floors[name].success.value) if name in self.floors else ""


def cells(runs: Sequence[Run]) -> list[Cell]:
    """In the order of the runs."""
    floors: dict[tuple[Any, ...], dict[str, Run]] = {}
    for run in (run for run in runs if run.planner in FLOORS):
        floors.setdefault(_tasks(run), {})[run.planner] = run
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        # Checkpoints of one thing under several seeds; and the same file name elsewhere is not it.
        what = (run.label, run.replan, run.options, run.header.get("residual"), run.training[0],
                run.header["horizon"])  # fmt: skip
        groups.setdefault((*_tasks(run), *what), []).append(run)
    return [Cell(tuple(group), floors.get(_tasks(group[0]), {})) for group in groups.values()]


def full_table(runs: Sequence[Run]) -> str:
    """Everything that ran, a row each way to run it and a column a task; Markdown."""
    tasks = in_order((run.header["task"] for run in runs), published.TASKS)
    usual = {_tasks(run)[:3]: run.replan for run in main_runs(runs) if run.planner not in FLOORS}
    rows: dict[str, dict[str, str]] = {}
    for cell in cells(runs):
        run = cell.runs[0]
        words = ["moving goals" if run.moving else f"@{run.header['offset']}", run.label]
        if run.planner not in FLOORS and run.replan != usual.get(_tasks(run)[:3]):
            words.append("whole plans" if run.replan == "whole" else f"replanning {run.replan}")
        name = ", ".join([*words, *run.options])
        value, low, high = (100 * x for x in cell.success())
        text = f"{value:.0f} % [{low:.0f}, {high:.0f}]"
        if len(cell.rows) != 100:
            text += f" of {len(cell.rows)}"
        said = rows.setdefault(name, {})
        task = run.header["task"]
        said[task] = f"{said[task]}; {text}" if task in said else text
    titles = [figures.task_title(task) for task in tasks]
    lines = ["| | " + " | ".join(titles) + " |", "|" + " --- |" * (len(tasks) + 1)]
    lines += [f"| {name} | " + " | ".join(found.get(task, "") for task in tasks) + " |"
              for name, found in rows.items()]  # fmt: skip
    return "\n".join(lines)


def command(run: Run) -> str:
    """What makes a results file again."""
    facts = run.header
    words = ["bwm", "realtime" if run.moving else "evaluate", "--task", facts["task"]]
    if facts.get("checkpoint"):
        words += ["--checkpoint", facts["checkpoint"]]
    words += ["--planner", run.planner]
    if facts.get("paper_settings"):
        words.append("--paper-settings")
    elif run.planner not in FLOORS:
        words += ["--planner-options", json.dumps(facts.get("planner_options") or {})]
        words += ["--horizon", str(facts["horizon"])]
        if run.moving:
            words += ["--replan", run.replan]
        else:
            words += ["--replan-every", str(facts.get("replan_every"))]
            words += ["--arrive", facts.get("arrive", "plan")]
    if facts.get("without_residual"):
        words.append("--no-residual")
    words += ["--offset", str(facts["offset"])]
    words += ["--episodes", str(facts.get("episodes", len(run.rows))), "--seed", str(facts["seed"])]
    return shlex.join([*words, "--out", run.path.name])


def readme_table(runs: Sequence[Run]) -> str:
    """Our success beside the best planner of the best baseline, and the paper's; Markdown."""
    runs = main_runs(runs)
    tasks = in_order((run.header["task"] for run in runs), published.TASKS)
    titles = [figures.task_title(task) for task in tasks]
    rows: dict[str, list[str]] = {"success @25": [], "best baseline @25": [], "the paper @25": [],
                                  "@50": [], "@75": [], "moving goals, 20 Hz": [],
                                  "random actions, none @25": [], "one plan": []}  # fmt: skip
    for task in tasks:
        at = [run for run in runs if run.header["task"] == task and not run.moving]
        mine, best = ours(at, 25), best_baseline(at)
        bold = mine and best and _ahead(mine, best)
        rows["success @25"].append(_said(mine, bold=bool(bold)))
        rows["best baseline @25"].append(_said(best, named=True))
        rows["the paper @25"].append(f"{published.SUCCESS_25['bilinear'].get(task, '')} %")
        for offset in (50, 75):
            rows[f"@{offset}"].append(_said(ours(at, offset)))
        chased = [run for run in runs if run.header["task"] == task and run.moving]
        moving = ours(chased, 25)
        figure = published.MOVING.get(task)
        rows["moving goals, 20 Hz"].append(
            _said(moving) + (f", paper {figure}" if moving and figure else "")
        )
        floors = [_said(r, interval=False) for name in FLOORS for r in at
                  if r.planner == name and r.header["offset"] == 25]  # fmt: skip
        rows["random actions, none @25"].append(", ".join(floors))
        rows["one plan"].append(_time(mine))
    lines = ["| | " + " | ".join(titles) + " |", "|" + " --- |" * (len(tasks) + 1)]
    lines += [f"| {name} | " + " | ".join(found) + " |" for name, found in rows.items()
              if any(found)]  # fmt: skip
    return "\n".join(lines)


def write_between_markers(path: Path, table: str) -> None:
    """Put the table where a Markdown file has its markers."""
    text = disk.read_text(path, "a Markdown file")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"readme {path}: expected the lines {BEGIN} and {END}, found none")
    disk.write_text(path, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def _tasks(run: Run) -> tuple[Any, ...]:
    """What says on which tasks a run was."""
    facts = run.header
    return (run.moving, facts["task"], facts["offset"], facts["seed"], facts.get("tasks_from"),
            facts.get("split"), len(run.rows))  # fmt: skip


def ours(runs: Sequence[Run], offset: int) -> Run | None:
    """The bilinear model's run with Gauss-Newton."""
    wanted = ("bilinear", published.OWN_PLANNERS["bilinear"], offset)
    found = [r for r in runs if (r.model, r.planner, r.header["offset"]) == wanted]
    return found[0] if found else None


def best_baseline(runs: Sequence[Run]) -> Run | None:
    """The best planner of the best baseline @25."""
    others = [r for r in runs if r.model in published.MODELS[1:] and r.header["offset"] == 25]
    return max(others, key=lambda run: run.success.value, default=None)


def _ahead(mine: Run, other: Run) -> bool:
    found = paired(mine.rows, other.rows)
    return found.only_first > found.only_second and found.p_value < SIGNIFICANT


def _said(
    run: Run | None, named: bool = False, bold: bool = False, interval: bool = True
) -> str:  # fmt: skip
    if run is None:
        return ""
    found = run.success
    text = f"{100 * found.value:.0f} %"
    text = f"**{text}**" if bold else text
    if interval:
        text += f" [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return f"{text} ({run.model.upper()}, {run.planner})" if named else text


def _time(run: Run | None) -> str:
    measured = (run.header.get("measured") or {}) if run is not None else {}
    p50 = measured.get("ms_per_plan_p50")
    return "" if p50 is None else f"{p50:.1f} ms"


def _short(value: float, digits: int = 4) -> Any:
    return "" if np.isnan(value) else round(value, digits)
