"""Bilinear world models: learn from pictures, plan in milliseconds.

    import bilinear_wm as bwm
    env = bwm.make_task("pusht", image_size=64)

Names are imported when first used, so that a worker which only simulates never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bilinear_wm import tasks  # registers the environments with gymnasium

if TYPE_CHECKING:
    __version__: str
    from bilinear_wm.control.horizon import LoopConfig as LoopConfig
    from bilinear_wm.control.pilot import Pilot as Pilot
    from bilinear_wm.control.realtime import RealTimeController as RealTimeController
    from bilinear_wm.control.swm import SwmPolicy as SwmPolicy, SwmSolver as SwmSolver
    from bilinear_wm.data.collect import CollectConfig as CollectConfig
    from bilinear_wm.data.windows import Batch as Batch, EpisodeDataset as EpisodeDataset
    from bilinear_wm.errors import InputError as InputError
    from bilinear_wm.models import load_model as load_model
    from bilinear_wm.models.bilinear import BilinearWorldModel as BilinearWorldModel
    from bilinear_wm.models.lewm import LeWorldModel as LeWorldModel
    from bilinear_wm.models.smwm import SensorimotorWorldModel as SensorimotorWorldModel
    from bilinear_wm.planning import (
        AdamConfig as AdamConfig,
        AdamPlanner as AdamPlanner,
        CEMConfig as CEMConfig,
        CEMPlanner as CEMPlanner,
        GaussNewtonConfig as GaussNewtonConfig,
        GaussNewtonPlanner as GaussNewtonPlanner,
        ICEMConfig as ICEMConfig,
        ICEMPlanner as ICEMPlanner,
        MPPIConfig as MPPIConfig,
        MPPIPlanner as MPPIPlanner,
        Plan as Plan,
        PlanProblem as PlanProblem,
    )
    from bilinear_wm.registry import (
        ENCODERS as ENCODERS,
        FORMATS as FORMATS,
        MODELS as MODELS,
        PLANNERS as PLANNERS,
        TASKS as TASKS,
        load_plugin as load_plugin,
    )
    from bilinear_wm.tasks import (
        TASK_NAMES as TASK_NAMES,
        make_task as make_task,
        make_task_for as make_task_for,
    )
    from bilinear_wm.tasks.base import Task as Task
    from bilinear_wm.training.train import TrainConfig as TrainConfig

_HOME = {
    "AdamConfig": "planning",
    "AdamPlanner": "planning",
    "Batch": "data.windows",
    "BilinearWorldModel": "models.bilinear",
    "CEMConfig": "planning",
    "CEMPlanner": "planning",
    "CollectConfig": "data.collect",
    "ENCODERS": "registry",
    "EpisodeDataset": "data.windows",
    "FORMATS": "registry",
    "GaussNewtonConfig": "planning",
    "GaussNewtonPlanner": "planning",
    "ICEMConfig": "planning",
    "ICEMPlanner": "planning",
    "InputError": "errors",
    "LeWorldModel": "models.lewm",
    "MODELS": "registry",
    "MPPIConfig": "planning",
    "MPPIPlanner": "planning",
    "PLANNERS": "registry",
    "LoopConfig": "control.horizon",
    "Pilot": "control.pilot",
    "Plan": "planning",
    "PlanProblem": "planning",
    "RealTimeController": "control.realtime",
    "SensorimotorWorldModel": "models.smwm",
    "SwmPolicy": "control.swm",
    "SwmSolver": "control.swm",
    "TASKS": "registry",
    "TASK_NAMES": "tasks",
    "Task": "tasks.base",
    "TrainConfig": "training.train",
    "load_model": "models",
    "load_plugin": "registry",
    "make_task": "tasks",
    "make_task_for": "tasks",
}

__all__ = ["__version__", *sorted(_HOME), "tasks"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOME:
        raise AttributeError(f"module 'bilinear_wm' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bilinear_wm.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("bilinear-world-models")
    except PackageNotFoundError:
        return "unknown (not installed)"
