"""Rollouts of the bilinear dynamics and its residual, with tangents, compiled by numba.

`kernel.py` explains the order of the work, `models/bilinear.py` and `models/residual.py` the maths.
Q^T = L^-1 M~^T is kept as m rows q_i, and so is W^T = L^-1 M.^T of a tangent, as w_i. With
c = Q^T r, S = T T^T and b = R a - S c, a step is z' = A z + r + Q b, and a tangent moves by

    A z. + r. + W b + Q (R a. - U b - S (W^T r + Q^T r. - U^T c)),    U = U(X), X_ij = q_i w_j.

X is never formed. With sums over the rows behind and before,

    (U b)_i = w_i (sum_{j>i} b_j q_j) + q_i (sum_{j>=i} b_j w_j),
    (U^T c)_i = w_i (sum_{j<i} c_j q_j) + q_i (sum_{j<=i} c_j w_j),

and the sums of w_j are, like w_j itself, the same combinations of M.^T for every tangent: `mixing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bilinear_wm.planning._compiled_products import combine, compiled, products

SHIFT = 1e-13  # as in models/cholqr.py


@compiled
def roll_out(w: Any, ws: Any, actions: Any, block: int, refreshed: int, tangents: bool) -> None:
    """Latents of a plan; with `tangents` also its Jacobians in the refreshed blocks.

    M~ of the first latent is known, and no tangent passes it: nothing happened before.
    """
    horizon, m = actions.shape
    d, r = ws.latents.shape[1], w.push.shape[0]
    with_residual = w.first.shape[0] > 0
    k = 0
    for t in range(horizon):
        new = r if tangents and is_refreshed(t, block, refreshed, horizon) else 0
        ws.rows[0] = ws.latents[t]
        passed, q = ws.first, ws.first_q
        if t > 0:
            products(ws.rows[: 1 + k], w.wide, ws.passed[: 1 + k])
            passed, q = ws.passed[0], ws.q
            directions(w, ws, passed, q)
        if with_residual:
            for j in range(1 + k):
                ws.inputs[j, :d] = ws.rows[j]
                ws.inputs[j, d:] = 0.0
            for i in range(m):
                ws.inputs[0, d + i] = actions[t, i]
            _network(w, ws, 1 + k, new)
        advance(w, ws, passed, q, actions[t], ws.outputs[0], ws.latents[t + 1])
        if k > 0:
            _sums(ws, q, with_residual)
        for j in range(1, 1 + k):
            _carry(w, ws, ws.passed[j], q, ws.outputs[0], ws.outputs[j], ws.rows[j])
        for j in range(new):
            k += 1
            ws.turned[:] = w.push[j]
            ws.rows[k] = 0.0
            if with_residual:
                ws.rows[k] = ws.outputs[k]
                _hold(w, ws, q, ws.outputs[k])
            _add(q, ws.turned, ws.rows[k])
        ws.jacobians[t, :k] = ws.rows[1 : 1 + k]


@compiled
def roll_out_many(w: Any, ws: Any, bs: Any, p: Any, plans: Any) -> None:
    """What many plans cost but for their actions, into `bs.costs`; a step of all at a time."""
    count, horizon, m = plans.shape
    d = bs.latents.shape[1]
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
            passed, q = ws.first, ws.first_q
            if t > 0:
                passed, q = bs.passed[i], ws.q
                directions(w, ws, passed, q)
            advance(w, ws, passed, q, plans[i, t], bs.outputs[i], bs.latents[i])
            if p.weights[t] > 0:
                total = 0.0
                for j in range(d):
                    error = np.float64(bs.latents[i, j]) - np.float64(p.targets[t, j])
                    total += error * error
                bs.costs[i] += 0.5 * p.weights[t] * total


@compiled
def directions(w: Any, ws: Any, passed: Any, q: Any) -> None:
    """q = L^-1 M~^T for M~ = B + C z, given C z; L L^T is the Gram matrix of M~.

    [G | I] is reduced to [.. | L'^-1] with L' L's unit factor, G having been scaled to a unit
    diagonal. A pivot that is not positive becomes tiny instead.
    """
    m, d = w.base.shape
    tilde, system, length = passed[: m * d].reshape(m, d), ws.system, ws.length
    base, wide, inverse = w.base, ws.wide, ws.inverse
    for i in range(m):
        for c in range(d):
            tilde[i, c] += base[i, c]
            wide[i, c] = tilde[i, c]
    for i in range(m):
        for j in range(i + 1):
            total = 0.0
            for c in range(d):
                total += wide[i, c] * wide[j, c]
            system[i, j] = total
        length[i] = 1.0 / np.sqrt(system[i, i]) if system[i, i] > 0 else 1.0
    for i in range(m):
        for j in range(i + 1):
            system[i, j] *= length[i] * length[j]
            system[j, i] = system[i, j]
        system[i, i] += SHIFT
        system[i, m:] = 0.0
        system[i, m + i] = 1.0
    for j in range(m):
        pivot = system[j, j] if system[j, j] > 1e-300 else 1e-300
        share = 1.0 / pivot
        for i in range(j + 1, m):
            factor = -share * system[i, j]
            for c in range(2 * m):
                system[i, c] += factor * system[j, c]
        root = np.sqrt(share)
        for c in range(m):
            inverse[j, c] = root * system[j, m + c] * length[c]
    combine(inverse, tilde, q)


@compiled
def advance(w: Any, ws: Any, passed: Any, q: Any, action: Any, r: Any, z: Any) -> None:
    """z = A z + r + Q b with b = R a - S c; b stays in `turned`, and c = Q^T r in `along`.

    Without a residual r and S are left out.
    """
    m, d = q.shape
    for i in range(m):
        total = 0.0
        for j in range(m):
            total += w.gain[i, j] * action[j]
        ws.turned[i] = total
    with_residual = w.first.shape[0] > 0
    for c in range(d):
        z[c] = passed[m * d + c]
        if with_residual:
            z[c] += r[c]
    if with_residual:
        _hold(w, ws, q, r)
    _add(q, ws.turned, z)


@compiled
def _hold(w: Any, ws: Any, q: Any, r: Any) -> None:
    """turned -= S c, with c = Q^T r, which stays in `along`."""
    for i in range(q.shape[0]):
        total = np.float32(0)
        for c in range(q.shape[1]):
            total += q[i, c] * r[c]
        ws.along[i] = total
    _subtract(w.held, ws.along, ws.turned)


@compiled
def _sums(ws: Any, q: Any, with_residual: bool) -> None:
    """The sums of b_j q_j behind and of c_j q_j before each row, and `mixing`."""
    (m, d), mixing, behind, before = q.shape, ws.mixing, ws.behind, ws.before
    turned, along, inverse = ws.turned, ws.along, ws.inverse
    for i in range(m - 1, -1, -1):
        for c in range(d):
            behind[i, c] = behind[i + 1, c] + turned[i + 1] * q[i + 1, c] if i + 1 < m else 0.0
        for c in range(m):
            mixing[i, c] = inverse[i, c]
            rest = mixing[m + i + 1, c] if i + 1 < m else np.float32(0)
            mixing[m + i, c] = rest + turned[i] * inverse[i, c]
    if with_residual:
        for i in range(m):
            for c in range(d):
                before[i, c] = before[i - 1, c] + along[i - 1] * q[i - 1, c] if i > 0 else 0.0
            for c in range(m):
                rest = mixing[2 * m + i - 1, c] if i > 0 else np.float32(0)
                mixing[2 * m + i, c] = rest + along[i] * inverse[i, c]


@compiled
def _carry(w: Any, ws: Any, passed: Any, q: Any, r: Any, r_dot: Any, row: Any) -> None:
    """Move one tangent by a step; `passed` is `wide` times it, and becomes `row`."""
    m, d = q.shape
    turned, along, mixed = ws.turned, ws.along, ws.mixed
    behind, before = ws.behind, ws.before
    with_residual = w.first.shape[0] > 0
    count = 3 * m if with_residual else 2 * m
    combine(ws.mixing[:count], passed[: m * d].reshape(m, d), mixed[:count])
    # Rows are indexed in place: numba counts references to views, which takes longer.
    for i in range(m):
        inner = np.float32(0)
        for c in range(d):
            inner += mixed[i, c] * behind[i, c] + q[i, c] * mixed[m + i, c]
        turned[i] = -inner
    if with_residual:
        for i in range(m):
            inner = np.float32(0)
            for c in range(d):
                inner += mixed[i, c] * (r[c] - before[i, c])
                inner += q[i, c] * (r_dot[c] - mixed[2 * m + i, c])
            along[i] = inner
        _subtract(w.held, along, turned)
    for c in range(d):
        row[c] = passed[m * d + c] + mixed[m, c]  # A z. + W b
        if with_residual:
            row[c] += r_dot[c]
    _add(q, turned, row)


@compiled
def _add(rows: Any, factors: Any, out: Any) -> None:
    """out += rows^T factors."""
    for i in range(rows.shape[0]):
        factor = factors[i]
        for c in range(out.shape[0]):
            out[c] += factor * rows[i, c]


@compiled
def _subtract(matrix: Any, vector: Any, out: Any) -> None:
    """out -= matrix vector, for a symmetric matrix."""
    for j in range(matrix.shape[0]):
        factor = vector[j]
        for i in range(matrix.shape[0]):
            out[i] -= factor * matrix[j, i]


@compiled
def _network(w: Any, ws: Any, count: int, new: int) -> None:
    """The residual at row 0 of `inputs`, and its tangents along the other rows.

    The last `new` are tangents of the action alone, whose first layer is known.
    """
    products(ws.inputs[:count], w.first, ws.hidden[:count])
    ws.hidden[count : count + new] = w.entering[:new]
    count += new
    _gate(ws.hidden[:count], w.first_bias, ws.slope)
    products(ws.hidden[:count], w.second, ws.deeper[:count])
    _gate(ws.deeper[:count], w.second_bias, ws.slope)
    products(ws.deeper[:count], w.third, ws.outputs[:count])
    ws.outputs[0] += w.third_bias


@compiled
def _gate(rows: Any, bias: Any, slope: Any) -> None:
    """Gate of row 0 (see models/residual.py) and its slope on the tangents below."""
    one, half = np.float32(1), np.float32(0.5)
    value = rows[0]
    for i in range(rows.shape[1]):
        x = value[i] + bias[i]
        c = one / np.sqrt(one + x * x)
        value[i] = x * (half + half * x * c)
        slope[i] = half + half * x * c * (one + c * c)
    for j in range(1, rows.shape[0]):
        row = rows[j]
        for i in range(rows.shape[1]):
            row[i] *= slope[i]


@compiled
def _gate_values(rows: Any, bias: Any) -> None:
    """Gate of every row."""
    one, half = np.float32(1), np.float32(0.5)
    for i in range(rows.shape[0]):
        row = rows[i]
        for j in range(rows.shape[1]):
            x = row[j] + bias[j]
            row[j] = x * (half + half * x / np.sqrt(one + x * x))


@compiled
def is_refreshed(t: int, block: int, refreshed: int, horizon: int) -> bool:
    """Whether t is one of the refreshed blocks, counted from `block` on and round the end."""
    return (t - block) % horizon < refreshed


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
