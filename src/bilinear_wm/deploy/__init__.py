"""On a robot: plan from a bundle of `bwm export`, without torch.

from bilinear_wm import deploy
bundle = deploy.load("tworoom.bundle")
goal = bundle.encode(goal_picture)
plan = bundle.plan(picture, goal)
plan.actions                              # raw actions, one row per environment step
"""

from __future__ import annotations

from bilinear_wm.deploy.bundle import Bundle, Plan, load

__all__ = ["Bundle", "Plan", "load"]
