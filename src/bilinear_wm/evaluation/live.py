"""Moving goals against the real clock: the simulator in the place of a robot.

    bwm realtime --live --checkpoint pretrained/tworoom --task tworoom

The `RealTimeController` ticks; each tick the simulator takes the action, the goal moves, and
new pictures of both go to the controller. Nothing about latency is assumed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from bilinear_wm.control.loop import Action, Tick
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import BUDGET, LoadedPlanner, load_planner
from bilinear_wm.evaluation.moving import Pursuit, RealtimeConfig, countable_tasks
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

    def __init__(self, pursuit: Pursuit, loaded: LoadedPlanner, config: RealtimeConfig) -> None:
        self.pursuit, self._camera = pursuit, loaded.camera
        self.ticks: list[Tick] = []
        self.done = threading.Event()
        self.controller = RealTimeController(
            loaded.model,
            loaded.planner,
            config.control_hz,
            act=self._act,
            horizon=config.horizon,
            replan=config.replan,
            on_tick=self.ticks.append,
        )
        self._look()

    def _look(self) -> None:
        env = self.pursuit.env
        self.controller.set_goal(self._camera.picture(env.goal))
        self.controller.observe(self._camera.picture(env.state))

    def _act(self, action: Action) -> None:
        if self.done.is_set():
            return
        self.pursuit.step_with(action)
        if self.pursuit.running:
            self._look()
        else:
            self.done.set()


def run_live(config: RealtimeConfig, progress: bool = True) -> Live:
    """Chase moving goals in real time, one after another."""
    if config.planner == "random":
        raise InputError("--live: expected a planner, found 'random'")
    loaded = load_planner(config.task, config.checkpoint, config.planner, config.planner_options)
    env = make_task(config.task, image_size=8)
    tasks, _ = countable_tasks(config, env)
    solved, robots = [], []
    bar = tqdm(tasks, desc=f"live {config.task}", unit="episode", disable=not progress)
    for task in bar:
        pursuit = Pursuit(task, env, BUDGET * config.offset, config.seed)
        robot = _Robot(pursuit, loaded, config)
        with robot.controller:
            while not robot.done.wait(0.5) and robot.controller.running:
                pass
        solved.append(pursuit.solved)
        robots.append(robot)
        bar.set_postfix_str(str(rate(solved)), refresh=False)
    ticks = [tick for robot in robots for tick in robot.ticks]
    late = [1e3 * tick.late_s for tick in ticks]
    gaps = [np.diff([tick.time for tick in robot.ticks]) for robot in robots]
    names = ("plan", "best-so-far", "rest", "hold")
    return Live(
        success=rate(solved),
        rate_hz=float(1 / np.concatenate(gaps).mean()),
        late_ms_p50=percentile(late, 50),
        late_ms_p99=percentile(late, 99),
        late_ms_max=max(late),
        missed=sum(robot.controller.missed for robot in robots),
        sources={name: sum(t.source == name for t in ticks) / len(ticks) for name in names},
        failures=sum(robot.controller.state.failures for robot in robots),
        ticks=len(ticks),
        episodes=len(solved),
    )


def describe(config: RealtimeConfig, result: Live) -> str:
    """A few lines for people."""
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result.sources.items())
    return "\n".join(
        [
            f"M-{config.task} live at {config.control_hz:g} Hz, {config.planner}: success "
            f"{result.success} of {result.episodes}",
            f"{result.ticks} ticks at {result.rate_hz:.2f} Hz, late by {result.late_ms_p50:.2f} ms "
            f"(p50; p99 {result.late_ms_p99:.2f}, max {result.late_ms_max:.2f}), "
            f"{result.missed} missed",
            f"what they did: {shares}; {result.failures} plans failed",
        ]
    )
