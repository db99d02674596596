"""A soak of the real-time controller: how steady are its ticks, does memory grow?

    python benchmarks/realtime.py [--ticks 10000] [--hz 50] [--checkpoint pretrained/tworoom]

The simulator stands in for a robot; a process that does nothing but compute keeps a core busy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from bilinear_wm.control.box import Action
from bilinear_wm.control.loop import Tick
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.evaluation.load import load_planner
from bilinear_wm.recipes import evaluation
from bilinear_wm.tasks import make_task


def stress() -> None:
    while True:
        sum(i * i for i in range(10_000))


def resident_mib() -> float:
    """Memory held now, not at its peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("pretrained/tworoom"))
    parser.add_argument("--task", default="tworoom")
    parser.add_argument("--ticks", type=int, default=10_000)
    parser.add_argument("--hz", type=float, default=50.0)
    parser.add_argument("--no-stress", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench-realtime.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = evaluation(options.task, "gauss-newton")
    loaded = load_planner(options.task, options.checkpoint, "gauss-newton", recipe.planner_options)
    env = make_task(options.task, image_size=8)
    env.begin(seed=0)
    late = np.full(options.ticks, np.nan)
    gaps = np.full(options.ticks, np.nan)
    rng = np.random.default_rng(0)
    last = 0.0

    def act(action: Action) -> None:
        if env.advance(action):  # a new goal as soon as one is reached
            env.begin(seed=int(rng.integers(1 << 30)), options={"state": env.state})
            controller.set_goal(loaded.camera.picture(env.goal))
        controller.observe(loaded.camera.picture(env.state))

    def on_tick(tick: Tick) -> None:
        nonlocal last
        if tick.index < options.ticks:
            late[tick.index] = 1e3 * tick.late_s
            gaps[tick.index] = 1e3 * (tick.time - last)
        last = tick.time

    pilot = Pilot(loaded.model, loaded.planner)
    controller = RealTimeController(
        pilot.model, pilot.planner, options.hz, pilot=pilot, act=act, on_tick=on_tick
    )
    controller.set_goal(loaded.camera.picture(env.goal))
    controller.observe(loaded.camera.picture(env.state))
    busy = multiprocessing.Process(target=stress, daemon=True)
    if not options.no_stress:
        busy.start()
    with controller:
        time.sleep(min(options.ticks / options.hz / 10, 5))
        before = resident_mib()
        while np.isnan(late[-1]):
            done = int(np.isfinite(late).sum())
            print(f"\r{done} of {options.ticks} ticks", end="", file=sys.stderr)
            time.sleep(1)
    print(file=sys.stderr)
    if not options.no_stress:
        busy.terminate()
    shares = [50, 99, 99.9, 100]
    jitter = np.abs(gaps[1:] - 1e3 / options.hz)
    found = {
        "ticks": options.ticks,
        "hz": options.hz,
        "late_ms": dict(zip(map(str, shares), np.percentile(late, shares).tolist(), strict=True)),
        "jitter_ms": dict(
            zip(map(str, shares), np.percentile(jitter, shares).tolist(), strict=True)
        ),
        "missed": controller.missed,
        "sources": dict(controller.loop.sources),
        "memory_growth_mib": resident_mib() - before,
    }
    for name in ("late_ms", "jitter_ms"):
        p50, p99, p999, most = found[name].values()
        print(f"{name}: p50 {p50:.3f}, p99 {p99:.3f}, p99.9 {p999:.3f}, max {most:.3f}")
    print(f"missed {found['missed']}, sources {found['sources']}, memory grew by "
          f"{found['memory_growth_mib']:.1f} MiB")  # fmt: skip
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
