"""Who acts in an evaluation: a model with a planner, random actions, or nobody."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.control.horizon import MPCConfig, RecedingHorizon, plan_together
from bilinear_wm.control.memory import PlanMemory
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.evaluation.goals import StartGoal
from bilinear_wm.models.base import WorldModel
from bilinear_wm.observation import Observation, ObservationSpec, stack
from bilinear_wm.planning import Planner, PlanProblem
from bilinear_wm.reporting.results import EpisodeResult, mean_change
from bilinear_wm.tasks.base import Task

Actions = NDArray[np.float32]
Frames = list[NDArray[np.uint8]]
LATENCY_SAMPLES, LATENCY_SECONDS = 30, 10.0


class Policy(Protocol):
    """Decides what running episodes do next."""

    def decide(self, episodes: Sequence[Episode]) -> list[Actions]:
        """Raw actions for each episode, one row an environment step."""
        ...


class Episode:
    """One start and goal while it runs."""

    def __init__(self, task: StartGoal, env: Task, camera: Task, budget: int) -> None:
        self.task, self.env, self._camera, self.budget = task, env, camera, budget
        env.set_state(task.start)
        env.set_goal(task.goal)
        self.solved_at_start = self.solved = env.solved
        self.steps = 0
        self.actions: list[NDArray[np.float32]] = []
        self.states = [env.state]
        self.plans, self.alarms = 0, 0
        self.plan_seconds = self.encode_seconds = 0.0
        self.statuses: list[str] = []
        self.frames: Frames = []
        self.imagined: Frames = []

    @property
    def running(self) -> bool:
        return not self.solved and self.steps < self.budget

    def blocks_left(self, frame_skip: int) -> int:
        """Blocks that the budget still allows, the last perhaps in part."""
        return -(-(self.budget - self.steps) // frame_skip)

    def picture(self) -> NDArray[np.uint8]:
        return self._camera.picture(self.env.state)

    def goal_picture(self) -> NDArray[np.uint8]:
        return self._camera.picture(self.task.goal)

    def observe(self, spec: ObservationSpec) -> Observation:
        return self._camera.observe(spec, self.states)

    def observe_goal(self, spec: ObservationSpec) -> Observation:
        """The goal, at rest."""
        return self._camera.observe(spec, [self.task.goal])

    def execute(self, actions: Actions, film: bool = False) -> None:
        """Act until the actions, the budget or the way to the goal end."""
        for action in actions[: self.budget - self.steps]:
            if film:
                self.frames.append(self.picture())
            self.solved = self.env.advance(action)
            self.actions.append(action)
            self.states.append(self.env.state)
            self.steps += 1
            if self.solved:
                break
        if film and not self.running:
            self.frames.append(self.picture())

    def result(self, trajectory: bool = False) -> EpisodeResult:
        """How it went; with the states on the way if asked for."""
        states = [[round(float(x), 3) for x in state] for state in self.states]
        distance = float(self.env.distance(self.env.state, self.task.goal))
        return EpisodeResult(
            index=self.task.index,
            episode=self.task.episode,
            start_step=self.task.start_step,
            solved_at_start=self.solved_at_start,
            success=self.solved,
            steps=self.steps,
            distance=distance,
            jerk=mean_change(self.actions),
            plans=self.plans,
            plan_seconds=self.plan_seconds,
            encode_seconds=self.encode_seconds,
            statuses=tuple(self.statuses),
            alarms=self.alarms,
            trajectory=states if trajectory else [],
        )


class FloorPolicy:
    """`random` draws from the task's box; `none` does nothing."""

    def __init__(self, kind: str, action_size: int, seed: int) -> None:
        self._random, self._size, self._seed = kind == "random", action_size, seed

    def decide(self, episodes: Sequence[Episode]) -> list[Actions]:
        decisions = []
        for episode in episodes:
            shape = (episode.budget, self._size)
            if self._random:
                rng = np.random.default_rng([self._seed, episode.task.index])
                decisions.append(rng.uniform(-1, 1, shape).astype(np.float32))
            else:
                decisions.append(np.zeros(shape, np.float32))
        return decisions


class ModelPolicy:
    """Encode, plan, hand out the actions."""

    def __init__(
        self,
        model: WorldModel,
        planner: Planner,
        mpc: MPCConfig,
        bounds: tuple[Tensor, Tensor],
        monitor: ActionMonitor | None = None,
        memory: PlanMemory | None = None,
        imagine: bool = False,
    ) -> None:
        self.model, self.planner, self.mpc, self.bounds = model, planner, mpc, bounds
        self.monitor, self.memory, self.imagine = monitor, memory, imagine
        self.problems: list[tuple[Tensor, Tensor]] = []  # some of those met, to time
        self._loops: dict[int, RecedingHorizon] = {}
        self._goals: dict[int, Tensor] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def decide(self, episodes: Sequence[Episode]) -> list[Actions]:
        begun = time.perf_counter()
        z = self._encode(episodes)
        goals = torch.stack([self._goals[e.task.index] for e in episodes])
        encoded = time.perf_counter()
        loops = [self._loops.setdefault(e.task.index, RecedingHorizon(self.mpc)) for e in episodes]
        for episode, loop in zip(episodes, loops, strict=True):
            if self.mpc.arrive == "deadline":
                loop.limit(episode.blocks_left(self.model.config.frame_skip))
        self._watch(episodes, loops, z)
        if self.memory is not None:
            for loop, plan in zip(loops, self.memory.recall(z, goals), strict=True):
                if loop.rest is None:  # nothing to continue
                    loop.rest = plan
        moves = plan_together(self.planner, loops, z, goals, self.bounds)
        planned = time.perf_counter()
        if len(self.problems) < LATENCY_SAMPLES:
            self.problems += list(zip(z, goals, strict=True))
        for episode, z_now, move in zip(episodes, z, moves, strict=True):
            episode.plans += 1
            episode.encode_seconds += (encoded - begun) / len(episodes)
            episode.plan_seconds += (planned - encoded) / len(episodes)
            episode.statuses.append(move.status)
            self._before[episode.task.index] = (z_now, move.blocks)
            if self.imagine:
                pictures = self.model.draw(move.latents).cpu().numpy()
                episode.imagined += list(pictures.repeat(self.model.config.frame_skip, axis=0))
        return [self.model.to_env_actions(move.blocks).cpu().numpy() for move in moves]

    def _encode(self, episodes: Sequence[Episode]) -> Tensor:
        """Latents now; goals are encoded once."""
        fresh = [e for e in episodes if e.task.index not in self._goals]
        spec = self.model.config.observes
        seen = [e.observe(spec) for e in episodes] + [e.observe_goal(spec) for e in fresh]
        z = self.model.encode(stack(seen))
        for episode, goal in zip(fresh, z[len(episodes) :], strict=True):
            self._goals[episode.task.index] = goal
        return z[: len(episodes)]

    def _watch(
        self, episodes: Sequence[Episode], loops: Sequence[RecedingHorizon], z: Tensor
    ) -> None:
        """Start afresh where the model does not explain the last block."""
        if self.monitor is None:
            return
        for episode, loop, now in zip(episodes, loops, z, strict=True):
            before = self._before.get(episode.task.index)
            if before is None or len(before[1]) != 1:
                continue  # several blocks passed unseen
            if self.monitor.fires(before[0], before[1][0], now):
                episode.alarms += 1
                loop.restart()

    def latency_ms(self) -> list[float]:
        """One planning call for one episode, again and again, for some seconds at most."""
        times: list[float] = []
        low, high = self.bounds
        for z0, goal in self.problems[:LATENCY_SAMPLES]:
            problem = PlanProblem(z0, goal, self.mpc.horizon, low, high)
            times.append(1e3 * self.planner.plan(problem).seconds)
            if len(times) >= 3 and sum(times) > 1e3 * LATENCY_SECONDS:
                break
        return times[1:] or times

    def encode_ms(self, observation: Observation) -> list[float]:
        """Encoding one observation, again and again."""
        times = []
        for _ in range(10):
            begun = time.perf_counter()
            self.model.encode(observation)
            times.append(1e3 * (time.perf_counter() - begun))
        return times
