"""Episodes in order, simulated here or elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from bilinear_wm.data.episode import episode_seed, run_episode
from bilinear_wm.data.file import Episode, Provenance
from bilinear_wm.executors import Helpers, in_order
from bilinear_wm.registry import load_plugin, loaded_plugins
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task


@dataclass(frozen=True)
class Order:
    """One episode to record, with all that a worker must know."""

    wanted: Provenance
    index: int
    plugins: tuple[str, ...] = ()


def record_all(
    wanted: Provenance, indices: range, by: Helpers | None, check: Callable[[], None]
) -> Generator[Episode]:
    """Episodes in order.

    Args:
        wanted: What to record.
        indices: Which episodes.
        by: Who simulates; None for this process.
        check: Called often: raises to stop.
    """
    orders = (Order(wanted, index, loaded_plugins()) for index in indices)
    if by is None:
        return (_record(order, check) for order in orders)
    return in_order(record, orders, by, check)


def record(order: Order) -> Episode:
    """What a worker does."""
    return _record(order, None)


_kept = threading.local()
"""The last task that this thread simulated: making one costs more than an episode."""


def _record(order: Order, check: Callable[[], None] | None) -> Episode:
    wanted = order.wanted
    env = _task(wanted, order.plugins)
    seed = episode_seed(wanted.seed, order.index)
    return run_episode(env, seed, wanted.frame_stride, wanted.disturbance, check)


def _task(wanted: Provenance, plugins: tuple[str, ...]) -> Task:
    facts = wanted.task, wanted.image_size, wanted.render_quality
    if getattr(_kept, "facts", None) != facts:
        for plugin in plugins:
            load_plugin(plugin)
        quality: Any = wanted.render_quality
        _kept.env, _kept.facts = make_task(wanted.task, wanted.image_size, quality), facts
    env: Task = _kept.env
    return env
