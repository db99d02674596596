"""The worlds: gymnasium environments with pictures, and nothing of torch."""

from __future__ import annotations

from typing import Any

import gymnasium

from bilinear_wm.errors import InputError
from bilinear_wm.registry import TASKS
from bilinear_wm.tasks.base import RenderQuality, Task

TASK_NAMES = TASKS.built_in
"""The benchmark's four; `TASKS` has those of your own as well."""

for _name in TASK_NAMES:
    _address = TASKS.address(_name)
    gymnasium.register(f"bilinear_wm/{_address.partition(':')[2]}-v0", _address)


def task_class(name: str) -> type[Task]:
    """The class of a task, imported on demand: each needs its own simulator."""
    return TASKS[name]


def make_task(name: str, image_size: int = 224, render_quality: RenderQuality = "faithful") -> Task:
    """Make a world.

    Args:
        name: `tworoom`, `pusht`, `reacher`, `cube` or one of your own (`TASKS`).
        image_size: Height and width of the pictures.
        render_quality: `faithful` for the benchmark's picture, `fast` for data by the hour.
    """
    return TASKS[name](image_size=image_size, render_quality=render_quality)


def make_task_for(model: Any) -> Task:
    """The world of a model, which shows pictures as the model knows them.

    Args:
        model: A world model, or whatever has such a `config`.
    """
    facts = model.config
    height, width = facts.picture_shape
    if height != width:
        raise InputError(
            f"model: expected one of square pictures, which tasks draw, found one of {height} x "
            f"{width} px"
        )
    known = facts.render_quality != "unknown"
    return make_task(facts.task, height, facts.render_quality if known else "faithful")
