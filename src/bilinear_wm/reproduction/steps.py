"""The steps of one task, each with the file or folder that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bilinear_wm import recipes
from bilinear_wm.analysis.geometry import GeometryConfig, run_geometry
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.evaluation.moving import RealtimeConfig, run_realtime
from bilinear_wm.reproduction.experiments import FLOORS, MODELS, Experiment, experiments
from bilinear_wm.reproduction.sizes import (
    SECONDS_A_STEP,
    SECONDS_A_TASK,
    SECONDS_AN_EPISODE,
    SECONDS_OF_SAMPLING,
    SIZES,
)
from bilinear_wm.training.prior import train_prior
from bilinear_wm.training.residual import train_residual
from bilinear_wm.training.train import train

if TYPE_CHECKING:
    from bilinear_wm.reproduce import ReproduceConfig


@dataclass(frozen=True)
class Step:
    """One thing to make."""

    name: str
    product: Path
    settings: dict[str, Any]
    run: Callable[[], Any] = field(repr=False)
    minutes: float = 0.0
    """An estimate."""
    stage: str = ""
    parts: tuple[str, ...] = ()
    """Figures and tables that it is for; none for what all need."""


class TaskSteps:
    """The steps of one task."""

    def __init__(self, config: ReproduceConfig, task: str) -> None:
        self.config, self.task, self.sizes = config, task, SIZES[config.scale]
        folder = config.out / "data" if config.data is None else config.data
        self.data = folder / f"{task}.h5"
        stages, paper = config.stages, config.scale == "paper"
        self.has_residual = "residual" in stages and (paper or task not in recipes.NO_RESIDUAL)
        self.has_prior = "prior" in stages and not paper and task in recipes.PRIOR_STEPS
        if config.pretrained is not None:
            self.has_residual = task not in recipes.NO_RESIDUAL
            self.has_prior = task in recipes.PRIOR_STEPS

    def all(self) -> Iterator[Step]:
        """In order."""
        if self.config.data is None:
            yield self.collect()
        for seed in range(self.config.seeds):
            wanted = MODELS if seed == 0 else MODELS[:1]
            models = [model for model in wanted if model in self.config.models]
            if self.config.pretrained is None or seed > 0:
                yield from (self.train(model, seed) for model in models)
                if self.has_residual and "bilinear" in models:
                    yield self.residual(seed)
                if self.has_prior and "bilinear" in models:
                    yield self.prior(seed)
            for each in experiments(self.sizes, self.has_residual, self.has_prior, seed):
                if each.model and each.model not in models:
                    continue
                yield self.chase(each, seed) if each.moving else self.evaluation(each, seed)
            yield from (self.geometry(model, seed) for model in models)

    def _run(self, model: str, seed: int) -> Path:
        return self.config.out / "runs" / f"{self.task}-{model}-s{seed}"

    def checkpoint(self, model: str, seed: int) -> Path:
        """What is evaluated: the bilinear model with its residual and prior, where there are."""
        given = self.config.pretrained
        if given is not None and seed == 0:
            return given / self.task if model == "bilinear" else given / f"{self.task}-{model}"
        if model == "bilinear" and self.has_prior:
            return self._run("prior", seed)
        return self._without_prior(model, seed)

    def _without_prior(self, model: str, seed: int) -> Path:
        return self._run("residual" if model == "bilinear" and self.has_residual else model, seed)

    # Data and models.

    def collect(self) -> Step:
        sizes = self.sizes
        settings = CollectConfig(
            self.task, self.data, sizes.episodes[self.task], sizes.image_size, sizes.frame_stride,
            render_quality=sizes.render_quality, resume=True,
            disturbance=recipes.DISTURBANCE.get(self.task, 0.0), cluster=self.config.cluster,
        )  # fmt: skip
        minutes = sizes.episodes[self.task] * SECONDS_AN_EPISODE[self.task] / 60
        return Step(f"collect {self.task}", self.data, _plain(settings),
                    lambda: collect(settings), minutes, "collect")  # fmt: skip

    def train(self, model: str, seed: int) -> Step:
        out, tiny = self._run(model, seed), self.config.scale == "tiny"
        size: Any = "paper" if self.config.scale == "paper" else "compact"

        def run() -> None:
            windows = len(EpisodeDataset(self.data, 2, in_memory=False))
            recipe = recipes.training(self.data, out, model, size, self.task, windows)
            changes: dict[str, Any] = {"device": self.config.device}
            if tiny:
                changes |= {"batch_size": 4, "eval_every": 2}
            steps = self._steps(recipe.steps)
            train(replace(recipe, steps=steps, seed=seed, task=self.task, resume=out.exists(),
                          **changes))  # fmt: skip

        settings = {"data": str(self.data), "model": model, "size": size,
                    "share": self.sizes.share, "seed": seed}  # fmt: skip
        steps = recipes.OWN_STEPS.get(self.task, recipes.COMPACT_STEPS)
        return Step(f"train {model} on {self.task}, seed {seed}", out, settings, run,
                    self._steps(steps) * SECONDS_A_STEP / 60, "train")  # fmt: skip

    def residual(self, seed: int) -> Step:
        out = self._run("residual", seed)
        settings = recipes.residual(self._run("bilinear", seed), self.data, out, self.task)
        steps: dict[str, Any] = {name: self._steps(getattr(settings, name)) for name in
                 ("steps", "weigh_steps", "refit_steps")}  # fmt: skip
        settings = replace(settings, seed=seed, device=self.config.device, **steps)
        if self.config.scale == "paper":  # the vision transformer has no points to weigh
            settings = replace(settings, weigh_steps=0, refit_steps=0)
        return Step(f"train the residual on {self.task}, seed {seed}", out, _plain(settings),
                    lambda: train_residual(replace(settings, resume=out.exists())),
                    settings.steps * 0.02 / 60, "residual")  # fmt: skip

    def prior(self, seed: int) -> Step:
        out = self._run("prior", seed)
        settings = recipes.prior(self._without_prior("bilinear", seed), self.data, out, self.task)
        settings = replace(settings, seed=seed, device=self.config.device,
                           steps=self._steps(settings.steps))  # fmt: skip
        if self.config.scale == "tiny":
            settings = replace(settings, hidden=16)
        return Step(f"train the prior on {self.task}, seed {seed}", out, _plain(settings),
                    lambda: train_prior(replace(settings, resume=out.exists())),
                    settings.steps * 0.05 / 60, "prior")  # fmt: skip

    def _steps(self, steps: int) -> int:
        return max(round(self.sizes.share * steps), 4)

    # What is measured with them.

    def evaluation(self, each: Experiment, seed: int) -> Step:
        """Fixed goals."""
        out, floor = self._out(each, seed), each.planner in FLOORS
        paper = self.config.scale == "paper" or each.settings.get("paper_settings", False)
        recipe = recipes.evaluation(self.task, each.planner, each.offset, paper, each.model)
        options = {} if floor else recipe.planner_options | each.budget
        settings = replace(
            recipe,
            checkpoint=None if floor else self.checkpoint(each.model, seed),
            planner_options=options,
            **each.settings,
            **self._shared(out),
            floors=False,
            trajectories=self.task == "tworoom" and each.offset == 25 and not each.variant,
            workers=self.config.workers,
            cluster=self.config.cluster,
        )
        return self._measured(each, seed, settings, evaluate, "evaluate")

    def chase(self, each: Experiment, seed: int) -> Step:
        """Moving goals."""
        out, floor = self._out(each, seed), each.planner in FLOORS
        paper = self.config.scale == "paper"
        recipe = recipes.evaluation(self.task, each.planner, 25, paper, each.model)
        settings = RealtimeConfig(
            self.task,
            None if floor else self.checkpoint(each.model, seed),
            each.planner,
            {} if floor else recipe.planner_options | each.budget,
            recipe.horizon,
            **each.settings,
            **self._shared(out),
        )
        return self._measured(each, seed, settings, run_realtime, "realtime")

    def _shared(self, out: Path) -> dict[str, Any]:
        """What fixed and moving goals have in common: the same tasks for every method."""
        held_out = None if self.config.data is None else self.data  # else fresh, undisturbed ones
        return {"episodes": self.sizes.tasks, "seed": 1, "data": held_out, "out": out,
                "device": self.config.device}  # fmt: skip

    def _out(self, each: Experiment, seed: int) -> Path:
        return self.config.out / "results" / f"{each.name(self.task, seed)}.jsonl"

    def _measured(
        self,
        each: Experiment,
        seed: int,
        settings: EvaluateConfig | RealtimeConfig,
        run: Callable[[Any], Any],
        stage: str,
    ) -> Step:
        out = self._out(each, seed)
        seconds = SECONDS_A_TASK.get(each.planner, SECONDS_OF_SAMPLING) * each.offset / 25
        if each.budget:
            seconds *= each.budget["samples"] * each.budget["iterations"] / 9000
        return Step(f"{stage} {out.stem}", out, _plain(settings),
                    lambda: run(replace(settings, resume=out.exists())),
                    self.sizes.tasks * seconds / 60, stage, each.parts)  # fmt: skip

    def geometry(self, model: str, seed: int) -> Step:
        name = f"{self.task}-{model}" + f"-s{seed}" * (seed > 0)
        out = self.config.out / "results" / "geometry" / name
        settings = GeometryConfig(
            self.checkpoint(model, seed), self.data, out, device=self.config.device
        )
        return Step(f"geometry {name}", out / "geometry.json", _plain(settings),
                    lambda: run_geometry(settings), 0.5, "geometry", ("fig2",))  # fmt: skip


def _plain(settings: Any) -> dict[str, Any]:
    return {
        name: str(value)
        for name, value in vars(settings).items()
        if name not in ("resume", "workers", "device", "cluster")
    }
