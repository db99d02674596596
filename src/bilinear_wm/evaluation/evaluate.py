"""Fixed goals to results.jsonl.

    bwm evaluate --checkpoint pretrained/tworoom --task tworoom --out results.jsonl

Every method meets the same starts and goals, may take twice as many steps as the goal lies ahead,
and succeeds at the first hit. Pictures are drawn only where a plan starts, and of the goal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor
from tqdm import tqdm

from bilinear_wm.analysis.latents import encode_windows, episodes_for
from bilinear_wm.control.horizon import MPCConfig
from bilinear_wm.control.memory import PlanMemory
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.attempt import Episode, FloorPolicy, ModelPolicy, Policy
from bilinear_wm.evaluation.goals import StartGoal, choose_goals
from bilinear_wm.models import load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning import PLANNERS, Planner
from bilinear_wm.reporting.results import (
    EpisodeResult,
    Rate,
    ResultFile,
    machine_facts,
    percentile,
    rate,
)
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task

BUDGET = 2
"""Environment steps allowed, as a multiple of the offset."""
FLOORS = ("random", "none")
MONITOR_WINDOWS = 1000


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
        offset: Environment steps from start to goal.
        episodes: How many starts and goals.
        seed: Chooses them.
        data: Held-out episodes to take them from; None to simulate fresh ones.
        out: The results file.
        one_by_one: Plan for one episode at a time, to measure latency.
        group: Episodes that run side by side otherwise.
        monitor: Watch whether the model explains what happens, and replan where it does not.
        memory: Begin each plan from the nearest recorded window of the data's training part.
        trajectories: Keep every state on the way in the results file.
        floors: Run the random and the do-nothing policy on the same tasks too.
        video: A folder for one video an episode.
        resume: Complete an interrupted results file.
    """

    task: str
    checkpoint: Path | None = None
    planner: str = "gauss-newton"
    planner_options: dict[str, Any] = field(default_factory=dict)
    horizon: int = 5
    replan_every: int | None = None
    arrive: Literal["plan", "deadline"] = "plan"
    offset: int = 25
    episodes: int = 100
    seed: int = 0
    data: Path | None = None
    out: Path | None = None
    one_by_one: bool = False
    group: int = 10
    monitor: bool = False
    memory: bool = False
    trajectories: bool = False
    floors: bool = True
    video: Path | None = None
    resume: bool = False

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
            "memory": self.memory,
        }


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    success: Rate
    success_unsolved: Rate
    """Over episodes that the start does not solve."""
    solved_at_start: float
    floor_random: Rate | None
    floor_none: Rate | None
    ms_per_plan_p50: float
    """One planning call for one episode."""
    ms_per_plan_p99: float
    ms_encode_p50: float
    """Encoding one picture."""
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
            **vars(self),
            "success": self.success.value,
            "interval": [self.success.low, self.success.high],
            "success_unsolved": self.success_unsolved.value,
            "interval_unsolved": [self.success_unsolved.low, self.success_unsolved.high],
            **{name: floor.value if floor else None for name, floor in floors.items()},
        }


def evaluate(config: EvaluateConfig, progress: bool = True) -> Evaluation:
    """Run an evaluation; finished episodes are in `config.out` whatever happens."""
    if config.planner not in (*PLANNERS, *FLOORS):
        known = ", ".join((*PLANNERS, *FLOORS))
        raise InputError(f"--planner: expected one of {known}, found {config.planner!r}")
    camera, policy = _prepare(config)
    tasks = choose_goals(config.data, config.task, config.offset, config.episodes, config.seed)
    file = (
        ResultFile(config.out, config.header() | _kind(policy) | machine_facts(), config.resume)
        if config.out is not None
        else None
    )
    rows = list(file.rows) if file else []
    done = {row.index for row in rows}
    waiting = [task for task in tasks if task.index not in done]
    size = 1 if config.one_by_one else config.group
    bar = tqdm(
        total=len(tasks), initial=len(done), desc=f"evaluate {config.task}", unit="episode",
        disable=not progress,
    )  # fmt: skip
    envs = [_make_env(config, camera) for _ in range(min(size, len(waiting)))]
    with bar:
        for episode in _run(waiting, policy, envs, camera, config):
            row = episode.result(config.trajectories)
            rows.append(row)
            if file is not None:
                file.add(row)
            if config.video is not None:
                _write_film(config.video, episode)
            bar.set_postfix_str(str(rate([r.success for r in rows])), refresh=False)
            bar.update()
    floors: dict[str, Rate | None] = {"random": None, "none": None}
    if config.floors and config.planner not in FLOORS:
        for kind in FLOORS:
            floor = FloorPolicy(kind, len(camera.action_names), config.seed)
            ran = _run(tasks, floor, envs or [_make_env(config, camera)], camera, config)
            floors[kind] = rate([episode.solved for episode in ran])
    return _summarize(rows, floors, policy, camera, tasks)


def _kind(policy: Policy) -> dict[str, str]:
    return {"model": policy.model.kind} if isinstance(policy, ModelPolicy) else {}


def _run(
    tasks: Sequence[StartGoal],
    policy: Policy,
    envs: Sequence[Task],
    camera: Task,
    config: EvaluateConfig,
) -> Iterator[Episode]:
    """Episodes as they end; as many run side by side as there are environments."""
    film = config.video is not None and isinstance(policy, ModelPolicy)
    for first in range(0, len(tasks), len(envs)):
        group = [
            Episode(task, env, camera, BUDGET * config.offset)
            for task, env in zip(tasks[first : first + len(envs)], envs, strict=False)
        ]
        yield from (episode for episode in group if not episode.running)
        running = [episode for episode in group if episode.running]
        while running:
            for episode, actions in zip(running, policy.decide(running), strict=True):
                episode.execute(actions, film)
            yield from (episode for episode in running if not episode.running)
            running = [episode for episode in running if episode.running]


def _prepare(config: EvaluateConfig) -> tuple[Task, Policy]:
    """The task that draws, and the policy."""
    if config.planner in FLOORS:
        camera = make_task(config.task, image_size=64, render_quality="fast")
        return camera, FloorPolicy(config.planner, len(camera.action_names), config.seed)
    loaded = load_planner(config.task, config.checkpoint, config.planner, config.planner_options)
    model, camera, bounds = loaded.model, loaded.camera, loaded.bounds
    mpc = MPCConfig(config.horizon, config.replan_every, config.arrive)
    monitor = _calibrated_monitor(config, model) if config.monitor else None
    memory = None
    if config.memory:
        data = _training_part(config, model, "--memory: expected --data, whose windows it recalls")
        memory = PlanMemory.of(model, data, config.horizon)
    imagine = config.video is not None and model.draws
    return camera, ModelPolicy(model, loaded.planner, mpc, bounds, monitor, memory, imagine)


class LoadedPlanner(NamedTuple):
    """A model, a planner on its dynamics, and the task that draws what it sees."""

    model: WorldModel
    planner: Planner
    camera: Task
    bounds: tuple[Tensor, Tensor]


def load_planner(
    task: str, checkpoint: Path | None, planner: str, options: dict[str, Any]
) -> LoadedPlanner:
    """Everything that plans for a task, from a checkpoint."""
    if checkpoint is None:
        raise InputError(f"--checkpoint: expected a trained model for {planner}, found none")
    model = load_model(checkpoint).eval()
    camera = checked_camera(model, task, checkpoint)
    made = PLANNERS[planner](model.dynamics, make_planner_config(planner, options))
    low, high = camera.action_space.low, camera.action_space.high  # type: ignore[attr-defined]
    return LoadedPlanner(model, made, camera, model.action_bounds(low, high))


def _calibrated_monitor(config: EvaluateConfig, model: WorldModel) -> ActionMonitor:
    """Set by the training part of the episodes: the tasks come from the held-out part."""
    data = _training_part(
        config, model, "--monitor: expected --data, whose episodes set its threshold"
    )
    z, actions, _ = encode_windows(model, data, MONITOR_WINDOWS)
    return ActionMonitor.calibrated(model, z, actions)


def _training_part(config: EvaluateConfig, model: WorldModel, complaint: str) -> EpisodeDataset:
    if config.data is None:
        raise InputError(f"{complaint}, found none")
    return episodes_for(model, config.data)


def checked_camera(model: WorldModel, task: str, checkpoint: Path) -> Task:
    """A task that draws pictures as the model knows them; refuses a model of another task."""
    facts = model.config
    if facts.task != task:
        raise InputError(
            f"--checkpoint {checkpoint}: expected a model of {task}, found one of {facts.task}"
        )
    quality: Any = facts.render_quality if facts.render_quality != "unknown" else "faithful"
    camera = make_task(task, facts.image_size, quality)
    if facts.action_size != len(camera.action_names):
        raise InputError(
            f"--checkpoint {checkpoint}: expected {len(camera.action_names)} numbers an action, "
            f"found {facts.action_size}"
        )
    return camera


def make_planner_config(planner: str, options: dict[str, Any]) -> Any:
    """The planner's own configuration from plain options."""
    import inspect

    cls = PLANNERS[planner]
    annotation = inspect.signature(cls.__init__).parameters["config"].annotation
    config_class = vars(inspect.getmodule(cls))[annotation.split(" ")[0]]
    try:
        return config_class(**options)
    except TypeError as error:
        raise InputError(f"--planner-options: {error}") from error


def _make_env(config: EvaluateConfig, camera: Task) -> Task:
    """Simulates only: the camera draws."""
    return make_task(config.task, image_size=8, render_quality=camera.render_quality)


def _summarize(
    rows: Sequence[EpisodeResult],
    floors: dict[str, Rate | None],
    policy: Policy,
    camera: Task,
    tasks: Sequence[StartGoal],
) -> Evaluation:
    plan_ms: list[float] = []
    encode_ms: list[float] = []
    if isinstance(policy, ModelPolicy):
        plan_ms = policy.latency_ms()
        encode_ms = policy.encode_ms(camera.observe(policy.model.config.observes, [tasks[0].start]))
    return Evaluation(
        success=rate([row.success for row in rows]),
        success_unsolved=rate([row.success for row in rows if not row.solved_at_start]),
        solved_at_start=float(np.mean([row.solved_at_start for row in rows])),
        floor_random=floors["random"],
        floor_none=floors["none"],
        ms_per_plan_p50=percentile(plan_ms, 50),
        ms_per_plan_p99=percentile(plan_ms, 99),
        ms_encode_p50=percentile(encode_ms, 50),
        plan_seconds_per_episode=float(np.mean([row.plan_seconds for row in rows])),
        plan_seconds_total=float(np.sum([row.plan_seconds for row in rows])),
        jerk=float(np.mean([row.jerk for row in rows if row.steps > 1] or [0.0])),
        distance_median=float(np.median([row.distance for row in rows])),
        alarms=sum(row.alarms for row in rows),
        episodes=len(rows),
    )


def _write_film(folder: Path, episode: Episode) -> None:
    """What happens, what the plan expects (as the model draws it, if it draws), and the goal."""
    from bilinear_wm.reporting.media import write_video

    folder.mkdir(parents=True, exist_ok=True)
    goal = episode.goal_picture()
    gap = np.full((goal.shape[0], 2, 3), 128, np.uint8)
    frames = episode.frames or [episode.picture()]
    panels = [frames, [goal] * len(frames)]
    if episode.imagined:
        imagined = episode.imagined[: len(frames)]
        panels.insert(1, imagined + [imagined[-1]] * (len(frames) - len(imagined)))
    films = []
    for shown in zip(*panels, strict=True):
        parts = [part for picture in shown for part in (gap, picture)]
        films.append(np.concatenate(parts[1:], axis=1))
    outcome = "solved" if episode.solved else "missed"
    write_video(folder / f"{episode.task.index:03d}-{outcome}.mp4", films, fps=10)


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
    if not np.isnan(result.ms_per_plan_p50):
        lines.append(
            f"planning: {result.ms_per_plan_p50:.2f} ms a call for one episode (p50; p99 "
            f"{result.ms_per_plan_p99:.2f}), {1e3 * result.plan_seconds_per_episode:.1f} ms an "
            f"episode, {result.plan_seconds_total:.2f} s in all; encoding a picture "
            f"{result.ms_encode_p50:.2f} ms"
        )
    lines.append(
        f"jerk {result.jerk:.3f}; final distance {result.distance_median:.2f} of what counts as "
        "success (median)"
    )
    if config.monitor:
        lines.append(f"the monitor fired {result.alarms} times")
    if config.out is not None:
        lines.append(f"written: {config.out}")
    return "\n".join(lines)
