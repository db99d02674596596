"""One Gauss-Newton problem on one CPU core, compiled by numba.

The maths is that of `gauss_newton.py` and `BilinearDynamics.step_jet`; what differs is the order
of the work. M~ = B + C z is kept transposed, m rows of d numbers, so that every inner product
runs along memory, and Q is never formed: Q b = M~ (L^-T b) and Q^T M. L^-T = L^-1 (M~^T M.) L^-T.
The trial with the full step is rolled out together with its tangents: if it lowers the cost, as
it mostly does, the next iteration finds its Jacobian ready. All memory belongs to a workspace
that is made once for a thread and a horizon; the interpreter's lock is released while planning.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.planning.base import Found, PlannableDynamics, Search, Status
from bilinear_wm.planning.objective import Effort, Objective, Reach, Smoothness
from bilinear_wm.planning.sensitivity import random_offsets

if TYPE_CHECKING:
    from bilinear_wm.planning.gauss_newton import GaussNewtonConfig

log = logging.getLogger(__name__)

LANES = 16
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Weights(NamedTuple):
    """The dynamics, laid out for the kernel."""

    base: F32  # B^T, (m, d)
    wide: F32  # C, transposed, and A as (m * d + d, d): wide @ z is C z, transposed, and A z
    gain: F64  # R, (m, m)
    lift: F64  # E of one block, (m, r)
    push: F64  # R E, (m, r)
    held: F64  # S = T T^T of the residual's projection, (m, m)
    first: F32  # the residual's layers, (hidden, w >= d + m); no rows if there is none ...
    first_bias: F32
    second: F32  # ... (hidden, hidden) ...
    second_bias: F32
    third: F32  # ... and (d, hidden)
    third_bias: F32


class Workspace(NamedTuple):
    """Every array that a search writes, for k directions."""

    latents: F32  # (h + 1, d)
    first: F32  # (m * d + d): `wide` times the first latent, B added
    first_inverse: F64  # (m, m)
    rows: F32  # (1 + k, d): a latent and its tangents ...
    passed: F32  # (1 + k, m * d + d): ... and `wide` times them
    jacobians: F32  # (h, k, d)
    mixed: F32  # (m, m): products of M~ with a tangent of it
    gram: F64  # (m, m)
    inverse: F64  # (m, m)
    half: F64  # (m, m)
    small: F64  # (7, m)
    inputs: F32  # (1 + k, w): what the residual's layers get ...
    hidden: F32  # (1 + k, hidden) ...
    deeper: F32  # (1 + k, hidden) ...
    outputs: F32  # (1 + k, d): ... and give, for a latent and its tangents
    gradient: F64  # (k)
    hessian: F64  # (k, k)
    delta: F64  # (k)
    where: NDArray[np.int64]  # (k, 2): block and column of each direction
    step: F64  # (h, m)
    trial: F64  # (h, m)
    progress: F64  # cost, and iterations in a row that gained little


class Crowd(NamedTuple):
    """Every array that ranking n plans at once writes."""

    latents: F32  # (n, d)
    passed: F32  # (n, m * d + d)
    inputs: F32  # (n, w)
    hidden: F32  # (n, hidden)
    deeper: F32  # (n, hidden)
    outputs: F32  # (n, d)
    costs: F64  # (n)


class Numbers(NamedTuple):
    """The problem and the settings."""

    z0: F32
    targets: F32  # (h, d)
    stages: F64  # (h): weights of the targets
    effort: float
    smoothness: float
    curvature: F64  # (h r, h r): E^T of their Hessian E
    env_size: int
    low: F64
    high: F64
    damping: float
    tolerance: float
    refreshed: int
    rounds: int


def kernel_for(
    dynamics: PlannableDynamics, lift: Tensor, config: GaussNewtonConfig
) -> Kernel | None:
    """A kernel where it applies: bilinear dynamics in single precision on the CPU, and numba.

    The residual may be added, if its layers are those that the kernel knows.
    """
    if type(dynamics) not in (BilinearDynamics, ResidualDynamics):
        return None
    assert isinstance(dynamics, BilinearDynamics)
    if dynamics.normalization != "cholqr":
        return None
    if dynamics.A.device.type != "cpu" or dynamics.A.dtype != torch.float32:
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
        self, compiled: Any, dynamics: BilinearDynamics, lift: Tensor, config: GaussNewtonConfig
    ) -> None:
        self._compiled, self._config = compiled, config
        self._dynamics, self._lift = dynamics, lift
        self._versions: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._curvatures: dict[tuple[int, float, float], F64] = {}
        self._noises: dict[int, F64] = {}
        self._warm_up()

    def search(self, search: Search) -> Found:
        """One problem: rank the candidates, descend from the best of them, keep the best plan."""
        weights, numbers = self._weights(), self._numbers(search)
        horizon = search.start.shape[1]
        space = self._workspace(horizon, numbers.refreshed)
        self._compiled.prepare(weights, space, numbers)
        starts = self._starts(weights, numbers, search)
        if len(starts) == 1:
            return self._descend(search, weights, numbers, space, starts[0])
        rough = numbers._replace(tolerance=max(self._config.screening, numbers.tolerance))
        screened: list[tuple[Found, F64]] = []
        for start in starts:
            if screened and search.out_of_time():
                break
            screened.append((self._descend(search, weights, rough, space, start), start))
        before, best = min(screened, key=lambda pair: float(pair[0].cost[0]))
        found = self._descend(search, weights, numbers, space, best)
        return replace(found, iterations=(before.iterations[0] + found.iterations[0],))

    def _starts(self, weights: Weights, numbers: Numbers, search: Search) -> Sequence[F64]:
        """The counterpart of `GaussNewtonPlanner._starts`."""
        config, (horizon, m) = self._config, search.start.shape[1:]
        start = search.start[0].double().numpy()
        if config.candidates == 0:
            return (start.copy(),)
        plans = np.empty((1 + config.candidates, horizon, m))
        plans[0] = start
        noise = self._noise(config.candidates // 2, horizon)
        space, crowd = self._workspace(horizon, horizon), self._crowd()
        every = numbers._replace(refreshed=horizon)
        self._compiled.prepare(weights, space, every)
        self._compiled.rank(
            weights,
            space,
            crowd,
            every,
            plans,
            noise,
            config.candidates - len(noise),
            config.spread,
        )
        best = np.argsort(crowd.costs, kind="stable")[: config.starts]
        return [plans[i] for i in best]

    def _descend(
        self, search: Search, weights: Weights, numbers: Numbers, space: Workspace, actions: F64
    ) -> Found:
        """The counterpart of `GaussNewtonPlanner._descend_in_torch`; writes into `actions`."""
        limit = self._config.iterations
        # A deadline is looked at between iterations; without one there is nothing to look at.
        stride = limit if math.isinf(search.stop_at) else 1
        done, ending = 0, self._compiled.begin(weights, space, numbers, actions)
        status: Status = "max_iterations"
        while ending == self._compiled.RUNNING and done < limit:
            if search.out_of_time():
                status = "deadline"
                break
            ending, done = self._compiled.iterate(weights, space, numbers, actions, done, stride)
        if ending == self._compiled.CONVERGED:
            status = "converged"
        elif ending == self._compiled.DIVERGED:
            status = "diverged"
        found = search.clamp(torch.from_numpy(actions).float())  # rounded, and still in the box
        latents = torch.from_numpy(space.latents.copy())
        cost = torch.tensor([space.progress[0]], dtype=torch.float32)
        return Found(found[None], cost, (status,), (done,), latents[None])

    def _weights(self) -> Weights:
        """The dynamics' parameters in the kernel's layout; laid out again when they change."""
        versions = tuple(p._version for p in self._dynamics.parameters())
        if versions != self._versions:
            with self._lock:
                self._laid_out = _lay_out(self._dynamics, self._lift)
                self._versions = versions
        return self._laid_out

    def _numbers(self, search: Search) -> Numbers:
        config, (horizon, m) = self._config, search.start.shape[1:]
        refreshed = min(config.refreshed_blocks or horizon, horizon)
        effort = smoothness = 0.0
        for term in search.objective.terms:
            if isinstance(term, Reach):
                targets, stages = term.targets[0].numpy(), np.array(term.weights)
            elif isinstance(term, Effort):
                effort = term.weight
            elif isinstance(term, Smoothness):
                smoothness = term.weight
        return Numbers(
            z0=np.ascontiguousarray(search.z0[0].numpy()),
            targets=np.ascontiguousarray(targets),
            stages=stages,
            effort=effort,
            smoothness=smoothness,
            curvature=self._curvature(horizon, effort, smoothness),
            env_size=self._dynamics.env_action_size,
            low=np.full(m, -np.inf) if search.low is None else search.low.double().numpy(),
            high=np.full(m, np.inf) if search.high is None else search.high.double().numpy(),
            damping=config.damping,
            tolerance=config.tolerance,
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

    def _workspace(self, horizon: int, refreshed: int) -> Workspace:
        """This thread's memory for plans of that shape."""
        spaces: dict[tuple[int, int], Workspace]
        spaces = self._local.__dict__.setdefault("spaces", {})
        if (horizon, refreshed) not in spaces:
            d, (m, r) = self._dynamics.latent_size, self._lift.shape
            hidden = self._weights().first.shape[0]
            spaces[horizon, refreshed] = _make_workspace(d, m, hidden, horizon, refreshed * r)
        return spaces[horizon, refreshed]

    def _crowd(self) -> Crowd:
        """This thread's memory for the candidates."""
        if not hasattr(self._local, "crowd"):
            n, (d, m) = 1 + self._config.candidates, self._sizes
            hidden = self._weights().first.shape[0]
            self._local.crowd = Crowd(
                latents=np.zeros((n, d), np.float32),
                passed=np.zeros((n, m * d + d), np.float32),
                inputs=np.zeros((n, padded(d + m)), np.float32),
                hidden=np.zeros((n, hidden), np.float32),
                deeper=np.zeros((n, hidden), np.float32),
                outputs=np.zeros((n, d), np.float32),
                costs=np.zeros(n),
            )
        crowd: Crowd = self._local.crowd
        return crowd

    def _noise(self, count: int, horizon: int) -> F64:
        """The random candidates, which are the same for every problem."""
        if horizon not in self._noises:
            made = random_offsets(self._config, self._lift, count, horizon)
            self._noises[horizon] = made.double().numpy()
        return self._noises[horizon]

    @property
    def _sizes(self) -> tuple[int, int]:
        return self._dynamics.latent_size, self._dynamics.action_size

    def _warm_up(self) -> None:
        """Compile now, not in the first tick of a control loop."""
        d, m = self._dynamics.latent_size, self._dynamics.action_size
        start = torch.zeros(1, 2, m)
        objective = Objective((Reach(torch.ones(1, 2, d), (0.0, 1.0)),))
        bound = torch.ones(m)
        self.search(Search(torch.zeros(1, d), objective, start, -bound, bound, math.inf))


def padded(size: int) -> int:
    """Up to whole vector registers: odd ends of inner products are slow."""
    return -(-size // LANES) * LANES


def _lay_out(dynamics: BilinearDynamics, lift: Tensor) -> Weights:
    spread = dynamics.C.detach().transpose(0, 1).reshape(-1, dynamics.latent_size)
    wide = torch.cat([spread, dynamics.A.detach()])
    gain, held = dynamics.R.detach().double().numpy(), lift.double().numpy()
    m, d = dynamics.action_size, dynamics.latent_size
    shapes = ((0, d + m), (0,), (0, 0), (0,), (d, 0), (d,))
    layers = [np.zeros(shape, np.float32) for shape in shapes]
    kept = np.zeros((m, m))
    if isinstance(dynamics, ResidualDynamics):
        layers = [p.detach().numpy() for p in dynamics.residual.parameters()]
        layers[0] = np.pad(layers[0], ((0, 0), (0, padded(d + m) - d - m)))
        basis = dynamics.held_basis().detach().double().numpy()
        kept = basis @ basis.T
    return Weights(
        base=np.ascontiguousarray(dynamics.B.detach().T.numpy()),
        wide=np.ascontiguousarray(wide.numpy()),
        gain=np.ascontiguousarray(gain),
        lift=np.ascontiguousarray(held),
        push=np.ascontiguousarray(gain @ held),
        held=kept,
        **{
            name: np.ascontiguousarray(layer)
            for name, layer in zip(Weights._fields[-6:], layers, strict=True)
        },
    )


def _make_workspace(d: int, m: int, hidden: int, horizon: int, k: int) -> Workspace:
    return Workspace(
        latents=np.zeros((horizon + 1, d), np.float32),
        first=np.zeros(m * d + d, np.float32),
        first_inverse=np.zeros((m, m)),
        rows=np.zeros((1 + k, d), np.float32),
        passed=np.zeros((1 + k, m * d + d), np.float32),
        jacobians=np.zeros((horizon, k, d), np.float32),
        mixed=np.zeros((m, m), np.float32),
        gram=np.zeros((m, m)),
        inverse=np.zeros((m, m)),
        half=np.zeros((m, m)),
        small=np.zeros((7, m)),
        inputs=np.zeros((1 + k, padded(d + m)), np.float32),
        hidden=np.zeros((1 + k, hidden), np.float32),
        deeper=np.zeros((1 + k, hidden), np.float32),
        outputs=np.zeros((1 + k, d), np.float32),
        gradient=np.zeros(k),
        hessian=np.zeros((k, k)),
        delta=np.zeros(k),
        where=np.zeros((k, 2), np.int64),
        step=np.zeros((horizon, m)),
        trial=np.zeros((horizon, m)),
        progress=np.zeros(2),
    )
