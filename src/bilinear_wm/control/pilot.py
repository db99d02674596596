"""From observations to raw actions, for one loop or for many at once.

    pilot = Pilot(model, planner)
    loop = pilot.loop(LoopConfig(horizon=5))

A pilot keeps nothing between calls: what a loop remembers of its plans travels with the job and
comes back with the plan, so that threads may share a pilot, and a plan that nobody wants any more
leaves no trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Tensor

from bilinear_wm.analysis.probes import LinearProbe
from bilinear_wm.control.box import action_box
from bilinear_wm.control.horizon import Course, LoopConfig
from bilinear_wm.control.loop import Delivery, Job, Loop
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.prior import BLOCKS
from bilinear_wm.observation import Seen, together
from bilinear_wm.planning.base import Plan, Planner, PlanProblem
from bilinear_wm.planning.terms import StateGoal

SHORTEST_S = 1e-4
"""What a planner is given when encoding has used its time up."""


class Pilot:
    """Encodes, watches and plans.

    Args:
        model: Encodes observations; knows the units of actions.
        planner: Plans on the model's dynamics; may be exchanged at any time.
        action_low: Smallest action, a number or one an entry.
        action_high: Largest action.
        monitor: Watches whether the model explains what happens; where it does not, plans begin
            afresh.
        encode: Latents of a batch of observations, in the place of `model.encode`.
        probe: Reads physical variables off latents; goals are then variables, not observations.
    """

    def __init__(
        self,
        model: WorldModel,
        planner: Planner,
        action_low: ArrayLike = -1.0,
        action_high: ArrayLike = 1.0,
        monitor: ActionMonitor | None = None,
        encode: Callable[[Any], Float[Tensor, "batch d"]] | None = None,
        probe: LinearProbe | None = None,
    ) -> None:
        self.model, self.planner = model, planner
        self.monitor = monitor
        self._encode, self.probe = encode or model.encode, probe
        self._box = action_box(action_low, action_high, model.config.action_size)
        self._bounds = model.action_bounds(*self._box)

    def loop(self, config: LoopConfig, budget: int | None = None, **options: Any) -> Loop:
        """A loop for this pilot to plan for; options are those of `Loop`."""
        return Loop(
            config, *self._box, self.model.config.frame_skip, budget,
            watched=self.monitor is not None, **options,
        )  # fmt: skip

    @torch.no_grad()
    def plan(self, jobs: Sequence[Job], deadline_s: float | None = None) -> list[Delivery]:
        """A plan for each job: one batch to encode, and one to plan for each horizon among them.

        Args:
            jobs: What to plan, each of another loop.
            deadline_s: Return the best plans found after this many seconds, encoding included.
        """
        begun = time.perf_counter()
        known = self._latents(jobs)
        z0 = torch.stack([known[id(job.seen)] for job in jobs])
        z_goal = torch.stack([known[id(job.goal)] for job in jobs])
        watched = [self._watch(job, known) for job in jobs]
        encoded = time.perf_counter()
        distances = self._distances(z0, z_goal)
        courses = [
            _course(job, distance, alarms > 0)
            for job, distance, (alarms, _) in zip(jobs, distances, watched, strict=True)
        ]
        starts = [course.start for course in courses]
        plans: dict[int, Plan] = {}
        for horizon in sorted({course.horizon for course in courses}):
            chosen = [i for i, course in enumerate(courses) if course.horizon == horizon]
            problem = self._problem(z0[chosen], z_goal[chosen], horizon)
            left = None
            if deadline_s is not None:
                left = max(deadline_s - (time.perf_counter() - begun), SHORTEST_S)
            start = self._begin(problem, [starts[i] for i in chosen])
            together = self.planner.plan(problem, warm_start=start, deadline_s=left)
            plans |= zip(chosen, _apart(together), strict=True)
        raw = [self.model.to_env_actions(plans[i].actions).cpu().numpy() for i in range(len(jobs))]
        encode_s = (encoded - begun) / len(jobs)
        plan_s = (time.perf_counter() - encoded) / len(jobs)
        made = []
        for i, (job, course) in enumerate(zip(jobs, courses, strict=True)):
            course = replace(course, blocks=plans[i].actions, known=_kept(job, known))
            made.append(Delivery(raw[i], plans[i], course, encode_s, plan_s, *watched[i]))
        return made

    def _latents(self, jobs: Sequence[Job]) -> dict[int, Tensor]:
        """Latents by the identity of observations; goals and what is past are encoded once."""
        known = {id(seen): z for job in jobs for seen, z in job.course.known}
        new = {id(job.seen): job.seen for job in jobs}
        wanted = [job.goal for job in jobs]
        if self.probe is not None:  # they say themselves what they are
            known |= {id(goal): torch.as_tensor(goal).to(self.probe.offset) for goal in wanted}
        if self.monitor is not None:
            wanted += [end for job in jobs for b in job.blocks for end in (b.before, b.after)]
        new |= {id(seen): seen for seen in wanted if id(seen) not in known}
        z = self._encode(together([self._whole(seen) for seen in new.values()]))
        return known | dict(zip(new, z, strict=True))

    def _whole(self, seen: Seen) -> Seen:
        """Refuse what lacks something that the model wants: batches must not pass for histories."""
        spec = self.model.config.observes
        return seen if spec.is_picture else spec.of(seen)

    def _problem(
        self, z0: Float[Tensor, "batch d"], goal: Float[Tensor, "batch n"], horizon: int
    ) -> PlanProblem:
        """What to reach: latents, or variables read off them, in standard deviations.

        A prior tells the first blocks of a way. On a longer one, plans go where it would be by
        then: a goal beyond them would be pulled at too early.
        """
        if self.probe is None:
            prior = self.model.propose(z0, goal, horizon)
            if prior is not None and horizon > BLOCKS:
                horizon, prior = BLOCKS, prior[:, :BLOCKS].clamp(*self._bounds)
                goal = self.planner.dynamics.rollout(z0, prior)[:, -1]
            return PlanProblem(z0, goal, horizon, *self._bounds, prior=prior)
        weight = self.planner.config.goal_weight
        term = StateGoal(self.probe.matrix, self.probe.offset, goal, self.probe.std, weight)
        return PlanProblem(z0, None, horizon, *self._bounds, terms=(term,))

    def _distances(
        self, z0: Float[Tensor, "batch d"], goal: Float[Tensor, "batch n"]
    ) -> list[float]:
        away = z0 - goal if self.probe is None else (self.probe.read(z0) - goal) / self.probe.std
        distances: list[float] = away.norm(dim=-1).tolist()
        return distances

    def _watch(self, job: Job, known: dict[int, Tensor]) -> tuple[int, float | None]:
        """How many blocks the model does not explain, and how far off the newest is."""
        if self.monitor is None or not job.blocks:
            return 0, None
        before = torch.stack([known[id(block.before)] for block in job.blocks])
        after = torch.stack([known[id(block.after)] for block in job.blocks])
        raw = torch.from_numpy(np.concatenate([block.actions for block in job.blocks]))
        done = self.model.to_model_actions(raw.to(before))
        values = self.monitor.disagreement(before, done, after)
        return int((values > self.monitor.threshold).sum()), float(values[-1])

    def _begin(
        self, problem: PlanProblem, starts: Sequence[Float[Tensor, "some m"] | None]
    ) -> Float[Tensor, "batch h m"]:
        """What plans begin from: what there is of another plan, then the prior or rest."""
        size = (len(problem.z0), problem.horizon, self.planner.dynamics.action_size)
        begin = problem.z0.new_zeros(size) if problem.prior is None else problem.prior.clone()
        for row, some in zip(begin, starts, strict=True):
            if some is not None:
                row[: len(some)] = some[: problem.horizon]
        return begin


def _course(job: Job, distance: float, alarm: bool) -> Course:
    """Of the plan that a job asks for."""
    course = job.course.afresh() if alarm else job.course
    new_goal = all(seen is not job.goal for seen, _ in course.known)
    return course.next(job.tick, distance, new_goal, job.ticks_left)


def _kept(job: Job, known: dict[int, Tensor]) -> tuple[tuple[Any, Tensor], ...]:
    """Latents that the next job of the loop may need."""
    kept = (job.seen, job.goal, job.anchor)
    return tuple((seen, known[id(seen)]) for seen in kept if id(seen) in known)


def _apart(plan: Plan) -> list[Plan]:
    """A batch of plans one by one."""
    assert isinstance(plan.status, tuple)
    assert isinstance(plan.iterations, tuple)
    rows = zip(plan.actions, plan.latents, plan.cost, plan.status, plan.iterations, strict=True)
    return [Plan(*row, plan.seconds) for row in rows]
