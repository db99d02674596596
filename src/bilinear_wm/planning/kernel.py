"""One Gauss-Newton problem on one CPU core, compiled by numba: arrays in, arrays out, no torch.

The maths is that of `gauss_newton.py` and `BilinearDynamics.step_jet`; what differs is the order
of the work, see `_compiled_rollout.py`. Latents are rows of whole vector registers, filled up
with zeros; M~ = B + C z and Q are kept transposed, as m such rows.
All memory belongs to a workspace that is made once for a thread and a horizon. Ranking is one
call, and so is a round of iterations from some starts; calls release the interpreter's lock.
With a deadline a call is one iteration.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from bilinear_wm.planning.layout import (
    F32,
    F64,
    I64,
    Crowd as Crowd,  # numba's caches of earlier versions look for these here
    Matrices,
    Memory,
    Numbers,
    System as System,
    Weights as Weights,
    Workspace as Workspace,
    filled,
    lay_out,
    make_memory,
    padded,
)
from bilinear_wm.planning.trials import DAMPINGS, num_aligned

Status = Literal["converged", "max_iterations", "deadline", "diverged", "bad_input"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""How a search can end; what planners tell of a plan."""

FLAT = 1e-9
"""Columns of M~ nearer to dependent than this (as a squared sine) are left to torch: Q then is
mostly rounding, and two engines would roll out different plans."""
NONE: I64 = np.zeros(0, np.int64)
RELATIVE = np.array(DAMPINGS)
RANK, IMPROVE, FINISH = range(3)
"""What `run` of `_compiled.py` does."""


@dataclass(frozen=True)
class Settings:
    """Those of `GaussNewtonConfig` that the search itself knows."""

    damping: float
    iterations: int
    tolerance: float
    refreshed_blocks: int | None
    candidates: int
    spread: float
    starts: int
    screening: int


@dataclass(frozen=True)
class Request:
    """One problem: reach targets, with as little effort and as smoothly as weights ask for."""

    z0: F32  # (d)
    start: F32  # (h, m)
    targets: F32  # (h, d)
    weights: F64  # (h): of the targets
    low: F32 | None = None  # (m)
    high: F32 | None = None
    effort: float = 0.0
    about: F32 | None = None  # (h, m): what effort counts from
    smoothness: float = 0.0
    stop_at: float = math.inf
    """On the clock of `time.perf_counter`."""


@dataclass(frozen=True)
class Found:
    """The best plan of a search."""

    actions: F32  # (h, m)
    latents: F32  # (h + 1, d)
    cost: float
    status: Status
    iterations: int
    flat: bool
    """Whether directions on the way were so nearly dependent that the plan is mostly rounding."""


class Kernel:
    """Compiled search for one problem at a time; threads may share it.

    Args:
        run: The entry of `_compiled.py`, or a call of the same compiled beforehand.
        matrices: The dynamics.
        settings: How to search.
        noise: Offsets of the random candidates, (count, h, m), for a count and a horizon.
    """

    def __init__(
        self,
        run: Callable[..., None],
        matrices: Matrices,
        settings: Settings,
        noise: Callable[[int, int], F64],
    ) -> None:
        self._run, self._settings, self._noise = run, settings, noise
        self._local = threading.local()
        self._curvatures: dict[tuple[int, float, float], F64] = {}
        self.take(matrices)

    def take(self, matrices: Matrices) -> None:
        """Plan with these from now on; their shapes must be those of the ones before."""
        self._matrices, self._laid_out = matrices, lay_out(matrices)

    def search(self, request: Request) -> Found:
        """Rank the candidates, go on with the better half of the best, and again."""
        settings, numbers = self._settings, self._numbers(request)
        space, system, crowd = self.memory(len(request.start))
        d = len(self._matrices.A)
        space.latents[0, :d] = request.z0
        crowd.plans[0] = request.start
        crowd.counts[:] = crowd.quiet[:] = 0
        fixed = (self._laid_out, space, system, numbers, crowd)
        costs = crowd.costs
        self._run(RANK, *fixed, NONE, 0)
        some = costs.argsort(kind="stable")[: settings.starts]
        in_time = True
        while in_time and settings.screening and len(some) > 1:
            in_time = self._improve(request, fixed, some, settings.screening)
            some = some[costs[some].argsort(kind="stable")[: len(some) // 2 if in_time else None]]
        in_time = in_time and self._improve(request, fixed, some, settings.iterations)
        best = some[costs[some].argmin() :][:1]
        self._run(FINISH, *fixed, best, 0)
        i = int(best[0])
        status: Status = "max_iterations"
        if not math.isfinite(costs[i]):
            status = "diverged"
        elif crowd.quiet[i] >= numbers.rounds:
            status = "converged"
        elif not in_time:
            status = "deadline"
        return Found(
            actions=crowd.plans[i].astype(np.float32),
            latents=space.latents[:, :d].copy(),
            cost=float(costs[i]),
            status=status,
            iterations=int(crowd.counts[i]),
            flat=bool(space.least[0] < FLAT),
        )

    def _improve(self, request: Request, fixed: Any, some: I64, count: int) -> bool:
        """Up to `count` iterations from each of some plans; False if the deadline came first."""
        if math.isinf(request.stop_at):
            self._run(IMPROVE, *fixed, some, count)
            return True
        counts = fixed[-1].counts
        for place, i in enumerate(some):
            for _ in range(count):
                if time.perf_counter() >= request.stop_at:
                    return False
                done = counts[i]
                self._run(IMPROVE, *fixed, some[place : place + 1], 1)
                if counts[i] == done:  # it has ended
                    break
        return True

    def _numbers(self, request: Request) -> Numbers:
        settings, (horizon, m) = self._settings, request.start.shape
        refreshed = min(settings.refreshed_blocks or horizon, horizon)
        about = (
            np.zeros((horizon, m)) if request.about is None else request.about.astype(np.float64)
        )
        low, high = request.low, request.high
        return Numbers(
            targets=filled(request.targets),
            weights=request.weights,
            about=about,
            curvature=self._curvature(horizon, request.effort, request.smoothness),
            low=np.full(m, -np.inf) if low is None else low.astype(np.float64),
            high=np.full(m, np.inf) if high is None else high.astype(np.float64),
            dampings=RELATIVE,
            effort=request.effort,
            smoothness=request.smoothness,
            env_size=self._matrices.env_action_size,
            damping=settings.damping,
            tolerance=settings.tolerance,
            iterations=settings.iterations,
            spread=settings.spread,
            refreshed=refreshed,
            rounds=math.ceil(horizon / refreshed),
        )

    def _curvature(self, horizon: int, effort: float, smoothness: float) -> F64:
        key = (horizon, effort, smoothness)
        if key not in self._curvatures:
            lift = self._matrices.lift.astype(np.float64)
            m, n = len(lift), self._matrices.env_action_size
            full = np.kron(np.eye(horizon), lift)
            changes = full[n:] - full[:-n] if horizon * m > n else full[:0]
            self._curvatures[key] = effort * full.T @ full + smoothness * changes.T @ changes
        return self._curvatures[key]

    def memory(self, horizon: int) -> Memory:
        """This thread's, for plans of that length."""
        spaces: dict[int, Memory] = self._local.__dict__.setdefault("spaces", {})
        if horizon not in spaces:
            along = num_aligned(self._settings.candidates)
            offsets = self._noise(self._settings.candidates - along, horizon)
            d = padded(len(self._matrices.A))
            spaces[horizon] = make_memory(self._laid_out, d, horizon, offsets, along)
        return spaces[horizon]

    def warm_up(self) -> None:
        """Compile now, not in the first tick of a control loop."""
        d, m = self._matrices.B.shape
        bound, targets = np.ones(m, np.float32), np.ones((2, d), np.float32)
        z0, start = np.zeros(d, np.float32), np.zeros((2, m), np.float32)
        # A deadline in the past compiles all of it, too.
        weights = np.array([0.0, 1.0])
        self.search(Request(z0, start, targets, weights, -bound, bound, stop_at=0.0))
