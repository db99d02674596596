"""Moving goals under latency (paper, Section 5.2 and Appendix B.3).

    bwm realtime --checkpoint pretrained/tworoom --task tworoom --planner gauss-newton

Time passes while a plan is made. A planning call, encoding included, is timed on one environment;
if it takes tau and a control period is Delta, a plan made from the observation and goal of step t
is there at step t + L, L = ceil(tau / Delta). Until then the rest of the previous plan is executed,
then zeros. No plan looks beyond the end of the time: one that did would be cut off on its way. Only
tasks count that a policy which never acts does not solve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bilinear_wm import view
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.errors import InputError, check_choices
from bilinear_wm.evaluation.attempt import (
    BUDGET,
    Attempt,
    measured_once,
    open_results,
    record,
    run,
    run_floor,
    side_by_side,
    time_plans,
)
from bilinear_wm.evaluation.goals import HeldOut, StartGoal, choose_goals
from bilinear_wm.evaluation.load import load_planner, make_pilot
from bilinear_wm.evaluation.watch import Watcher
from bilinear_wm.planning import PLANNERS
from bilinear_wm.reporting.results import Rate, mean_jerk, percentile, rate
from bilinear_wm.stage import JsonObject, Outcome, unless_usual
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task
from bilinear_wm.tasks.moving import GoalWalk
from bilinear_wm.view import Kind

Protocol = Literal["paper", "controller"]
CANDIDATES = 4
"""Tasks drawn for each that is wanted; standing still solves some of them."""
GROUP = 50
"""Episodes that run side by side."""
TIMED_CALLS = 20
WALK_STREAM = 31


@dataclass(frozen=True)
class RealtimeConfig:
    """A run of moving goals.

    Attributes:
        task: tworoom, pusht, reacher or cube.
        checkpoint: The world model; none for `random`.
        planner: gauss-newton, cem, icem, mppi, adam or random.
        planner_options: Fields of the planner's configuration.
        horizon: Blocks a plan looks ahead.
        control_hz: Environment steps a second of real time.
        replan: Begin a plan when the last is `exhausted`, as the paper does, or `always`: then the
            plans that follow look ahead shorter by what has passed, until the first is used up.
        latency_ms: Taken for the latency of a planning call instead of measuring it.
        offset: Environment steps from start to the goal's first place; twice as many may be taken.
        episodes: How many tasks, of those that standing still does not solve.
        seed: Chooses tasks and walks.
        split: The `test` episodes, to report, or `validation` ones, to choose settings on.
        data: Held-out episodes to take tasks from; None to simulate fresh ones.
        out: The results file.
        resume: Complete an interrupted results file.
        protocol: The `paper`'s, in which late plans are executed from their beginning and every
            plan is sought from rest, or the real-time `controller`'s, which drops what has passed
            and begins plans from the one before.
        monitor: Watch whether the model explains what happens, and plan afresh where it does not.
        paper_settings: Take horizon and planner settings from the paper's table.
        device: Where the model runs: cpu, cuda, cuda:1 ...
        view: `rerun` writes pictures, points, plans and costs as a recording beside `out`.
        live: Run the simulator against the real clock, with the real-time controller, instead of
            counting latency.
    """

    task: str
    checkpoint: Path | None = None
    planner: str = "gauss-newton"
    planner_options: JsonObject = field(default_factory=dict)
    horizon: int = 5
    control_hz: float = 20.0
    replan: Literal["exhausted", "always"] = "exhausted"
    latency_ms: float | None = None
    offset: int = 25
    episodes: int = 100
    seed: int = 0
    split: HeldOut = "test"
    data: Path | None = None
    out: Path | None = None
    resume: bool = False
    protocol: Protocol = "paper"
    monitor: bool = False
    paper_settings: bool = False
    device: str = "cpu"
    view: Kind | None = None
    live: bool = False

    def __post_init__(self) -> None:
        check_choices(self)
        PLANNERS.check(self.planner, "planner", also=("random",))
        for name in ("control_hz", "offset", "episodes", "horizon"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name}: expected more than 0, found {getattr(self, name)}")
        if self.latency_ms is not None and not 0 <= self.latency_ms < math.inf:
            raise InputError(f"latency_ms: expected 0 or more, found {self.latency_ms}")
        if self.view and self.planner == "random":
            raise InputError("view: expected a planner, found 'random'")

    def run(self) -> Outcome:
        """`run_realtime` or `run_live`, in words."""
        if self.live:
            from bilinear_wm.evaluation import live

            lived = live.run_live(self)
            return Outcome(live.describe(self, lived), lived.numbers())
        result = run_realtime(self)
        return Outcome(describe(self, result), result.numbers())

    def header(self) -> dict[str, Any]:
        """What a results file says of its making."""
        return {
            "moving": True,
            "task": self.task,
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "planner": self.planner,
            "planner_options": self.planner_options,
            "horizon": self.horizon,
            "control_hz": self.control_hz,
            "replan": self.replan,
            "latency_ms": self.latency_ms,
            "offset": self.offset,
            "episodes": self.episodes,
            "seed": self.seed,
            "tasks_from": self.data.name if self.data else "simulated",
            "protocol": self.protocol,
            "monitor": self.monitor,
        } | unless_usual(self, "split", "paper_settings", "device")

    @property
    def loop(self) -> LoopConfig:
        """How the protocol plans."""
        ours = self.protocol == "controller"
        late: Literal["drop", "keep"] = "drop" if ours else "keep"
        return LoopConfig(self.horizon, self.replan, late=late, warm_start=ours, limited=True)


@dataclass(frozen=True)
class Realtime:
    """What a run of moving goals found."""

    success: Rate
    floor_random: Rate
    solved_by_nothing: float
    """Share of the drawn tasks that standing still solves; they do not count."""
    latency_ms_p50: float
    latency_ms_p99: float
    delay_steps: int
    """L."""
    idle_share: float
    """Steps without a plan."""
    plans_per_episode: float
    jerk: float
    distance_median: float
    episodes: int

    def numbers(self) -> dict[str, Any]:
        """Flat, for JSON."""
        return {
            **vars(self),
            "success": self.success.value,
            "interval": [self.success.low, self.success.high],
            "floor_random": self.floor_random.value,
            "floor_none": 0.0,
        }


def begin(
    config: RealtimeConfig,
    task: StartGoal,
    env: Task,
    camera: Task,
    pilot: Pilot | None = None,
    watcher: Watcher | None = None,
) -> Attempt:
    """An attempt at a moving goal, whose walk is the same for every method."""
    walk = GoalWalk(type(env), task.goal, [WALK_STREAM, config.seed, task.index])
    spec = None if pilot is None else pilot.model.config.observes
    return Attempt(task, env, camera, BUDGET * config.offset, walk, spec=spec, watcher=watcher)


def run_realtime(config: RealtimeConfig, progress: bool = True) -> Realtime:
    """Chase moving goals; finished episodes are in `config.out` whatever happens."""
    env = make_task(config.task, image_size=8)
    pilot, camera = None, env
    if config.planner != "random":
        loaded = load_planner(
            config.task, config.checkpoint, config.planner, config.planner_options, config.device
        )
        pilot = make_pilot(loaded, config.data, config.monitor)
        camera = loaded.camera
    tasks, solved_by_nothing = countable_tasks(config, env)

    watcher: Watcher | None = None

    def floor(some: Sequence[StartGoal]) -> Iterator[Attempt]:
        attempts = (begin(config, task, env, camera) for task in some)
        return run_floor("random", attempts, config.seed)

    def attempts(some: Sequence[StartGoal]) -> Iterator[Attempt]:
        if pilot is None:
            return floor(some)
        envs = [make_task(config.task, image_size=8) for _ in range(min(GROUP, len(some)))]

        def one(task: StartGoal, env: Task) -> Attempt:
            return begin(config, task, env, camera, pilot, watcher)

        return run(side_by_side(some, envs, one), pilot, config.loop, measured["delay_steps"])

    header = config.header() | {"live": False}
    with (
        open_results(config.out, header, pilot, config.resume) as file,
        view.opened(config.view, config.out) as shown,
    ):
        watcher = None if shown is None or pilot is None else Watcher(shown, pilot.model)
        measured = measured_once(
            file,
            lambda: (
                _latency(config, tasks, env, camera, pilot)
                | {"solved_by_nothing": solved_by_nothing}
            ),
        )
        rows = record(attempts, tasks, f"realtime {config.task}", file, progress=progress)
    return Realtime(
        success=rate([row.success for row in rows]),
        floor_random=rate([attempt.solved for attempt in floor(tasks)]),
        **measured,
        idle_share=sum(row.idle for row in rows) / max(sum(row.steps for row in rows), 1),
        plans_per_episode=float(np.mean([row.plans for row in rows])),
        jerk=mean_jerk(rows),
        distance_median=float(np.median([row.distance for row in rows])),
        episodes=len(rows),
    )


def _latency(
    config: RealtimeConfig, tasks: Sequence[StartGoal], env: Task, camera: Task, pilot: Pilot | None
) -> dict[str, Any]:
    """Of a planning call, encoding included, and the steps that pass meanwhile."""
    latencies = [config.latency_ms or 0.0]
    if pilot is not None and config.latency_ms is None:
        some = (tasks[i % len(tasks)] for i in range(TIMED_CALLS + 1))
        made = time_plans((begin(config, t, env, camera, pilot) for t in some), pilot, config.loop)
        latencies = [1e3 * (each.encode_seconds + each.plan_seconds) for each in made]
    p50, p99 = (percentile(latencies, share) for share in (50, 99))
    delay = math.ceil(p50 * 1e-3 * config.control_hz)
    return {"latency_ms_p50": p50, "latency_ms_p99": p99, "delay_steps": delay}


def countable_tasks(config: RealtimeConfig, env: Task) -> tuple[list[StartGoal], float]:
    """Tasks that standing still does not solve, and the share of those that it does."""
    count = CANDIDATES * config.episodes
    drawn = choose_goals(config.data, config.task, config.offset, count, config.seed, config.split)
    counted: list[StartGoal] = []
    examined = 0
    still = run_floor("none", (begin(config, task, env, env) for task in drawn), config.seed)
    for attempt in still:
        examined += 1
        if not attempt.solved:
            counted.append(attempt.task)
        if len(counted) == config.episodes:
            break
    if not counted:
        raise InputError(
            f"task {config.task}: standing still solves all of {examined} moving goals; "
            "try a larger `offset`"
        )
    return counted, 1 - len(counted) / examined


def describe(config: RealtimeConfig, result: Realtime) -> str:
    """A few lines for people."""
    lines = [
        f"M-{config.task} at {config.control_hz:g} Hz, {config.planner}: success {result.success} "
        f"of {result.episodes}; random actions {result.floor_random}; standing still solves "
        f"{100 * result.solved_by_nothing:.1f} % of the drawn tasks, which do not count",
        f"a planning call takes {result.latency_ms_p50:.1f} ms (p50; p99 "
        f"{result.latency_ms_p99:.1f}), encoding included: {result.delay_steps} steps of delay; "
        f"{100 * result.idle_share:.1f} % of steps without a plan; "
        f"{result.plans_per_episode:.1f} plans an episode",
        f"jerk {result.jerk:.3f}; final distance {result.distance_median:.2f} of what counts as "
        "success (median)",
    ]
    if config.out is not None:
        lines.append(f"written: {config.out}")
    return "\n".join(lines)
