"""A soak of the real-time controller: how steady are its ticks, also when something fails?

    python benchmarks/realtime.py [--ticks 10000] [--hz 50] [--checkpoint pretrained/tworoom]

The simulator stands in for a robot; a process that does nothing but compute keeps a core busy.
After the soak it runs for a while under each fault, and prints how late ticks were.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bilinear_wm.control.box import Action
from bilinear_wm.control.loop import Tick
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.evaluation.load import LoadedPlanner, load_planner
from bilinear_wm.planning.base import Plan, Planner, PlanProblem
from bilinear_wm.recipes import evaluation
from bilinear_wm.tasks import make_task

SHARES = (50, 99, 99.9, 100)
EVERY = 3
"""Planning calls that fail, of so many one."""
FAULTS = (
    "none", "slow planner", "hanging planner", "planner that raises", "planner that recurses",
    "plans that are not finite", "camera that stops", "pictures that are not finite",
)  # fmt: skip


def stress() -> None:
    while True:
        sum(i * i for i in range(10_000))


def resident_mib() -> float:
    """Memory held now, not at its peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class FaultyPlanner:
    """Another planner, but for what goes wrong with it now and then."""

    def __init__(self, planner: Planner, fault: str, period_s: float) -> None:
        self.dynamics, self.config = planner.dynamics, planner.config
        self._planner, self._fault, self._period_s, self._calls = planner, fault, period_s, 0

    def plan(self, problem: PlanProblem, **options: Any) -> Plan:
        self._calls += 1
        failing = self._calls % EVERY == 0
        if failing and self._fault == "slow planner":
            time.sleep(5 * self._period_s)
        if failing and self._fault == "hanging planner":
            time.sleep(50 * self._period_s)
        if failing and self._fault == "planner that raises":
            raise RuntimeError("out of luck")
        if failing and self._fault == "planner that recurses":
            return self._recurse()
        plan = self._planner.plan(problem, **options)
        if failing and self._fault == "plans that are not finite":
            return replace(plan, actions=plan.actions * torch.nan)
        return plan

    def _recurse(self) -> Plan:
        return self._recurse()


def soak(
    loaded: LoadedPlanner, task: str, ticks: int, hz: float, fault: str = "none"
) -> dict[str, Any]:
    """Run the controller for so many ticks; how late they were, in milliseconds."""
    env = make_task(task, image_size=8)
    env.begin(seed=0)
    late, gaps = np.full(ticks, np.nan), np.full(ticks, np.nan)
    rng = np.random.default_rng(0)
    last, count = 0.0, 0

    def act(action: Action) -> None:
        nonlocal count
        count += 1
        if env.advance(action):  # a new goal as soon as one is reached
            env.begin(seed=int(rng.integers(1 << 30)), options={"state": env.state})
            controller.set_goal(loaded.camera.picture(env.goal))
        failing = count // 50 % EVERY == 1  # a second of three
        if not (failing and fault == "camera that stops"):
            picture = loaded.camera.picture(env.state)
            broken = failing and fault == "pictures that are not finite"
            controller.observe(picture * np.float32(np.nan) if broken else picture)

    def on_tick(tick: Tick) -> None:
        nonlocal last
        if tick.index < ticks:
            late[tick.index] = 1e3 * tick.late_s
            gaps[tick.index] = 1e3 * (tick.time - last)
        last = tick.time

    planner: Any = FaultyPlanner(loaded.planner, fault, 1 / hz)
    pilot = Pilot(loaded.model, loaded.planner if fault == "none" else planner)
    controller = RealTimeController(
        pilot.model, pilot.planner, hz, pilot=pilot, act=act, on_tick=on_tick
    )
    controller.set_goal(loaded.camera.picture(env.goal))
    controller.observe(loaded.camera.picture(env.state))
    with controller:
        time.sleep(min(ticks / hz / 10, 5))
        before = resident_mib()
        while np.isnan(late[-1]) and controller.running:
            done = int(np.isfinite(late).sum())
            print(f"\r{fault}: {done} of {ticks} ticks", end="", file=sys.stderr)
            time.sleep(1)
        grown = resident_mib() - before
    print(file=sys.stderr)
    jitter = np.abs(gaps[1:] - 1e3 / hz)
    return {
        "ticks": ticks,
        "hz": hz,
        "late_ms": _percentiles(late),
        "jitter_ms": _percentiles(jitter),
        "missed": controller.missed,
        "sources": dict(controller.loop.sources),
        "failures": controller.loop.failures,
        "memory_growth_mib": grown,
    }


def _percentiles(values: Any) -> dict[str, float]:
    return dict(zip(map(str, SHARES), np.nanpercentile(values, SHARES).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("pretrained/tworoom"))
    parser.add_argument("--task", default="tworoom")
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--fault-ticks", type=int, default=600)
    parser.add_argument("--hz", type=float, default=50.0)
    parser.add_argument("--no-stress", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench-realtime.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # faults are told in numbers
    recipe = evaluation(options.task, "gauss-newton")
    loaded = load_planner(options.task, options.checkpoint, "gauss-newton", recipe.planner_options)
    busy = multiprocessing.Process(target=stress, daemon=True)
    if not options.no_stress:
        busy.start()
    found = soak(loaded, options.task, options.ticks, options.hz)
    for name in ("late_ms", "jitter_ms"):
        p50, p99, p999, most = found[name].values()
        print(f"{name}: p50 {p50:.3f}, p99 {p99:.3f}, p99.9 {p999:.3f}, max {most:.3f}")
    print(f"missed {found['missed']}, sources {found['sources']}, memory grew by "
          f"{found['memory_growth_mib']:.1f} MiB", flush=True)  # fmt: skip
    found["faults"] = {}
    print(
        f"{'fault':<30}{'late p50':>9}{'p99':>9}{'max ms':>9}{'missed':>8}{'failed':>8}{'held':>7}"
    )
    for fault in FAULTS if options.fault_ticks else ():
        one = soak(loaded, options.task, options.fault_ticks, options.hz, fault)
        found["faults"][fault] = one
        p50, p99, _, most = one["late_ms"].values()
        held = one["sources"].get("hold", 0)
        print(f"{fault:<30}{p50:>9.2f}{p99:>9.2f}{most:>9.2f}{one['missed']:>8}"
              f"{one['failures']:>8}{held:>7}", flush=True)  # fmt: skip
    if not options.no_stress:
        busy.terminate()
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
