"""`bwm demo`: the main job from start to end, in some minutes on two cores, ending in one page.

Loads the pretrained models, plans to goal pictures beside CEM and random actions, films it, then
collects TwoRoom episodes and trains a small model from nothing to show that it learns.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import webbrowser
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
from bilinear_wm.reporting import demo_page
from bilinear_wm.reporting.demo_page import CEM, OURS, RANDOM, Clip, Learned, Row, Shown
from bilinear_wm.reporting.media import write_picture
from bilinear_wm.reporting.results import read_results
from bilinear_wm.stage import Outcome, at_least
from bilinear_wm.tasks import TASK_NAMES
from bilinear_wm.training.run_folder import METRICS
from bilinear_wm.training.train import train

PRETRAINED = Path("pretrained")
FILMS = 3
"""Of each task on the page: the first whose start is no solution, whatever comes of them."""
DIAGNOSES = 6
"""Points of the training curve."""
AT_MOST = {"cube": 4}
"""Starts and goals of a task, where one attempt of CEM takes half a minute."""
PLANNERS = {"gauss-newton": OURS, "cem": CEM}


@dataclass(frozen=True)
class DemoConfig:
    """How much of everything.

    Attributes:
        out: The folder for everything that is made.
        pretrained: Where the pretrained models are.
        episodes: Starts and goals of each task (Cube: at most 4), the same for every method.
        collected: Episodes to train on.
        steps: Training steps.
        show: Open the page in a browser, if there is a screen.
        device: Where models run: cpu, cuda, cuda:1 ...
    """

    out: Path = Path("demo")
    pretrained: Path = PRETRAINED
    episodes: int = 10
    collected: int = 1000
    steps: int = 200
    show: bool = True
    device: str = "cpu"

    def __post_init__(self) -> None:
        at_least(self, 1, "episodes", "collected", "steps")

    def run(self) -> Outcome:
        """`run_demo`, in words."""
        numbers, page, verdict = run_demo(self)
        opened = self.show and has_screen() and webbrowser.open(page.resolve().as_uri())
        where = "opened in your browser" if opened else "open it in a browser"
        return Outcome(f"\n{verdict}\n\n{page.resolve()}: {where}", numbers | {"page": page})


@dataclass
class _Made:
    rows: list[Row] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)


def has_screen() -> bool:
    """Whether a browser would be seen."""
    names = ("DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in names)


def run_demo(config: DemoConfig, progress: bool = True) -> tuple[dict[str, Any], Path, str]:
    """Run everything; returns the numbers, the page, and what it comes to."""
    models = {task: config.pretrained / task for task in TASK_NAMES}
    models = {task: folder for task, folder in models.items() if folder.is_dir()}
    if not models:
        raise InputError(
            f"pretrained {config.pretrained}: expected the folders {', '.join(TASK_NAMES)}, found "
            "none; run the demo where the repository's pretrained/ is"
        )
    config.out.mkdir(parents=True, exist_ok=True)
    made = _Made()
    _head(
        "1 of 3", f"plan to {config.episodes} goal pictures a task, beside CEM and random actions",
        "about 5 minutes, most of them CEM's",
    )  # fmt: skip
    for task, folder in models.items():
        _plan(task, folder, config, made, progress)
    _head("2 of 3", f"record {config.collected} episodes of TwoRoom, train a model from nothing",
          "about 2 minutes")  # fmt: skip
    data = config.out / "tworoom.h5"
    run, picture = _learn(data, config, made, progress)
    _head("3 of 3", "plan with the model that was just trained", "some seconds")
    trained = _plan_with(run, data, config, made, progress)
    print(demo_page.table(made.rows))
    metrics = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    learned = Learned(metrics, config.collected, trained.success, picture)
    shown = Shown(made.rows, made.clips, learned, _next_steps(config, run, data))
    page = demo_page.write_page(shown, config.out)
    return made.numbers | {"times_cem": shown.ratios()}, page, shown.verdict


def _head(part: str, what: str, takes: str) -> None:
    print(f"\n== {part}: {what} ({takes})", flush=True)


def _plan(task: str, folder: Path, config: DemoConfig, made: _Made, progress: bool) -> None:
    effort = recipes.evaluation(task, "gauss-newton").planner_options["effort"]
    for planner, method in PLANNERS.items():
        first = planner == "gauss-newton"
        out, film = config.out / f"{task}-{planner}.jsonl", config.out / f"{task}-videos"
        out.unlink(missing_ok=True)
        if first:
            shutil.rmtree(film, ignore_errors=True)
        recipe = recipes.evaluation(task, planner)
        run = replace(
            recipe,
            planner_options=recipe.planner_options | {"effort": effort},
            checkpoint=folder,
            episodes=min(config.episodes, AT_MOST.get(task, config.episodes)),
            out=out,
            video=film if first else None,
            floors=first,
            device=config.device,
        )
        result = evaluate(run, progress)
        made.numbers[f"{task}, {planner}"] = result.numbers()
        made.rows.append(Row(task, method, result.success, result.times.ms_per_plan_p50))
        if first:
            made.clips += _films(task, out, film)
            random = result.floor_random
    assert random is not None
    made.rows.append(Row(task, RANDOM, random))


def _films(task: str, results: Path, folder: Path) -> list[Clip]:
    """The first films of tasks that were not solved at the start."""
    _, rows = read_results(results)
    clips: list[Clip] = []
    for row in sorted(rows, key=lambda row: row.index):
        if row.solved_at_start or len(clips) == FILMS:
            continue
        ended = "solved" if row.success else "missed"
        path = folder / f"{row.index:03d}-{ended}.mp4"
        after = f"reached after {row.steps} steps" if row.success else "missed"
        clips.append(Clip(task, f"goal {row.index + 1}: {after}", path))
    return clips


def _learn(data: Path, config: DemoConfig, made: _Made, progress: bool) -> tuple[Path, Path]:
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
        shutil.rmtree(run)
    recipe = recipes.compact(data, run, "bilinear", "tworoom")
    every = max(config.steps // DIAGNOSES, 1)
    small = {"steps": config.steps, "eval_every": every, "save_every": config.steps}
    train(replace(recipe, device=config.device, **small), progress)  # type: ignore[arg-type]
    last = json.loads((run / METRICS).read_text().splitlines()[-1])
    made.numbers["trained"] = {k: v for k, v in last.items() if k.startswith(("probe", "open"))}
    return run, picture


def _plan_with(
    run: Path, data: Path, config: DemoConfig, made: _Made, progress: bool
) -> Evaluation:
    recipe = recipes.evaluation("tworoom", "gauss-newton")
    recipe = replace(recipe, checkpoint=run, episodes=config.episodes, device=config.device)
    result = evaluate(replace(recipe, data=data, floors=False), progress)
    made.numbers[f"tworoom, {config.steps} steps from nothing"] = result.numbers()
    print(f"success {result.success} of {result.episodes} held-out tasks")
    return result


def _next_steps(config: DemoConfig, run: Path, data: Path) -> list[tuple[str, str]]:
    return [
        ("bwm play --task tworoom", "Drag the goal in a browser, push the agent, hide the camera."),
        (
            f"bwm evaluate --task tworoom --checkpoint {run} --data {data} --out mine.jsonl",
            "Measure the model that was just trained on 100 held-out tasks.",
        ),
        (
            "bwm collect tworoom --episodes 4000 --out tworoom.h5",
            "Record what the pretrained model has seen; bwm train --data tworoom.h5 learns it.",
        ),
        ("bwm inspect mine.h5", "Bring episodes of your own: docs/get-started.md shows how."),
        (f"bwm report {config.out}", "Tables and figures of everything that the demo measured."),
    ]
