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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from bilinear_wm import disk, recipes
from bilinear_wm.analysis.geometry import GeometryConfig, run_geometry
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import evaluate
from bilinear_wm.evaluation.moving import RealtimeConfig, run_realtime
from bilinear_wm.reporting.report import make_report
from bilinear_wm.stage import Outcome
from bilinear_wm.tasks import TASK_NAMES
from bilinear_wm.training.residual import train_residual
from bilinear_wm.training.train import train

Scale = Literal["tiny", "compact", "paper"]
STAGES = ("collect", "train", "residual", "evaluate", "realtime", "geometry", "report")
MODELS = ("bilinear", "lewm", "smwm")


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    image_size: int
    frame_stride: int
    render_quality: Literal["faithful", "fast"]
    episodes: dict[str, int]
    steps: dict[str, int] | None
    """Training steps; None for the recipe's."""
    tasks: int
    """Starts and goals an evaluation."""
    offsets: tuple[int, ...]
    planners: dict[str, dict[str, Any]]
    moving_planners: dict[str, tuple[str, tuple[dict[str, Any], ...]]]
    """For each model the planner that chases moving goals, and its options, each tried."""


CEM: dict[str, dict[str, Any]] = {"cem": {}, "icem": {}, "gauss-newton": {}}
BUDGETS = tuple(
    {"samples": samples, "iterations": iterations, "elites": 10}
    for samples, iterations in ((30, 3), (100, 5), (300, 10))
)
MOVING: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "bilinear": ("gauss-newton", ({},)),
    "lewm": ("icem", BUDGETS),
    "smwm": ("icem", BUDGETS),
}
SIZES: dict[str, Sizes] = {
    "tiny": Sizes(
        image_size=32, frame_stride=5, render_quality="fast",
        episodes=dict.fromkeys(TASK_NAMES, 20),
        steps=dict.fromkeys(TASK_NAMES, 4),
        tasks=2, offsets=(25,),
        planners={"gauss-newton": {"iterations": 2},
                  "cem": {"samples": 20, "elites": 5, "iterations": 2}},
        moving_planners={m: ("gauss-newton", ({"iterations": 2},)) for m in MODELS},
    ),
    "compact": Sizes(
        image_size=64, frame_stride=5, render_quality="fast",
        episodes=recipes.COMPACT_EPISODES,
        steps=None, tasks=100, offsets=(25, 50, 75), planners=CEM, moving_planners=MOVING,
    ),
    "paper": Sizes(
        image_size=224, frame_stride=1, render_quality="faithful",
        episodes=dict.fromkeys(TASK_NAMES, 10_000), steps=None,
        tasks=100, offsets=(25, 50, 75), planners=CEM, moving_planners=MOVING,
    ),
}  # fmt: skip

SECONDS_AN_EPISODE = {"tworoom": 0.01, "pusht": 0.05, "reacher": 0.1, "cube": 1.1}
SECONDS_A_STEP = 0.4
"""Rough figures of two CPU cores at the compact scale, for the estimate."""


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
        dry_run: Print the steps and an estimate of the time, and do nothing.
        cluster: A dask scheduler whose workers record and evaluate; they see `out` under its path.
    """

    out: Path = Path("reproduction")
    scale: Scale = "compact"
    tasks: tuple[str, ...] = TASK_NAMES
    stages: tuple[str, ...] = STAGES
    data: Path | None = None
    seeds: int = 1
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


@dataclass(frozen=True)
class Step:
    """One thing to make."""

    name: str
    product: Path
    settings: dict[str, Any]
    run: Callable[[], Any] = field(repr=False)
    minutes: float = 0.0
    """An estimate."""


def plan_steps(config: ReproduceConfig) -> list[Step]:
    """Everything to do, in order."""
    steps: list[Step] = []
    for task in config.tasks:
        work = _Task(config, task)
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


class _Task:
    """The steps of one task."""

    def __init__(self, config: ReproduceConfig, task: str) -> None:
        self.config, self.task, self.sizes = config, task, SIZES[config.scale]
        folder = config.out / "data" if config.data is None else config.data
        self.data = folder / f"{task}.h5"

    def _run(self, model: str, seed: int) -> Path:
        return self.config.out / "runs" / f"{self.task}-{model}-s{seed}"

    def _checkpoint(self, model: str, seed: int) -> Path:
        """What is evaluated: the bilinear model with its residual, where there is one."""
        with_residual = model == "bilinear" and "residual" in self.config.stages
        return self._run("residual" if with_residual else model, seed)

    @property
    def _tasks_from(self) -> Path | None:
        """Held-out episodes of a given file; else fresh ones, which nothing disturbs."""
        return None if self.config.data is None else self.data

    def collect(self) -> Step:
        sizes = self.sizes
        settings = CollectConfig(
            self.task, self.data, sizes.episodes[self.task], sizes.image_size, sizes.frame_stride,
            render_quality=sizes.render_quality, resume=True,
            disturbance=recipes.DISTURBANCE.get(self.task, 0.0), cluster=self.config.cluster,
        )  # fmt: skip
        minutes = sizes.episodes[self.task] * SECONDS_AN_EPISODE[self.task] / 60
        return Step(f"collect {self.task}", self.data, _plain(settings),
                    lambda: collect(settings), minutes)  # fmt: skip

    def train(self, model: str, seed: int) -> Step:
        out, sizes = self._run(model, seed), self.sizes
        size: Any = "paper" if self.config.scale == "paper" else "compact"
        steps = None if sizes.steps is None else sizes.steps[self.task]

        def run() -> None:
            windows = len(EpisodeDataset(self.data, 2, in_memory=False))
            recipe = recipes.training(self.data, out, model, size, self.task, windows)
            changes: dict[str, Any] = {} if steps is None else {"steps": steps}
            if self.config.scale == "tiny":
                changes |= {"batch_size": 4, "eval_every": 2}
            train(replace(recipe, seed=seed, task=self.task, resume=out.exists(), **changes))

        settings = {
            "data": str(self.data),
            "model": model,
            "size": size,
            "steps": steps,
            "seed": seed,
        }
        minutes = (
            (steps or recipes.OWN_STEPS.get(self.task, recipes.COMPACT_STEPS)) * SECONDS_A_STEP / 60
        )
        return Step(f"train {model} on {self.task}, seed {seed}", out, settings, run, minutes)

    def residual(self, seed: int) -> Step:
        out = self._run("residual", seed)
        settings = recipes.residual(self._run("bilinear", seed), self.data, out, self.task)
        settings = replace(settings, seed=seed)
        if self.config.scale == "tiny":
            settings = replace(settings, steps=6, weigh_steps=2, refit_steps=2)
        if self.config.scale == "paper":  # the vision transformer has no points to weigh
            settings = replace(settings, weigh_steps=0, refit_steps=0)
        return Step(f"train the residual on {self.task}, seed {seed}", out, _plain(settings),
                    lambda: train_residual(replace(settings, resume=out.exists())),
                    settings.steps * 0.02 / 60)  # fmt: skip

    def evaluations(self, model: str, seed: int) -> list[Step]:
        made = []
        for planner, options in self.sizes.planners.items():
            for offset in self.sizes.offsets:
                # Beyond 25 steps each model keeps the planner that its authors use.
                own = "gauss-newton" if model == "bilinear" else "cem"
                if offset > 25 and planner != own:
                    continue
                checkpoint = self._checkpoint(model, seed)
                made.append(self._evaluation(checkpoint, model, seed, planner, options, offset))
        return made

    def without_residual(self, seed: int) -> Step:
        options, checkpoint = self.sizes.planners["gauss-newton"], self._run("bilinear", seed)
        return self._evaluation(
            checkpoint, "structured", seed, "gauss-newton", options, self.sizes.offsets[0]
        )

    def _evaluation(
        self, checkpoint: Path, model: str, seed: int, planner: str, options: dict[str, Any],
        offset: int,
    ) -> Step:  # fmt: skip
        paper = self.config.scale == "paper"
        recipe = recipes.evaluation(self.task, planner, offset, paper)
        out = self.config.out / "results" / f"{self.task}-{model}-s{seed}-{planner}-{offset}.jsonl"
        settings = replace(
            recipe,
            checkpoint=checkpoint,
            planner_options=recipe.planner_options | options,
            episodes=self.sizes.tasks,
            seed=1,
            data=self._tasks_from,
            out=out,
            cluster=self.config.cluster,
        )
        sampling = planner != "gauss-newton"
        minutes = self.sizes.tasks * (5.0 if sampling else 0.3) / 60
        return Step(
            f"evaluate {model} with {planner} on {self.task} @{offset}, seed {seed}",
            out,
            _plain(settings),
            lambda: evaluate(replace(settings, resume=out.exists())),
            minutes,
        )

    def realtime(self, model: str, seed: int) -> list[Step]:
        planner, several = self.sizes.moving_planners[model]
        return [self._moving(model, seed, planner, options) for options in several]

    def _moving(self, model: str, seed: int, planner: str, options: dict[str, Any]) -> Step:
        recipe = recipes.evaluation(self.task, planner, 25, self.config.scale == "paper")
        samples = f", {options['samples']} samples" if "samples" in options else ""
        name = f"moving-{self.task}-{model}-s{seed}{samples.replace(', ', '-').replace(' ', '-')}"
        out = self.config.out / "results" / f"{name}.jsonl"
        settings = RealtimeConfig(
            self.task, self._checkpoint(model, seed), planner, recipe.planner_options | options,
            recipe.horizon, offset=self.sizes.offsets[0], episodes=self.sizes.tasks, seed=1,
            data=self._tasks_from, out=out,
        )  # fmt: skip
        minutes = self.sizes.tasks * (1.0 if planner == "gauss-newton" else 5.0) / 60
        return Step(
            f"chase moving goals with {model} on {self.task}, seed {seed}{samples}",
            out,
            _plain(settings),
            lambda: run_realtime(replace(settings, resume=out.exists())),
            minutes,
        )

    def geometry(self, model: str, seed: int) -> Step:
        out = self.config.out / "geometry" / f"{self.task}-{model}-s{seed}"
        settings = GeometryConfig(self._checkpoint(model, seed), self.data, out)
        return Step(f"geometry of {model} on {self.task}, seed {seed}", out / "geometry.json",
                    _plain(settings), lambda: run_geometry(settings), 0.5)  # fmt: skip


def _plain(settings: Any) -> dict[str, Any]:
    return {
        name: str(value)
        for name, value in vars(settings).items()
        if name not in ("resume", "workers", "cluster")
    }


def reproduce(config: ReproduceConfig) -> list[tuple[Step, str]]:
    """Carry out what is not done; returns each step with what became of it."""
    steps = plan_steps(config)
    waiting = [step for step in steps if not _done(config, step)]
    total = sum(step.minutes for step in waiting)
    estimate = f"about {_duration(total)} on two CPU cores"
    if config.scale == "paper":
        estimate = "no estimate: training at the paper's scale needs a GPU"
    print(f"{len(steps)} steps, {len(waiting)} to do, {estimate}")
    outcome: list[tuple[Step, str]] = []
    for number, step in enumerate(steps, start=1):
        done = _done(config, step)
        label = f"[{number}/{len(steps)}] {step.name}"
        if done or config.dry_run:
            print(f"{label}: {'done' if done else 'about ' + _duration(step.minutes)}")
            outcome.append((step, "done before" if done else "to do"))
            continue
        print(label, flush=True)
        step.product.parent.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        step.run()
        _mark(config, step)
        outcome.append((step, _duration((time.perf_counter() - begun) / 60)))
    return outcome


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
