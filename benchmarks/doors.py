"""How often the controller finds the way through TwoRoom's door, and how long it takes.

    python benchmarks/doors.py

Starts and goals are the task's own, random and in different rooms, or moved into the same one. The
controller plans on every tick (`RealTimeController`'s decisions on simulated time, planning takes
none) and has ten seconds of 20 ticks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import numpy as np
import torch

from bilinear_wm import recipes
from bilinear_wm.control.loop import ControlState, simulate
from bilinear_wm.control.realtime import PlanMaker
from bilinear_wm.evaluation.evaluate import LoadedPlanner, load_planner
from bilinear_wm.reporting.results import rate
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.tworoom import CANVAS

TICKS, PERIOD_S = 200, 0.05
LIMIT = np.ones(2, np.float32)


def arrival(
    loaded: LoadedPlanner, horizons: tuple[int, int], seed: int, across: bool
) -> float | None:
    """Seconds until the goal is reached."""
    env = make_task("tworoom", 64, "fast")
    env.begin(seed=seed)
    if not across:  # the task's own are never in one room
        env.set_goal([CANVAS - env.goal[0], env.goal[1]])
    state = ControlState(-LIMIT, LIMIT)
    state.set_goal(loaded.camera.picture(env.goal))
    state.observe(loaded.camera.picture(env.state), 0.0)

    def world(tick: int, action: np.ndarray) -> np.ndarray:
        env.advance(action)
        if env.success(env.state, env.goal):
            raise StopIteration((tick + 1) * PERIOD_S)
        return loaded.camera.picture(env.state)

    plan = PlanMaker(loaded.model, loaded.planner, horizons, (-LIMIT, LIMIT), math.inf)
    try:
        simulate(state, plan, lambda _: 0.0, world, TICKS, PERIOD_S)
    except StopIteration as arrived:
        return float(arrived.value)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("pretrained/tworoom"))
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("bench-doors.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings, (shortest, longest) = recipes.playing("tworoom")
    loaded = load_planner("tworoom", options.checkpoint, "gauss-newton", settings["gauss-newton"])
    found = []
    for across in (True, False):
        for horizons in ((shortest, shortest), (longest, longest), (shortest, longest)):
            times = [arrival(loaded, horizons, seed, across) for seed in range(options.episodes)]
            arrived = [time for time in times if time is not None]
            success = rate([time is not None for time in times])
            seconds = statistics.median(arrived or [math.nan])
            print(
                f"{'through the door' if across else 'in one room':<18}"
                f"H = {horizons[0]:>2} to {horizons[1]:>2}   {success}   in {seconds:.1f} s",
                flush=True,
            )
            found.append({"across": across, "horizons": horizons, "seconds": times})
    options.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
