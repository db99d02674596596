"""The numba functions of `kernel.py`, which explains the maths."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilinear_wm.planning._compiled_products import compiled, entry
from bilinear_wm.planning._compiled_rollout import evaluate, is_refreshed, prepare, roll_out
from bilinear_wm.planning.kernel import IMPROVE, RANK
from bilinear_wm.planning.trials import ENOUGH


@entry
def run(what: int, w: Any, s: Any, y: Any, p: Any, c: Any, some: Any, count: int) -> None:
    """One entry for all, since each would be compiled with all that it calls.

    RANK makes the candidates and their costs; IMPROVE takes up to `count` iterations from each
    of `some` plans; FINISH leaves the latents of the first of them in the workspace.
    """
    if what == RANK:
        prepare(w, s)
        total, chunk = c.plans.shape[0], s.rows.shape[0]
        if total > 1:
            _scatter(w, s, y, p, c)
        for first in range(0, total, chunk):
            evaluate(w, s, p, c.plans, first, min(chunk, total - first), c.costs)
    elif what == IMPROVE:
        for place in range(some.shape[0]):
            i, left = some[place], count
            while left > 0 and c.counts[i] < p.iterations and c.quiet[i] < p.rounds:
                if not np.isfinite(c.costs[i]):
                    break
                gained = _improve(w, s, y, p, c, i)
                c.counts[i] += 1
                c.quiet[i] = 0 if gained else c.quiet[i] + 1
                left -= 1
    else:
        evaluate(w, s, p, c.plans, some[0], np.int64(1), c.costs)


@compiled
def _scatter(w: Any, s: Any, y: Any, p: Any, c: Any) -> None:
    """All plans but the first; see `GaussNewtonPlanner._starts`.

    Some go down the gradient of the first, evenly spaced up to a root mean square of `spread`;
    the others add `noise` to it.
    """
    plans, noise, low, high = c.plans, c.noise, p.low, p.high
    count, horizon, m = plans.shape
    aligned = count - 1 - noise.shape[0]
    none = np.int64(0)
    roll_out(w, s, plans, none, none, horizon)
    k = _assemble(w, s, y, p, plans, none, none, horizon)
    for j in range(k):
        y.delta[j] = -y.gradient[j] if np.isfinite(y.gradient[j]) else 0.0
    _lift(w.lift, y.where, y.delta, k, y.step)
    square = 0.0
    for t in range(horizon):
        for i in range(m):
            square += y.step[t, i] ** 2
    size = max(np.sqrt(square / (horizon * m)), 1e-30)
    for n in range(1, count):
        for t in range(horizon):
            for i in range(m):
                value = plans[0, t, i]
                if n <= aligned:
                    value += p.spread * n / aligned * y.step[t, i] / size
                else:
                    value += noise[n - 1 - aligned, t, i]
                plans[n, t, i] = _within(value, low[i], high[i])


@compiled
def _improve(w: Any, s: Any, y: Any, p: Any, c: Any, i: int) -> bool:
    """One iteration from plan i; whether it gained more than the tolerance.

    The step of least damping is taken if it brings most of what it promises, else the best of
    some steps with more damping. If none lowers the cost, more of them follow.
    """
    plans, cost, horizon = c.plans, c.costs[i], c.plans.shape[1]
    block = (c.counts[i] * p.refreshed) % horizon
    roll_out(w, s, plans, i, block, p.refreshed)
    k = _assemble(w, s, y, p, plans, i, block, p.refreshed)
    scale = _fix(w.lift, y.where, y.gradient, y.hessian, k, plans, i, p.low, p.high)
    slots, tried, promised = y.trials.shape[0], 0, 0.0
    while tried < p.dampings.shape[0]:
        first = tried % slots
        count = slots - first if tried > 0 else 1
        for j in range(first, first + count):
            damping = p.damping + scale * p.dampings[tried + j - first]
            _solve(y.gradient, y.hessian, y.factor, y.delta, k, damping)
            _lift(w.lift, y.where, y.delta, k, y.step)
            for t in range(horizon):
                for a in range(plans.shape[2]):
                    value = plans[i, t, a] + y.step[t, a]
                    y.trials[j, t, a] = _within(value, p.low[a], p.high[a])
        if tried == 0:
            for a in range(k):
                promised -= 0.5 * y.gradient[a] * y.delta[a]
            if not promised > p.tolerance * cost:
                return False
        evaluate(w, s, p, y.trials, first, count, y.costs)
        tried += count
        best = 0
        for j in range(1, first + count):
            if y.costs[j] < y.costs[best]:
                best = j
        enough = tried > 1 or cost - y.costs[0] >= ENOUGH * promised
        if enough and y.costs[best] < cost:
            for t in range(horizon):
                for a in range(plans.shape[2]):
                    plans[i, t, a] = y.trials[best, t, a]
            c.costs[i] = y.costs[best]
            return cost - y.costs[best] > p.tolerance * cost
    return False


@compiled
def _within(value: float, low: float, high: float) -> float:
    """In the box, and a number of single precision: what is returned is what was rolled out."""
    return np.float64(np.float32(min(max(value, low), high)))


@compiled
def _action_gradient(
    effort: float, smoothness: float, env_size: int, about: Any, plans: Any, n: int, t: int, i: int
) -> float:
    """Of effort and smoothness, in one number of the plan."""
    horizon, m = plans.shape[1], plans.shape[2]
    step, here = t * m + i, plans[n, t, i]
    slope = effort * (here - about[t, i])
    before, behind = step - env_size, step + env_size
    if before >= 0:
        slope += smoothness * (here - plans[n, before // m, before % m])
    if behind < horizon * m:
        slope += smoothness * (here - plans[n, behind // m, behind % m])
    return slope


@compiled
def _assemble(
    w: Any, s: Any, y: Any, p: Any, plans: Any, n: int, block: int, refreshed: int
) -> int:
    """Gradient and Gauss-Newton Hessian in the refreshed blocks, from the Jacobians at hand.

    Returns how many directions there are.
    """
    horizon, m = plans.shape[1], plans.shape[2]
    r, d = w.lift.shape[1], s.latents.shape[1]
    gradient, hessian, where = y.gradient, y.hessian, y.where
    jacobians, latents, targets, lift = s.jacobians, s.latents, p.targets, w.lift
    k = 0
    for t in range(horizon):
        if is_refreshed(t, block, refreshed, horizon):
            for j in range(r):
                where[k, 0], where[k, 1] = t, j
                total = 0.0
                for i in range(m):
                    slope = _action_gradient(
                        p.effort, p.smoothness, p.env_size, p.about, plans, n, t, i
                    )
                    total += lift[i, j] * slope
                gradient[k] = total
                k += 1
    for i in range(k):
        for j in range(i + 1):
            row = where[i, 0] * r + where[i, 1]
            hessian[i, j] = p.curvature[row, where[j, 0] * r + where[j, 1]]
    for t in range(horizon):
        weight = p.weights[t]
        if weight > 0:
            active = 0
            while active < k and where[active, 0] <= t:
                active += 1
            for i in range(active):
                total = 0.0
                for c in range(d):
                    error = latents[t + 1, c] - targets[t, c]
                    total += np.float64(jacobians[t, i, c]) * np.float64(error)
                gradient[i] += weight * total
                for j in range(i + 1):
                    inner = np.float32(0)
                    for c in range(d):
                        inner += jacobians[t, i, c] * jacobians[t, j, c]
                    hessian[i, j] += weight * inner
    return k


@compiled
def _fix(
    lift: Any, where: Any, gradient: Any, hessian: Any, k: int, plans: Any, n: int,
    low: Any, high: Any,
) -> float:  # fmt: skip
    """Leave out directions that downhill press every action against its bound.

    Returns the mean of the Hessian's diagonal before.
    """
    scale = 0.0
    for j in range(k):
        scale += hessian[j, j] / k
        t, free = where[j, 0], False
        for i in range(lift.shape[0]):
            downhill = -gradient[j] * lift[i, where[j, 1]]
            if downhill < 0 and plans[n, t, i] > low[i]:
                free = True
            if downhill > 0 and plans[n, t, i] < high[i]:
                free = True
        if not free:
            gradient[j] = 0.0
            for i in range(k):
                if i < j:
                    hessian[j, i] = 0.0
                else:
                    hessian[i, j] = 0.0
    return scale


@compiled
def _solve(gradient: Any, hessian: Any, factor: Any, delta: Any, k: int, damping: float) -> None:
    """(H + damping) delta = -gradient; a pivot that is not positive becomes tiny instead."""
    for j in range(k):
        total = hessian[j, j] + damping
        for c in range(j):
            total -= factor[j, c] * factor[j, c]
        pivot = np.sqrt(total) if total > 1e-300 else 1e-150
        factor[j, j] = pivot
        for i in range(j + 1, k):
            total = hessian[i, j]
            for c in range(j):
                total -= factor[i, c] * factor[j, c]
            factor[i, j] = total / pivot
    for i in range(k):
        total = -gradient[i]
        for j in range(i):
            total -= factor[i, j] * delta[j]
        delta[i] = total / factor[i, i]
    for i in range(k - 1, -1, -1):
        total = delta[i]
        for j in range(i + 1, k):
            total -= factor[j, i] * delta[j]
        delta[i] = total / factor[i, i]
    for i in range(k):
        if not np.isfinite(delta[i]):
            delta[i] = 0.0


@compiled
def _lift(lift: Any, where: Any, delta: Any, k: int, step: Any) -> None:
    """step = E delta."""
    for t in range(step.shape[0]):
        for i in range(step.shape[1]):
            step[t, i] = 0.0
    for j in range(k):
        for i in range(step.shape[1]):
            step[where[j, 0], i] += lift[i, where[j, 1]] * delta[j]
