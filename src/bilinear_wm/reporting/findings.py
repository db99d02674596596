"""What a report is made of: results, metrics and geometry files, read and put in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bilinear_wm.errors import InputError
from bilinear_wm.registry import PLANNERS
from bilinear_wm.reporting import published
from bilinear_wm.reporting.results import UNCOMPARED, EpisodeResult, Rate, rate, read_results

METRICS, GEOMETRY = "metrics.jsonl", "geometry.json"


@dataclass(frozen=True)
class Run:
    """One results file."""

    path: Path
    header: dict[str, Any]
    rows: list[EpisodeResult]

    @property
    def moving(self) -> bool:
        return bool(self.header.get("moving"))

    @property
    def model(self) -> str:
        if self.header["planner"] in ("random", "none"):
            return "-"
        return str(self.header.get("model", "bilinear"))

    @property
    def success(self) -> Rate:
        return rate([row.success for row in self.rows])

    @property
    def ms_per_plan(self) -> float:
        """Of planning (and, with moving goals, encoding), as a share of what was done at once."""
        plans = sum(row.plans for row in self.rows)
        seconds = sum(row.plan_seconds + self.moving * row.encode_seconds for row in self.rows)
        return 1e3 * seconds / plans if plans else float("nan")

    @property
    def label(self) -> str:
        return f"{self.model}, {self.header['planner']}"

    @property
    def rank(self) -> tuple[Any, ...]:
        """Floors, then published models, then others; planners in the same way."""
        return (
            place(self.model, ("-", *published.MODELS)),
            place(self.header["planner"], PLANNERS.built_in),
        )

    @property
    def paper(self) -> float | None:
        """The paper's figure for the same thing, where it gives one."""
        task, planner = self.header["task"], self.header["planner"]
        if planner == "random" and not self.moving and self.header["offset"] == 25:
            return published.RANDOM_25.get(task)
        ours = self.model == "bilinear" and planner == "gauss-newton"
        if self.moving:
            theirs = ours and not self.header.get("live")
            return published.MOVING.get(task) if theirs else None
        if self.header["offset"] != 25 or not (ours or planner == "cem"):
            return None
        return published.SUCCESS_25.get(self.model, {}).get(task)

    def cells(self) -> dict[str, Any]:
        """A row of the table."""
        found = self.success
        return {
            "task": self.header["task"],
            "goal": "moving" if self.moving else f"@{self.header['offset']}",
            "model": self.model,
            "planner": self.header["planner"] + replanning(self.header),
            "horizon": self.header["horizon"],
            "success": f"{100 * found.value:.0f} %",
            "interval": f"{100 * found.low:.0f}-{100 * found.high:.0f}",
            "episodes": found.count,
            "solved at start": sum(row.solved_at_start for row in self.rows),
            "ms a plan": "" if np.isnan(self.ms_per_plan) else f"{self.ms_per_plan:.1f}",
            "jerk": f"{np.mean([row.jerk for row in self.rows]):.3f}",
            "paper": "" if self.paper is None else f"{self.paper:g} %",
            "seed": self.header["seed"],
            "file": self.path.name,
        }


def replanning(header: dict[str, Any]) -> str:
    """How a run replans, and by which protocol, where that is not the usual way."""
    said = ", replanning always" if header.get("replan") == "always" else ""
    if header.get("replan_every"):
        said = f", replanning every {header['replan_every']}"
    if header.get("live"):
        return f"{said}, live"
    return f"{said}, as the controller" if header.get("protocol") == "controller" else said


@dataclass(frozen=True)
class SeedSummary:
    """The same thing trained with several seeds."""

    runs: tuple[Run, ...]

    def cells(self) -> dict[str, Any]:
        """Mean success and the 95 % interval of the mean, by Student's t over training seeds."""
        values = np.array([100 * run.success.value for run in self.runs])
        mean = float(values.mean())
        reach = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        first = self.runs[0].cells()
        return {
            **{name: first[name] for name in ("task", "goal", "model", "planner", "horizon")},
            "training seeds": len(values),
            "mean success": f"{mean:.1f} %",
            "interval": f"{max(mean - reach, 0):.1f}-{min(mean + reach, 100):.1f}",
            "each": ", ".join(f"{value:.0f}" for value in values),
        }


def over_seeds(runs: Sequence[Run]) -> list[SeedSummary]:
    """Runs that differ in nothing but the training seed, by which their checkpoints end (-s0)."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        stem, mark, seed = str(run.header.get("checkpoint")).rpartition("-s")
        if mark and seed.isdigit():
            facts = {k: v for k, v in run.header.items() if k not in (*UNCOMPARED, "weights")}
            key = json.dumps(facts | {"checkpoint": stem}, sort_keys=True)
            groups.setdefault(key, []).append(run)
    return [SeedSummary(tuple(group)) for group in groups.values() if len(group) > 1]


@dataclass(frozen=True)
class Findings:
    """Everything below the given folders."""

    runs: list[Run]
    trainings: dict[str, list[dict[str, Any]]]
    geometries: list[dict[str, Any]]


def gather(folders: Sequence[Path]) -> Findings:
    """Read all files that a report is made of."""
    runs: list[Run] = []
    trainings: dict[str, list[dict[str, Any]]] = {}
    geometries: list[dict[str, Any]] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder with results, found none")
        for path in sorted(folder.rglob("*.jsonl")):
            if path.name == METRICS:
                trainings[path.parent.name] = _read_lines(path)
            else:
                header, rows = read_results(path)
                if rows:
                    runs.append(Run(path, header, rows))
        geometries += [json.loads(p.read_text()) for p in sorted(folder.rglob(GEOMETRY))]
    if not (runs or trainings or geometries):
        raise InputError(
            f"{', '.join(map(str, folders))}: expected results (*.jsonl), {METRICS} or {GEOMETRY}, "
            "found none"
        )
    runs.sort(
        key=lambda run: (
            run.moving,
            place(run.header["task"], published.TASKS),
            run.header["offset"],
            run.rank,
        )
    )
    return Findings(runs, trainings, geometries)


def place(name: str, known: Sequence[str]) -> tuple[int, str]:
    """Sorts known names in their order, and whatever else there is after them."""
    return (known.index(name) if name in known else len(known)), name


def in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Each name once, in the order of `place`."""
    return sorted(set(names), key=lambda name: place(name, known))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break  # cut off by an interruption
    return lines
