"""Moving goals against the real clock: the simulator in the place of a robot.

    bwm realtime --live --checkpoint pretrained/tworoom --task tworoom

The `RealTimeController` ticks; each tick the simulator takes the action, the goal moves, and
new pictures of both go to the controller. Nothing about latency is assumed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bilinear_wm import view
from bilinear_wm.control.loop import Tick
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.attempt import Attempt, open_results, record
from bilinear_wm.evaluation.goals import StartGoal
from bilinear_wm.evaluation.load import load_planner, make_pilot
from bilinear_wm.evaluation.moving import RealtimeConfig, begin, countable_tasks
from bilinear_wm.evaluation.watch import Watcher
from bilinear_wm.reporting.results import Rate, percentile, rate
from bilinear_wm.tasks import make_task


@dataclass(frozen=True)
class Live:
    """What a live run found."""

    success: Rate
    rate_hz: float
    """Ticks a second that were achieved."""
    late_ms_p50: float
    late_ms_p99: float
    late_ms_max: float
    missed: int
    """Ticks left out because the loop was behind by more than a period."""
    sources: dict[str, float]
    """Shares of the ticks: new plan, best so far, rest of the last plan, hold."""
    failures: int
    ticks: int
    episodes: int

    def numbers(self) -> dict[str, Any]:
        """Flat, for JSON."""
        return {
            **vars(self),
            "success": self.success.value,
            "interval": [self.success.low, self.success.high],
        }


class _Robot:
    """A simulated task that acts when told and looks around at once."""

    def __init__(self, attempt: Attempt, pilot: Pilot, config: RealtimeConfig) -> None:
        self.attempt = attempt
        self.ticks: list[Tick] = []
        self.done = threading.Event()
        self.controller = RealTimeController(
            pilot.model,
            pilot.planner,
            config.control_hz,
            config.loop,
            pilot=pilot,
            on_tick=self._on_tick,
            on_plan=attempt.planned,
        )
        attempt.look(self.controller)

    def _on_tick(self, tick: Tick) -> None:
        if self.done.is_set():
            return
        self.ticks.append(tick)
        self.attempt.act(tick)
        if self.attempt.running:
            self.attempt.look(self.controller)
        else:
            self.done.set()

    def run(self) -> None:
        """Until the attempt ends, or the loop."""
        with self.controller:
            while not self.done.wait(0.5) and self.controller.running:
                pass


def run_live(config: RealtimeConfig, progress: bool = True) -> Live:
    """Chase moving goals in real time, one after another; the controller plans as it always does.

    Finished episodes are in `config.out` whatever happens, and its header tells of every sitting
    how steady the clock was.
    """
    if config.planner == "random" or config.latency_ms is not None:
        raise InputError(
            "live: expected a planner and no `latency_ms` beside it, found "
            f"{config.planner!r} and {config.latency_ms}"
        )
    config = replace(config, protocol="controller")
    loaded = load_planner(
        config.task, config.checkpoint, config.planner, config.planner_options, config.device
    )
    pilot = make_pilot(loaded, config.data, config.monitor)
    env = make_task(config.task, image_size=8)
    tasks, _ = countable_tasks(config, env)
    robots: list[_Robot] = []
    watcher: Watcher | None = None

    def attempts(some: Sequence[StartGoal]) -> Iterator[Attempt]:
        for task in some:
            attempt = begin(config, task, env, loaded.camera, pilot, watcher)
            robots.append(_Robot(attempt, pilot, config))
            robots[-1].run()
            yield robots[-1].attempt

    header = config.header() | {"live": True}
    with (
        open_results(config.out, header, pilot, config.resume) as file,
        view.opened(config.view, config.out) as shown,
    ):
        watcher = None if shown is None else Watcher(shown, pilot.model)
        try:
            rows = record(attempts, tasks, f"live {config.task}", file, progress=progress)
        finally:
            sitting = _sitting(robots)
            if file is not None and robots:
                file.note("sittings", sitting)
    return Live(rate([row.success for row in rows]), episodes=len(rows), **sitting)


def _sitting(robots: Sequence[_Robot]) -> dict[str, Any]:
    """How steady the clock was, and what the ticks did."""
    ticks = [tick for robot in robots for tick in robot.ticks]
    late = [1e3 * tick.late_s for tick in ticks]
    gaps = [gap for robot in robots for gap in np.diff([tick.time for tick in robot.ticks])]
    return {
        "rate_hz": 1 / float(np.mean(gaps)) if gaps else float("nan"),
        "late_ms_p50": percentile(late, 50),
        "late_ms_p99": percentile(late, 99),
        "late_ms_max": max(late, default=float("nan")),
        "missed": sum(robot.controller.missed for robot in robots),
        "sources": {
            name: sum(tick.source == name for tick in ticks) / max(len(ticks), 1)
            for name in ("plan", "best-so-far", "rest", "hold")
        },
        "failures": sum(robot.controller.loop.failures for robot in robots),
        "ticks": len(ticks),
    }


def describe(config: RealtimeConfig, result: Live) -> str:
    """A few lines for people."""
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result.sources.items())
    lines = [
        f"M-{config.task} live at {config.control_hz:g} Hz, {config.planner}: success "
        f"{result.success} of {result.episodes}",
        f"{result.ticks} ticks at {result.rate_hz:.2f} Hz, late by {result.late_ms_p50:.2f} ms "
        f"(p50; p99 {result.late_ms_p99:.2f}, max {result.late_ms_max:.2f}), "
        f"{result.missed} missed",
        f"what they did: {shares}; {result.failures} plans failed",
    ]
    if config.out is not None:
        lines.append(f"written: {config.out}")
    return "\n".join(lines)
