"""The kernel's arrays: a dynamics laid out for it, and the memory that it works in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bilinear_wm.planning.trials import TRIALS

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
WIDTH = 16
"""Numbers of a row come in multiples of this."""
CHUNK = 48
"""Candidates that are rolled out together: what the residual makes of them stays in the cache."""


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


@dataclass(frozen=True)
class Matrices:
    """A dynamics as plain arrays, with the letters of `dynamics/`."""

    A: F32  # (d, d)
    B: F32  # (d, m)
    C: F32  # (d, m, d)
    R: F32  # (m, m)
    lift: F32  # E of one block, (m, r)
    env_action_size: int
    layers: tuple[F32, ...] = ()
    """Weight, bias, weight, bias, ... of the residual, as torch has them; none without one."""
    held: F32 | None = None
    """T of the residual's projection, (m, k)."""


def padded(size: int) -> int:
    """Up to whole panels."""
    return -(-size // WIDTH) * WIDTH


def filled(rows: F32) -> F32:
    """With zeros at the end, up to whole panels."""
    missing = padded(rows.shape[-1]) - rows.shape[-1]
    if missing:
        rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(rows)


def panels(matrix: F32) -> F32:
    """(depth, columns) as (columns / WIDTH * depth, WIDTH), the last panel filled with zeros."""
    depth, columns = matrix.shape
    wide = np.pad(matrix, ((0, 0), (0, padded(columns) - columns)))
    made = aligned(wide.size // WIDTH, WIDTH)
    made[:] = wide.reshape(depth, -1, WIDTH).transpose(1, 0, 2).reshape(-1, WIDTH)
    return made


def lay_out(given: Matrices) -> Weights:
    """A dynamics in the kernel's layout."""
    (d, m), e = given.B.shape, given.lift
    wide = np.concatenate([given.C, given.A[:, None]], 1)
    wide = filled(np.ascontiguousarray(wide.transpose(2, 1, 0)))  # (d, m + 1, d)
    entering = np.zeros((e.shape[1], 0), np.float32)
    first, second, third = (np.zeros((0, WIDTH), np.float32) for _ in range(3))
    biases = [np.zeros(0, np.float32) for _ in range(3)]
    held = np.zeros((m, m), np.float32)
    if given.held is not None:
        weights = [x.T for x in given.layers[::2]]
        biases = [filled(x) for x in given.layers[1::2]]
        # Rows as well as columns are filled up: they meet the zeros at the end of latents.
        entering = filled(e.T @ weights[0][d:])
        blank = np.zeros((padded(d) - d, weights[0].shape[1]), np.float32)
        first = panels(np.concatenate([weights[0][:d], blank, weights[0][d:]]))
        second, third = (panels(filled(x.T).T) for x in weights[1:])
        held = given.held @ given.held.T
    return Weights(
        base=filled(given.B.T),
        wide=panels(filled(wide.reshape(d, -1).T).T),
        gain=np.ascontiguousarray(given.R.astype(np.float64)),
        lift=np.ascontiguousarray(e.astype(np.float64)),
        push=np.ascontiguousarray((given.R @ e).T),
        held=held,
        entering=entering,
        first=first,
        first_bias=biases[0],
        second=second,
        second_bias=biases[1],
        third=third,
        third_bias=biases[2],
    )


def make_memory(weights: Weights, d: int, horizon: int, noise: F64, along: int) -> Memory:
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
