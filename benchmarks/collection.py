"""How fast episodes are recorded here.

    make bench        (or: python benchmarks/collection.py --quick)

Per task, at 64 px with every frame drawn: environment steps a second on one core, the share of
that time spent drawing, and what a second worker adds. Before that, where the qualities differ,
the CPU time of a picture in both at several sizes, and their difference. Figures of one run on
one machine; run it on an idle one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.episode import episode_seed, record_episode
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.data.workers import record_all
from bilinear_wm.executors import helpers
from bilinear_wm.tasks import TASK_NAMES, make_task

IMAGE_SIZE = 64
SIZES = (64, 96, 128)
DRAWN = ("reacher", "cube")  # the tasks with two qualities
SEEDS, PICTURES = 5, 8  # episodes, and pictures of each
EPISODES = {"tworoom": 60, "pusht": 30, "reacher": 4, "cube": 1}


def picture_times(name: str, states: np.ndarray, size: int) -> dict[str, float]:
    """CPU milliseconds of a picture in both qualities, and their difference in 1/255."""
    pictures, times = {}, {}
    for quality in ("faithful", "fast"):
        env = make_task(name, size, quality)
        env.picture(states[0])
        begun = time.process_time()
        pictures[quality] = np.stack([env.picture(state) for state in states]).astype(int)
        times[quality] = 1e3 * (time.process_time() - begun) / len(states)
        env.close()
    difference = np.abs(pictures["fast"] - pictures["faithful"])
    each = difference.mean(axis=(1, 2, 3))
    return {
        "faithful_ms": times["faithful"],
        "fast_ms": times["fast"],
        "difference": float(each.mean()),
        "worst_picture": float(each.max()),
        "worst_value": float(difference.max()),
    }


def behaviour_states(name: str) -> np.ndarray:
    """States of several episodes of the behaviour policy."""
    env = make_task(name, 8, "fast")
    chosen = []
    for seed in range(SEEDS):
        states = record_episode(env, episode_seed(7, seed), 1000).states
        chosen.append(states[np.linspace(0, len(states) - 1, PICTURES).astype(int)])
    env.close()
    return np.concatenate(chosen)


def one_core(name: str, episodes: int) -> dict[str, float]:
    """Environment steps a second in this process, and the share of time spent drawing."""
    env = make_task(name, IMAGE_SIZE, "fast")
    record_episode(env, 0, 1000)
    drawing = 0.0
    draw = env.picture

    def timed(state: np.ndarray) -> np.ndarray:
        nonlocal drawing
        begun = time.perf_counter()
        pixels = draw(state)
        drawing += time.perf_counter() - begun
        return pixels

    env.picture = timed  # type: ignore[method-assign]
    begun = time.perf_counter()
    recorded = [record_episode(env, episode_seed(0, index)) for index in range(episodes)]
    seconds = time.perf_counter() - begun
    env.close()
    steps = sum(len(episode.actions) for episode in recorded)
    return {"steps_per_s": steps / seconds, "drawing_share": drawing / seconds}


def worker_rate(name: str, workers: int, episodes: int) -> float:
    """Steps a second of `workers` processes once all of them are under way."""
    config = CollectConfig(
        name, Path("unused"), episodes + 2 * workers, IMAGE_SIZE, frame_stride=1, workers=workers
    )
    with (
        helpers(workers) as by,
        closing(record_all(config.provenance, range(config.episodes), by, lambda: None)) as stream,
    ):
        for _ in itertools.islice(stream, 2 * workers):
            pass
        begun = time.perf_counter()
        steps = sum(len(episode.actions) for episode in stream)
    return steps / (time.perf_counter() - begun)


def window_read_ms() -> float:
    """Milliseconds to assemble 128 windows of two frames from memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pusht.h5"
        collect(CollectConfig("pusht", path, 100, IMAGE_SIZE), progress=False)
        data = EpisodeDataset(path)
        order = data.order(0, 0)
        begun = time.perf_counter()
        for repeat in range(20):
            data.batch(order[repeat * 64 : repeat * 64 + 128])
        return 1e3 * (time.perf_counter() - begun) / 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the episodes")
    parser.add_argument("--tasks", nargs="*", default=list(TASK_NAMES))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    print(f"{'picture':15} {'faithful':>10} {'fast':>10} {'mean':>10} {'worst':>10} {'value':>8}")
    for name in (name for name in arguments.tasks if name in DRAWN):
        states = behaviour_states(name)
        for size in SIZES:
            row = figures[f"{name} {size} px"] = picture_times(name, states, size)
            print(
                f"{name:8} {size:3} px {row['faithful_ms']:8.2f} ms {row['fast_ms']:7.2f} ms "
                f"{row['difference']:6.2f}/255 {row['worst_picture']:6.2f}/255 "
                f"{row['worst_value']:4.0f}/255"
            )
    print(f"{'task':8} {'one core':>16} {'drawing':>8} {'2 workers':>10}")
    for name in arguments.tasks:
        episodes = max(EPISODES[name] // (10 if arguments.quick else 1), 1)
        row = one_core(name, episodes)
        one, two = (worker_rate(name, n, 4 * episodes) for n in (1, 2))
        row["two_workers_over_one"] = two / one
        figures[name] = row
        print(
            f"{name:8} {row['steps_per_s']:8,.0f} steps/s "
            f"{row['drawing_share']:7.0%} {row['two_workers_over_one']:9.2f}x"
        )
    figures["dataset"] = {"window_read_ms": window_read_ms()}
    read = figures["dataset"]["window_read_ms"]
    print(f"128 windows of 2 frames from memory: {read:.2f} ms")
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
