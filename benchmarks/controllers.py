"""Planning time of every model with every planner: one core, one problem, everything in one run.

    python benchmarks/controllers.py pretrained/tworoom runs/tworoom-lewm runs/tworoom-smwm ...

Starts and goals are simulated tasks of the checkpoint's own world; horizons and settings are the
recipes'. Baselines are differentiated by finite differences. Medians over a few plans, and what one
plan costs as a multiple of the first checkpoint's Gauss-Newton plan of the same task.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch

from bilinear_wm import recipes
from bilinear_wm.evaluation.goals import simulated_goals
from bilinear_wm.evaluation.load import load_planner
from bilinear_wm.models import load_model
from bilinear_wm.planning import PlanProblem

PLANNERS = ("gauss-newton", "cem", "icem")


def milliseconds(checkpoint: Path, task: str, planner: str, plans: int) -> float:
    recipe = recipes.evaluation(task, planner)
    loaded = load_planner(task, checkpoint, planner, recipe.planner_options)
    times = []
    for goal in simulated_goals(task, 25, plans + 1, seed=0):
        pictures = np.stack([loaded.camera.picture(state) for state in (goal.start, goal.goal)])
        z, z_goal = loaded.model.encode(pictures)
        problem = PlanProblem(z, z_goal, recipe.horizon, *loaded.bounds)
        times.append(1e3 * loaded.planner.plan(problem).seconds)
    loaded.camera.close()
    return statistics.median(times[1:])  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--plans", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench-controllers.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = []
    first: dict[str, float] = {}
    print(f"{'task':<10}{'model':<10}{'H':>3}" + "".join(f"{p:>24}" for p in PLANNERS))
    for checkpoint in options.checkpoints:
        model = load_model(checkpoint)
        task, kind = model.config.task, model.kind
        cells = {
            planner: milliseconds(checkpoint, task, planner, options.plans) for planner in PLANNERS
        }
        unit = first.setdefault(task, cells["gauss-newton"])
        shown = "".join(f"{ms:>12.1f} ms ({ms / unit:,.0f} x)".rjust(24) for ms in cells.values())
        print(
            f"{task:<10}{kind:<10}{recipes.evaluation(task, 'cem').horizon:>3}{shown}", flush=True
        )
        found.append({"task": task, "model": kind, "ms": cells})
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
