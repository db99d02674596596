"""Attempts at starts and goals, fixed or moving: one while it runs, and many side by side."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bilinear_wm.control.box import Action
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Delivery, Tick, step_together
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.evaluation.film import Film
from bilinear_wm.evaluation.goals import StartGoal
from bilinear_wm.models.checkpoint import weights_hash
from bilinear_wm.observation import ObservationSpec, Seen
from bilinear_wm.reporting.results import (
    EpisodeResult,
    ResultFile,
    machine_facts,
    mean_change,
    rate,
)
from bilinear_wm.tasks.base import Task
from bilinear_wm.tasks.moving import GoalWalk, MovingGoal

BUDGET = 2
"""Environment steps allowed, as a multiple of the offset."""
TIMED_SECONDS = 30.0


class Observer(Protocol):
    """What wants to know what is seen: a loop, or a controller."""

    def observe(self, seen: Seen, /) -> None: ...
    def set_goal(self, goal: Seen, /) -> None: ...


class Watcher(Protocol):
    """What wants to know how an attempt goes."""

    def planned(self, attempt: Attempt, made: Delivery, /) -> None: ...
    def stepping(self, attempt: Attempt, action: Action, /) -> None: ...
    def ended(self, attempt: Attempt, /) -> None: ...


class Attempt:
    """A start and a goal while it runs.

    Args:
        task: The start and the goal.
        env: Simulates.
        camera: Draws.
        budget: Environment steps allowed.
        walk: Where the goal goes, if it moves.
        film: Takes pictures on the way.
        spec: What the model wants to see; one picture by default.
        variables: Of the goal, which it is then given as; names in the task's `probe_targets`.
        watcher: Is told of plans and steps.
    """

    def __init__(
        self,
        task: StartGoal,
        env: Task,
        camera: Task,
        budget: int,
        walk: GoalWalk | None = None,
        film: Film | None = None,
        spec: ObservationSpec | None = None,
        variables: Sequence[str] | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.task, self.env, self.budget, self.film = task, env, budget, film
        self._camera, self._variables, self._watcher = camera, variables, watcher
        self._spec = None if spec is None or spec.is_picture else spec
        env.set_state(task.start)
        self._moving: MovingGoal | None = None
        if walk is None:
            env.set_goal(task.goal)
        else:
            self._moving = MovingGoal(env)
            self._moving.follow(walk)
        self.solved_at_start = self.solved = env.solved
        self.steps = self.idle = self.plans = self.alarms = 0
        self.actions: list[Action] = []
        self.states = [env.state]
        self.encode_seconds = self.plan_seconds = 0.0
        self.statuses: list[str] = []

    @property
    def running(self) -> bool:
        return not self.solved and self.steps < self.budget

    def picture(self) -> NDArray[np.uint8]:
        return self._camera.picture(self.env.state)

    def goal_picture(self) -> NDArray[np.uint8]:
        return self._camera.picture(self.env.goal)

    def look(self, to: Observer) -> None:
        """Show what is seen, and where the goal is: once, if it stays there."""
        if self._moving is not None or self.plans == 0:
            to.set_goal(self._goal())
        to.observe(self._seen())

    def _seen(self) -> Seen:
        """What the model wants to see of the states so far."""
        if self._spec is None:
            return self.picture()
        return self._camera.observe(self._spec, self.states)

    def _goal(self) -> Seen:
        """A picture or an observation at rest, or the variables."""
        if self._variables is None and self._spec is not None:
            return self._camera.observe(self._spec, [self.env.goal])
        if self._variables is None:
            return self.goal_picture()
        found = type(self.env).probe_targets(self.env.goal)
        return np.array([float(found[name]) for name in self._variables])

    def planned(self, made: Delivery) -> None:
        """Note a plan."""
        self.plans += 1
        self.encode_seconds += made.encode_seconds
        self.plan_seconds += made.plan_seconds
        self.alarms += made.alarms
        self.statuses.append(str(made.plan.status))
        if self.film is not None:
            self.film.imagine(made.plan.latents[1:])
        if self._watcher is not None:
            self._watcher.planned(self, made)

    def act(self, tick: Tick) -> None:
        """Do what a tick decided."""
        self.idle += tick.source == "hold"
        self.step(tick.action)

    def step(self, action: Action) -> None:
        """The goal moves, if it does; the agent acts."""
        if self.film is not None:
            self.film.frames.append(self.picture())
        if self._watcher is not None:
            self._watcher.stepping(self, action)
        world = self.env if self._moving is None else self._moving
        self.solved = world.advance(action)
        self.actions.append(action)
        self.states.append(self.env.state)
        self.steps += 1
        if self._watcher is not None and not self.running:
            self._watcher.ended(self)

    def result(self, trajectory: bool = False) -> EpisodeResult:
        """How it went; with the states on the way if asked for."""
        states = [[round(float(x), 3) for x in state] for state in self.states]
        return EpisodeResult(
            index=self.task.index,
            episode=self.task.episode,
            start_step=self.task.start_step,
            solved_at_start=self.solved_at_start,
            success=self.solved,
            steps=self.steps,
            distance=float(self.env.distance(self.env.state, self.env.goal)),
            jerk=mean_change(self.actions),
            plans=self.plans,
            plan_seconds=self.plan_seconds,
            encode_seconds=self.encode_seconds,
            statuses=tuple(self.statuses),
            alarms=self.alarms,
            idle=self.idle,
            trajectory=states if trajectory else [],
            goal=[round(float(x), 3) for x in self.env.goal] if trajectory else [],
        )


def side_by_side(
    tasks: Sequence[StartGoal], envs: Sequence[Task], make: Callable[[StartGoal, Task], Attempt]
) -> Iterator[list[Attempt]]:
    """Groups of as many attempts as there are environments, each begun after the one before."""
    for first in range(0, len(tasks), len(envs) or 1):
        some = tasks[first : first + len(envs)]
        yield [make(task, env) for task, env in zip(some, envs, strict=False)]


def run(
    groups: Iterable[Sequence[Attempt]], pilot: Pilot, config: LoopConfig, delay: int = 0
) -> Iterator[Attempt]:
    """Attempts as they end.

    Args:
        groups: Those of a group run side by side and plan together.
        pilot: Plans for them.
        config: When and how far.
        delay: Environment steps that a plan takes.
    """
    for group in groups:
        yield from (attempt for attempt in group if not attempt.running)
        running = [(a, pilot.loop(config, a.budget)) for a in group if a.running]
        while running:
            step_together(running, pilot.plan, delay)
            yield from (attempt for attempt, _ in running if not attempt.running)
            running = [pair for pair in running if pair[0].running]


def run_floor(kind: str, attempts: Iterable[Attempt], seed: int) -> Iterator[Attempt]:
    """Attempts by `random` actions from the task's box, or by `none`, as they end."""
    for attempt in attempts:
        shape = (attempt.budget, len(attempt.env.action_names))
        actions = np.zeros(shape, np.float32)
        if kind == "random":
            rng = np.random.default_rng([seed, attempt.task.index])
            actions = rng.uniform(-1, 1, shape).astype(np.float32)
        while attempt.running:
            attempt.step(actions[attempt.steps])
        yield attempt


class Finished(Protocol):
    """What is left of an attempt that has ended."""

    def result(self, trajectory: bool = False) -> EpisodeResult: ...


def record(
    run: Callable[[Sequence[StartGoal]], Iterator[Finished]],
    tasks: Sequence[StartGoal],
    label: str,
    file: ResultFile | None,
    trajectories: bool = False,
    progress: bool = True,
) -> list[EpisodeResult]:
    """Run the tasks that a results file does not have yet; each is written when it ends."""
    rows = list(file.rows) if file else []
    done = {row.index for row in rows}
    bar = tqdm(
        total=len(tasks), initial=len(done), desc=label, unit="episode", disable=not progress
    )
    with bar:
        for attempt in run([task for task in tasks if task.index not in done]):
            rows.append(attempt.result(trajectories))
            if file is not None:
                file.add(rows[-1])
            bar.set_postfix_str(str(rate([row.success for row in rows])), refresh=False)
            bar.update()
    return rows


@contextlib.contextmanager
def open_results(
    out: Path | None, header: dict[str, Any], pilot: Pilot | None, resume: bool
) -> Iterator[ResultFile | None]:
    """The file that results go to, if they go to one; nobody else writes to it meanwhile."""
    if out is None:
        yield None
        return
    model: dict[str, Any] = {}
    if pilot is not None:
        residual = isinstance(pilot.model.dynamics, ResidualDynamics)
        model = {"model": pilot.model.kind, "residual": residual}
        if header.get("checkpoint"):  # another model may come to lie under the same path
            model["weights"] = weights_hash(Path(header["checkpoint"]))
    with ResultFile.opened(out, header | model | machine_facts(), resume) as file:
        yield file


def measured_once(file: ResultFile | None, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the file's header says was measured; measured now, and noted there, where it does not.

    So the rest of an interrupted run goes by the same figures as its beginning.
    """
    if file is None:
        return measure()
    if "measured" not in file.header:
        file.say("measured", measure())
    found: dict[str, Any] = file.header["measured"]
    return found


def time_plans(attempts: Iterable[Attempt], pilot: Pilot, config: LoopConfig) -> list[Delivery]:
    """First plans, one at a time, for some seconds at most; the very first only warms up."""
    made: list[Delivery] = []
    begun = time.perf_counter()
    for attempt in attempts:
        loop = pilot.loop(config, attempt.budget)
        attempt.look(loop)
        job = loop.next_job()
        assert job is not None
        made += pilot.plan([job])
        if len(made) > 1 and time.perf_counter() - begun > TIMED_SECONDS:
            break
    return made[1:] or made
