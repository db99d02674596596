"""One command from nothing to the report.

    bwm reproduce --scale compact --tasks tworoom reacher --out reproduction

A list of steps, each with the file or folder that it makes. A step whose product was made from the
same settings is skipped, so an interrupted reproduction goes on where it stopped; collecting,
training and evaluating resume within their own step as well. `--dry-run` prints the list with an
estimate of the time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.reporting.report import make_report
from bilinear_wm.reproduction import MODELS, SIZES, Step, TaskSteps
from bilinear_wm.stage import Outcome
from bilinear_wm.tasks import TASK_NAMES

Scale = Literal["tiny", "compact", "paper"]
STAGES = ("collect", "train", "residual", "prior", "evaluate", "realtime", "geometry", "report")


@dataclass(frozen=True)
class ReproduceConfig:
    """What to reproduce.

    Attributes:
        out: The folder for everything.
        scale: `compact` for CPUs, `paper` for GPUs, `tiny` to see the chain work in minutes.
        tasks: Which tasks.
        stages: Which stages; what earlier ones made must be there.
        data: A folder with TASK.h5 files to use instead of collecting, such as the official ones.
        seeds: Training seeds a model.
        device: Where models run: cpu, cuda, cuda:1 ...
        dry_run: Print the steps and an estimate of the time, and do nothing.
        cluster: A dask scheduler whose workers record and evaluate; they see `out` under its path.
    """

    out: Path = Path("reproduction")
    scale: Scale = "compact"
    tasks: tuple[str, ...] = TASK_NAMES
    stages: tuple[str, ...] = STAGES
    data: Path | None = None
    seeds: int = 1
    device: str = "cpu"
    dry_run: bool = False
    cluster: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("tasks", TASK_NAMES), ("stages", STAGES)):
            unknown = set(getattr(self, name)) - set(known)
            if unknown or not getattr(self, name):
                raise InputError(
                    f"{name}: expected some of {', '.join(known)}, "
                    f"found {', '.join(sorted(unknown)) or 'none'}"
                )
        if self.scale not in SIZES:
            raise InputError(f"scale: expected one of {', '.join(SIZES)}, found {self.scale!r}")
        if self.seeds < 1:
            raise InputError(f"seeds: expected at least 1, found {self.seeds}")

    def run(self) -> Outcome:
        """`reproduce`, in words."""
        outcome = [(step.name, ended) for step, ended in reproduce(self)]
        lines = [] if self.dry_run else [f"{name}: {ended}" for name, ended in outcome]
        return Outcome(
            "\n  ".join(["summary:", *lines] if lines else ["nothing was done"]), dict(outcome)
        )


def plan_steps(config: ReproduceConfig) -> list[Step]:
    """Everything to do, in order."""
    steps: list[Step] = []
    for task in config.tasks:
        work = TaskSteps(config, task)
        if "collect" in config.stages and config.data is None:
            steps.append(work.collect())
        for seed in range(config.seeds):
            for model in MODELS:
                if "train" in config.stages:
                    steps.append(work.train(model, seed))
            if "residual" in config.stages:
                steps.append(work.residual(seed))
                if "evaluate" in config.stages:
                    steps.append(work.without_residual(seed))
            if work.has_prior:
                steps.append(work.prior(seed))
            for model in MODELS:
                if "evaluate" in config.stages:
                    steps += work.evaluations(model, seed)
                if "realtime" in config.stages:
                    steps += work.realtime(model, seed)
                if "geometry" in config.stages:
                    steps.append(work.geometry(model, seed))
    if "report" in config.stages:
        out = config.out / "report"
        steps.append(
            Step("report", out / "report.html", {}, lambda: make_report([config.out], out), 0.2)
        )
    return steps


def reproduce(config: ReproduceConfig) -> list[tuple[Step, str]]:
    """Carry out what is not done; returns each step with what became of it."""
    steps = plan_steps(config)
    waiting = [step for step in steps if not _done(config, step)]
    total = sum(step.minutes for step in waiting)
    estimate = f"about {_duration(total)} on two CPU cores"
    if config.scale == "paper":
        estimate = "no estimate: training at the paper's scale needs a GPU"
    print(f"{len(steps)} steps, {len(waiting)} to do, {estimate}")
    if config.dry_run:
        print(outline(config, steps))
    outcome: list[tuple[Step, str]] = []
    for number, step in enumerate(steps, start=1):
        done = _done(config, step)
        label = f"[{number}/{len(steps)}] {step.name}"
        if done or config.dry_run:
            if not config.dry_run:
                print(f"{label}: done")
            outcome.append((step, "done before" if done else "to do"))
            continue
        print(label, flush=True)
        step.product.parent.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        step.run()
        _mark(config, step)
        outcome.append((step, _duration((time.perf_counter() - begun) / 60)))
    return outcome


def outline(config: ReproduceConfig, steps: Sequence[Step]) -> str:
    """What is to be done, task by task and stage by stage; steps of one stage in a line."""
    lines: list[str] = []
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        task = next((task for task in config.tasks if task in step.name.split("@")[0]), "")
        groups.setdefault((task, step.name.partition(" ")[0]), []).append(step)
    for (task, stage), some in groups.items():
        if task and (not lines or f"\n{task}" not in lines):
            lines.append(f"\n{task}")
        done = sum(_done(config, step) for step in some)
        left = sum(step.minutes for step in some if not _done(config, step))
        state = "done" if done == len(some) else f"about {_duration(left)}"
        if 0 < done < len(some):
            state += f", {done} done"
        stage = {"chase": "moving goals"}.get(stage, stage)
        count = "" if len(some) == 1 else f" ({len(some)} steps)"
        lines.append(f"{'  ' if task else chr(10)}{stage + count:<26}{state}")
    return "\n".join(lines)


def _marker(config: ReproduceConfig, step: Step) -> Path:
    return config.out / "steps" / (step.name.replace(" ", "-").replace(",", "") + ".json")


def _done(config: ReproduceConfig, step: Step) -> bool:
    """Whether the product is there and was made from the same settings; a report never is."""
    marker = _marker(config, step)
    if step.name == "report" or not (step.product.exists() and marker.exists()):
        return False
    found: Any = json.loads(marker.read_text())
    if found != step.settings:
        raise InputError(
            f"{step.product}: made from other settings than these ({marker}); remove it, or "
            "reproduce into another `out`"
        )
    return True


def _mark(config: ReproduceConfig, step: Step) -> None:
    marker = _marker(config, step)
    marker.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(marker, json.dumps(step.settings, indent=2) + "\n")


def _duration(minutes: float) -> str:
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
