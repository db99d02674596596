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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.reporting.report import make_report
from bilinear_wm.reproduction.against import against
from bilinear_wm.reproduction.experiments import MODELS, PARTS
from bilinear_wm.reproduction.sizes import SIZES
from bilinear_wm.reproduction.steps import Step, TaskSteps
from bilinear_wm.stage import Outcome, at_least
from bilinear_wm.tasks import TASK_NAMES

Scale = Literal["tiny", "quick", "compact", "paper"]
STAGES = ("collect", "train", "residual", "prior", "evaluate", "realtime", "geometry", "report")


@dataclass(frozen=True)
class ReproduceConfig:
    """What to reproduce.

    Attributes:
        out: The folder for everything.
        scale: `compact` for CPUs, `paper` for GPUs, `quick` for a first look in an hour, `tiny`
            to see the chain work in minutes.
        tasks: Which tasks.
        models: Which models.
        stages: Which stages; what earlier ones made must be there.
        only: Some of the figures and tables: fig1, fig2, fig4, fig5, fig6, fig7, residual,
            settings, whole, prior.
        quick: A fifth of the data and of the training, 20 tasks @25: about an hour.
        data: A folder with TASK.h5 files to use instead of collecting, such as the official ones.
        pretrained: A folder of checkpoints, TASK of bilinear models and TASK-MODEL of baselines,
            to be evaluated instead of training.
        seeds: Training seeds of the bilinear models; baselines have one.
        against: A folder of results to compare with at the end.
        device: Where models run: cpu, cuda, cuda:1 ...
        dry_run: Print the steps and an estimate of the time, and do nothing.
        workers: Processes that share an evaluation's episodes.
        cluster: A dask scheduler whose workers record and evaluate; they see `out` under its path.
    """

    out: Path = Path("reproduction")
    scale: Scale = "compact"
    tasks: tuple[str, ...] = TASK_NAMES
    models: tuple[str, ...] = MODELS
    stages: tuple[str, ...] = STAGES
    only: tuple[str, ...] = ()
    quick: bool = False
    data: Path | None = None
    pretrained: Path | None = None
    seeds: int = 1
    against: Path = Path("results")
    device: str = "cpu"
    dry_run: bool = False
    workers: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        choices = {"tasks": TASK_NAMES, "models": MODELS, "stages": STAGES, "only": tuple(PARTS)}
        for name, known in choices.items():
            unknown = set(getattr(self, name)) - set(known)
            if unknown or not (getattr(self, name) or name == "only"):
                raise InputError(
                    f"{name}: expected some of {', '.join(known)}, "
                    f"found {', '.join(sorted(unknown)) or 'none'}"
                )
        if self.scale not in SIZES:
            raise InputError(f"scale: expected one of {', '.join(SIZES)}, found {self.scale!r}")
        at_least(self, 1, "seeds", "workers")
        if self.quick and self.scale not in ("compact", "quick"):
            raise InputError(f"quick: expected with the scale compact, found {self.scale}")
        if self.quick:
            object.__setattr__(self, "scale", "quick")

    def run(self) -> Outcome:
        """`reproduce`, in words."""
        outcome = [(step.name, ended) for step, ended in reproduce(self)]
        lines = [] if self.dry_run else [f"{name}: {ended}" for name, ended in outcome]
        text = "\n  ".join(["summary:", *lines] if lines else ["nothing was done"])
        table = [] if self.dry_run else against(self.out / "results", self.against)
        if table:
            text += f"\nreproduced against {self.against}:\n" + "\n".join(table)
        return Outcome(text, dict(outcome))


def plan_steps(config: ReproduceConfig) -> list[Step]:
    """Everything to do, in order."""
    every = [step for task in config.tasks for step in TaskSteps(config, task).all()]
    steps = [step for step in every if step.stage in config.stages]
    if config.only:
        steps = [step for step in steps if not step.parts or set(step.parts) & set(config.only)]
    if "report" in config.stages:
        out, results = config.out / "report", config.out / "results"
        folders = [results, config.out / "runs"]

        def report() -> None:
            make_report([folder for folder in folders if folder.is_dir()], out)
            disk.write_text(results / "summary.csv", (out / "summary.csv").read_text())

        steps.append(Step("report", out / "report.html", {}, report, 0.2, "report"))
    return steps


def reproduce(config: ReproduceConfig) -> list[tuple[Step, str]]:
    """Carry out what is not done; returns each step with what became of it."""
    steps = plan_steps(config)
    done = {step.name: _done(config, step) for step in steps}
    waiting = [step for step in steps if not done[step.name]]
    left = sum(step.minutes for step in waiting)
    estimate = f"about {_duration(left)} on two CPU cores"
    if config.scale == "paper":
        estimate = "no estimate: training at the paper's scale needs a GPU"
    print(f"{len(steps)} steps, {len(waiting)} to do, {estimate}")
    if config.dry_run:
        print(outline(config, steps, done))
        return [(step, "done before" if done[step.name] else "to do") for step in steps]
    outcome: list[tuple[Step, str]] = []
    pace = Pace(left)
    for number, step in enumerate(steps, start=1):
        if done[step.name]:
            outcome.append((step, "done before"))
            continue
        print(f"[{number}/{len(steps)}] {step.name}, about {_duration(pace.left)} left", flush=True)
        step.product.parent.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        step.run()
        _mark(config, step)
        took = (time.perf_counter() - begun) / 60
        pace.passed(step.minutes, took)
        outcome.append((step, _duration(took)))
    return outcome


class Pace:
    """What is left, by the estimates and by how true they have been so far."""

    def __init__(self, minutes: float) -> None:
        self._waiting, self._estimated, self._taken = minutes, 0.0, 0.0

    def passed(self, estimated: float, taken: float) -> None:
        self._waiting -= estimated
        self._estimated, self._taken = self._estimated + estimated, self._taken + taken

    @property
    def left(self) -> float:
        """In minutes; estimates count as ten minutes of experience."""
        return self._waiting * (self._taken + 10) / (self._estimated + 10)


def outline(config: ReproduceConfig, steps: Sequence[Step], done: Mapping[str, bool]) -> str:
    """What is to be done, task by task and stage by stage; steps of one stage in a line."""
    lines: list[str] = []
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        task = next((task for task in config.tasks if task in step.name), "")
        groups.setdefault((task, step.stage), []).append(step)
    for (task, stage), some in groups.items():
        if task and (not lines or f"\n{task}" not in lines):
            lines.append(f"\n{task}")
        made = sum(done[step.name] for step in some)
        left = sum(step.minutes for step in some if not done[step.name])
        state = "done" if made == len(some) else f"about {_duration(left)}"
        if 0 < made < len(some):
            state += f", {made} done"
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
