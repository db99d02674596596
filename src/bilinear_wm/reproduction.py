"""The steps of a reproduction: how much of everything, and what one task needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bilinear_wm import recipes
from bilinear_wm.analysis.geometry import GeometryConfig, run_geometry
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.evaluation.evaluate import evaluate
from bilinear_wm.evaluation.moving import RealtimeConfig, run_realtime
from bilinear_wm.tasks import TASK_NAMES
from bilinear_wm.training.prior import train_prior
from bilinear_wm.training.residual import train_residual
from bilinear_wm.training.train import train

if TYPE_CHECKING:
    from bilinear_wm.reproduce import ReproduceConfig

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
class Step:
    """One thing to make."""

    name: str
    product: Path
    settings: dict[str, Any]
    run: Callable[[], Any] = field(repr=False)
    minutes: float = 0.0
    """An estimate."""


class TaskSteps:
    """The steps of one task."""

    def __init__(self, config: ReproduceConfig, task: str) -> None:
        self.config, self.task, self.sizes = config, task, SIZES[config.scale]
        folder = config.out / "data" if config.data is None else config.data
        self.data = folder / f"{task}.h5"

    def _run(self, model: str, seed: int) -> Path:
        return self.config.out / "runs" / f"{self.task}-{model}-s{seed}"

    def _checkpoint(self, model: str, seed: int) -> Path:
        """What is evaluated: the bilinear model with its residual and prior, where there are."""
        if model == "bilinear" and self.has_prior:
            return self._run("prior", seed)
        return self._without_prior(model, seed)

    def _without_prior(self, model: str, seed: int) -> Path:
        with_residual = model == "bilinear" and "residual" in self.config.stages
        return self._run("residual" if with_residual else model, seed)

    @property
    def has_prior(self) -> bool:
        """Whether this task's bilinear model gets an action prior; the paper's has none."""
        wanted = "prior" in self.config.stages and self.config.scale != "paper"
        return wanted and self.task in recipes.PRIOR_STEPS

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
            changes: dict[str, Any] = {"device": self.config.device}
            if steps is not None:
                changes["steps"] = steps
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
        settings = replace(settings, seed=seed, device=self.config.device)
        if self.config.scale == "tiny":
            settings = replace(settings, steps=6, weigh_steps=2, refit_steps=2)
        if self.config.scale == "paper":  # the vision transformer has no points to weigh
            settings = replace(settings, weigh_steps=0, refit_steps=0)
        return Step(f"train the residual on {self.task}, seed {seed}", out, _plain(settings),
                    lambda: train_residual(replace(settings, resume=out.exists())),
                    settings.steps * 0.02 / 60)  # fmt: skip

    def prior(self, seed: int) -> Step:
        out = self._run("prior", seed)
        settings = recipes.prior(self._without_prior("bilinear", seed), self.data, out, self.task)
        settings = replace(settings, seed=seed, device=self.config.device)
        if self.config.scale == "tiny":
            settings = replace(settings, steps=4, hidden=16)
        return Step(f"train the prior on {self.task}, seed {seed}", out, _plain(settings),
                    lambda: train_prior(replace(settings, resume=out.exists())),
                    settings.steps * 0.05 / 60)  # fmt: skip

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
            device=self.config.device,
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
            data=self._tasks_from, out=out, device=self.config.device,
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
        settings = GeometryConfig(
            self._checkpoint(model, seed), self.data, out, device=self.config.device
        )
        return Step(f"geometry of {model} on {self.task}, seed {seed}", out / "geometry.json",
                    _plain(settings), lambda: run_geometry(settings), 0.5)  # fmt: skip


def _plain(settings: Any) -> dict[str, Any]:
    return {
        name: str(value)
        for name, value in vars(settings).items()
        if name not in ("resume", "workers", "device", "cluster")
    }
