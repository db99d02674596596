"""Planners: (dynamics, problem) to plan. They never see an encoder, an environment or a logger.

Names are imported when first used: the kernel beside them works without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bilinear_wm.registry import PLANNERS

if TYPE_CHECKING:
    from bilinear_wm.planning.adam import AdamConfig as AdamConfig, AdamPlanner as AdamPlanner
    from bilinear_wm.planning.base import (
        Plan as Plan,
        Planner as Planner,
        PlannerConfig as PlannerConfig,
        PlanProblem as PlanProblem,
    )
    from bilinear_wm.planning.cem import CEMConfig as CEMConfig, CEMPlanner as CEMPlanner
    from bilinear_wm.planning.gauss_newton import (
        GaussNewtonConfig as GaussNewtonConfig,
        GaussNewtonPlanner as GaussNewtonPlanner,
    )
    from bilinear_wm.planning.icem import ICEMConfig as ICEMConfig, ICEMPlanner as ICEMPlanner
    from bilinear_wm.planning.mppi import MPPIConfig as MPPIConfig, MPPIPlanner as MPPIPlanner
    from bilinear_wm.planning.objective import Term as Term
    from bilinear_wm.planning.terms import (
        ActionLimit as ActionLimit,
        KeepOut as KeepOut,
        StateGoal as StateGoal,
        StatePath as StatePath,
    )

_HOME = {
    "ActionLimit": "terms",
    "AdamConfig": "adam",
    "AdamPlanner": "adam",
    "CEMConfig": "cem",
    "CEMPlanner": "cem",
    "GaussNewtonConfig": "gauss_newton",
    "GaussNewtonPlanner": "gauss_newton",
    "ICEMConfig": "icem",
    "ICEMPlanner": "icem",
    "KeepOut": "terms",
    "MPPIConfig": "mppi",
    "MPPIPlanner": "mppi",
    "Plan": "base",
    "PlanProblem": "base",
    "Planner": "base",
    "PlannerConfig": "base",
    "StateGoal": "terms",
    "StatePath": "terms",
    "Term": "objective",
}

__all__ = ["PLANNERS", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bilinear_wm.planning' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bilinear_wm.planning.{_HOME[name]}"), name)
