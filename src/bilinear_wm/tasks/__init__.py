"""The worlds: gymnasium environments with pictures, and nothing of torch."""

from __future__ import annotations

import gymnasium

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
