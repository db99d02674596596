"""What the shipped models cost on one core, beside the bars: a plan, a picture, and CEM.

    python benchmarks/shipped.py [TASK ...] [--problems 30] [--options '{"tolerance": 1e-3}']

For each task the first observation and the goal picture of fresh episodes. `shipped` is
Gauss-Newton with the task's shipped settings (and `--options`), `quick` the same with 16
candidates, one start and H = 5. CEM is 300 x 30 on the same model with the same effort, horizon
and bounds; costs beside ours say whether the comparison is fair. The last row has the sizes of a
Cube with points and a residual, and random weights. Engines take turns on each problem. Times are
CPU time: the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from bilinear_wm import recipes
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.evaluation.goals import simulated_goals
from bilinear_wm.evaluation.load import load_planner
from bilinear_wm.models.bilinear import BilinearWorldModel
from bilinear_wm.planning import (
    CEMConfig,
    CEMPlanner,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    PlanProblem,
)
from bilinear_wm.tasks import TASK_NAMES

ROOT = Path(__file__).parents[1]
SEED = 200
QUICK = {"candidates": 16, "starts": 1}
BARS = {"ms_quick": 3.0, "ms_act": 6.0, "ratio": 300.0, "ms_cube_sized": 10.0}
"""Milliseconds at most, and a ratio at least."""

T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call gives, and the milliseconds it takes of this thread."""
    begun = time.thread_time()
    result = call()
    return result, 1e3 * (time.thread_time() - begun)


def measure(task: str, count: int, cem_problems: int, options: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds and costs for one task."""
    recipe = recipes.evaluation(task, "gauss-newton")
    settings = recipe.planner_options | options
    loaded = load_planner(task, ROOT / "pretrained" / task, "gauss-newton", settings)
    model, (low, high) = loaded.model, loaded.bounds
    assert isinstance(model, BilinearWorldModel)
    quick = GaussNewtonPlanner(model.dynamics, GaussNewtonConfig(**settings | QUICK))
    cem = CEMPlanner(model.dynamics, CEMConfig(effort=settings["effort"]))
    times: dict[str, list[float]] = {x: [] for x in ("encode", "shipped", "quick", "cem")}
    costs: dict[str, list[float]] = {x: [] for x in ("shipped", "quick", "cem")}
    for i, goal in enumerate(simulated_goals(task, 25, count + 2, SEED)):
        now, wanted = loaded.camera.picture(goal.start), loaded.camera.picture(goal.goal)
        with torch.no_grad():
            z_goal = model.encode(wanted)
            z, encode = timed(lambda now=now: model.encode(now))  # type: ignore[misc]
        problem = PlanProblem(z, z_goal, recipe.horizon, low, high)
        plans = {
            "shipped": timed(lambda p=problem: loaded.planner.plan(p)),  # type: ignore[misc]
            "quick": timed(lambda p=problem: quick.plan(replace(p, horizon=5))),  # type: ignore[misc]
        }
        if i < 2:
            continue  # warms up
        if i < 2 + cem_problems:
            plans["cem"] = timed(lambda p=problem: cem.plan(p))  # type: ignore[misc]
        times["encode"].append(encode)
        for name, (plan, took) in plans.items():
            times[name].append(took)
            costs[name].append(float(plan.cost))
    compared = len(costs["cem"])
    ours, theirs = np.array(costs["shipped"][:compared]), np.array(costs["cem"])
    medians = {name: float(np.median(values)) for name, values in times.items()}
    act = float(np.median(np.array(times["encode"]) + times["shipped"]))
    return {
        "task": task,
        "residual": model.config.residual_hidden,
        "action_size": model.dynamics.action_size,
        "horizon": recipe.horizon,
        "settings": settings,
        "ms_shipped": medians["shipped"],
        "ms_shipped_p99": float(np.percentile(times["shipped"], 99)),
        "ms_quick": medians["quick"],
        "ms_encode": medians["encode"],
        "ms_act": act,
        "ms_cem": medians["cem"],
        "ratio": medians["cem"] / medians["shipped"],
        "cost_shipped": float(ours.mean()),
        "cost_cem": float(theirs.mean()),
        "cost_no_higher": float(np.mean(ours <= theirs * (1 + 1e-6))),
    }


def cube_sized(count: int, options: dict[str, Any]) -> dict[str, Any]:
    """A plan of five blocks with m = 25 and a residual, whose weights are random."""
    torch.manual_seed(0)
    d, env, m = 32, 5, 25
    base = BilinearDynamics(d, m, gain_init=0.3, env_action_size=env)
    dynamics = ResidualDynamics(base, hidden=256)
    last = dynamics.residual[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.normal_(last.weight, std=0.02)
    settings = recipes.COMPACT_PLAN | options
    planner = GaussNewtonPlanner(dynamics.eval(), GaussNewtonConfig(**settings))
    quick = GaussNewtonPlanner(dynamics, GaussNewtonConfig(**settings | QUICK))
    generator, bound = torch.Generator().manual_seed(1), torch.full((m,), 2.0)
    times: dict[str, list[float]] = {"shipped": [], "quick": []}
    for i in range(count + 2):
        z = torch.randn(d, generator=generator)
        held = torch.randn(5, env, generator=generator).clamp(-2, 2).repeat(1, m // env)
        with torch.no_grad():
            goal = dynamics.rollout(z, held)[-1]
        problem = PlanProblem(z, goal, 5, -bound, bound)
        for name, made in (("shipped", planner), ("quick", quick)):
            _, ms = timed(lambda p=problem, made=made: made.plan(p))  # type: ignore[misc]
            if i >= 2:
                times[name].append(ms)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "task": "cube-sized",
        "residual": 256,
        "action_size": m,
        "horizon": 5,
        "settings": settings,
        "ms_cube_sized": medians["shipped"],
        "ms_quick": medians["quick"],
    }


def verdict(row: dict[str, Any], name: str) -> str:
    """A figure beside its bar."""
    value, bar = row[name], BARS[name]
    reached = value >= bar if name == "ratio" else value <= bar
    unit = " x" if name == "ratio" else " ms"
    sign = ">=" if name == "ratio" else "<="
    return f"{value:.2f}{unit} (bar {sign} {bar:.0f}: {'reached' if reached else 'MISSED'})"


def show(row: dict[str, Any]) -> None:
    head = f"{row['task']}: residual {row['residual']} wide, m = {row['action_size']}"
    print(f"{head}, H = {row['horizon']}, {row['settings']}")
    print(f"  a plan, 16 candidates, one start, H = 5   {verdict(row, 'ms_quick')}")
    if "ms_cube_sized" in row:
        print(f"  a plan                                    {verdict(row, 'ms_cube_sized')}")
        return
    print(
        f"  a plan, shipped setting                   {row['ms_shipped']:.2f} ms "
        f"(p99 {row['ms_shipped_p99']:.1f})"
    )
    print(
        f"  observation to action                     {verdict(row, 'ms_act')}, "
        f"of which the picture {row['ms_encode']:.2f}"
    )
    print(
        f"  CEM 300 x 30, {row['ms_cem']:.0f} ms, over it           {verdict(row, 'ratio')}; "
        f"cost {row['cost_shipped']:.4f} against {row['cost_cem']:.4f}, "
        f"no higher in {100 * row['cost_no_higher']:.0f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASK_NAMES))
    parser.add_argument("--problems", type=int, default=30)
    parser.add_argument("--cem-problems", type=int, default=10)
    parser.add_argument("--options", type=json.loads, default={}, help="planner's, as JSON")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    for task in options.tasks:
        rows.append(measure(task, options.problems, options.cem_problems, options.options))
        show(rows[-1])
    rows.append(cube_sized(options.problems, options.options))
    show(rows[-1])
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
