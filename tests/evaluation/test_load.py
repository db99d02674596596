"""Planners and their options by name."""

from __future__ import annotations

from bilinear_wm import recipes
from bilinear_wm.evaluation.load import make_planner_config


def test_the_papers_settings() -> None:
    config = recipes.evaluation("reacher", "gauss-newton", paper_settings=True)
    assert config.horizon == 3
    made = make_planner_config(config.planner, config.planner_options)
    assert (made.candidates, made.spread, made.iterations, made.refreshed_blocks) == (
        64,
        2.0,
        20,
        3,
    )
    assert (made.effort, made.damping, made.tolerance, made.goal_weight) == (0.01, 1e-4, 1e-6, 1.0)
