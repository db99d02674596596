"""The worlds: gymnasium environments with pictures, and nothing of torch."""

from __future__ import annotations

import importlib

import gymnasium

from bilinear_wm.errors import InputError
from bilinear_wm.tasks.base import RenderQuality, Task

_CLASSES = {"tworoom": "TwoRoom", "pusht": "PushT", "reacher": "Reacher", "cube": "Cube"}
TASK_NAMES = tuple(_CLASSES)
REGISTERED: dict[str, type[Task]] = {}
"""Tasks of your own, by name: `make_task` and every stage then know them in this process."""

for _name, _class in _CLASSES.items():
    gymnasium.register(f"bilinear_wm/{_class}-v0", f"bilinear_wm.tasks.{_name}:{_class}")


def task_class(name: str) -> type[Task]:
    """The class of a task, imported on demand: each needs its own simulator."""
    if name in REGISTERED:
        return REGISTERED[name]
    if name not in _CLASSES:
        known = ", ".join((*TASK_NAMES, *REGISTERED))
        raise InputError(f"task: expected one of {known}, found {name!r}")
    try:
        module = importlib.import_module(f"bilinear_wm.tasks.{name}")
    except ModuleNotFoundError as error:
        raise InputError(
            f"task {name!r} needs the package {error.name!r}: "
            "pip install 'bilinear-world-models[envs]'"
        ) from error
    cls: type[Task] = getattr(module, _CLASSES[name])
    return cls


def make_task(name: str, image_size: int = 224, render_quality: RenderQuality = "faithful") -> Task:
    """Make one of the four worlds.

    Args:
        name: `tworoom`, `pusht`, `reacher` or `cube`.
        image_size: Height and width of the pictures.
        render_quality: `faithful` for the benchmark's picture, `fast` for data by the hour.
    """
    return task_class(name)(image_size=image_size, render_quality=render_quality)
