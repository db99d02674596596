"""What a report is made of: results, metrics and geometry files, read and put in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.registry import NAME, PLANNERS
from bilinear_wm.reporting import published
from bilinear_wm.reporting.results import (
    UNCOMPARED,
    EpisodeResult,
    Rate,
    mean_jerk,
    rate,
    read_results,
)

METRICS, GEOMETRY = "metrics.jsonl", "geometry.json"
FLOORS = ("random", "none")
ALIKE = ("task", "goal", "model", "planner", "replans after", "options", "horizon")
"""Cells that runs share which differ in their training seed alone."""


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
        if self.header["planner"] in FLOORS:
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
    def ms_per_episode(self) -> float:
        """Of planning and encoding, in the mean of the episodes that had to act."""
        seconds = [r.plan_seconds + r.encode_seconds for r in self.rows if not r.solved_at_start]
        return 1e3 * float(np.mean(seconds)) if seconds else float("nan")

    @property
    def label(self) -> str:
        return f"{self.model}, {self.header['planner']}" if self.model != "-" else self.planner

    @property
    def planner(self) -> str:
        return str(self.header["planner"])

    @property
    def replan(self) -> str:
        """Blocks between plans, or `whole`; for moving goals `exhausted` or `always`."""
        if self.planner in FLOORS:
            return ""
        if self.moving:
            return str(self.header.get("replan", "exhausted"))
        every = self.header.get("replan_every")
        return "whole" if every is None or every >= self.header["horizon"] else str(every)

    @property
    def options(self) -> tuple[str, ...]:
        """In what it departs from the usual run of its kind."""
        facts, given = self.header, self.header.get("planner_options") or {}
        found = [name for name in ("memory", "monitor", "live") if facts.get(name)]
        if facts.get("paper_settings"):
            found.append("paper settings")
        if facts.get("protocol") == "controller" and not facts.get("live"):
            found.append("as the controller")
        if facts.get("without_residual"):
            found.append("without its residual")
        if facts.get("goal") == "state":
            found.append("goal state")
        if facts.get("split") == "validation":
            found.append("validation")
        if "samples" in given:
            found.append(f"{given['samples']} x {given.get('iterations', 30)} samples")
        return tuple(found)

    @property
    def training(self) -> tuple[str, str]:
        """What was trained, and with which seed: checkpoints of one thing end in -s0, -s1 ..."""
        stem, mark, seed = str(self.header.get("checkpoint")).rpartition("-s")
        return (stem, seed) if mark and seed.isdigit() else (stem + mark + seed, "0")

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
        if planner != published.OWN_PLANNERS.get(self.model) or self.options:
            return None
        if self.moving:
            return published.MOVING.get(task) if self.model == "bilinear" else None
        return published.SUCCESS_25[self.model].get(task) if self.header["offset"] == 25 else None

    def cells(self) -> dict[str, Any]:
        """A row of the table."""
        found = self.success
        return {
            "task": self.header["task"],
            "goal": "moving" if self.moving else f"@{self.header['offset']}",
            "model": self.model,
            "planner": self.planner,
            "replans after": self.replan,
            "options": ", ".join(self.options),
            "horizon": self.header["horizon"],
            "success": f"{100 * found.value:.0f} %",
            "interval": f"{100 * found.low:.0f}-{100 * found.high:.0f}",
            "episodes": found.count,
            "solved at start": sum(row.solved_at_start for row in self.rows),
            "ms a plan": "" if np.isnan(self.ms_per_plan) else f"{self.ms_per_plan:.1f}",
            "jerk": "" if np.isnan(jerk := mean_jerk(self.rows)) else f"{jerk:.3f}",
            "paper": "" if self.paper is None else f"{self.paper:g} %",
            "seed": self.header["seed"],
            "file": self.path.name,
        }


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
            **{name: first[name] for name in ALIKE},
            "training seeds": len(values),
            "mean success": f"{mean:.1f} %",
            "interval": f"{max(mean - reach, 0):.1f}-{min(mean + reach, 100):.1f}",
            "each": ", ".join(f"{value:.0f}" for value in values),
        }


def over_seeds(runs: Sequence[Run]) -> list[SeedSummary]:
    """Runs that differ in nothing but the training seed, by which their checkpoints end (-s0)."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        facts = {k: v for k, v in run.header.items() if k not in (*UNCOMPARED, "weights")}
        key = json.dumps(facts | {"checkpoint": run.training[0]}, sort_keys=True)
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
    if not folders:
        raise InputError(
            "expected at least one folder with results (bwm report results), found none"
        )
    for folder in folders:
        if folder.is_file():
            raise InputError(
                f"{folder}: expected a folder with results, found a file; name its folder: "
                f"{folder.parent}"
            )
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder with results, found none")
        for path in sorted(p for p in folder.rglob("*.jsonl") if p.is_file()):
            if path.name == METRICS:
                trainings[path.parent.name] = _read_lines(path)
            else:
                header, rows = read_results(path)
                if rows:
                    runs.append(Run(path, header, rows))
        geometries += [read_geometry(p) for p in sorted(folder.rglob(GEOMETRY)) if p.is_file()]
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


def main_runs(runs: Sequence[Run]) -> list[Run]:
    """One run of each model and planner for each goal, all of a goal by the same protocol.

    The protocol is the one that most of them ran by; of equals the paper's for moving goals, and
    the one that replans soonest for others. Of
    what ran more than once by it, the run with the fewest options, then the first seed.
    """
    goals: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        goals.setdefault((run.moving, run.header["task"], run.header["offset"]), []).append(run)
    chosen: list[Run] = []
    for some in goals.values():
        methods: dict[str, set[str]] = {}
        for run in (run for run in some if run.planner not in FLOORS):
            methods.setdefault(run.replan, set()).add(run.label)
        order = sorted(methods, key=lambda name: (-len(methods[name]), name == "always", name))
        best: dict[str, Run] = {}
        for run in sorted(some, key=_plainness):
            if run.planner in FLOORS or run.replan == order[0]:
                best.setdefault(run.label, run)
        chosen += best.values()
    return [run for run in runs if run in chosen]


def _plainness(run: Run) -> tuple[Any, ...]:
    return len(run.options), run.training[1], run.path.name


def place(name: str, known: Sequence[str]) -> tuple[int, str]:
    """Sorts known names in their order, and whatever else there is after them."""
    return (known.index(name) if name in known else len(known)), name


def in_order(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Each name once, in the order of `place`."""
    return sorted(set(names), key=lambda name: place(name, known))


def read_geometry(path: Path) -> dict[str, Any]:
    """What `bwm geometry` wrote; refuses what cannot be drawn."""
    try:
        found: dict[str, Any] = json.loads(disk.read_text(path, "a geometry file"))
        control = found["controllable"]
        names = [found["task"], found["model"], *found["variables"]]
        points = np.array(found["points"], np.float64)
        variables = np.array(list(found["variables"].values()), np.float64)
        singular = np.array(control["singular_values"], np.float64)
        sound = (
            all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
            and all(isinstance(x, int) for x in (found["action_size"], control["rank"]))
            and isinstance(control["threshold"], float)
            and np.array(found["variance"], np.float64).ndim == singular.ndim == 1
            and singular[0] > 0
            and points.shape[1] >= 2
            and variables.shape[1] == len(points)
        )
    except (LookupError, TypeError, AttributeError, RecursionError):
        sound = False
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        sound = False
    if not sound:
        raise InputError(f"{path}: expected what `bwm geometry` writes, found something else")
    return found


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of metrics, up to one that an interruption cut off."""
    lines: list[dict[str, Any]] = []
    texts = disk.read_text(path, "a file of metrics").splitlines()
    for number, line in enumerate(texts, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        numbers = isinstance(row, dict) and all(isinstance(v, int | float) for v in row.values())
        if not numbers or "step" not in row:
            raise InputError(f"{path}: line {number}: expected numbers of a step")
        lines.append(row)
    return lines
