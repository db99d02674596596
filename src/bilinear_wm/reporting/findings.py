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
