"""What a bundle costs on one core, beside torch: start-up, memory, a picture, a plan, both.

    python benchmarks/deploy.py [TASK ...] [--problems 50] [--first] [--options '{"starts": 1}']

Each engine has a process of its own: `torch` loads the checkpoint, `numba` a portable bundle,
`native` one with the compiled kernel; the last two cannot import torch. Start-up is from the
process's beginning to its first plan, with numba's cache warm; `--first` adds the first start ever,
with an empty one. Latencies are medians of CPU time over the same problems, with the task's shipped
settings (and `--options`): the machine may be shared. Memory is what is resident after them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SEED = 200
BARS = {"ms_both": 2.0, "resident_mb": 100.0}
"""At most, for the native bundle."""


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure(engine: str, source: Path, problems: Path, options: str) -> dict[str, Any]:
    """Of this process, which does nothing else."""
    encode, plan = _torch(source, json.loads(options)) if engine == "torch" else _bundle(source)
    loaded = np.load(problems)
    pictures, goals = loaded["pictures"], loaded["goals"]
    plan(encode(pictures[0]), encode(goals[0]))
    started = {"start_cpu_s": time.process_time(), "start_s": time.time() - _begun()}
    times: dict[str, list[float]] = {"encode": [], "plan": []}
    for picture, goal in zip(pictures, goals, strict=True):
        wanted = encode(goal)
        begun = time.thread_time()
        z = encode(picture)
        seen = time.thread_time()
        plan(z, wanted)
        times["encode"].append(1e3 * (seen - begun))
        times["plan"].append(1e3 * (time.thread_time() - seen))
    both = np.array(times["encode"]) + np.array(times["plan"])
    return started | {
        "resident_mb": resident_mb(),
        "ms_encode": float(np.median(times["encode"])),
        "ms_plan": float(np.median(times["plan"])),
        "ms_both": float(np.median(both)),
        "torch": "torch" in sys.modules,
    }


def _begun() -> float:
    """When this process began."""
    import psutil

    return float(psutil.Process().create_time())


def _torch(folder: Path, options: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import torch

    from bilinear_wm import recipes
    from bilinear_wm.models import load_model
    from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner, PlanProblem

    torch.set_num_threads(1)
    model = load_model(folder)
    recipe = recipes.evaluation(model.config.task, "gauss-newton")
    planner = GaussNewtonPlanner(
        model.dynamics, GaussNewtonConfig(**recipe.planner_options | options)
    )
    bounds = model.action_bounds(-1.0, 1.0)

    def plan(z: Any, goal: Any) -> Any:
        prior = model.propose(z[None], goal[None], recipe.horizon)
        first = None if prior is None else prior[0]
        made = planner.plan(PlanProblem(z, goal, recipe.horizon, *bounds, prior=first))
        return model.to_env_actions(made.actions).numpy()

    return model.encode, plan


def _bundle(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it fails
    from bilinear_wm import deploy

    bundle = deploy.load(folder)
    return bundle.encode, bundle.plan


def child(
    engine: str, source: Path, problems: Path, options: dict[str, Any], cache: str | None = None
) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = cache
    given = [engine, str(source), str(problems), json.dumps(options)]
    command = [sys.executable, __file__, "--child", *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def draw(task: str, count: int, out: Path) -> None:
    """Starts and goals of fresh episodes, as pictures."""
    from bilinear_wm.evaluation.goals import simulated_goals
    from bilinear_wm.evaluation.load import checked_camera
    from bilinear_wm.models import load_model

    folder = ROOT / "pretrained" / task
    camera = checked_camera(load_model(folder), task, folder)
    goals = simulated_goals(task, 25, count, SEED)
    np.savez(
        out,
        pictures=np.stack([camera.picture(goal.start) for goal in goals]),
        goals=np.stack([camera.picture(goal.goal) for goal in goals]),
    )


def compare(
    task: str, count: int, first: bool, options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    from bilinear_wm.export import ExportConfig, export

    checkpoint = ROOT / "pretrained" / task
    with tempfile.TemporaryDirectory() as folder:
        problems = Path(folder) / "problems.npz"
        draw(task, count, problems)
        sources = {"torch": checkpoint}
        for engine in ("numba", "native"):
            sources[engine] = Path(folder) / engine
            portable = engine == "numba"
            settings = ExportConfig(checkpoint, sources[engine], portable=portable)
            export(replace(settings, planner_options=options))
        rows = {
            engine: child(engine, source, problems, options) for engine, source in sources.items()
        }
        if first:
            cache = str(Path(folder) / "cache")
            rows["numba, first start"] = child("numba", sources["numba"], problems, options, cache)
    return rows


def show(task: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"{task}: start-up CPU (wall) s, resident MB, p50 ms of CPU: encode, plan, both")
    for engine, row in rows.items():
        print(
            f"  {engine:<20}{row['start_cpu_s']:6.2f} ({row['start_s']:.1f}) s "
            f"{row['resident_mb']:6.0f} MB  {row['ms_encode']:6.2f} {row['ms_plan']:6.2f} "
            f"{row['ms_both']:6.2f} ms"
        )
    for name, bar in BARS.items():
        found = rows["native"][name]
        print(
            f"  native {name} {found:.2f}, bar {bar:.0f}: {'reached' if found <= bar else 'MISSED'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=["tworoom", "pusht", "reacher", "cube"])
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--options", type=json.loads, default={}, help="planner's, as JSON")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    rows = {}
    for task in options.tasks:
        rows[task] = compare(task, options.problems, options.first, options.options)
        show(task, rows[task])
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])))
    else:
        main()
