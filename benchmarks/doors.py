"""How often the controller finds the way through TwoRoom's door, and how long it takes.

    python benchmarks/doors.py

Starts and goals are the task's own, random and in different rooms, or moved into the same one. The
controller plans on every tick (the real-time controller's loop on simulated time, planning takes
none) and has ten seconds of 20 ticks.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch

from bilinear_wm import recipes
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Delivery, Loop, Tick, step_together
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.evaluation.load import LoadedPlanner, load_planner
from bilinear_wm.reporting.results import rate
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.tworoom import CANVAS

TICKS, PERIOD_S = 200, 0.05


class Dot:
    """TwoRoom's agent, seen by the model."""

    def __init__(self, loaded: LoadedPlanner, seed: int, across: bool) -> None:
        self.env, self._camera = make_task("tworoom", 64, "fast"), loaded.camera
        self.env.begin(seed=seed)
        if not across:  # the task's own are never in one room
            self.env.set_goal([CANVAS - self.env.goal[0], self.env.goal[1]])
        self._goal = self._camera.picture(self.env.goal)

    def look(self, loop: Loop) -> None:
        loop.set_goal(self._goal)
        loop.observe(self._camera.picture(self.env.state))

    def planned(self, made: Delivery) -> None:
        """Nothing to note."""

    def act(self, tick: Tick) -> None:
        self.env.advance(tick.action)


def arrival(
    loaded: LoadedPlanner, horizons: tuple[int, int], seed: int, across: bool
) -> float | None:
    """Seconds until the goal is reached."""
    pilot, dot = Pilot(loaded.model, loaded.planner), Dot(loaded, seed, across)
    loop = pilot.loop(LoopConfig(horizons[0], max_horizon=horizons[1]))
    for tick in range(TICKS):
        step_together([(dot, loop)], pilot.plan)
        if dot.env.solved:
            return (tick + 1) * PERIOD_S
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("pretrained/tworoom"))
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("bench-doors.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings, loop = recipes.playing("tworoom")
    shortest, longest = loop.horizon, loop.longest
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
