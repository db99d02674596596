"""One Gauss-Newton problem on one CPU core, compiled by numba.

The maths is that of `gauss_newton.py` and `BilinearDynamics.step_jet`; what differs is the order
of the work, see `_compiled_rollout.py`. Latents are rows of whole vector registers, filled up
with zeros; M~ = B + C z and Q are kept transposed, as m such rows.
All memory belongs to a workspace that is made once for a thread and a horizon. Ranking is one
call, and so is a round of iterations from some starts; calls release the interpreter's lock.
With a deadline a call is one iteration.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.planning.base import PlannableDynamics, Search, SearchResult, Status
from bilinear_wm.planning.objective import Effort, Objective, Reach, Smoothness
from bilinear_wm.planning.trials import DAMPINGS, TRIALS, num_aligned, random_offsets

if TYPE_CHECKING:
    from bilinear_wm.planning.gauss_newton import GaussNewtonConfig

log = logging.getLogger(__name__)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
WIDTH = 16
"""Numbers of a row come in multiples of this."""
CHUNK = 48
"""Candidates that are rolled out together: what the residual makes of them stays in the cache."""
FLAT = 1e-9
"""Columns of M~ nearer to dependent than this (as a squared sine) are left to torch: Q then is
mostly rounding, and two engines would roll out different plans."""
NONE: NDArray[np.int64] = np.zeros(0, np.int64)
RELATIVE = np.array(DAMPINGS)


class Weights(NamedTuple):
    """The dynamics, laid out for the kernel; d and hidden are `padded`."""

    base: F32  # B^T, (m, d)
    wide: F32  # C and A in panels: z @ wide is C z, transposed, and A z, (m + 1) * d numbers
    gain: F64  # R, (m, m)
    lift: F64  # E of one block, (m, r)
    push: F32  # (R E)^T, (r, m)
    held: F32  # S = T T^T of the residual's projection, (m, m)
    entering: F32  # (r, hidden): the residual's first layer along E
    first: F32  # the residual's layers in panels, (d + m, hidden); none if there is none ...
    first_bias: F32
    second: F32  # ... (hidden, hidden) ...
    second_bias: F32
    third: F32  # ... and (hidden, d)
    third_bias: F32


class Workspace(NamedTuple):
    """What rollouts write: n rows of candidates, or of a latent above its k tangents."""

    latents: F32  # (h + 1, d)
    rows: F32  # (n, d)
    passed: F32  # (n + 1, (m + 1) d): `wide` times them, the last row that of the first latent
    jacobians: F32  # (h, k, d)
    q: F32  # (2 m, d): Q^T, and that of the first latent
    inverse: F32  # (m, m): L^-1
    mixing: F32  # (3 m, m)
    mixed: F32  # (3 m, d): W^T of a tangent, and sums of its rows
    behind: F32  # (m, d)
    before: F32  # (m, d)
    turned: F32  # (m)
    along: F32  # (m)
    tall: F64  # (m, d): M~^T
    system: F64  # (m, 2 m)
    length: F64  # (m)
    least: F64  # (1): the smallest pivot
    inputs: F32  # (n, d + m): what the residual's layers get ...
    hidden: F32  # (n, hidden) ...
    deeper: F32  # (n, hidden) ...
    outputs: F32  # (n, d): ... and give; none without a residual
    slope: F32  # (hidden)


class System(NamedTuple):
    """The quadratic in k directions, and the steps that are tried."""

    gradient: F64  # (k)
    hessian: F64  # (k, k)
    factor: F64  # (k, k)
    delta: F64  # (k)
    where: I64  # (k, 2): block and column of each direction
    step: F64  # (h, m)
    trials: F64  # (steps, h, m)
    costs: F64  # (steps)


class Crowd(NamedTuple):
    """The start and its n - 1 candidates."""

    plans: F64  # (n, h, m)
    costs: F64  # (n)
    noise: F64  # of the random ones
    counts: I64  # (n): iterations
    quiet: I64  # (n): iterations in a row that gained little


class Numbers(NamedTuple):
    """The problem and the settings."""

    targets: F32  # (h, d)
    weights: F64  # (h): of the targets
    about: F64  # (h, m): what effort counts from
    curvature: F64  # (h r, h r): E^T of effort's and smoothness's Hessian E
    low: F64
    high: F64
    dampings: F64
    effort: float
    smoothness: float
    env_size: int
    damping: float
    tolerance: float
    iterations: int
    spread: float
    refreshed: int
    rounds: int


class Memory(NamedTuple):
    """A thread's, for plans of one length."""

    space: Workspace
    system: System
    crowd: Crowd


def kernel_for(
    dynamics: PlannableDynamics, lift: Tensor, config: GaussNewtonConfig
) -> Kernel | None:
    """A kernel where it applies: bilinear dynamics in single precision on the CPU, and numba.

    The residual may be added, if its layers are those that the kernel knows.
    """
    if type(dynamics) not in (BilinearDynamics, ResidualDynamics):
        return None
    assert isinstance(dynamics, BilinearDynamics | ResidualDynamics)
    structured = dynamics.structured
    if structured.normalization != "cholqr" or structured.action_size > structured.latent_size:
        return None
    if structured.A.device.type != "cpu" or structured.A.dtype != torch.float32:
        return None
    try:
        from bilinear_wm.planning import _compiled
    except ImportError:
        log.warning(
            "numba is not installed: single plans run in torch, several times slower; "
            "pip install 'bilinear-world-models[fast]'"
        )
        return None
    return Kernel(_compiled, dynamics, lift, config)


class Kernel:
    """Compiled search for one problem at a time; threads may share it."""

    def __init__(
        self,
        compiled: Any,
        dynamics: BilinearDynamics | ResidualDynamics,
        lift: Tensor,
        config: GaussNewtonConfig,
    ) -> None:
        self._compiled, self._config = compiled, config
        self._dynamics, self._lift = dynamics, lift
        self._parameters, self._versions = list(dynamics.parameters()), [-1]
        self._lock = threading.Lock()
        self._local = threading.local()
        self._curvatures: dict[tuple[int, float, float], F64] = {}
        self._warm_up()

    def knows(self, objective: Objective) -> bool:
        """Whether it plans for that: one Reach, at most one Effort and one Smoothness."""
        kinds = [type(term) for term in objective.terms]
        steps = [t.env_action_size for t in objective.terms if isinstance(t, Smoothness)]
        return (
            Reach in kinds
            and len(set(kinds)) == len(kinds)
            and {Reach, Effort, Smoothness}.issuperset(kinds)
            and {self._dynamics.env_action_size}.issuperset(steps)
        )

    def search(self, search: Search) -> SearchResult | None:
        """One problem: rank the candidates, go on with the better half of the best, and again.

        None where directions are so nearly dependent that torch should plan.
        """
        config, numbers = self._config, self._numbers(search)
        space, system, crowd = self._memory(search.start.shape[1])
        d = self._dynamics.latent_size
        space.latents[0, :d] = search.z0.numpy()[0]
        crowd.plans[0] = search.start.numpy()[0]
        crowd.counts[:] = crowd.quiet[:] = 0
        fixed = (self._weights(), space, system, numbers, crowd)
        run, costs = self._compiled.run, crowd.costs
        run(self._compiled.RANK, *fixed, NONE, 0)
        some = costs.argsort(kind="stable")[: config.starts]
        in_time = True
        while in_time and config.screening and len(some) > 1:
            in_time = self._improve(search, fixed, some, config.screening)
            some = some[costs[some].argsort(kind="stable")[: len(some) // 2 if in_time else None]]
        in_time = in_time and self._improve(search, fixed, some, config.iterations)
        best = some[costs[some].argmin() :][:1]
        run(self._compiled.FINISH, *fixed, best, 0)
        if space.least[0] < FLAT:
            return None
        i = int(best[0])
        status: Status = "max_iterations"
        if not math.isfinite(costs[i]):
            status = "diverged"
        elif crowd.quiet[i] >= numbers.rounds:
            status = "converged"
        elif not in_time:
            status = "deadline"
        found = torch.from_numpy(crowd.plans[i : i + 1].astype(np.float32))
        latents = torch.from_numpy(space.latents[None, :, :d].copy())
        cost = torch.from_numpy(costs[i : i + 1].astype(np.float32))
        return SearchResult(found, cost, (status,), (int(crowd.counts[i]),), latents)

    def _improve(self, search: Search, fixed: Any, some: I64, count: int) -> bool:
        """Up to `count` iterations from each of some plans; False if the deadline came first."""
        improve = self._compiled.IMPROVE
        if math.isinf(search.stop_at):
            self._compiled.run(improve, *fixed, some, count)
            return True
        counts = fixed[-1].counts
        for place, i in enumerate(some):
            for _ in range(count):
                if search.out_of_time():
                    return False
                done = counts[i]
                self._compiled.run(improve, *fixed, some[place : place + 1], 1)
                if counts[i] == done:  # it has ended
                    break
        return True

    def _weights(self) -> Weights:
        """The dynamics' parameters in the kernel's layout; laid out again when they change."""
        versions = [p._version for p in self._parameters]
        if versions != self._versions:
            with self._lock:
                self._laid_out = _lay_out(self._dynamics, self._lift)
                self._versions = versions
        return self._laid_out

    def _numbers(self, search: Search) -> Numbers:
        config, (horizon, m) = self._config, search.start.shape[1:]
        refreshed = min(config.refreshed_blocks or horizon, horizon)
        effort, smoothness, about = 0.0, 0.0, np.zeros((horizon, m))
        for term in search.objective.terms:
            if isinstance(term, Reach):
                targets, weights = term.targets.numpy()[0], np.array(term.weights)
            elif isinstance(term, Effort):
                effort = term.weight
                if term.about is not None:
                    about = term.about[0].double().numpy()
            elif isinstance(term, Smoothness):
                smoothness = term.weight
        return Numbers(
            targets=_filled(targets),
            weights=weights,
            about=about,
            curvature=self._curvature(horizon, effort, smoothness),
            low=np.full(m, -np.inf) if search.low is None else search.low.numpy().astype(float),
            high=np.full(m, np.inf) if search.high is None else search.high.numpy().astype(float),
            dampings=RELATIVE,
            effort=effort,
            smoothness=smoothness,
            env_size=self._dynamics.env_action_size,
            damping=config.damping,
            tolerance=config.tolerance,
            iterations=config.iterations,
            spread=config.spread,
            refreshed=refreshed,
            rounds=math.ceil(horizon / refreshed),
        )

    def _curvature(self, horizon: int, effort: float, smoothness: float) -> F64:
        key = (horizon, effort, smoothness)
        if key not in self._curvatures:
            lift = self._lift.double().numpy()
            m, n = len(lift), self._dynamics.env_action_size
            full = np.kron(np.eye(horizon), lift)
            changes = full[n:] - full[:-n] if horizon * m > n else full[:0]
            self._curvatures[key] = effort * full.T @ full + smoothness * changes.T @ changes
        return self._curvatures[key]

    def _memory(self, horizon: int) -> Memory:
        """This thread's, for plans of that length."""
        spaces: dict[int, Memory] = self._local.__dict__.setdefault("spaces", {})
        if horizon not in spaces:
            config, weights = self._config, self._weights()
            along = num_aligned(config.candidates)
            noise = random_offsets(config, self._lift, config.candidates - along, horizon)
            offsets, d = noise.double().numpy(), padded(self._dynamics.latent_size)
            spaces[horizon] = _make_memory(weights, d, horizon, offsets, along)
        return spaces[horizon]

    def _warm_up(self) -> None:
        """Compile now, not in the first tick of a control loop."""
        d, m = self._dynamics.latent_size, self._dynamics.action_size
        start = torch.zeros(1, 2, m)
        objective = Objective((Reach(torch.ones(1, 2, d), (0.0, 1.0)),))
        bound = torch.ones(m)
        # A deadline in the past compiles all of it, too.
        self.search(Search(torch.zeros(1, d), objective, start, -bound, bound, 0.0))


def padded(size: int) -> int:
    """Up to whole panels."""
    return -(-size // WIDTH) * WIDTH


def _filled(rows: F32) -> F32:
    """With zeros at the end, up to whole panels."""
    missing = padded(rows.shape[-1]) - rows.shape[-1]
    if missing:
        rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(rows)


def _lay_out(dynamics: BilinearDynamics | ResidualDynamics, lift: Tensor) -> Weights:
    from bilinear_wm.planning._compiled_products import panels

    m, d, base = dynamics.action_size, dynamics.latent_size, dynamics.structured
    e, gain = lift.numpy(), base.R.detach().numpy()
    wide = np.concatenate([base.C.detach().numpy(), base.A.detach().numpy()[:, None]], 1)
    wide = _filled(np.ascontiguousarray(wide.transpose(2, 1, 0)))  # (d, m + 1, d)
    entering = np.zeros((e.shape[1], 0), np.float32)
    first, second, third = (np.zeros((0, WIDTH), np.float32) for _ in range(3))
    biases = [np.zeros(0, np.float32) for _ in range(3)]
    held = np.zeros((m, m), np.float32)
    if isinstance(dynamics, ResidualDynamics):
        layers = [p.detach().numpy() for p in dynamics.residual.parameters()]
        weights, biases = [x.T for x in layers[::2]], [_filled(x) for x in layers[1::2]]
        # Rows as well as columns are filled up: they meet the zeros at the end of latents.
        entering = _filled(e.T @ weights[0][d:])
        blank = np.zeros((padded(d) - d, weights[0].shape[1]), np.float32)
        first = panels(np.concatenate([weights[0][:d], blank, weights[0][d:]]))
        second, third = (panels(_filled(x.T).T) for x in weights[1:])
        basis = dynamics.held_basis().detach().numpy()
        held = basis @ basis.T
    return Weights(
        base=_filled(base.B.detach().T.numpy()),
        wide=panels(_filled(wide.reshape(d, -1).T).T),
        gain=np.ascontiguousarray(gain.astype(np.float64)),
        lift=np.ascontiguousarray(e.astype(np.float64)),
        push=np.ascontiguousarray((gain @ e).T),
        held=held,
        entering=entering,
        first=first,
        first_bias=biases[0],
        second=second,
        second_bias=biases[1],
        third=third,
        third_bias=biases[2],
    )


def _make_memory(weights: Weights, d: int, horizon: int, noise: F64, along: int) -> Memory:
    m, r = weights.lift.shape
    hidden, k, count = weights.entering.shape[1], horizon * r, 1 + along + len(noise)
    n = max(1 + k, TRIALS, min(count, CHUNK))
    outputs = n if hidden else 0
    space = Workspace(
        latents=aligned(horizon + 1, d),
        rows=aligned(n, d),
        passed=aligned(n + 1, m * d + d),
        jacobians=aligned(horizon, k, d),
        q=aligned(2 * m, d),
        inverse=aligned(m, m),
        mixing=aligned(3 * m, m),
        mixed=aligned(3 * m, d),
        behind=aligned(m, d),
        before=aligned(m, d),
        turned=aligned(m),
        along=aligned(m),
        tall=aligned(m, d, dtype=np.float64),
        system=np.zeros((m, 2 * m)),
        length=np.zeros(m),
        least=np.zeros(1),
        inputs=aligned(outputs, d + m),
        hidden=aligned(outputs, hidden),
        deeper=aligned(outputs, hidden),
        outputs=aligned(outputs, d),
        slope=aligned(hidden),
    )
    system = System(
        gradient=np.zeros(k),
        hessian=np.zeros((k, k)),
        factor=np.zeros((k, k)),
        delta=np.zeros(k),
        where=np.zeros((k, 2), np.int64),
        step=np.zeros((horizon, m)),
        trials=np.zeros((TRIALS, horizon, m)),
        costs=np.zeros(TRIALS),
    )
    crowd = Crowd(
        plans=np.zeros((count, horizon, m)),
        costs=np.zeros(count),
        noise=noise,
        counts=np.zeros(count, np.int64),
        quiet=np.zeros(count, np.int64),
    )
    return Memory(space, system, crowd)


def aligned(*shape: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Zeros that begin with a line of the cache, as registers like to be loaded."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + size].view(dtype).reshape(shape)
