"""Figures that others published, for the columns beside ours. Success in per cent."""

from __future__ import annotations

TASKS = ("tworoom", "pusht", "reacher", "cube")
MODELS = ("bilinear", "smwm", "lewm")
OWN_PLANNERS = {"bilinear": "gauss-newton", "smwm": "cem", "lewm": "cem"}
"""Which planner the authors of each model use."""

SUCCESS_25: dict[str, dict[str, float]] = {
    "bilinear": {"tworoom": 100, "pusht": 90, "reacher": 75, "cube": 99},
    "smwm": {"tworoom": 100.0, "pusht": 84.4, "reacher": 71.4, "cube": 83.0},
    "lewm": {"tworoom": 92.6, "pusht": 88.8, "reacher": 67.8, "cube": 60.0},
}
"""Fixed goals 25 steps ahead: the paper's, and the baselines as SMWM's authors measured them."""
RANDOM_25: dict[str, float] = {"tworoom": 30, "pusht": 2.8, "reacher": 13.6, "cube": 43}

MOVING: dict[str, float] = {"tworoom": 68, "pusht": 77, "reacher": 71, "cube": 93}
MOVING_BEST_BASELINE: dict[str, float] = {"tworoom": 46, "pusht": 47, "reacher": 45, "cube": 63}
