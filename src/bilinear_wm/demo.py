"""`bwm demo`: the main job from start to end, in a few minutes on two cores.

Loads the pretrained models, plans to goal pictures beside CEM and random actions, films it, then
collects TwoRoom episodes and trains a small model from nothing to show that it learns.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bilinear_wm import recipes
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.inspect import describe, sheet, summarize
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import evaluate
from bilinear_wm.evaluation.summary import Evaluation
from bilinear_wm.reporting.media import write_picture
from bilinear_wm.stage import Outcome
from bilinear_wm.training.run_folder import METRICS
from bilinear_wm.training.train import train

PRETRAINED = Path("pretrained")
TASKS = ("tworoom", "pusht")


@dataclass(frozen=True)
class DemoConfig:
    """How much of everything.

    Attributes:
        out: The folder for everything that is made.
        pretrained: Where the pretrained models are.
        episodes: Starts and goals of each evaluation.
        cem_episodes: Those of CEM, which is slow.
        collected: Episodes to train on.
        steps: Training steps.
        device: Where models run: cpu, cuda, cuda:1 ...
    """

    out: Path = Path("demo")
    pretrained: Path = PRETRAINED
    episodes: int = 50
    cem_episodes: int = 10
    collected: int = 1500
    steps: int = 400
    device: str = "cpu"

    def run(self) -> Outcome:
        """`run_demo`, in words."""
        numbers, files = run_demo(self)
        text = "\n  ".join(["made:", *map(str, files)])
        return Outcome(text, {**numbers, "files": files})


@dataclass
class _Made:
    files: list[Path] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)


def run_demo(config: DemoConfig, progress: bool = True) -> tuple[dict[str, Any], list[Path]]:
    """Run everything; returns the numbers and the files that were made."""
    config.out.mkdir(parents=True, exist_ok=True)
    made = _Made()
    models = {task: config.pretrained / task for task in TASKS}
    models = {task: folder for task, folder in models.items() if folder.is_dir()}
    if not models:
        raise InputError(
            f"pretrained {config.pretrained}: expected the folders {', '.join(TASKS)}, found "
            "neither; run the demo where the repository's pretrained/ is"
        )
    for task, folder in models.items():
        _plan(task, folder, config, made, progress)
    data = config.out / "tworoom.h5"
    run = _learn(data, config, made, progress)
    _plan_with(run, data, config, made, progress)
    print(f"\n{'':<34}{'success (95 % interval)':<28}{'random':>8}{'none':>8}{'ms a plan':>12}")
    print("\n".join(made.rows))
    return made.numbers, made.files


def _plan(task: str, folder: Path, config: DemoConfig, made: _Made, progress: bool) -> None:
    for planner, episodes in (("gauss-newton", config.episodes), ("cem", config.cem_episodes)):
        first = planner == "gauss-newton"
        out, film = config.out / f"{task}-{planner}.jsonl", config.out / f"{task}-videos"
        out.unlink(missing_ok=True)
        run = replace(
            recipes.evaluation(task, planner),
            checkpoint=folder,
            episodes=episodes,
            out=out,
            video=film if first else None,
            floors=first,
            device=config.device,
        )
        result = evaluate(run, progress)
        made.files.append(out)
        if first:
            made.files.append(film)
        _add_row(f"{task}, pretrained, {planner}", result, made)


def _learn(data: Path, config: DemoConfig, made: _Made, progress: bool) -> Path:
    with tempfile.TemporaryDirectory(dir=config.out) as scratch:  # replaces an earlier demo's file
        fresh = Path(scratch) / data.name
        collect(CollectConfig("tworoom", fresh, config.collected), progress)
        fresh.replace(data)
    episodes = EpisodeFile(data)
    print(describe(summarize(episodes)))
    picture = data.with_suffix(".png")
    write_picture(picture, sheet(episodes))
    run = config.out / "tworoom-run"
    if run.exists():
        import shutil

        shutil.rmtree(run)
    recipe = recipes.compact(data, run, "bilinear", "tworoom")
    every = max(config.steps // 4, 1)
    small = {"steps": config.steps, "eval_every": every, "save_every": config.steps}
    train(replace(recipe, device=config.device, **small), progress)  # type: ignore[arg-type]
    made.files += [data, picture, run / METRICS, run]
    last = json.loads((run / METRICS).read_text().splitlines()[-1])
    made.numbers["trained"] = {k: v for k, v in last.items() if k.startswith(("probe", "open"))}
    return run


def _plan_with(run: Path, data: Path, config: DemoConfig, made: _Made, progress: bool) -> None:
    recipe = recipes.evaluation("tworoom", "gauss-newton")
    recipe = replace(recipe, checkpoint=run, episodes=config.episodes, device=config.device)
    result = evaluate(replace(recipe, data=data), progress)
    _add_row(f"tworoom, {config.steps} steps from nothing", result, made)


def _add_row(name: str, result: Evaluation, made: _Made) -> None:
    def percent(rate: Any) -> str:
        return f"{100 * rate.value:.0f} %" if rate else ""

    made.numbers[name] = result.numbers()
    made.rows.append(
        f"{name:<34}{result.success!s:<28}{percent(result.floor_random):>8}"
        f"{percent(result.floor_none):>8}{result.times.ms_per_plan_p50:>12.1f}"
    )
