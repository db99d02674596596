"""The README's figure of speed: what one plan costs, by planner, on one core.

    python benchmarks/speed.py [TASK ...] [--problems 20] [--figure docs/images/speed.png]

Gauss-Newton with the task's shipped settings, CEM and iCEM (300 samples, 30 rounds) on the same
model with the same effort, horizon and bounds, and CEM on LeWM's predictor at the size its authors
use (random weights: time does not depend on them; two rounds are timed, and counted as thirty).
Medians of CPU time: the machine may be shared.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from bilinear_wm import recipes
from bilinear_wm.dynamics.predictor import PredictorDynamics
from bilinear_wm.evaluation.goals import simulated_goals
from bilinear_wm.evaluation.load import LoadedPlanner, load_planner
from bilinear_wm.models.config import ENCODER_SIZES
from bilinear_wm.models.predictor import PREDICTOR_SIZES, PredictorConfig
from bilinear_wm.planning import (
    CEMConfig,
    CEMPlanner,
    ICEMConfig,
    ICEMPlanner,
    Planner,
    PlanProblem,
)
from bilinear_wm.tasks import TASK_NAMES

ROOT = Path(__file__).parents[1]
SEED, WARM_UP, ROUNDS, TIMED_ROUNDS = 200, 2, 30, 2
OURS, CEM, ICEM, LEWM = "Gauss-Newton", "CEM", "iCEM", "CEM on LeWM's predictor"
LATENT = 192
"""Of LeWM at its authors' size."""


def milliseconds(planner: Planner, problems: list[PlanProblem], warm_up: int = 0) -> float:
    """The median of this thread's time."""
    times = []
    for problem in problems:
        begun = time.thread_time()
        planner.plan(problem)
        times.append(1e3 * (time.thread_time() - begun))
    return float(np.median(times[warm_up:]))


def lewm(loaded: LoadedPlanner, problem: PlanProblem) -> float:
    """Thirty rounds of CEM on LeWM's predictor, from two."""
    facts = loaded.model.config
    size = facts.action_size
    config = PredictorConfig(
        facts.task, 224, facts.frame_skip, (0.0,) * size, (1.0,) * size,
        history=1, **ENCODER_SIZES["paper"], **PREDICTOR_SIZES["paper"],
    )  # fmt: skip
    dynamics = PredictorDynamics(config).eval()
    z = torch.zeros(LATENT)
    other = PlanProblem(z, z, problem.horizon, problem.action_low, problem.action_high)
    planner = CEMPlanner(dynamics, CEMConfig(iterations=TIMED_ROUNDS))
    return milliseconds(planner, [other]) * ROUNDS / TIMED_ROUNDS


def measure(task: str, count: int, sampled: int) -> dict[str, float]:
    """Milliseconds a plan by planner."""
    recipe = recipes.evaluation(task, "gauss-newton")
    folder = ROOT / "pretrained" / task
    loaded = load_planner(task, folder, "gauss-newton", recipe.planner_options)
    model, (low, high) = loaded.model, loaded.bounds
    problems = []
    for goal in simulated_goals(task, recipe.offset, count + WARM_UP, SEED):
        z, z_goal = (model.encode(loaded.camera.picture(s)) for s in (goal.start, goal.goal))
        problems.append(PlanProblem(z, z_goal, recipe.horizon, low, high))
    effort = recipe.planner_options["effort"]
    cem = CEMPlanner(model.dynamics, CEMConfig(effort=effort))
    icem = ICEMPlanner(model.dynamics, ICEMConfig(effort=effort))
    return {
        OURS: milliseconds(loaded.planner, problems, WARM_UP),
        ICEM: milliseconds(icem, problems[:sampled]),
        CEM: milliseconds(cem, problems[:sampled]),
        LEWM: lewm(loaded, problems[0]),
    }


def plot(found: dict[str, dict[str, float]], path: Path) -> None:
    """Bars on a logarithmic scale."""
    from bilinear_wm.reporting import figures

    colours = {
        OURS: figures.BLUE, ICEM: figures.YELLOW, CEM: figures.ORANGE, LEWM: figures.PINK,
    }  # fmt: skip
    figure, axes = figures.new_figure(width=8.4, height=3.6)
    for place, (name, colour) in enumerate(colours.items()):
        for i, times in enumerate(found.values()):
            at = -i + 0.3 - 0.2 * place
            axes.barh(at, times[name], 0.18, color=colour, label=name if i == 0 else None)
            text = f"{times[name]:.1f} ms" if times[name] < 10 else f"{times[name]:,.0f} ms"
            axes.text(1.08 * times[name], at, text, va="center", fontsize=8)
    axes.set(
        xscale="log",
        yticks=[-i for i in range(len(found))],
        yticklabels=[figures.task_title(task) for task in found],
        xlabel="one plan, ms of CPU time (logarithmic)",
    )
    axes.set_xlim(1, 4 * max(max(times.values()) for times in found.values()))
    axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figures.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASK_NAMES))
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--sampled", type=int, default=3, help="problems of CEM and iCEM")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = {}
    for task in options.tasks:
        found[task] = times = measure(task, options.problems, options.sampled)
        ours = times[OURS]
        told = [f"{name} {ms:,.1f} ms ({ms / ours:,.0f} x)" for name, ms in times.items()]
        print(f"{task}: {', '.join(told)}", flush=True)
    if options.figure is not None:
        plot(found, options.figure)
        print(f"written: {options.figure}")


if __name__ == "__main__":
    main()
