"""One Gauss-Newton problem on one CPU core, compiled by numba.

The maths is that of `gauss_newton.py` and `BilinearDynamics.step_jet`; what differs is the order
of the work, see `_compiled_rollout.py`. Latents are rows of whole vector registers, filled up
with zeros; M~ = B + C z and Q are kept transposed, as m such rows.
After a full step the next is rolled out together with its tangents: if it lowers the cost, as it
mostly does, the next iteration finds its Jacobian ready. All memory belongs to a workspace
that is made once for a thread and a horizon. A search is one call, which releases the
interpreter's lock; with a deadline it is one call an iteration.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.planning.base import PlannableDynamics, Search, SearchResult, Status
from bilinear_wm.planning.objective import Effort, Objective, Reach, Smoothness
from bilinear_wm.planning.sensitivity import random_offsets

if TYPE_CHECKING:
    from bilinear_wm.planning.gauss_newton import GaussNewtonConfig

log = logging.getLogger(__name__)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
WIDTH = 16
"""Numbers of a row come in multiples of this."""
ENDINGS: tuple[Status, ...] = ("deadline", "converged", "diverged", "max_iterations")
"""Of the compiled search, by its number; one that still runs was stopped by the clock."""


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
    """Every array that a descent writes, for k directions."""

    latents: F32  # (h + 1, d)
    first: F32  # ((m + 1) d): `wide` times the first latent, B added
    first_q: F32  # (m, d): Q^T of the first latent
    rows: F32  # (1 + k, d): a latent and its tangents ...
    passed: F32  # (1 + k, (m + 1) d): ... and `wide` times them
    jacobians: F32  # (h, k, d)
    q: F32  # (m, d): Q^T
    inverse: F32  # (m, m): L^-1
    mixing: F32  # (3 m, m)
    mixed: F32  # (3 m, d): W^T of a tangent, and sums of its rows
    behind: F32  # (m, d)
    before: F32  # (m, d)
    turned: F32  # (m)
    along: F32  # (m)
    wide: F64  # (m, d): M~^T
    system: F64  # (m, 2 m)
    length: F64  # (m)
    inputs: F32  # (1 + k, d + m): what the residual's layers get ...
    hidden: F32  # (1 + k, hidden) ...
    deeper: F32  # (1 + k, hidden) ...
    outputs: F32  # (1 + k, d): ... and give, for a latent and its tangents
    slope: F32  # (hidden)
    gradient: F64  # (k)
    hessian: F64  # (k, k)
    delta: F64  # (k)
    where: NDArray[np.int64]  # (k, 2): block and column of each direction
    step: F64  # (h, m)
    trial: F64  # (h, m)
    progress: F64  # cost, iterations in a row that gained little, length of the last step


class Crowd(NamedTuple):
    """The start and its n - 1 candidates, those that are chosen, and where the search is."""

    plans: F64  # (n, h, m)
    noise: F64  # of the random ones
    chosen: F64  # (starts, h, m)
    chosen_costs: F64  # (starts)
    counts: NDArray[np.int64]  # (starts): iterations
    state: NDArray[np.int64]  # number of the descent, and its iterations
    latents: F32  # (n, d)
    passed: F32  # (n, (m + 1) d)
    inputs: F32  # (n, d + m)
    hidden: F32  # (n, hidden)
    deeper: F32  # (n, hidden)
    outputs: F32  # (n, d)
    costs: F64  # (n)


class Numbers(NamedTuple):
    """The problem and the settings."""

    z0: F32
    targets: F32  # (h, d)
    weights: F64  # (h): of the targets
    effort: float
    smoothness: float
    curvature: F64  # (h r, h r): E^T of their Hessian E
    env_size: int
    low: F64
    high: F64
    damping: float
    tolerance: float
    iterations: int
    screening: float
    screened: int
    spread: float
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
    assert isinstance(dynamics, BilinearDynamics | ResidualDynamics)
    structured = dynamics.structured
    if structured.normalization != "cholqr":
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
        self._versions: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._curvatures: dict[tuple[int, float, float], F64] = {}
        self._warm_up()

    def knows(self, objective: Objective) -> bool:
        """Whether it plans for that: one Reach, at most one Effort and one Smoothness."""
        kinds = [type(term) for term in objective.terms]
        steps = [t.env_action_size for t in objective.terms if isinstance(t, Smoothness)]
        plain = all(t.about is None for t in objective.terms if isinstance(t, Effort))
        return (
            plain
            and Reach in kinds
            and len(set(kinds)) == len(kinds)
            and {Reach, Effort, Smoothness}.issuperset(kinds)
            and {self._dynamics.env_action_size}.issuperset(steps)
        )

    def search(self, search: Search) -> SearchResult:
        """One problem: rank the candidates, descend from the best of them, keep the best plan."""
        compiled, weights, numbers = self._compiled, self._weights(), self._numbers(search)
        space, crowd = self._memory(search.start.shape[1])
        crowd.plans[0] = search.start[0].numpy()
        crowd.state[:] = compiled.UNRANKED, 0
        crowd.counts[:] = 0
        # A deadline is looked at between iterations; without one there is nothing to look at.
        hurried = not math.isinf(search.stop_at)
        ending = compiled.search(weights, space, crowd, numbers, 0 if hurried else 1 << 40)
        while ending == compiled.RUNNING and not search.out_of_time():
            ending = compiled.search(weights, space, crowd, numbers, 1)
        if ending == compiled.RUNNING:
            compiled.finish(weights, space, crowd)
        best = int(crowd.chosen_costs.argmin())
        cost = torch.tensor([crowd.chosen_costs[best]], dtype=torch.float32)
        found = search.clamp(torch.from_numpy(crowd.chosen[best]).float())  # rounded, in the box
        latents = torch.from_numpy(space.latents[:, : search.z0.shape[1]].copy())
        status: Status = ENDINGS[ending]
        return SearchResult(found[None], cost, (status,), (int(crowd.counts[best]),), latents[None])

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
                targets, weights = term.targets[0].numpy(), np.array(term.weights)
            elif isinstance(term, Effort):
                effort = term.weight
            elif isinstance(term, Smoothness):
                smoothness = term.weight
        return Numbers(
            z0=_filled(search.z0[0].numpy()),
            targets=_filled(targets),
            weights=weights,
            effort=effort,
            smoothness=smoothness,
            curvature=self._curvature(horizon, effort, smoothness),
            env_size=self._dynamics.env_action_size,
            low=np.full(m, -np.inf) if search.low is None else search.low.double().numpy(),
            high=np.full(m, np.inf) if search.high is None else search.high.double().numpy(),
            damping=config.damping,
            tolerance=config.tolerance,
            iterations=config.iterations,
            screening=config.screening,
            screened=config.iterations,
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

    def _memory(self, horizon: int) -> tuple[Workspace, Crowd]:
        """This thread's, for plans of that length."""
        spaces: dict[int, tuple[Workspace, Crowd]]
        spaces = self._local.__dict__.setdefault("spaces", {})
        if horizon not in spaces:
            hidden = self._weights().entering.shape[1]
            d, (m, r) = padded(self._dynamics.latent_size), self._lift.shape
            config = self._config
            random = random_offsets(config, self._lift, config.candidates // 2, horizon)
            noise = random.double().numpy()
            spaces[horizon] = (
                _make_workspace(d, m, hidden, horizon, horizon * r),
                _make_crowd(d, m, hidden, horizon, 1 + config.candidates, config.starts, noise),
            )
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
    first, second, third = (np.zeros((0, 1, 1), np.float32) for _ in range(3))
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


def _make_crowd(
    d: int, m: int, hidden: int, horizon: int, n: int, starts: int, noise: F64
) -> Crowd:
    return Crowd(
        plans=np.zeros((n, horizon, m)),
        noise=noise,
        chosen=np.zeros((starts, horizon, m)),
        chosen_costs=np.zeros(starts),
        counts=np.zeros(starts, np.int64),
        state=np.zeros(2, np.int64),
        latents=np.zeros((n, d), np.float32),
        passed=np.zeros((n, m * d + d), np.float32),
        inputs=np.zeros((n, d + m), np.float32),
        hidden=np.zeros((n, hidden), np.float32),
        deeper=np.zeros((n, hidden), np.float32),
        outputs=np.zeros((n, d), np.float32),
        costs=np.zeros(n),
    )


def _make_workspace(d: int, m: int, hidden: int, horizon: int, k: int) -> Workspace:
    def single(*shape: int) -> F32:
        return np.zeros(shape, np.float32)

    return Workspace(
        latents=single(horizon + 1, d),
        first=single(m * d + d),
        first_q=single(m, d),
        rows=single(1 + k, d),
        passed=single(1 + k, m * d + d),
        jacobians=single(horizon, k, d),
        q=single(m, d),
        inverse=single(m, m),
        mixing=single(3 * m, m),
        mixed=single(3 * m, d),
        behind=single(m, d),
        before=single(m, d),
        turned=single(m),
        along=single(m),
        wide=np.zeros((m, d)),
        system=np.zeros((m, 2 * m)),
        length=np.zeros(m),
        inputs=single(1 + k, d + m),
        hidden=single(1 + k, hidden),
        deeper=single(1 + k, hidden),
        outputs=single(1 + k, d),
        slope=single(hidden),
        gradient=np.zeros(k),
        hessian=np.zeros((k, k)),
        delta=np.zeros(k),
        where=np.zeros((k, 2), np.int64),
        step=np.zeros((horizon, m)),
        trial=np.zeros((horizon, m)),
        progress=np.zeros(3),
    )
