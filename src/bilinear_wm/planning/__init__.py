"""Planners: (dynamics, problem) to plan. They never see an encoder, an environment or a logger."""

from bilinear_wm.planning.adam import AdamConfig, AdamPlanner
from bilinear_wm.planning.base import Plan, Planner, PlannerConfig, PlanProblem
from bilinear_wm.planning.cem import CEMConfig, CEMPlanner
from bilinear_wm.planning.gauss_newton import GaussNewtonConfig, GaussNewtonPlanner
from bilinear_wm.planning.icem import ICEMConfig, ICEMPlanner
from bilinear_wm.planning.mppi import MPPIConfig, MPPIPlanner
from bilinear_wm.planning.objective import Term
from bilinear_wm.planning.terms import ActionLimit, KeepOut, StateGoal, StatePath
from bilinear_wm.registry import PLANNERS

__all__ = [
    "PLANNERS",
    "ActionLimit",
    "AdamConfig",
    "AdamPlanner",
    "CEMConfig",
    "CEMPlanner",
    "GaussNewtonConfig",
    "GaussNewtonPlanner",
    "ICEMConfig",
    "ICEMPlanner",
    "KeepOut",
    "MPPIConfig",
    "MPPIPlanner",
    "Plan",
    "PlanProblem",
    "Planner",
    "PlannerConfig",
    "StateGoal",
    "StatePath",
    "Term",
]
