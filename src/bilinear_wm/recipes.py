"""Every published run as a Python function that returns its full configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bilinear_wm.errors import InputError
from bilinear_wm.evaluate import EvaluateConfig
from bilinear_wm.models.config import ENCODER_SIZES, Size
from bilinear_wm.models.predictor import PREDICTOR_SIZES
from bilinear_wm.models.smwm import INVERSE_WEIGHTS
from bilinear_wm.train import TrainConfig

PAPER_EPOCHS = 10
MOTION: dict[str, Any] = {
    "forward_unit": "motion",
    "gain_init": 0.1,
    "inverse_weight": 3.0,
    "min_singular": 1e-4,
}
"""The forward error in units of motion; R starts small and stays above 0.01."""
COMPACT_OPTIONS: dict[str, dict[str, Any]] = {"tworoom": MOTION, "cube": MOTION}
"""Where a compact bilinear model departs from the paper's objective."""


COMPACT_STEPS = {"tworoom": 1500, "pusht": 1300, "reacher": 2200, "cube": 1200}
"""Of the pretrained models."""


def training(data: Path, out: Path, model: str, size: Size, task: str, windows: int) -> TrainConfig:
    """The run that trains `model` at `size` on a file with that many training windows."""
    if size == "paper":
        return paper(data, out, model, task, windows)
    if size == "compact":
        return compact(data, out, model, task)
    raise InputError(f"--size: expected one of {', '.join(ENCODER_SIZES)}, found {size!r}")


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
    """Two CPU cores, 64 px: windows of four pictures, so that each serves two transitions.

    The encoder's stem has batch norms, which see soon how things are turned. In TwoRoom, where
    nothing turns, it does without. In TwoRoom and Cube the forward error is measured in units of
    motion. docs/training.md and docs/experiments.md have the comparisons.
    """
    history = 1 if task == "tworoom" or model != "lewm" else 3
    options = _options(model, "compact", task, history) | {"stem_norm": task != "tworoom"}
    if model == "bilinear":
        options |= COMPACT_OPTIONS.get(task, {})
    return TrainConfig(data, out, model, options=options, steps=COMPACT_STEPS.get(task, 2000))


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
"""The paper's table of Gauss-Newton settings; what all tasks share are the defaults."""
PAPER_HORIZONS = {"reacher": 3}

COMPACT_PLANS: dict[str, dict[str, Any]] = {
    "tworoom": {"effort": 1e-5, "damping": 1e-6},
    "reacher": {"effort": 0.01},
    "cube": {"effort": 1e-5, "damping": 1e-6},
}
"""What served the compact models best; docs/experiments.md tells how it was found."""
COMPACT_HORIZONS = {"reacher": 2, "pusht": 2}
COMPACT_REPLANNING = {"cube": 1}
"""Blocks executed before the next plan, where that is better than the whole plan."""
GROWING = ("tworoom",)
"""Tasks whose compact horizon grows with the offset: a block for every five steps."""


def evaluation(
    task: str, planner: str, offset: int = 25, paper_settings: bool = False
) -> EvaluateConfig:
    """How a task is evaluated: our settings for the compact models, or the paper's table.

    The paper's horizons are those of offset 25; beyond it they seem to grow with the offset.
    """
    options: dict[str, Any] = {}
    if planner == "gauss-newton":
        options = dict((PAPER_PLANS if paper_settings else COMPACT_PLANS).get(task, {}))
    if paper_settings:
        horizon = PAPER_HORIZONS.get(task, 5) * offset // 25
    else:
        horizon = offset // 5 if task in GROWING else COMPACT_HORIZONS.get(task, 5)
    return EvaluateConfig(
        task,
        planner=planner,
        planner_options=options,
        offset=offset,
        horizon=max(horizon, 1),
        replan_every=None if paper_settings else COMPACT_REPLANNING.get(task),
    )


PLAY_HORIZONS = {"tworoom": (8, 16), "reacher": (1, 1), "pusht": (2, 2)}
"""At first, and at most. TwoRoom's are long: the way through the door is found by plans that reach
beyond it. Reacher's is short: a picture hides the velocity, and a plan begun anew every step
assumes rest."""


def playing(task: str) -> tuple[dict[str, dict[str, Any]], tuple[int, int]]:
    """Planner options by planner, and the horizons, for `bwm play`."""
    effort = COMPACT_PLANS.get(task, {}).get("effort", 0.01)
    options = {"gauss-newton": COMPACT_PLANS.get(task, {}), "icem": {"effort": effort}}
    return options, PLAY_HORIZONS.get(task, (5, 5))
