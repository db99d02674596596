"""What the shipped models cost on one core: a plan, a picture, and CEM on the same problems.

    python benchmarks/shipped.py [TASK ...] [--problems 30]

For each task the first observation and the goal picture of fresh episodes. `plan` is Gauss-Newton
with the task's shipped settings; `16 candidates` the same with 16 candidates and one start, at
H = 5. CEM is 300 x 30 on the same model with the same effort, horizon and bounds; its cost beside
ours says whether the comparison is fair. Engines take turns on each problem.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bilinear_wm import recipes
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


def measure(task: str, count: int, cem_problems: int) -> dict[str, Any]:
    """Milliseconds and costs for one task."""
    recipe = recipes.evaluation(task, "gauss-newton")
    folder = ROOT / "pretrained" / task
    loaded = load_planner(task, folder, "gauss-newton", recipe.planner_options)
    model, (low, high) = loaded.model, loaded.bounds
    assert isinstance(model, BilinearWorldModel)
    effort = recipe.planner_options["effort"]
    few = GaussNewtonPlanner(
        model.dynamics,
        GaussNewtonConfig(**recipe.planner_options | {"candidates": 16, "starts": 1}),
    )
    cem = CEMPlanner(model.dynamics, CEMConfig(effort=effort))
    found: dict[str, list[float]] = {
        name: [] for name in ("plan", "few", "cem", "encode", "act", "gap")
    }
    for i, goal in enumerate(simulated_goals(task, 25, count + 2, SEED)):
        now, wanted = loaded.camera.picture(goal.start), loaded.camera.picture(goal.goal)
        z_goal = model.encode(wanted)
        begun = time.perf_counter()
        z = model.encode(now)
        encoded = time.perf_counter()
        problem = PlanProblem(z, z_goal, recipe.horizon, low, high)
        plan = loaded.planner.plan(problem)
        acted = time.perf_counter()
        short = few.plan(PlanProblem(z, z_goal, 5, low, high))
        if i < 2:
            continue  # warms up
        found["plan"].append(plan.seconds)
        found["few"].append(short.seconds)
        found["encode"].append(encoded - begun)
        found["act"].append(acted - begun)
        if i < 2 + cem_problems:
            sampled = cem.plan(problem)
            found["cem"].append(sampled.seconds)
            found["gap"].append(float(plan.cost <= sampled.cost * (1 + 1e-6)))
    ms = {name: 1e3 * float(np.median(values)) for name, values in found.items()}
    return {
        "task": task,
        "residual": model.config.residual_hidden,
        "horizon": recipe.horizon,
        "ms_plan": ms["plan"],
        "ms_plan_p99": 1e3 * float(np.percentile(found["plan"], 99)),
        "ms_plan_16_candidates_h5": ms["few"],
        "ms_encode": ms["encode"],
        "ms_observation_to_action": ms["act"],
        "ms_cem": ms["cem"],
        "ratio": ms["cem"] / ms["plan"],
        "ratio_16_candidates": ms["cem"] / ms["few"],
        "cost_no_higher_than_cem": float(np.mean(found["gap"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASK_NAMES))
    parser.add_argument("--problems", type=int, default=30)
    parser.add_argument("--cem-problems", type=int, default=10)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for task in options.tasks:
        row = measure(task, options.problems, options.cem_problems)
        rows.append(row)
        print(
            f"{task}: residual {row['residual']} wide, H = {row['horizon']}; plan "
            f"{row['ms_plan']:.2f} ms (p99 {row['ms_plan_p99']:.1f}), with 16 candidates at H = 5 "
            f"{row['ms_plan_16_candidates_h5']:.2f} ms; picture {row['ms_encode']:.2f} ms, "
            f"observation to action {row['ms_observation_to_action']:.2f} ms; CEM 300 x 30 "
            f"{row['ms_cem']:.0f} ms = {row['ratio']:.0f} x ours, whose cost is no higher in "
            f"{100 * row['cost_no_higher_than_cem']:.0f} %",
            flush=True,
        )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
