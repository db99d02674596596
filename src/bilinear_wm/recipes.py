"""Every published run as a Python function that returns its full configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig
from bilinear_wm.evaluation.moving import RealtimeConfig
from bilinear_wm.models.config import ENCODER_SIZES, Size
from bilinear_wm.models.predictor import PREDICTOR_SIZES
from bilinear_wm.models.smwm import INVERSE_WEIGHTS
from bilinear_wm.training.prior import PriorConfig
from bilinear_wm.training.residual import ResidualConfig
from bilinear_wm.training.train import TrainConfig

PAPER_EPOCHS = 10
COMPACT_OBJECTIVE: dict[str, Any] = {
    "forward_unit": "motion",
    "gain_init": 0.3,
    "inverse_weight": 3.0,
}
"""Where a compact bilinear model departs from the paper's objective, besides the anchor: the
forward error in units of motion, with R starting small."""
COMPACT_STEPS, OWN_STEPS = 2500, {"tworoom": 1000, "reacher": 1500}
"""Of the pretrained models: PushT's, and of those that were done sooner."""
RESIDUAL_STEPS = {"pusht": 33_000}
COMPACT_EPISODES = {"tworoom": 4000, "pusht": 12_000, "reacher": 3000, "cube": 3000}
NO_RESIDUAL = ("tworoom", "cube")
"""Tasks whose shipped models have none; docs/experiments.md tells what it would cost."""
PRIOR_STEPS = {"cube": 16_000}
"""Of the action prior, where a task has one: grasps are known along the behaviour alone."""
DISTURBANCE = {"pusht": 0.25, "cube": 0.5}
"""Of the behaviour data (`bwm collect --disturbance`), where its habits hide what actions do."""


def for_training(given: TrainConfig) -> TrainConfig:
    """The run that trains a model on a file, as `given` names and sizes them."""
    # Only the file's facts are needed here: nothing is loaded.
    episodes = EpisodeDataset(given.data, num_frames=2, in_memory=False)
    task = episodes.file.task or given.task or "unknown"
    return replace(
        training(given.data, given.out, given.model, given.size, task, len(episodes)),
        size=given.size,
    )


def training(data: Path, out: Path, model: str, size: Size, task: str, windows: int) -> TrainConfig:
    """The run that trains `model` at `size` on a file with that many training windows."""
    if size == "paper":
        return paper(data, out, model, task, windows)
    if size == "compact":
        return compact(data, out, model, task)
    raise InputError(f"size: expected one of {', '.join(ENCODER_SIZES)}, found {size!r}")


def paper(data: Path, out: Path, model: str, task: str, windows: int) -> TrainConfig:
    """The paper's scale: ViT-Tiny at 224 px on a GPU; 10 epochs with the baselines' settings.

    The bilinear model trains on pairs of pictures by the paper's objective and nothing else.
    """
    history = 1 if task == "tworoom" or model != "lewm" else 3
    batch = 128 if model == "lewm" else 256
    return TrainConfig(
        data,
        out,
        model,
        options=_options(model, "paper", task, history),
        steps=max(PAPER_EPOCHS * windows // batch, 1),
        batch_size=batch,
        num_frames=history + 1,
        learning_rate=5e-5 if model == "lewm" else 1e-4,
        eval_every=2000,
        save_every=1000,
    )


def compact(data: Path, out: Path, model: str, task: str) -> TrainConfig:
    """Two CPU cores: the points encoder with the drawing anchor, one recipe for all tasks.

    Windows of three pictures, so that each shows motion to the anchor and most serve two
    transitions. docs/training.md has the comparisons.
    """
    history = 1 if task == "tworoom" or model != "lewm" else 3
    options = _options(model, "compact", task, history)
    if model == "bilinear":
        options |= COMPACT_OBJECTIVE
    return TrainConfig(
        data,
        out,
        model,
        options=options,
        steps=OWN_STEPS.get(task, COMPACT_STEPS),
        batch_size=64,
        num_frames=max(3, history + 1),
        learning_rate=2e-3,
        weight_decay=1e-4,
        clip_norm=5.0,
    )


def residual(checkpoint: Path, data: Path, out: Path, task: str) -> ResidualConfig:
    """The second stage of a compact bilinear model."""
    config = ResidualConfig(checkpoint, data, out)
    return replace(config, steps=RESIDUAL_STEPS.get(task, config.steps))


def prior(checkpoint: Path, data: Path, out: Path, task: str) -> PriorConfig:
    """The last stage of a compact bilinear model, where its task has one."""
    return PriorConfig(checkpoint, data, out, steps=PRIOR_STEPS[task])


def _options(model: str, size: Size, task: str, history: int) -> dict[str, Any]:
    options = dict(ENCODER_SIZES[size])
    if model in ("lewm", "smwm"):
        options |= PREDICTOR_SIZES[size] | {"history": history}
    if model == "smwm":
        options["inverse_weight"] = INVERSE_WEIGHTS.get(task, 1.0)
    return options


PAPER_PLANS: dict[str, dict[str, Any]] = {
    "pusht": {"refreshed_blocks": 5, "iterations": 40, "candidates": 16, "spread": 0.5},
    "reacher": {"refreshed_blocks": 3, "iterations": 20, "candidates": 64, "spread": 2.0},
    "tworoom": {"refreshed_blocks": 3, "iterations": 40},
    "cube": {"refreshed_blocks": 3, "iterations": 20},
}
"""The paper's table of Gauss-Newton settings; what all tasks share are the defaults, and
derivatives by finite differences."""
PAPER_HORIZONS = {"reacher": 3}

COMPACT_PLAN: dict[str, Any] = {
    "effort": 5e-3, "candidates": 16, "spread": 1.0, "starts": 1, "tolerance": 1e-3,
}  # fmt: skip
"""One setting for all compact models; docs/experiments.md tells how it was found."""
OWN_PLANS: dict[str, dict[str, Any]] = {
    "pusht": COMPACT_PLAN | {"candidates": 64, "starts": 16},
    "cube": {"effort": 0.03, "damping": 1e-4},
}
"""PushT's contacts make local minima, so it is worth searching from more places. Cube's plans stay
near its prior, which effort counts from; the search has one place to begin."""
COMPACT_HORIZONS = {"reacher": 2}
"""Blocks that a plan looks ahead, where that is not a block for every five steps of the offset: a
picture hides Reacher's velocity, so short plans win."""
COMPACT_REPLANNING: dict[str, tuple[int, Literal["plan", "deadline"]]] = {
    "reacher": (1, "plan"),
    "cube": (1, "deadline"),
}
"""Blocks executed before the next plan, and when plans arrive, where that is not as for the others:
every two blocks, at the end of the budget."""


def evaluation(
    task: str,
    planner: str,
    offset: int = 25,
    paper_settings: bool = False,
    model: str = "bilinear",
) -> EvaluateConfig:
    """How a task is evaluated: our settings for the compact models, or the paper's table.

    Horizon and replanning are the task's, whatever the model.

    The paper's horizons are those of offset 25; beyond it they seem to grow with the offset.
    """
    options: dict[str, Any] = {}
    if planner == "gauss-newton":
        own = OWN_PLANS.get(task, COMPACT_PLAN) if model == "bilinear" else COMPACT_PLAN
        theirs = PAPER_PLANS.get(task, {}) | {"sensitivities": "finite-difference"}
        options = dict(theirs if paper_settings else own)
    if paper_settings:
        horizon = PAPER_HORIZONS.get(task, 5) * offset // 25
    else:
        horizon = COMPACT_HORIZONS.get(task, offset // 5)
    replan_every, arrive = COMPACT_REPLANNING.get(task, (2, "deadline"))
    return EvaluateConfig(
        task,
        planner=planner,
        planner_options=options,
        offset=offset,
        horizon=max(horizon, 1),
        replan_every=None if paper_settings else min(replan_every, max(horizon, 1)),
        arrive="plan" if paper_settings else arrive,
    )


def for_evaluation(given: EvaluateConfig) -> EvaluateConfig:
    """How a task is evaluated, for what `given` asks of it."""
    return replace(
        evaluation(given.task, given.planner, given.offset, given.paper_settings),
        paper_settings=given.paper_settings,
    )


def for_moving_goals(given: RealtimeConfig) -> RealtimeConfig:
    """How moving goals of a task are chased: the settings of its fixed goals."""
    recipe = evaluation(given.task, given.planner, given.offset, given.paper_settings)
    return replace(given, planner_options=recipe.planner_options, horizon=recipe.horizon)


PLAY_LOOPS = {
    "tworoom": LoopConfig(8, max_horizon=16),
    "reacher": LoopConfig(1),
}
"""How plans are made in play, where that is not five blocks at a time. TwoRoom's are long: the way
through the door is found by plans that reach beyond it. Reacher's are short: a picture hides the
velocity, and a plan begun anew every step assumes rest."""


def playing(task: str) -> tuple[dict[str, dict[str, Any]], LoopConfig]:
    """Planner options by planner, and the loop, for `bwm play`.

    Plans that stay near a prior do so here as well; all others search from four places, since goals
    lie anywhere, and are still there in time for the next action.
    """
    wide = COMPACT_PLAN | {"candidates": 64, "starts": 4}
    plan = OWN_PLANS[task] if task in PRIOR_STEPS else wide
    options = {"gauss-newton": dict(plan), "icem": {"effort": plan["effort"]}}
    return options, PLAY_LOOPS.get(task, LoopConfig(COMPACT_HORIZONS.get(task, 5)))
