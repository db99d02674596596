"""Planning speed on this machine: one core, one problem, everything in one run.

    python benchmarks/planning.py [--checkpoint DIR] [--plans 10000] [--out FILE.json]

Times are compared as ratios. Without a checkpoint the dynamics are random with the scales of a
trained model: drift near the identity, coherent gains larger than the others.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.gain import FreeMatrix
from bilinear_wm.dynamics.predictor import PredictorDynamics
from bilinear_wm.models import load_model
from bilinear_wm.models.config import ENCODER_SIZES
from bilinear_wm.models.predictor import PREDICTOR_SIZES, PredictorConfig
from bilinear_wm.planning import (
    CEMConfig,
    CEMPlanner,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    Plan,
    PlanProblem,
)

D, FRAME_SKIP, ENV_ACTION = 192, 5, 2
HORIZON = 5


def realistic_dynamics(seed: int = 0) -> BilinearDynamics:
    """Random, scaled like a trained TwoRoom model: held actions move the latent most."""
    torch.manual_seed(seed)
    m = FRAME_SKIP * ENV_ACTION
    made = BilinearDynamics(D, m, env_action_size=ENV_ACTION)
    held = torch.eye(ENV_ACTION).repeat(FRAME_SKIP, 1) / FRAME_SKIP**0.5
    assert isinstance(made.gain, FreeMatrix)
    with torch.no_grad():
        made.A.add_(0.01 * torch.randn(D, D) / D**0.5)
        made.C.mul_(3)
        made.gain.values.copy_(0.02 * torch.eye(m) + 0.2 * held @ held.T)
    return made.eval()


def problems(dynamics: BilinearDynamics, count: int, horizon: int = HORIZON) -> list[PlanProblem]:
    """Goals near where held random actions lead, within a box of two standard deviations."""
    generator = torch.Generator().manual_seed(1)
    bound = torch.full((dynamics.action_size,), 2.0)
    made = []
    for _ in range(count):
        z0 = torch.randn(D, generator=generator)
        held = torch.randn(horizon, ENV_ACTION, generator=generator).repeat(1, FRAME_SKIP)
        held = held.clamp(-2, 2)
        with torch.no_grad():
            goal = dynamics.rollout(z0, held)[-1] + 0.01 * torch.randn(D, generator=generator)
        made.append(PlanProblem(z0, goal, horizon, -bound, bound))
    return made


def median_ms(call: Callable[[PlanProblem], Plan], items: list[PlanProblem]) -> float:
    call(items[0])
    times = []
    for item in items:
        begun = time.perf_counter()
        call(item)
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def per_iteration(dynamics: BilinearDynamics, items: list[PlanProblem]) -> dict[str, float]:
    """What a second iteration adds to a plan of one, where it still gains.

    All engines take turns on each problem: a machine's mood then meets them alike.
    """
    pairs = {
        name: [
            GaussNewtonPlanner(dynamics, GaussNewtonConfig(iterations=n, **settings))
            for n in (2, 1)
        ]
        for name, settings in ENGINES.items()
    }
    two, one = pairs["analytic, eager"]
    some = [item for item in items if two.plan(item).cost < 0.999 * one.plan(item).cost]
    times: dict[str, list[float]] = {name: [] for name in ENGINES}
    for item in some * 40:
        for name, (two, one) in pairs.items():
            times[name].append(two.plan(item).seconds - one.plan(item).seconds)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


ENGINES: dict[str, dict[str, Any]] = {
    "finite differences, eager": {"sensitivities": "finite-difference", "compiled": False},
    "analytic, eager": {"compiled": False},
    "analytic, compiled": {},
}


def whole_plans(dynamics: BilinearDynamics, items: list[PlanProblem]) -> dict[str, Any]:
    """Plans with early stopping, and what they cost in the end; again in turns."""
    planners = {
        name: GaussNewtonPlanner(dynamics, GaussNewtonConfig(**settings))
        for name, settings in ENGINES.items()
    }
    plans: dict[str, list[Plan]] = {name: [] for name in ENGINES}
    for item in items[:3] + items * 3:
        for name, planner in planners.items():
            plans[name].append(planner.plan(item))
    return {
        name: {
            "ms": 1e3 * statistics.median(p.seconds for p in made[3:]),
            "cost": float(np.mean([float(p.cost) for p in made[3:]])),
            "iterations": float(np.mean([p.iterations for p in made[3:]])),
        }
        for name, made in plans.items()
    }


def lewm_predictor() -> PredictorDynamics:
    """LeWM's dynamics at the paper's size (random weights: time does not depend on them)."""
    config = PredictorConfig(
        "tworoom", 224, FRAME_SKIP, (0.0,) * ENV_ACTION, (1.0,) * ENV_ACTION,
        history=1, **ENCODER_SIZES["paper"], **PREDICTOR_SIZES["paper"],
    )  # fmt: skip
    return PredictorDynamics(config).eval()


def one_cem_plan(dynamics: Any, item: PlanProblem, iterations: int) -> float:
    planner = CEMPlanner(dynamics, CEMConfig(iterations=iterations))
    return planner.plan(item).seconds


def by_horizon(dynamics: BilinearDynamics) -> dict[int, float]:
    """An iteration of five blocks, a quarter of a plan of four; horizons take turns."""
    config = GaussNewtonConfig(iterations=4, tolerance=0.0, refreshed_blocks=5)
    planner = GaussNewtonPlanner(dynamics, config)
    items = {h: problems(dynamics, 10, h) for h in (5, 10, 15, 30)}
    times: dict[int, list[float]] = {h: [] for h in items}
    for i in range(60):
        for h, some in items.items():
            times[h].append(planner.plan(some[i % len(some)]).seconds)
    return {h: 1e3 * statistics.median(values[len(items[h]) :]) / 4 for h, values in times.items()}


def many_plans(dynamics: BilinearDynamics, items: list[PlanProblem], count: int) -> dict[str, Any]:
    """Consecutive plans: the distribution of their times, and whether memory grows."""
    planner = GaussNewtonPlanner(dynamics)
    for item in items:
        planner.plan(item)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = np.empty(count)
    for i in range(count):
        begun = time.perf_counter()
        planner.plan(items[i % len(items)])
        times[i] = 1e3 * (time.perf_counter() - begun)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    p50, p99, p999 = np.percentile(times, [50, 99, 99.9])
    return {"plans": count, "p50": p50, "p99": p99, "p99.9": p999, "max": times.max(),
            "memory_growth_mib": grown / 1024}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("bench-planning.json"))
    parser.add_argument("--figure", type=Path, help="also plot cost against horizon and batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dynamics: Any = realistic_dynamics()
    if options.checkpoint:
        dynamics = load_model(options.checkpoint).eval().dynamics
    items = problems(dynamics, 30)

    iteration = per_iteration(dynamics, items)
    slow = iteration["finite differences, eager"]
    print(f"{'one Gauss-Newton iteration':<44}{'ms':>9}{'speed-up':>10}")
    for name, ms in iteration.items():
        print(f"  {name:<42}{ms:>9.3f}{slow / ms:>10.1f}")

    plans = whole_plans(dynamics, items)
    slow = plans["finite differences, eager"]["ms"]
    print(f"\n{'a whole plan':<44}{'ms':>9}{'speed-up':>10}{'iterations':>12}{'cost':>12}")
    for name, p in plans.items():
        print(f"  {name:<42}{p['ms']:>9.2f}{slow / p['ms']:>10.1f}{p['iterations']:>12.1f}"
              f"{p['cost']:>12.5f}")  # fmt: skip
    compiled = plans["analytic, compiled"]["ms"]

    cem = 1e3 * one_cem_plan(dynamics, items[0], 30)
    lewm = 1e3 * one_cem_plan(lewm_predictor(), items[0], 2) / 2 * 30
    print(f"  {'CEM 300 x 30, same bilinear model':<42}{cem:>9.0f}")
    print(f"  {'CEM 300 x 30, LeWM predictor (2 iterations x 15)':<42}{lewm:>9.0f}")
    print(
        f"  compiled Gauss-Newton is {cem / compiled:,.0f} and {lewm / compiled:,.0f} times faster"
    )

    horizons = by_horizon(dynamics)
    batches = {}
    for n in (1, 4, 16, 64, 256):
        planner = GaussNewtonPlanner(
            dynamics, GaussNewtonConfig(iterations=2, tolerance=0.0, compiled=False)
        )
        some = (items * 9)[:n]
        batch = PlanProblem(
            torch.stack([p.z0 for p in some]),
            torch.stack([p.z_goal for p in some if p.z_goal is not None]),
            HORIZON,
            items[0].action_low,
            items[0].action_high,
        )
        batches[n] = median_ms(planner.plan, [batch] * 3) / 2 / n
    print(
        "\nms an iteration of five blocks by horizon:",
        {h: round(ms, 3) for h, ms in horizons.items()},
    )
    print("ms an iteration and problem by batch:", {n: round(ms, 3) for n, ms in batches.items()})

    soak = many_plans(dynamics, items, options.plans)
    print(f"\n{soak['plans']:,} consecutive plans: p50 {soak['p50']:.2f} ms, "
          f"p99 {soak['p99']:.2f}, "
          f"p99.9 {soak['p99.9']:.2f}, max {soak['max']:.2f}; memory grew by "
          f"{soak['memory_growth_mib']:.1f} MiB")  # fmt: skip
    options.out.write_text(
        json.dumps(
            {
                "iteration_ms": iteration,
                "plan": plans,
                "cem_ms": cem,
                "lewm_cem_ms": lewm,
                "horizon_ms": horizons,
                "batch_ms": batches,
                "soak": soak,
            },
            indent=2,
        )
        + "\n"
    )
    print(f"\nwritten: {options.out}")
    if options.figure:
        plot(horizons, batches, options.figure)
        print(f"written: {options.figure}")


def plot(horizons: dict[int, float], batches: dict[int, float], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), constrained_layout=True)
    left.plot(list(horizons), list(horizons.values()), "o-", color="#0072B2")
    left.set(
        xlabel="horizon (blocks)",
        ylabel="ms an iteration of five blocks",
        title="compiled, one problem",
    )
    left.set_ylim(bottom=0)
    left.set_xlim(left=0)
    right.loglog(list(batches), list(batches.values()), "o-", color="#D55E00")
    right.set(xlabel="problems planned at once", ylabel="ms an iteration and problem",
              title="torch, one core")  # fmt: skip
    right.set_xticks(list(batches), [str(n) for n in batches])
    right.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    right.minorticks_off()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
