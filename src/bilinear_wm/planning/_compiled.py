"""The numba functions of `kernel.py`, which explains the maths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

RUNNING, CONVERGED, DIVERGED = range(3)
SHIFT = 1e-13  # as in models/cholqr.py
SHORTEST = 2.0**-15  # sixteen halvings, as in gauss_newton.py

compiled = njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
def begin(w: Any, ws: Any, p: Any, actions: Any) -> int:
    """Roll out the start; the workspace then holds its latents, Jacobians and cost."""
    ws.latents[0] = p.z0
    _products(ws.latents[:1], w.wide, ws.passed[:1])
    ws.first[:] = ws.passed[0]
    _factor(ws, _tilde(w, ws.first), ws.first_inverse)
    _roll_out(w, ws, actions, 0, p.refreshed, True)
    ws.progress[0] = _cost(ws, p, actions)
    ws.progress[1] = 0.0
    return RUNNING if np.isfinite(ws.progress[0]) else DIVERGED


@compiled
def iterate(w: Any, ws: Any, p: Any, actions: Any, first: int, count: int) -> Any:
    """Up to `count` iterations from number `first` on; returns (ending, iterations done)."""
    horizon = actions.shape[0]
    for iteration in range(first, first + count):
        cost = ws.progress[0]
        block = (iteration * p.refreshed) % horizon
        upcoming = ((iteration + 1) * p.refreshed) % horizon
        promised = _direction(w, ws, p, actions, block)
        length, lower = 1.0, cost
        while promised > p.tolerance * cost and length >= SHORTEST:
            _try(ws, p, actions, length)
            _roll_out(w, ws, ws.trial, upcoming, p.refreshed, length == 1.0)
            lower = _cost(ws, p, ws.trial)
            if lower < cost:
                break
            length *= 0.5
        gained = lower < cost
        if gained:
            actions[:] = ws.trial
            ws.progress[0] = lower
        if length < 1.0 or (block != upcoming and not gained):
            # The Jacobians at hand are not those of `actions` in the upcoming blocks.
            _roll_out(w, ws, actions, upcoming, p.refreshed, True)
        small = not gained or not (cost - lower > p.tolerance * cost)
        ws.progress[1] = ws.progress[1] + 1.0 if small else 0.0
        if ws.progress[1] >= p.rounds:
            return CONVERGED, iteration + 1
    return RUNNING, first + count


@compiled
def _roll_out(w: Any, ws: Any, actions: Any, block: int, refreshed: int, tangents: bool) -> None:
    """Latents of a plan; with `tangents` also its Jacobians in the refreshed blocks.

    M~ of the first latent is known, and no tangent passes it: nothing happened before.
    """
    horizon, m = actions.shape
    d, r = ws.latents.shape[1], w.push.shape[1]
    b, v, turned, back = ws.small[0], ws.small[1], ws.small[2], ws.small[3]
    k = 0
    for t in range(horizon):
        passed, inverse = ws.first, ws.first_inverse
        if t > 0:
            ws.rows[0] = ws.latents[t]
            _products(ws.rows[: 1 + k], w.wide, ws.passed[: 1 + k])
            passed, inverse = ws.passed[0], ws.inverse
            _factor(ws, _tilde(w, passed), inverse)
        tilde = passed[: m * d].reshape(m, d)
        z = ws.latents[t + 1]
        z[:] = passed[m * d :]
        _apply(w.gain, actions[t], b)
        _apply_transposed(inverse, b, v)
        _combine(tilde, v, z)
        for j in range(1, 1 + k):
            tangent, moved = ws.passed[j, : m * d].reshape(m, d), ws.rows[j]
            _products(tangent, tilde, ws.mixed)
            _turn(ws, b, turned)
            _apply_transposed(inverse, turned, back)
            moved[:] = ws.passed[j, m * d :]
            _combine(tangent, v, moved)
            _combine(tilde, back, moved)
        if tangents and _refreshed(t, block, refreshed, horizon):
            for j in range(r):
                _apply_transposed(inverse, w.push[:, j], back)
                k += 1
                ws.rows[k] = 0.0
                _combine(tilde, back, ws.rows[k])
        ws.jacobians[t, :k] = ws.rows[1 : 1 + k]


@compiled
def _tilde(w: Any, passed: Any) -> Any:
    """M~ = B + C z, transposed, in a row that holds C z so far."""
    m, d = w.base.shape
    tilde = passed[: m * d].reshape(m, d)
    tilde += w.base
    return tilde


@compiled
def _products(left: Any, right: Any, out: Any) -> None:
    """out = left @ right.T in tiles of three by three, whose sums stay in registers.

    BLAS libraries are made for taller matrices: they first copy `right` into blocks of their own,
    which costs more than multiplying it by a few rows.
    """
    rows, columns = left.shape[0], right.shape[0]
    zero = np.float32(0)
    for j in range(0, columns - 2, 3):
        p, q, r = right[j], right[j + 1], right[j + 2]
        for i in range(0, rows - 2, 3):
            x, y, z = left[i], left[i + 1], left[i + 2]
            xp = xq = xr = yp = yq = yr = zp = zq = zr = zero
            for c in range(left.shape[1]):
                xp += x[c] * p[c]
                xq += x[c] * q[c]
                xr += x[c] * r[c]
                yp += y[c] * p[c]
                yq += y[c] * q[c]
                yr += y[c] * r[c]
                zp += z[c] * p[c]
                zq += z[c] * q[c]
                zr += z[c] * r[c]
            out[i, j], out[i, j + 1], out[i, j + 2] = xp, xq, xr
            out[i + 1, j], out[i + 1, j + 1], out[i + 1, j + 2] = yp, yq, yr
            out[i + 2, j], out[i + 2, j + 1], out[i + 2, j + 2] = zp, zq, zr
        for i in range(rows - rows % 3, rows):
            x = left[i]
            xp = xq = xr = zero
            for c in range(left.shape[1]):
                xp += x[c] * p[c]
                xq += x[c] * q[c]
                xr += x[c] * r[c]
            out[i, j], out[i, j + 1], out[i, j + 2] = xp, xq, xr
    for j in range(columns - columns % 3, columns):
        for i in range(rows):
            total = zero
            for c in range(left.shape[1]):
                total += left[i, c] * right[j, c]
            out[i, j] = total


@compiled
def _refreshed(t: int, block: int, refreshed: int, horizon: int) -> bool:
    """Whether t is one of the refreshed blocks, counted from `block` on and round the end."""
    return (t - block) % horizon < refreshed


@compiled
def _factor(ws: Any, tilde: Any, inverse: Any) -> None:
    """inverse = L^-1 of the Gram matrix of M~, by way of unit columns."""
    m = tilde.shape[0]
    gram, length = ws.gram, ws.small[2]
    for i in range(m):
        for j in range(i + 1):
            total = 0.0
            for c in range(tilde.shape[1]):
                total += np.float64(tilde[i, c]) * np.float64(tilde[j, c])
            gram[i, j] = total
    for i in range(m):
        length[i] = np.sqrt(gram[i, i]) if gram[i, i] > 0 else 1.0
    for i in range(m):
        for j in range(i + 1):
            gram[i, j] /= length[i] * length[j]
        gram[i, i] += SHIFT
    _cholesky(gram)
    for j in range(m):
        for i in range(j):
            inverse[i, j] = 0.0
        for i in range(j, m):
            total = 1.0 if i == j else 0.0
            for c in range(j, i):
                total -= gram[i, c] * inverse[c, j]
            inverse[i, j] = total / gram[i, i]
    for i in range(m):
        for j in range(i + 1):
            inverse[i, j] /= length[j]


@compiled
def _cholesky(matrix: Any) -> None:
    """The lower factor, in place; a pivot that is not positive becomes tiny instead."""
    n = matrix.shape[0]
    for j in range(n):
        total = matrix[j, j]
        for c in range(j):
            total -= matrix[j, c] * matrix[j, c]
        pivot = np.sqrt(total) if total > 1e-300 else 1e-150
        matrix[j, j] = pivot
        for i in range(j + 1, n):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = total / pivot


@compiled
def _turn(ws: Any, b: Any, turned: Any) -> None:
    """turned = -U(X) b,  X = L^-1 (M~^T M.) L^-T,  U(X) = triu(X) + tril(X, -1)^T.

    `mixed` is (M~^T M.)^T.
    """
    m = b.shape[0]
    inverse, mixed, half, x = ws.inverse, ws.mixed, ws.half, ws.gram
    for i in range(m):
        for j in range(m):
            total = 0.0
            for c in range(i + 1):
                total += inverse[i, c] * mixed[j, c]
            half[i, j] = total
    for i in range(m):
        for j in range(m):
            total = 0.0
            for c in range(j + 1):
                total += half[i, c] * inverse[j, c]
            x[i, j] = total
    for i in range(m):
        total = x[i, i] * b[i]
        for j in range(i + 1, m):
            total += (x[i, j] + x[j, i]) * b[j]
        turned[i] = -total


@compiled
def _apply(matrix: Any, vector: Any, out: Any) -> None:
    for i in range(matrix.shape[0]):
        total = 0.0
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * vector[j]
        out[i] = total


@compiled
def _apply_transposed(lower: Any, vector: Any, out: Any) -> None:
    """out = lower^T vector."""
    m = lower.shape[0]
    for i in range(m):
        total = 0.0
        for j in range(i, m):
            total += lower[j, i] * vector[j]
        out[i] = total


@compiled
def _combine(rows: Any, factors: Any, out: Any) -> None:
    """out += rows^T factors."""
    for i in range(rows.shape[0]):
        factor, row = np.float32(factors[i]), rows[i]
        for c in range(out.shape[0]):
            out[c] += factor * row[c]


@compiled
def _cost(ws: Any, p: Any, actions: Any) -> float:
    """The objective, from the latents in the workspace."""
    horizon, m = actions.shape
    total = 0.0
    for t in range(horizon):
        if p.stages[t] > 0:
            for i in range(p.z0.shape[0]):
                error = np.float64(ws.latents[t + 1, i]) - np.float64(p.targets[t, i])
                total += 0.5 * p.stages[t] * error * error
    for step in range(horizon * m):
        t, i = step // m, step % m
        total += 0.5 * p.effort * actions[t, i] ** 2
        if step >= p.env_size:
            change = actions[t, i] - actions[(step - p.env_size) // m, (step - p.env_size) % m]
            total += 0.5 * p.smoothness * change * change
    return total if np.isfinite(total) else np.inf


@compiled
def _action_gradient(p: Any, actions: Any, t: int, i: int) -> float:
    """Of effort and smoothness, in one number of the plan."""
    horizon, m = actions.shape
    step, here = t * m + i, actions[t, i]
    slope = p.effort * here
    if step >= p.env_size:
        slope += p.smoothness * (here - actions[(step - p.env_size) // m, (step - p.env_size) % m])
    if step + p.env_size < horizon * m:
        slope += p.smoothness * (here - actions[(step + p.env_size) // m, (step + p.env_size) % m])
    return slope


@compiled
def _direction(w: Any, ws: Any, p: Any, actions: Any, block: int) -> float:
    """The damped Gauss-Newton step E delta, from the Jacobians in the workspace.

    Returns by how much the quadratic model says that it lowers the cost.
    """
    horizon, m = actions.shape
    r, d = w.lift.shape[1], p.z0.shape[0]
    gradient, hessian = ws.gradient, ws.hessian
    k = 0
    for t in range(horizon):
        if _refreshed(t, block, p.refreshed, horizon):
            for j in range(r):
                ws.where[k, 0], ws.where[k, 1] = t, j
                total = 0.0
                for i in range(m):
                    total += w.lift[i, j] * _action_gradient(p, actions, t, i)
                gradient[k] = total
                k += 1
    for i in range(k):
        for j in range(i + 1):
            row = ws.where[i, 0] * r + ws.where[i, 1]
            hessian[i, j] = p.curvature[row, ws.where[j, 0] * r + ws.where[j, 1]]
    for t in range(horizon):
        weight = p.stages[t]
        if weight > 0:
            active = 0
            while active < k and ws.where[active, 0] <= t:
                active += 1
            for i in range(active):
                total = 0.0
                for c in range(d):
                    error = np.float64(ws.latents[t + 1, c]) - np.float64(p.targets[t, c])
                    total += ws.jacobians[t, i, c] * error
                gradient[i] += weight * total
                for j in range(i + 1):
                    inner = 0.0
                    for c in range(d):
                        inner += ws.jacobians[t, i, c] * ws.jacobians[t, j, c]
                    hessian[i, j] += weight * inner
    for i in range(k):
        if not _free(w, ws, p, actions, i):
            gradient[i] = 0.0
            hessian[i, :i] = 0.0
            hessian[i:, i] = 0.0
        hessian[i, i] += p.damping
    _cholesky(hessian)
    delta = ws.delta
    for i in range(k):
        total = -gradient[i]
        for j in range(i):
            total -= hessian[i, j] * delta[j]
        delta[i] = total / hessian[i, i]
    for i in range(k - 1, -1, -1):
        total = delta[i]
        for j in range(i + 1, k):
            total -= hessian[j, i] * delta[j]
        delta[i] = total / hessian[i, i]
    ws.step[:] = 0.0
    promised = 0.0
    for j in range(k):
        if np.isfinite(delta[j]):
            promised -= 0.5 * gradient[j] * delta[j]
            for i in range(m):
                ws.step[ws.where[j, 0], i] += w.lift[i, ws.where[j, 1]] * delta[j]
    return promised


@compiled
def _free(w: Any, ws: Any, p: Any, actions: Any, j: int) -> bool:
    """Whether going downhill leaves some action of direction j inside its bounds."""
    t, column = ws.where[j, 0], ws.where[j, 1]
    for i in range(actions.shape[1]):
        downhill = -ws.gradient[j] * w.lift[i, column]
        if downhill < 0 and actions[t, i] > p.low[i]:
            return True
        if downhill > 0 and actions[t, i] < p.high[i]:
            return True
    return False


@compiled
def _try(ws: Any, p: Any, actions: Any, length: float) -> None:
    """trial = actions + length * step, in the box."""
    for t in range(actions.shape[0]):
        for i in range(actions.shape[1]):
            value = actions[t, i] + length * ws.step[t, i]
            ws.trial[t, i] = min(max(value, p.low[i]), p.high[i])
