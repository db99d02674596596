"""Rollouts of the bilinear dynamics and its residual, with tangents, compiled by numba.

`kernel.py` explains the order of the work, `models/bilinear.py` and `models/residual.py` the maths.
With c = Q^T r, S = T T^T and b = R a - S c, a step is z' = A z + r + Q b, and a tangent moves by

    A z. + r. + M. L^-T b + Q (R a. - U(X) b - S (L^-1 (M.^T r + M~^T r.) - U(X)^T c)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

SHIFT = 1e-13  # as in models/cholqr.py

compiled = njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
def roll_out(w: Any, ws: Any, actions: Any, block: int, refreshed: int, tangents: bool) -> None:
    """Latents of a plan; with `tangents` also its Jacobians in the refreshed blocks.

    M~ of the first latent is known, and no tangent passes it: nothing happened before.
    """
    horizon, m = actions.shape
    d, r = ws.latents.shape[1], w.push.shape[1]
    b, v, turned, back, c, inner = (
        ws.small[0], ws.small[1], ws.small[2], ws.small[3], ws.small[4], ws.small[5],
    )  # fmt: skip
    with_residual = w.first.shape[0] > 0
    k = 0
    for t in range(horizon):
        passed, inverse = ws.first, ws.first_inverse
        ws.rows[0] = ws.latents[t]
        if t > 0:
            products(ws.rows[: 1 + k], w.wide, ws.passed[: 1 + k])
            passed, inverse = ws.passed[0], ws.inverse
            factor(ws, add_base(w, passed), inverse)
        new = r if tangents and is_refreshed(t, block, refreshed, horizon) else 0
        if with_residual:
            for j in range(1 + k):
                ws.inputs[j, :d] = ws.rows[j]
                ws.inputs[j, d : d + m] = 0.0
            for i in range(m):
                ws.inputs[0, d + i] = actions[t, i]
            for j in range(new):
                ws.inputs[1 + k + j, :d] = 0.0
                for i in range(m):
                    ws.inputs[1 + k + j, d + i] = w.lift[i, j]
            _network(w, ws, 1 + k + new)
        tilde = passed[: m * d].reshape(m, d)
        z = ws.latents[t + 1]
        advance(w, ws, passed, inverse, actions[t], ws.outputs[0], z)
        for j in range(1, 1 + k):
            tangent, moved = ws.passed[j, : m * d].reshape(m, d), ws.rows[j]
            products(tangent, tilde, ws.mixed)
            _turn(ws, b, turned)
            if with_residual:
                _project_tangent(w, ws, tangent, tilde, inverse, j)
            _apply_transposed(inverse, turned, back)
            moved[:] = ws.passed[j, m * d :]
            _combine(tangent, v, moved)
            _combine(tilde, back, moved)
            if with_residual:
                moved += ws.outputs[j]
        for j in range(new):
            k += 1
            ws.rows[k] = 0.0
            turned[:] = w.push[:, j]
            if with_residual:
                ws.rows[k] = ws.outputs[k]
                _project(w, ws, tilde, inverse, ws.outputs[k], c, inner)
                turned -= inner
            _apply_transposed(inverse, turned, back)
            _combine(tilde, back, ws.rows[k])
        ws.jacobians[t, :k] = ws.rows[1 : 1 + k]


@compiled
def advance(w: Any, ws: Any, passed: Any, inverse: Any, action: Any, r: Any, z: Any) -> None:
    """z = A z + Q (R a - S Q^T r) + r; b = R a - S Q^T r, v = L^-T b and c = Q^T r stay in `small`.

    S = T T^T; without a residual r and S are left out.
    """
    m, d = w.base.shape
    b, v, c, inner = ws.small[0], ws.small[1], ws.small[4], ws.small[5]
    tilde = passed[: m * d].reshape(m, d)
    z[:] = passed[m * d :]
    _apply(w.gain, action, b)
    if w.first.shape[0] > 0:
        _project(w, ws, tilde, inverse, r, c, inner)
        b -= inner
        z += r
    _apply_transposed(inverse, b, v)
    _combine(tilde, v, z)


@compiled
def _project(w: Any, ws: Any, tilde: Any, inverse: Any, r: Any, c: Any, out: Any) -> None:
    """c = Q^T r = L^-1 M~^T r, and out = S c."""
    m, d = tilde.shape
    along = ws.small[6]
    for i in range(m):
        total = np.float32(0)
        for j in range(d):
            total += tilde[i, j] * r[j]
        along[i] = total
    _apply_lower(inverse, along, c)
    _apply(w.held, c, out)


@compiled
def _project_tangent(w: Any, ws: Any, tangent: Any, tilde: Any, inverse: Any, j: int) -> None:
    """turned -= S (L^-1 (M.^T r + M~^T r.) - U(X)^T c), with X in `gram` and c = Q^T r."""
    m, d = tilde.shape
    turned, c, inner, along, x = ws.small[2], ws.small[4], ws.small[5], ws.small[6], ws.gram
    r, r_dot = ws.outputs[0], ws.outputs[j]
    for i in range(m):
        total = np.float32(0)
        for q in range(d):
            total += tangent[i, q] * r[q] + tilde[i, q] * r_dot[q]
        along[i] = total
    _apply_lower(inverse, along, inner)
    for i in range(m):
        total = x[i, i] * c[i]
        for q in range(i):
            total += (x[q, i] + x[i, q]) * c[q]
        along[i] = inner[i] - total
    _apply(w.held, along, inner)
    turned -= inner


@compiled
def _network(w: Any, ws: Any, count: int) -> None:
    """The residual at row 0 of `inputs`, and its tangents along the other rows."""
    products(ws.inputs[:count], w.first, ws.hidden[:count])
    _gate(ws.hidden[:count], w.first_bias)
    products(ws.hidden[:count], w.second, ws.deeper[:count])
    _gate(ws.deeper[:count], w.second_bias)
    products(ws.deeper[:count], w.third, ws.outputs[:count])
    ws.outputs[0] += w.third_bias


@compiled
def _gate(rows: Any, bias: Any) -> None:
    """Gate of row 0 (see models/residual.py) and its slope on the tangents below."""
    one, half = np.float32(1), np.float32(0.5)
    for i in range(rows.shape[1]):
        x = rows[0, i] + bias[i]
        c = one / np.sqrt(one + x * x)
        rows[0, i] = x * (half + half * x * c)
        slope = half + half * x * c * (one + c * c)
        for j in range(1, rows.shape[0]):
            rows[j, i] *= slope


@compiled
def roll_out_many(w: Any, ws: Any, bs: Any, p: Any, plans: Any) -> None:
    """The costs of several plans; `first` of the workspace must be that of the problem."""
    count, horizon, m = plans.shape
    d = p.z0.shape[0]
    with_residual = w.first.shape[0] > 0
    bs.latents[:count] = p.z0
    bs.costs[:count] = 0.0
    for t in range(horizon):
        if t > 0:
            products(bs.latents[:count], w.wide, bs.passed[:count])
        if with_residual:
            bs.inputs[:count, :d] = bs.latents[:count]
            for i in range(count):
                for j in range(m):
                    bs.inputs[i, d + j] = plans[i, t, j]
            products(bs.inputs[:count], w.first, bs.hidden[:count])
            _gate_values(bs.hidden[:count], w.first_bias)
            products(bs.hidden[:count], w.second, bs.deeper[:count])
            _gate_values(bs.deeper[:count], w.second_bias)
            products(bs.deeper[:count], w.third, bs.outputs[:count])
            bs.outputs[:count] += w.third_bias
        for i in range(count):
            passed, inverse = ws.first, ws.first_inverse
            if t > 0:
                passed, inverse = bs.passed[i], ws.inverse
                factor(ws, add_base(w, passed), inverse)
            advance(w, ws, passed, inverse, plans[i, t], bs.outputs[i], bs.latents[i])
            if p.stages[t] > 0:
                total = 0.0
                for j in range(d):
                    error = np.float64(bs.latents[i, j]) - np.float64(p.targets[t, j])
                    total += error * error
                bs.costs[i] += 0.5 * p.stages[t] * total


@compiled
def _gate_values(rows: Any, bias: Any) -> None:
    """Gate of every row."""
    one, half = np.float32(1), np.float32(0.5)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            x = rows[i, j] + bias[j]
            rows[i, j] = x * (half + half * x / np.sqrt(one + x * x))


@compiled
def add_base(w: Any, passed: Any) -> Any:
    """M~ = B + C z, transposed, in a row that holds C z so far."""
    m, d = w.base.shape
    tilde = passed[: m * d].reshape(m, d)
    tilde += w.base
    return tilde


@compiled
def products(left: Any, right: Any, out: Any) -> None:
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
def is_refreshed(t: int, block: int, refreshed: int, horizon: int) -> bool:
    """Whether t is one of the refreshed blocks, counted from `block` on and round the end."""
    return (t - block) % horizon < refreshed


@compiled
def factor(ws: Any, tilde: Any, inverse: Any) -> None:
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
    cholesky(gram)
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
def cholesky(matrix: Any) -> None:
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
def _apply_lower(lower: Any, vector: Any, out: Any) -> None:
    """out = lower vector."""
    for i in range(lower.shape[0]):
        total = 0.0
        for j in range(i + 1):
            total += lower[i, j] * vector[j]
        out[i] = total


@compiled
def _combine(rows: Any, factors: Any, out: Any) -> None:
    """out += rows^T factors."""
    for i in range(rows.shape[0]):
        factor, row = np.float32(factors[i]), rows[i]
        for c in range(out.shape[0]):
            out[c] += factor * row[c]
