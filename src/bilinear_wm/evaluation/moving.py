"""Moving goals under latency (paper, Section 5.2 and Appendix B.3).

    bwm realtime --checkpoint pretrained/tworoom --task tworoom --planner gauss-newton

Time passes while a plan is made. A planning call, encoding included, is timed on one environment;
if it takes tau and a control period is Delta, a plan made from the observation and goal of step t
is there at step t + L, L = ceil(tau / Delta). Until then the rest of the previous plan is executed,
then zeros. Only tasks count that a policy which never acts does not solve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.attempt import Actions
from bilinear_wm.evaluation.evaluate import BUDGET, load_planner
from bilinear_wm.evaluation.goals import StartGoal, choose_goals
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning import PLANNERS, Planner, PlanProblem
from bilinear_wm.reporting.results import (
    EpisodeResult,
    Rate,
    ResultFile,
    machine_facts,
    mean_change,
    percentile,
    rate,
)
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task
from bilinear_wm.tasks.moving import GoalWalk, MovingGoal

Replan = Literal["exhausted", "always"]
CANDIDATES = 4
"""Tasks drawn for each that is wanted; standing still solves some of them."""
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
        data: Held-out episodes to take tasks from; None to simulate fresh ones.
        out: The results file.
        resume: Complete an interrupted results file.
    """

    task: str
    checkpoint: Path | None = None
    planner: str = "gauss-newton"
    planner_options: dict[str, Any] = field(default_factory=dict)
    horizon: int = 5
    control_hz: float = 20.0
    replan: Replan = "exhausted"
    latency_ms: float | None = None
    offset: int = 25
    episodes: int = 100
    seed: int = 0
    data: Path | None = None
    out: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        if self.planner not in (*PLANNERS, "random"):
            known = ", ".join((*PLANNERS, "random"))
            raise InputError(f"--planner: expected one of {known}, found {self.planner!r}")
        for name in ("control_hz", "offset", "episodes", "horizon"):
            if not getattr(self, name) > 0:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option}: expected more than 0, found {getattr(self, name)}")
        if self.latency_ms is not None and not self.latency_ms >= 0:
            raise InputError(f"--latency-ms: expected 0 or more, found {self.latency_ms}")

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
        }


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


class Pursuit:
    """One moving goal while it is chased."""

    def __init__(self, task: StartGoal, env: Task, budget: int, seed: int) -> None:
        self.task, self.env, self.budget = task, env, budget
        self._moving = MovingGoal(env)
        env.set_state(task.start)
        self._moving.follow(walk_of(task, env, seed))
        self.solved, self.steps, self.idle, self.plans = env.solved, 0, 0, 0
        self.plan_seconds = 0.0
        self.actions: list[NDArray[np.float32]] = []
        self._queue: list[NDArray[np.float32]] = []
        self._coming: tuple[int, Actions] | None = None
        self._begun: int | None = None  # the step at which the plans now continued began

    @property
    def running(self) -> bool:
        return not self.solved and self.steps < self.budget

    def wants_plan(self, replan: Replan) -> bool:
        """Whether a plan should be begun from what is seen now."""
        if self._coming is not None:
            if self._coming[0] > self.steps:
                return False
            self._queue, self._coming = list(self._coming[1]), None
        return replan == "always" or not self._queue

    def blocks_left(self, horizon: int, frame_skip: int) -> int:
        """How far ahead a plan begun now looks."""
        left = 0 if self._begun is None else horizon - (self.steps - self._begun) // frame_skip
        if left < 1 or not self._queue:
            self._begun, left = self.steps, horizon
        return left

    def begin_plan(self, actions: Actions, delay: int) -> None:
        """A plan made from this step's observation, which is there `delay` steps later."""
        self.plans += 1
        if delay == 0:
            self._queue = list(actions)
        else:
            self._coming = (self.steps + delay, actions)

    def step(self) -> None:
        """Execute what is left of the plan at hand, or nothing."""
        if self._queue:
            action = self._queue.pop(0)
        else:
            action = np.zeros(len(self.env.action_names), np.float32)
            self.idle += 1
        self.step_with(action)

    def step_with(self, action: NDArray[np.float32]) -> None:
        """The goal moves, the agent acts."""
        self.solved = self._moving.advance(action)
        self.actions.append(action)
        self.steps += 1

    def result(self) -> EpisodeResult:
        return EpisodeResult(
            index=self.task.index,
            episode=self.task.episode,
            start_step=self.task.start_step,
            solved_at_start=False,
            success=self.solved,
            steps=self.steps,
            distance=float(self.env.distance(self.env.state, self.env.goal)),
            jerk=mean_change(self.actions),
            plans=self.plans,
            plan_seconds=self.plan_seconds,
            encode_seconds=0.0,
            idle=self.idle,
        )


def walk_of(task: StartGoal, env: Task, seed: int) -> GoalWalk:
    """The walk of a task's goal, the same for every method."""
    return GoalWalk(type(env), task.goal, [WALK_STREAM, seed, task.index])


def run_realtime(config: RealtimeConfig, progress: bool = True) -> Realtime:
    """Chase moving goals; finished episodes are in `config.out` whatever happens."""
    planning = None
    if config.planner != "random":
        planning = _Planning(config)
    envs = [make_task(config.task, image_size=8) for _ in range(min(config.episodes, 50))]
    tasks, solved_by_nothing = countable_tasks(config, envs[0])
    latencies = planning.latencies(tasks, envs[0], config) if planning else [0.0]
    delay = math.ceil(percentile(latencies, 50) * 1e-3 * config.control_hz)
    header = config.header() | machine_facts()
    if planning is not None:
        header["model"] = planning.model.kind
    file = ResultFile(config.out, header, config.resume) if config.out else None
    rows = list(file.rows) if file else []
    done = {row.index for row in rows}
    standard = replace(config, replan="exhausted")  # random actions are drawn for all steps at once
    bar = tqdm(
        total=len(tasks), initial=len(done), desc=f"realtime {config.task}", unit="episode",
        disable=not progress,
    )  # fmt: skip
    with bar:
        act = planning.act if planning else _random_actions(config)
        waiting = [task for task in tasks if task.index not in done]
        for pursuit in _chase(waiting, envs, config if planning else standard, act, delay):
            row = pursuit.result()
            rows.append(row)
            if file is not None:
                file.add(row)
            bar.set_postfix_str(str(rate([r.success for r in rows])), refresh=False)
            bar.update()
    floor = [p.solved for p in _chase(tasks, envs, standard, _random_actions(config), 0)]
    return Realtime(
        success=rate([row.success for row in rows]),
        floor_random=rate(floor),
        solved_by_nothing=solved_by_nothing,
        latency_ms_p50=percentile(latencies, 50),
        latency_ms_p99=percentile(latencies, 99),
        delay_steps=delay,
        idle_share=sum(row.idle for row in rows) / max(sum(row.steps for row in rows), 1),
        plans_per_episode=float(np.mean([row.plans for row in rows])),
        jerk=float(np.mean([row.jerk for row in rows])),
        distance_median=float(np.median([row.distance for row in rows])),
        episodes=len(rows),
    )


Act = Callable[[Sequence[Pursuit]], list[Actions]]


class _Planning:
    """Encodes what is seen and where the goal is now, and plans."""

    def __init__(self, config: RealtimeConfig) -> None:
        loaded = load_planner(
            config.task, config.checkpoint, config.planner, config.planner_options
        )
        self.model: WorldModel = loaded.model
        self.model.config.observes.must_be_picture("moving goals")
        self._camera, self._bounds = loaded.camera, loaded.bounds
        self._planner: Planner = loaded.planner
        self._horizon = config.horizon

    def act(self, pursuits: Sequence[Pursuit]) -> list[Actions]:
        """Plans for all of them in one batch."""
        seen = [self._camera.picture(p.env.state) for p in pursuits]
        wanted = [self._camera.picture(p.env.goal) for p in pursuits]
        begun = time.perf_counter()
        z = self.model.encode(np.stack(seen + wanted))
        low, high = self._bounds
        horizons = [p.blocks_left(self._horizon, self.model.config.frame_skip) for p in pursuits]
        plans: dict[int, Actions] = {}
        for horizon in sorted(set(horizons)):
            chosen = [i for i, own in enumerate(horizons) if own == horizon]
            goals = [len(pursuits) + i for i in chosen]
            plan = self._planner.plan(PlanProblem(z[chosen], z[goals], horizon, low, high))
            for i, blocks in zip(chosen, plan.actions, strict=True):
                plans[i] = self.model.to_env_actions(blocks).cpu().numpy()
        seconds = (time.perf_counter() - begun) / len(pursuits)
        for pursuit in pursuits:
            pursuit.plan_seconds += seconds
        return [plans[i] for i in range(len(pursuits))]

    def latencies(
        self, tasks: Sequence[StartGoal], env: Task, config: RealtimeConfig
    ) -> list[float]:
        """Milliseconds of encoding and planning for one environment."""
        if config.latency_ms is not None:
            return [config.latency_ms]
        times = []
        for i in range(TIMED_CALLS + 1):
            pursuit = Pursuit(tasks[i % len(tasks)], env, 1, config.seed)
            self.act([pursuit])
            times.append(1e3 * pursuit.plan_seconds)
            if i and sum(times) > 60e3:
                break  # slow planners are timed for a minute
        return times[1:]  # the first warms up


def _random_actions(config: RealtimeConfig) -> Act:
    def act(pursuits: Sequence[Pursuit]) -> list[Actions]:
        drawn = []
        for pursuit in pursuits:
            rng = np.random.default_rng([config.seed, pursuit.task.index])
            shape = (pursuit.budget, len(pursuit.env.action_names))
            drawn.append(rng.uniform(-1, 1, shape).astype(np.float32))
        return drawn

    return act


def _chase(
    tasks: Sequence[StartGoal],
    envs: Sequence[Task],
    config: RealtimeConfig,
    act: Act,
    delay: int,
) -> Iterator[Pursuit]:
    """Tasks as they end; as many run side by side as there are environments."""
    for first in range(0, len(tasks), len(envs)):
        group = [
            Pursuit(task, env, BUDGET * config.offset, config.seed)
            for task, env in zip(tasks[first : first + len(envs)], envs, strict=False)
        ]
        running = group
        while running:
            planning = [p for p in running if p.wants_plan(config.replan)]
            if planning:
                for pursuit, actions in zip(planning, act(planning), strict=True):
                    pursuit.begin_plan(actions, delay)
            for pursuit in running:
                pursuit.step()
            yield from (p for p in running if not p.running)
            running = [p for p in running if p.running]


def countable_tasks(config: RealtimeConfig, env: Task) -> tuple[list[StartGoal], float]:
    """Tasks that standing still does not solve, and the share of those that it does."""
    drawn = choose_goals(
        config.data, config.task, config.offset, CANDIDATES * config.episodes, config.seed
    )
    counted: list[StartGoal] = []
    examined = 0
    still = np.zeros(len(env.action_names), np.float32)
    for task in drawn:
        if len(counted) == config.episodes:
            break
        examined += 1
        pursuit = Pursuit(task, env, BUDGET * config.offset, config.seed)
        while pursuit.running:
            pursuit.step_with(still)
        if not pursuit.solved:
            counted.append(task)
    if not counted:
        raise InputError(
            f"--task {config.task}: standing still solves all of {examined} moving goals; "
            "try a larger --offset"
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
