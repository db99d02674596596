"""Parts of an evaluation done by other processes, here or on a cluster.

A share is the tasks that run side by side, so that plans are made for the same groups whoever
makes them, and results are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bilinear_wm.evaluation.goals import StartGoal
from bilinear_wm.executors import Helpers, in_order
from bilinear_wm.registry import load_plugin, loaded_plugins
from bilinear_wm.reporting.results import EpisodeResult

if TYPE_CHECKING:
    from bilinear_wm.evaluation.evaluate import EvaluateConfig


@dataclass(frozen=True)
class Share:
    """Some tasks of an evaluation, with all that a worker must know."""

    config: EvaluateConfig
    tasks: tuple[StartGoal, ...]
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """An attempt that somebody else has made."""

    row: EpisodeResult

    def result(self, trajectory: bool = False) -> EpisodeResult:
        """How it went; the worker knew whether states are wanted."""
        return self.row


def attempted_by(by: Helpers, config: EvaluateConfig, tasks: Sequence[StartGoal]) -> Iterator[Done]:
    """Attempts at the tasks, in their order."""
    size = 1 if config.one_by_one else config.group
    alone = replace(config, workers=1, cluster=None, out=None, resume=False)
    shares = (
        Share(alone, tuple(tasks[first : first + size]), loaded_plugins())
        for first in range(0, len(tasks), size)
    )
    for rows in in_order(attempt_share, shares, by, lambda: None):
        yield from map(Done, rows)


_kept = threading.local()
"""What this thread has loaded for the last share: most are of one evaluation."""


def attempt_share(share: Share) -> list[EpisodeResult]:
    """What a worker does."""
    from bilinear_wm.evaluation.evaluate import attempts_at, prepare

    if getattr(_kept, "config", None) != share.config:
        for plugin in share.plugins:
            load_plugin(plugin)
        _kept.prepared, _kept.config = prepare(share.config), share.config
    camera, pilot = _kept.prepared
    made = attempts_at(share.config, camera, pilot, share.tasks)
    return [attempt.result(share.config.trajectories) for attempt in made]
