"""The numba functions of `kernel.py`, which explains the maths."""

from __future__ import annotations

from typing import Any

import numpy as np

from bilinear_wm.planning._compiled_products import compiled, products
from bilinear_wm.planning._compiled_rollout import (
    cholesky,
    directions,
    is_refreshed,
    roll_out,
    roll_out_many,
)

RUNNING, CONVERGED, DIVERGED, EXHAUSTED = range(4)
SHORTEST = 2.0**-15  # sixteen halvings, as in gauss_newton.py
LARGEST = 3.4e38  # of single precision: costs beyond are infinite
UNRANKED = -1  # before the first descent


@compiled
def search(w: Any, ws: Any, bs: Any, p: Any, budget: int) -> int:
    """Rank the plans in `bs`, descend from the best, then from the best result; or go on with it.

    Returns after `budget` iterations with RUNNING, else at the end, with the latents of the best
    plan in the workspace. `bs.chosen`, `costs` and `counts` always hold the plans so far.
    """
    if bs.state[0] == UNRANKED:
        _rank(w, ws, bs, p)
        bs.state[0] = 0
    starts = bs.chosen.shape[0]
    last = starts if starts > 1 else 0
    ending = RUNNING
    while ending == RUNNING and budget > 0:
        descent, done = bs.state
        best = int(np.argmin(bs.chosen_costs))
        i = descent if descent < starts else best
        limit, tolerance = p.screened, max(p.screening, p.tolerance)
        if descent == last:
            limit, tolerance = p.iterations, p.tolerance
        if done == 0:
            ending = _begin(w, ws, p, bs.chosen[i])
        if ending == RUNNING:
            before = done
            count = min(limit - done, budget)
            ending, done = _iterate(w, ws, p, tolerance, bs.chosen[i], done, count)
            bs.counts[i] += done - before
            budget -= done - before
            if ending == RUNNING and done == limit:
                ending = EXHAUSTED
        bs.chosen_costs[i] = ws.progress[0]
        bs.state[1] = done
        if ending != RUNNING and descent != last:
            ending = RUNNING
            bs.state[0], bs.state[1] = descent + 1, 0
    if ending != RUNNING:
        finish(w, ws, bs)
    return ending


@compiled
def finish(w: Any, ws: Any, bs: Any) -> None:
    """Leave the latents of the best plan in the workspace."""
    roll_out(w, ws, bs.chosen[np.argmin(bs.chosen_costs)], 0, 0, False)


@compiled
def _rank(w: Any, ws: Any, bs: Any, p: Any) -> None:
    """Make plans around the first, and choose the cheapest; see `GaussNewtonPlanner._starts`.

    Half of the plans go down the gradient of the first, evenly spaced up to a root mean square
    of `spread`; the others add `noise` to it.
    """
    plans, costs = bs.plans, bs.costs
    count = plans.shape[0]
    ws.latents[0] = p.z0
    products(ws.latents[:1], w.wide, ws.passed[:1])
    ws.first[:] = ws.passed[0]
    directions(w, ws, ws.first, ws.first_q)
    if count > 1:
        _scatter(w, ws, bs, p)
    roll_out_many(w, ws, bs, p, plans)
    for i in range(count):
        costs[i] = _finite(costs[i] + _action_cost(p, plans[i]))
    for place in range(bs.chosen.shape[0]):
        best = -1
        for i in range(count):
            if costs[i] >= 0 and (best < 0 or costs[i] < costs[best]):
                best = i
        bs.chosen[place] = plans[best]
        bs.chosen_costs[place] = costs[best]
        costs[best] = -1.0  # taken


@compiled
def _scatter(w: Any, ws: Any, bs: Any, p: Any) -> None:
    """All plans but the first, from the gradient at the first and from the noise."""
    plans = bs.plans
    count, horizon, m = plans.shape
    aligned = count - 1 - bs.noise.shape[0]
    roll_out(w, ws, plans[0], 0, horizon, True)
    k = _assemble(w, ws, p, plans[0], 0, horizon)
    ws.step[:] = 0.0
    for j in range(k):
        if np.isfinite(ws.gradient[j]):
            for i in range(m):
                ws.step[ws.where[j, 0], i] -= w.lift[i, ws.where[j, 1]] * ws.gradient[j]
    square = 0.0
    for t in range(horizon):
        for i in range(m):
            square += ws.step[t, i] ** 2
    size = max(np.sqrt(square / (horizon * m)), 1e-30)
    for c in range(1, count):
        for t in range(horizon):
            for i in range(m):
                value = plans[0, t, i]
                if c <= aligned:
                    value += p.spread * c / aligned * ws.step[t, i] / size
                else:
                    value += bs.noise[c - 1 - aligned, t, i]
                plans[c, t, i] = min(max(value, p.low[i]), p.high[i])


@compiled
def _begin(w: Any, ws: Any, p: Any, actions: Any) -> int:
    """Roll out the start; the workspace then holds its latents, Jacobians and cost."""
    roll_out(w, ws, actions, 0, p.refreshed, True)
    ws.progress[0] = _cost(ws, p, actions)
    ws.progress[1], ws.progress[2] = 0.0, 1.0
    return RUNNING if np.isfinite(ws.progress[0]) else DIVERGED


@compiled
def _iterate(
    w: Any, ws: Any, p: Any, tolerance: float, actions: Any, first: int, count: int
) -> Any:
    """Up to `count` iterations from number `first` on; returns (ending, iterations done)."""
    horizon = actions.shape[0]
    for iteration in range(first, first + count):
        cost = ws.progress[0]
        block = (iteration * p.refreshed) % horizon
        upcoming = ((iteration + 1) * p.refreshed) % horizon
        promised = _direction(w, ws, p, actions, block)
        length, lower = 1.0, cost
        # A full step after a full one mostly helps: differentiate there at once.
        ahead = ws.progress[2] == 1.0
        while promised > tolerance * cost and length >= SHORTEST:
            _try(ws, p, actions, length)
            roll_out(w, ws, ws.trial, upcoming, p.refreshed, ahead and length == 1.0)
            lower = _cost(ws, p, ws.trial)
            if lower < cost:
                break
            length *= 0.5
        gained = lower < cost
        if gained:
            actions[:] = ws.trial
            ws.progress[0] = lower
        small = not gained or not (cost - lower > tolerance * cost)
        ws.progress[1] = ws.progress[1] + 1.0 if small else 0.0
        if ws.progress[1] >= p.rounds:
            return CONVERGED, iteration + 1
        ws.progress[2] = length
        if length < 1.0 or not ahead or (block != upcoming and not gained):
            # The Jacobians at hand are not those of `actions` in the upcoming blocks.
            roll_out(w, ws, actions, upcoming, p.refreshed, True)
    return RUNNING, first + count


@compiled
def _finite(cost: float) -> float:
    return cost if cost <= LARGEST else np.inf


@compiled
def _cost(ws: Any, p: Any, actions: Any) -> float:
    """The objective, from the latents in the workspace."""
    horizon = actions.shape[0]
    total = 0.0
    for t in range(horizon):
        if p.weights[t] > 0:
            for i in range(p.z0.shape[0]):
                error = np.float64(ws.latents[t + 1, i]) - np.float64(p.targets[t, i])
                total += 0.5 * p.weights[t] * error * error
    return _finite(total + _action_cost(p, actions))


@compiled
def _action_cost(p: Any, actions: Any) -> float:
    """Effort and smoothness."""
    horizon, m = actions.shape
    total = 0.0
    for step in range(horizon * m):
        t, i = step // m, step % m
        total += 0.5 * p.effort * actions[t, i] ** 2
        if step >= p.env_size:
            change = actions[t, i] - actions[(step - p.env_size) // m, (step - p.env_size) % m]
            total += 0.5 * p.smoothness * change * change
    return total


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
def _assemble(w: Any, ws: Any, p: Any, actions: Any, block: int, refreshed: int) -> int:
    """Gradient and Gauss-Newton Hessian in the refreshed blocks, from the Jacobians at hand.

    Returns how many directions there are.
    """
    horizon, m = actions.shape
    r, d = w.lift.shape[1], p.z0.shape[0]
    gradient, hessian, where = ws.gradient, ws.hessian, ws.where
    jacobians, latents, targets = ws.jacobians, ws.latents, p.targets
    k = 0
    for t in range(horizon):
        if is_refreshed(t, block, refreshed, horizon):
            for j in range(r):
                where[k, 0], where[k, 1] = t, j
                total = 0.0
                for i in range(m):
                    total += w.lift[i, j] * _action_gradient(p, actions, t, i)
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
def _direction(w: Any, ws: Any, p: Any, actions: Any, block: int) -> float:
    """The damped Gauss-Newton step E delta, from the Jacobians in the workspace.

    Returns by how much the quadratic model says that it lowers the cost.
    """
    m = actions.shape[1]
    gradient, hessian = ws.gradient, ws.hessian
    k = _assemble(w, ws, p, actions, block, p.refreshed)
    for i in range(k):
        if not _free(w, ws, p, actions, i):
            gradient[i] = 0.0
            hessian[i, :i] = 0.0
            hessian[i:k, i] = 0.0
        hessian[i, i] += p.damping
    cholesky(hessian[:k, :k])
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
