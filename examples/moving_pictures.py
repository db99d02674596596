"""The moving pictures of the README: pretrained models on the way to their goal pictures.

    python examples/moving_pictures.py [TASK ...] [--episodes 4] [--out docs/images]

The first tasks of a fixed seed that are not solved at the start, whatever comes of them; the goal
is on the right. The frame turns green where the goal is reached, and orange where it is missed.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
from numpy.typing import NDArray

from bilinear_wm import recipes
from bilinear_wm.evaluation.evaluate import evaluate
from bilinear_wm.evaluation.goals import choose_goals
from bilinear_wm.reporting.results import read_results
from bilinear_wm.tasks import TASK_NAMES, make_task

ROOT = Path(__file__).parents[1]
SIZE, FRAME, STILL, SEED = 144, 4, 8, 11
GREEN, ORANGE, WHITE = (0, 158, 115), (213, 94, 0), (255, 255, 255)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASK_NAMES))
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    for task in options.tasks:
        frames = film(task, options.episodes)
        path = options.out / f"{task}.gif"
        imageio.imwrite(path, frames, duration=120, loop=0)
        print(f"{path}: {len(frames)} frames, {path.stat().st_size / 1e3:.0f} kB")


def film(task: str, episodes: int) -> list[NDArray[np.uint8]]:
    """Frames of some episodes, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(
            recipes.evaluation(task, "gauss-newton"),
            checkpoint=ROOT / "pretrained" / task,
            episodes=2 * episodes,
            seed=SEED,
            trajectories=True,
            floors=False,
            out=Path(folder) / "results.jsonl",
        )
        evaluate(config)
        _, rows = read_results(config.out or Path())
    goals = {g.index: g.goal for g in choose_goals(None, task, 25, 2 * episodes, SEED)}
    camera = make_task(task, SIZE, "fast")
    frames: list[NDArray[np.uint8]] = []
    for row in [row for row in rows if not row.solved_at_start][:episodes]:
        goal = camera.picture(goals[row.index])
        states = np.array(row.trajectory)[::3]
        pictures = [camera.picture(state) for state in states]
        frames += [_side_by_side(picture, goal, WHITE) for picture in pictures]
        end = camera.picture(np.array(row.trajectory[-1]))
        frames += [_side_by_side(end, goal, GREEN if row.success else ORANGE)] * STILL
    camera.close()
    return frames


def _side_by_side(
    now: NDArray[np.uint8], goal: NDArray[np.uint8], colour: tuple[int, int, int]
) -> NDArray[np.uint8]:
    canvas = np.full((SIZE + 2 * FRAME, 2 * SIZE + 3 * FRAME, 3), 255, np.uint8)
    canvas[:, : SIZE + 2 * FRAME] = colour
    canvas[FRAME:-FRAME, FRAME : SIZE + FRAME] = now
    canvas[FRAME:-FRAME, SIZE + 2 * FRAME : -FRAME] = goal
    return canvas


if __name__ == "__main__":
    main()
