"""Fixed goals to results.jsonl.

    bwm evaluate --checkpoint pretrained/tworoom --task tworoom --out results.jsonl

Every method meets the same starts and goals, may take twice as many steps as the goal lies ahead,
and succeeds at the first hit. Pictures are drawn only where a plan starts, and of the goal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bilinear_wm import view
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.attempt import (
    BUDGET,
    Attempt,
    Finished,
    measured_once,
    open_results,
    record,
    run,
    run_floor,
    side_by_side,
    time_plans,
)
from bilinear_wm.evaluation.elsewhere import attempted_by
from bilinear_wm.evaluation.film import Film
from bilinear_wm.evaluation.goals import HeldOut, StartGoal, choose_goals
from bilinear_wm.evaluation.load import goal_variables, load_planner, make_pilot
from bilinear_wm.evaluation.summary import Evaluation, Times, describe, summarize
from bilinear_wm.evaluation.watch import Watcher
from bilinear_wm.executors import helpers
from bilinear_wm.planning import PLANNERS
from bilinear_wm.reporting.results import Rate, rate
from bilinear_wm.stage import JsonObject, Outcome, at_least, unless_usual
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task
from bilinear_wm.view import Kind

FLOORS = ("random", "none")
TIMED_CALLS = 30


@dataclass(frozen=True)
class EvaluateConfig:
    """An evaluation.

    Attributes:
        task: tworoom, pusht, reacher or cube.
        checkpoint: The world model; none for `random` and `none`.
        planner: gauss-newton, cem, icem, mppi, adam, random or none.
        planner_options: Fields of the planner's configuration.
        horizon: Blocks a plan looks ahead.
        replan_every: Blocks executed before the next plan; None for the whole plan.
        arrive: When plans that continue another end: with that `plan`, or at the `deadline`, the
            end of the budget.
        goal: Given as a `picture`, or as a `state`: the task's variables, which a linear probe,
            fitted on the data's training part, reads off latents.
        offset: Environment steps from start to goal.
        episodes: How many starts and goals.
        seed: Chooses them.
        split: The `test` episodes, to report, or `validation` ones, to choose settings on.
        data: Held-out episodes to take them from; None to simulate fresh ones.
        out: The results file.
        one_by_one: Plan for one episode at a time, to measure latency.
        group: Episodes that run side by side otherwise.
        residual: Plan with the checkpoint's residual, where it has one.
        monitor: Watch whether the model explains what happens, and replan where it does not.
        trajectories: Keep every state on the way in the results file.
        floors: Run the random and the do-nothing policy on the same tasks too.
        video: A folder for one video an episode.
        view: `rerun` writes pictures, points, plans and costs as a recording beside `out`.
        resume: Complete an interrupted results file.
        paper_settings: Take horizon and planner settings from the paper's table.
        device: Where the model runs: cpu, cuda, cuda:1 ...
        workers: Processes that share the episodes; results are the same, but plans take longer
            where they outnumber the cores.
        cluster: A dask scheduler whose workers do instead, such as tcp://10.0.0.1:8786. They need
            checkpoint and data under the same paths.
    """

    task: str
    checkpoint: Path | None = None
    planner: str = "gauss-newton"
    planner_options: JsonObject = field(default_factory=dict)
    horizon: int = 5
    replan_every: int | None = None
    arrive: Literal["plan", "deadline"] = "plan"
    goal: Literal["picture", "state"] = "picture"
    offset: int = 25
    episodes: int = 100
    seed: int = 0
    split: HeldOut = "test"
    data: Path | None = None
    out: Path | None = None
    one_by_one: bool = False
    group: int = 10
    residual: bool = True
    monitor: bool = False
    trajectories: bool = False
    floors: bool = True
    video: Path | None = None
    view: Kind | None = None
    resume: bool = False
    paper_settings: bool = False
    device: str = "cpu"
    workers: int = 1
    cluster: str | None = None

    def run(self) -> Outcome:
        """`evaluate`, in words."""
        result = evaluate(self)
        return Outcome(describe(self, result), result.numbers())

    def header(self) -> dict[str, Any]:
        """What a results file says of its making."""
        return {
            "task": self.task,
            "checkpoint": str(self.checkpoint) if self.checkpoint else None,
            "planner": self.planner,
            "planner_options": self.planner_options,
            "horizon": self.horizon,
            "replan_every": self.replan_every,
            "arrive": self.arrive,
            "offset": self.offset,
            "episodes": self.episodes,
            "seed": self.seed,
            "tasks_from": self.data.name if self.data else "simulated",
            "one_by_one": self.one_by_one,
            "monitor": self.monitor,
            **({} if self.residual else {"without_residual": True}),
        } | unless_usual(self, "split", "goal", "paper_settings", "device")


def evaluate(config: EvaluateConfig, progress: bool = True) -> Evaluation:
    """Run an evaluation; finished episodes are in `config.out` whatever happens."""
    at_least(config, 1, "workers")
    if config.view and (config.workers > 1 or config.cluster or config.planner in FLOORS):
        raise InputError(
            "view: expected a planner in this process alone, found "
            f"{config.planner!r}, {config.workers} workers and the cluster {config.cluster}"
        )
    camera, pilot = prepare(config)
    tasks = choose_goals(
        config.data, config.task, config.offset, config.episodes, config.seed, config.split
    )
    opened = open_results(config.out, config.header(), pilot, config.resume)
    with (
        opened as file,
        helpers(config.workers, config.cluster) as by,
        view.opened(config.view, config.out) as shown,
    ):
        watcher = None if shown is None or pilot is None else Watcher(shown, pilot.model)
        measured = measured_once(file, lambda: _time(config, camera, pilot, tasks))

        def attempts(some: Sequence[StartGoal]) -> Iterator[Finished]:
            if by is not None:
                return attempted_by(by, config, some)
            return attempts_at(config, camera, pilot, some, watcher)

        label = f"evaluate {config.task}"
        rows = record(attempts, tasks, label, file, config.trajectories, progress)
    floors: dict[str, Rate | None] = {"random": None, "none": None}
    for kind in FLOORS if config.floors and pilot is not None else ():
        ran = _floor(config, camera, tasks, kind)
        floors[kind] = rate([attempt.solved for attempt in ran])
    return summarize(rows, floors, Times.read(measured))


def prepare(config: EvaluateConfig) -> tuple[Task, Pilot | None]:
    """The task that draws, and the pilot; none for floors."""
    if config.planner in FLOORS:
        return make_task(config.task, image_size=64, render_quality="fast"), None
    PLANNERS.check(config.planner, "planner", also=FLOORS)
    _loop(config)  # refuses bad settings before anything is loaded
    loaded = load_planner(
        config.task, config.checkpoint, config.planner, config.planner_options, config.device,
        config.residual,
    )  # fmt: skip
    pilot = make_pilot(loaded, config.data, config.monitor, config.goal == "state")
    return loaded.camera, pilot


def _loop(config: EvaluateConfig) -> LoopConfig:
    every = config.replan_every
    return LoopConfig(config.horizon, "exhausted" if every is None else every, config.arrive)


def _begin(
    config: EvaluateConfig,
    camera: Task,
    task: StartGoal,
    env: Task,
    film: Film | None = None,
    pilot: Pilot | None = None,
    watcher: Watcher | None = None,
) -> Attempt:
    budget = BUDGET * config.offset
    if pilot is None:
        return Attempt(task, env, camera, budget)
    spec, variables = pilot.model.config.observes, goal_variables(pilot)
    return Attempt(
        task, env, camera, budget, film=film, spec=spec, variables=variables, watcher=watcher
    )


def attempts_at(
    config: EvaluateConfig,
    camera: Task,
    pilot: Pilot | None,
    tasks: Sequence[StartGoal],
    watcher: Watcher | None = None,
) -> Iterator[Attempt]:
    """Attempts as they end, made by this process."""
    if pilot is None:
        return _floor(config, camera, tasks, config.planner)
    return _planned(config, camera, tasks, pilot, watcher)


def _planned(
    config: EvaluateConfig,
    camera: Task,
    tasks: Sequence[StartGoal],
    pilot: Pilot,
    watcher: Watcher | None,
) -> Iterator[Attempt]:
    """With a model and a planner; filmed if asked for."""
    size = 1 if config.one_by_one else config.group
    envs = [_make_env(config, camera) for _ in range(min(size, len(tasks)))]

    def begin(task: StartGoal, env: Task) -> Attempt:
        film = Film(pilot.model) if config.video else None
        return _begin(config, camera, task, env, film, pilot, watcher)

    for attempt in run(side_by_side(tasks, envs, begin), pilot, _loop(config)):
        if config.video is not None and attempt.film is not None:
            outcome = "solved" if attempt.solved else "missed"
            path = config.video / f"{attempt.task.index:03d}-{outcome}.mp4"
            attempt.film.write(path, attempt.picture(), attempt.goal_picture())
        yield attempt


def _floor(
    config: EvaluateConfig, camera: Task, tasks: Sequence[StartGoal], kind: str
) -> Iterator[Attempt]:
    """With random actions, or none."""
    env = _make_env(config, camera)
    return run_floor(kind, (_begin(config, camera, task, env) for task in tasks), config.seed)


def _make_env(config: EvaluateConfig, camera: Task) -> Task:
    """Simulates only: the camera draws."""
    return make_task(config.task, image_size=8, render_quality=camera.render_quality)


def _time(
    config: EvaluateConfig, camera: Task, pilot: Pilot | None, tasks: Sequence[StartGoal]
) -> dict[str, float | None]:
    """Single calls before anything else runs: first plans, and encoding what a start shows."""
    if pilot is None:
        return Times.of((), ()).numbers()
    env = _make_env(config, camera)
    some = (_begin(config, camera, task, env, None, pilot) for task in tasks[: TIMED_CALLS + 1])
    made = time_plans(some, pilot, _loop(config))
    seen = camera.observe(pilot.model.config.observes, [tasks[0].start])
    encoding = []
    for _ in range(10):
        begun = time.perf_counter()
        pilot.model.encode(seen)
        encoding.append(time.perf_counter() - begun)
    return Times.of([each.plan.seconds for each in made], encoding).numbers()
