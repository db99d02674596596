"""Rollouts of the bilinear dynamics and its residual, with tangents, compiled by numba.

`kernel.py` explains the order of the work, `dynamics/bilinear.py` and `dynamics/residual.py` the
maths. Q^T = L^-1 M~^T is kept as m rows q_i, and so is W^T = L^-1 M.^T of a tangent, as w_i. With
c = Q^T r, S = T T^T and b = R a - S c, a step is z' = A z + r + Q b, and a tangent moves by

    A z. + r. + W b + Q (R a. - U b - S (W^T r + Q^T r. - U^T c)),    U = U(X), X_ij = q_i w_j.

X is never formed. With sums over the rows behind and before,

    (U b)_i = w_i (sum_{j>i} b_j q_j) + q_i (sum_{j>=i} b_j w_j),
    (U^T c)_i = w_i (sum_{j<i} c_j q_j) + q_i (sum_{j<=i} c_j w_j),

and the sums of w_j are, like w_j itself, the same combinations of M.^T for every tangent: `mixing`.

What compiles fast: loops instead of assigned rows and reshaped views, functions that get the few
arrays they use instead of all of them, and np.int64(0) instead of 0 in calls, since numba compiles
a function again for every literal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bilinear_wm.planning._compiled_products import combine, compiled, products

SHIFT = 1e-13  # as in dynamics/cholqr.py
LARGEST = 3.4e38  # of single precision: costs beyond are infinite


@compiled
def prepare(w: Any, s: Any) -> None:
    """M~ and Q of the first latent, which all plans share: last row of `passed`, end of q."""
    none, one, m = np.int64(0), np.int64(1), s.turned.shape[0]
    last = s.passed.shape[0] - 1
    _copy(s.latents, none, s.rows, none)
    products(s.rows, one, w.wide, s.passed)
    _copy(s.passed, none, s.passed, last)
    s.least[0] = 1.0
    directions(w.base, s.passed, last, s.q, m, s.inverse, s.tall, s.system, s.length, s.least)


@compiled
def roll_out(w: Any, s: Any, plans: Any, plan: int, block: int, refreshed: int) -> None:
    """Latents of one of the plans, and its Jacobians in the refreshed blocks.

    No tangent passes the first latent: nothing happened before.
    """
    horizon, m = plans.shape[1], plans.shape[2]
    d, r = s.latents.shape[1], w.push.shape[0]
    with_residual = w.first.shape[0] > 0
    none, k = np.int64(0), 0
    for t in range(horizon):
        new = r if is_refreshed(t, block, refreshed, horizon) else 0
        _copy(s.latents, t, s.rows, none)
        row, at = s.passed.shape[0] - 1, m
        if t > 0:
            row, at = none, none
            products(s.rows, 1 + k, w.wide, s.passed)
            directions(
                w.base, s.passed, row, s.q, at, s.inverse, s.tall, s.system, s.length, s.least
            )
        if with_residual:
            for j in range(1 + k):
                for c in range(d):
                    s.inputs[j, c] = s.rows[j, c]
                for i in range(m):
                    s.inputs[j, d + i] = plans[plan, t, i] if j == 0 else 0.0
            _network(w, s.inputs, s.hidden, s.deeper, s.outputs, s.slope, 1 + k, new)
        _turn(w.gain, plans, plan, t, s.turned)
        _advance(
            w.held, s.passed, row, s.q, at, s.turned, s.along, s.outputs, none, s.latents, t + 1
        )
        if k > 0:
            _sums(s.q, s.inverse, s.turned, s.along, s.behind, s.before, s.mixing, with_residual)
        for j in range(1, 1 + k):
            _carry(
                w.held, s.passed, j, s.q, s.turned, s.along, s.mixing, s.mixed,
                s.behind, s.before, s.outputs, s.rows,
            )  # fmt: skip
        for j in range(new):
            k += 1
            _enter(w.push, w.held, j, s.q, at, s.turned, s.along, s.outputs, k, s.rows)
        for j in range(k):
            for c in range(d):
                s.jacobians[t, j, c] = s.rows[1 + j, c]


@compiled
def evaluate(w: Any, s: Any, p: Any, plans: Any, first: int, count: int, costs: Any) -> None:
    """What some plans cost; a step of all at a time.

    The latents of the first of them stay in `latents`.
    """
    horizon, m = plans.shape[1], plans.shape[2]
    d = s.latents.shape[1]
    with_residual, none = w.first.shape[0] > 0, np.int64(0)
    for i in range(count):
        _copy(s.latents, none, s.rows, i)
        costs[first + i] = 0.0
    for t in range(horizon):
        if t > 0:
            products(s.rows, count, w.wide, s.passed)
        if with_residual:
            for j in range(count):
                for c in range(d):
                    s.inputs[j, c] = s.rows[j, c]
                for i in range(m):
                    s.inputs[j, d + i] = plans[first + j, t, i]
            _values(w, s.inputs, s.hidden, s.deeper, s.outputs, count)
        for i in range(count):
            row, at = s.passed.shape[0] - 1, m
            if t > 0:
                row, at = i, none
                directions(
                    w.base, s.passed, row, s.q, at, s.inverse, s.tall, s.system, s.length, s.least
                )
            _turn(w.gain, plans, first + i, t, s.turned)
            _advance(w.held, s.passed, row, s.q, at, s.turned, s.along, s.outputs, i, s.rows, i)
            costs[first + i] += squares(s.rows, i, p.targets, t, p.weights)
        _copy(s.rows, none, s.latents, t + 1)
    for n in range(first, first + count):
        costs[n] += action_cost(p.effort, p.smoothness, p.env_size, p.about, plans, n)
        if not costs[n] <= LARGEST:
            costs[n] = np.inf


@compiled
def action_cost(
    effort: float, smoothness: float, env_size: int, about: Any, plans: Any, n: int
) -> float:
    """Effort and smoothness of a plan."""
    m, total = plans.shape[2], 0.0
    for step in range(plans.shape[1] * m):
        here = plans[n, step // m, step % m]
        away = here - about[step // m, step % m]
        total += 0.5 * effort * away * away
        if step >= env_size:
            before = step - env_size
            change = here - plans[n, before // m, before % m]
            total += 0.5 * smoothness * change * change
    return total


@compiled
def squares(rows: Any, row: int, targets: Any, t: int, weights: Any) -> float:
    """What a latent costs after block t."""
    total = 0.0
    if weights[t] > 0:
        for j in range(rows.shape[1]):
            error = np.float64(rows[row, j]) - np.float64(targets[t, j])
            total += error * error
    return 0.5 * weights[t] * total


@compiled
def directions(
    base: Any, passed: Any, row: int, q: Any, at: int,
    inverse: Any, tall: Any, system: Any, length: Any, least: Any,
) -> None:  # fmt: skip
    """q = L^-1 M~^T for M~ = B + C z, given C z; L L^T is the Gram matrix of M~.

    [G | I] is reduced to [.. | L'^-1] with L' L's unit factor, G having been scaled to a unit
    diagonal. A pivot that is not positive becomes tiny instead; `least` keeps the smallest.
    """
    m, d = base.shape
    for i in range(m):
        for c in range(d):
            value = passed[row, i * d + c] + base[i, c]
            passed[row, i * d + c] = value
            tall[i, c] = value
    for i in range(m):
        for j in range(i + 1):
            total = 0.0
            for c in range(d):
                total += tall[i, c] * tall[j, c]
            system[i, j] = total
        length[i] = 1.0 / np.sqrt(system[i, i]) if system[i, i] > 0 else 1.0
    for i in range(m):
        for j in range(i + 1):
            system[i, j] *= length[i] * length[j]
        system[i, i] += SHIFT
        for j in range(i):
            system[i, m + j] = 0.0
            system[j, i] = system[i, j]
        system[i, m + i] = 1.0
    for j in range(m):
        pivot = system[j, j]
        least[0] = min(least[0], pivot)
        share = 1.0 / pivot if pivot > 1e-300 else 1e300
        for i in range(j + 1, m):
            factor = -share * system[i, j]
            for c in range(j + 1, m + j + 1):  # what is left of the row, and of L'^-1
                system[i, c] += factor * system[j, c]
        root = np.sqrt(share)
        for c in range(m):
            inverse[j, c] = root * system[j, m + c] * length[c] if c <= j else 0.0
    combine(inverse, m, passed, row * passed.shape[1], q, at * d)


@compiled
def _turn(gain: Any, plans: Any, plan: int, t: int, turned: Any) -> None:
    """turned = R a."""
    for i in range(gain.shape[0]):
        total = 0.0
        for j in range(gain.shape[0]):
            total += gain[i, j] * plans[plan, t, j]
        turned[i] = total


@compiled
def _advance(
    held: Any, passed: Any, row: int, q: Any, at: int, turned: Any, along: Any,
    outputs: Any, r: int, out: Any, to: int,
) -> None:  # fmt: skip
    """out = A z + r + Q b with b = R a - S c; b stays in `turned`, and c = Q^T r in `along`.

    Without a residual r and S are left out.
    """
    m, d = turned.shape[0], q.shape[1]
    for c in range(d):
        out[to, c] = passed[row, m * d + c]
    if outputs.shape[0] > 0:
        for c in range(d):
            out[to, c] += outputs[r, c]
        _hold(held, q, at, outputs, r, along, turned)
    _add(q, at, turned, out, to)


@compiled
def _enter(
    push: Any, held: Any, j: int, q: Any, at: int, turned: Any, along: Any,
    outputs: Any, r: int, rows: Any,
) -> None:  # fmt: skip
    """The tangent of an action's direction j, into row r."""
    for i in range(push.shape[1]):
        turned[i] = push[j, i]
    for c in range(rows.shape[1]):
        rows[r, c] = 0.0
    if outputs.shape[0] > 0:
        for c in range(rows.shape[1]):
            rows[r, c] = outputs[r, c]
        _hold(held, q, at, outputs, r, along, turned)
    _add(q, at, turned, rows, r)


@compiled
def _hold(held: Any, q: Any, at: int, outputs: Any, r: int, along: Any, turned: Any) -> None:
    """turned -= S c, with c = Q^T r, which stays in `along`."""
    for i in range(along.shape[0]):
        total = np.float32(0)
        for c in range(q.shape[1]):
            total += q[at + i, c] * outputs[r, c]
        along[i] = total
    _subtract(held, along, turned)


@compiled
def _subtract(matrix: Any, vector: Any, out: Any) -> None:
    """out -= matrix vector, for a symmetric matrix."""
    for j in range(matrix.shape[0]):
        factor = vector[j]
        for i in range(matrix.shape[0]):
            out[i] -= factor * matrix[j, i]


@compiled
def _add(q: Any, at: int, factors: Any, out: Any, to: int) -> None:
    """A row of out += Q factors."""
    for i in range(factors.shape[0]):
        factor = factors[i]
        for c in range(q.shape[1]):
            out[to, c] += factor * q[at + i, c]


@compiled
def _sums(
    q: Any, inverse: Any, turned: Any, along: Any, behind: Any, before: Any, mixing: Any,
    with_residual: bool,
) -> None:  # fmt: skip
    """The sums of b_j q_j behind and of c_j q_j before each row, and `mixing`."""
    m, d = behind.shape
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
def _carry(
    held: Any, passed: Any, row: int, q: Any, turned: Any, along: Any, mixing: Any, mixed: Any,
    behind: Any, before: Any, outputs: Any, rows: Any,
) -> None:  # fmt: skip
    """Move the tangent of a row by a step; that row of `passed` is `wide` times it."""
    m, d = behind.shape
    with_residual = outputs.shape[0] > 0
    combine(
        mixing, 3 * m if with_residual else 2 * m, passed, row * passed.shape[1], mixed, np.int64(0)
    )
    for i in range(m):
        inner = np.float32(0)
        for c in range(d):
            inner += mixed[i, c] * behind[i, c] + q[i, c] * mixed[m + i, c]
        turned[i] = -inner
    if with_residual:
        for i in range(m):
            inner = np.float32(0)
            for c in range(d):
                inner += mixed[i, c] * (outputs[0, c] - before[i, c])
                inner += q[i, c] * (outputs[row, c] - mixed[2 * m + i, c])
            along[i] = inner
        _subtract(held, along, turned)
    for c in range(d):
        rows[row, c] = passed[row, m * d + c] + mixed[m, c]  # A z. + W b
    if with_residual:
        for c in range(d):
            rows[row, c] += outputs[row, c]
    _add(q, np.int64(0), turned, rows, row)


@compiled
def _network(
    w: Any, inputs: Any, hidden: Any, deeper: Any, outputs: Any, slope: Any, count: int, new: int
) -> None:
    """The residual at row 0 of `inputs`, and its tangents along the other rows.

    The last `new` are tangents of the action alone, whose first layer is known.
    """
    products(inputs, count, w.first, hidden)
    for j in range(new):
        _copy(w.entering, j, hidden, count + j)
    count += new
    _gate(hidden, count, w.first_bias, slope)
    products(hidden, count, w.second, deeper)
    _gate(deeper, count, w.second_bias, slope)
    products(deeper, count, w.third, outputs)
    for c in range(outputs.shape[1]):
        outputs[0, c] += w.third_bias[c]


@compiled
def _values(w: Any, inputs: Any, hidden: Any, deeper: Any, outputs: Any, count: int) -> None:
    """The residual at every row of `inputs`."""
    products(inputs, count, w.first, hidden)
    _gate_values(hidden, count, w.first_bias)
    products(hidden, count, w.second, deeper)
    _gate_values(deeper, count, w.second_bias)
    products(deeper, count, w.third, outputs)
    for i in range(count):
        for c in range(outputs.shape[1]):
            outputs[i, c] += w.third_bias[c]


@compiled
def _gate(rows: Any, count: int, bias: Any, slope: Any) -> None:
    """Gate of row 0 (see dynamics/residual.py) and its slope on the tangents below."""
    one, half = np.float32(1), np.float32(0.5)
    for i in range(rows.shape[1]):
        x = rows[0, i] + bias[i]
        c = one / np.sqrt(one + x * x)
        rows[0, i] = x * (half + half * x * c)
        slope[i] = half + half * x * c * (one + c * c)
    for j in range(1, count):
        for i in range(rows.shape[1]):
            rows[j, i] *= slope[i]


@compiled
def _gate_values(rows: Any, count: int, bias: Any) -> None:
    """Gate of every row."""
    one, half = np.float32(1), np.float32(0.5)
    for i in range(count):
        for j in range(rows.shape[1]):
            x = rows[i, j] + bias[j]
            rows[i, j] = x * (half + half * x / np.sqrt(one + x * x))


@compiled
def _copy(source: Any, row: int, out: Any, to: int) -> None:
    for c in range(source.shape[1]):
        out[to, c] = source[row, c]


@compiled
def is_refreshed(t: int, block: int, refreshed: int, horizon: int) -> bool:
    """Whether t is one of the refreshed blocks, counted from `block` on and round the end."""
    return (t - block) % horizon < refreshed
