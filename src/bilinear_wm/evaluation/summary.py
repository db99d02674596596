"""What an evaluation found: numbers, and a few lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bilinear_wm.reporting.results import EpisodeResult, Rate, mean_jerk, percentile, rate

if TYPE_CHECKING:
    from bilinear_wm.evaluation.evaluate import EvaluateConfig


@dataclass(frozen=True)
class Times:
    """Of single calls, in milliseconds."""

    ms_per_plan_p50: float
    """One planning call for one episode."""
    ms_per_plan_p99: float
    ms_encode_p50: float
    """Encoding one picture."""

    @classmethod
    def of(cls, plans: Sequence[float], encoding: Sequence[float]) -> Self:
        """Of calls that took so many seconds."""
        p50, p99 = (1e3 * percentile(plans, share) for share in (50, 99))
        return cls(p50, p99, 1e3 * percentile(encoding, 50))

    @classmethod
    def read(cls, numbers: Mapping[str, float | None]) -> Self:
        """The inverse of `numbers`."""
        return cls(**{k: float("nan") if v is None else v for k, v in numbers.items()})

    def numbers(self) -> dict[str, float | None]:
        """Flat, for JSON, which has no NaN."""
        return {k: None if np.isnan(v) else round(v, 3) for k, v in vars(self).items()}


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    success: Rate
    success_unsolved: Rate
    """Over episodes that the start does not solve."""
    solved_at_start: float
    floor_random: Rate | None
    floor_none: Rate | None
    times: Times
    plan_seconds_per_episode: float
    plan_seconds_total: float
    jerk: float
    distance_median: float
    alarms: int
    episodes: int

    def numbers(self) -> dict[str, Any]:
        """Flat, for JSON."""
        floors = {"floor_random": self.floor_random, "floor_none": self.floor_none}
        return {
            **{k: v for k, v in vars(self).items() if k != "times"},
            **vars(self.times),
            "success": self.success.value,
            "interval": [self.success.low, self.success.high],
            "success_unsolved": self.success_unsolved.value,
            "interval_unsolved": [self.success_unsolved.low, self.success_unsolved.high],
            **{name: floor.value if floor else None for name, floor in floors.items()},
        }


def summarize(
    rows: Sequence[EpisodeResult], floors: dict[str, Rate | None], times: Times
) -> Evaluation:
    """Of all episodes, the floors' rates, and the times of single calls."""
    return Evaluation(
        success=rate([row.success for row in rows]),
        success_unsolved=rate([row.success for row in rows if not row.solved_at_start]),
        solved_at_start=float(np.mean([row.solved_at_start for row in rows])),
        floor_random=floors["random"],
        floor_none=floors["none"],
        times=times,
        plan_seconds_per_episode=float(np.mean([row.plan_seconds for row in rows])),
        plan_seconds_total=float(np.sum([row.plan_seconds for row in rows])),
        jerk=mean_jerk(rows),
        distance_median=float(np.median([row.distance for row in rows])),
        alarms=sum(row.alarms for row in rows),
        episodes=len(rows),
    )


def describe(config: EvaluateConfig, result: Evaluation) -> str:
    """A few lines for people."""
    lines = [
        f"{config.task} @{config.offset}, {config.planner}: success {result.success} of "
        f"{result.episodes}; without those solved at the start "
        f"({100 * result.solved_at_start:.1f} %) {result.success_unsolved}"
    ]
    if result.floor_random is not None and result.floor_none is not None:
        lines.append(
            f"on the same tasks: random actions {result.floor_random}, none {result.floor_none}"
        )
    times = result.times
    if not np.isnan(times.ms_per_plan_p50):
        lines.append(
            f"planning: {times.ms_per_plan_p50:.2f} ms a call for one episode (p50; p99 "
            f"{times.ms_per_plan_p99:.2f}), {1e3 * result.plan_seconds_per_episode:.1f} ms an "
            f"episode, {result.plan_seconds_total:.2f} s in all; encoding a picture "
            f"{times.ms_encode_p50:.2f} ms"
        )
    lines.append(
        f"jerk {result.jerk:.3f}; final distance {result.distance_median:.2f} of what counts as "
        "success (median)"
    )
    if config.monitor:
        lines.append(f"the monitor fired {result.alarms} times")
    if config.video is not None:
        lines.append(f"videos: {config.video}")
    if config.out is not None:
        lines.append(f"written: {config.out}")
    return "\n".join(lines)
