"""The command `bwm`. Each subcommand is one stage; errors are one line and exit status 2."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import tyro

from bilinear_wm.errors import InputError
from bilinear_wm.tasks.base import RenderQuality

INTERRUPTED, TERMINATED = 130, 143
Size = Literal["compact", "paper"]
EXTRAS = {
    "matplotlib": "report",
    "sklearn": "report",
    "imageio": "report",
    "starlette": "play",
    "uvicorn": "play",
    "websockets": "play",
}
"""Packages that some commands need, and the extra that brings them."""


def collect(
    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")],
    out: Path,
    episodes: int = 100,
    image_size: int = 64,
    frame_stride: int = 5,
    workers: int = os.cpu_count() or 1,
    seed: int = 0,
    render_quality: RenderQuality = "fast",
    disturbance: float = 0.0,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Record episodes of a task with its behaviour policy.

    Args:
        task: tworoom, pusht, reacher or cube.
        out: The HDF5 file to write.
        episodes: How many episodes the finished file holds.
        image_size: Height and width of the pictures.
        frame_stride: Keep every n-th picture; states and actions are all kept.
        workers: Processes that simulate.
        seed: Episode i depends on (seed, i) alone.
        render_quality: `fast` pictures, or the benchmark's `faithful` ones.
        disturbance: Add random actions of this standard deviation for a few steps now and then.
        resume: Continue a file that an interrupted run left.
        json: End with one line of JSON.
    """
    from bilinear_wm.data.collect import CollectConfig, collect as run

    result = run(
        CollectConfig(
            task,
            out,
            episodes=episodes,
            image_size=image_size,
            frame_stride=frame_stride,
            workers=workers,
            seed=seed,
            render_quality=render_quality,
            disturbance=disturbance,
            resume=resume,
        )
    )
    rate = result.env_steps / result.seconds
    print(
        f"{result.out}: {result.episodes} episodes ({result.new_episodes} new, "
        f"{result.env_steps:,} env steps in {result.seconds:.1f} s, {rate:,.0f}/s); "
        f"look at it with: bwm inspect {result.out}"
    )
    _end_with_json(json, asdict(result))


def inspect(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.h5")],
    sheet: Path | None = None,
    json: bool = False,
) -> None:
    """Print what an episode file holds, and write a contact sheet.

    Args:
        file: An HDF5 file of `bwm collect`, or of the public LeWM schema.
        sheet: Where to write the contact sheet (PNG); beside the file by default.
        json: End with one line of JSON.
    """
    from bilinear_wm.data import inspect as inspection
    from bilinear_wm.data.file import EpisodeFile
    from bilinear_wm.reporting.media import write_picture

    episodes = EpisodeFile(file)
    summary = inspection.summarize(episodes)
    print(inspection.describe(summary))
    target = sheet or inspection.default_sheet_path(file)
    write_picture(target, inspection.sheet(episodes))
    print(f"contact sheet: {target}")
    _end_with_json(json, {**asdict(summary), "sheet": target})


def train(
    data: Path,
    out: Path,
    model: str = "bilinear",
    size: Size = "compact",
    steps: int | None = None,
    batch_size: int | None = None,
    num_frames: int | None = None,
    learning_rate: float | None = None,
    task: str | None = None,
    eval_every: int | None = None,
    save_every: int | None = None,
    seed: int = 0,
    options: str = "{}",
    trackers: tuple[str, ...] = (),
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a world model on recorded episodes.

    The same command works under `accelerate launch` on several processes or machines.

    Args:
        data: The episode file.
        out: The training folder: checkpoints, metrics.jsonl.
        model: bilinear, lewm or smwm.
        size: `compact` for CPUs, `paper` for GPUs.
        steps: Optimizer steps; the recipe's by default, as all that follow.
        batch_size: Windows a step, over all processes.
        num_frames: Pictures a window.
        learning_rate: Peak of the schedule.
        task: The task, for files that do not tell theirs, such as the official ones.
        eval_every: Steps between diagnoses on held-out episodes.
        save_every: Steps between checkpoints.
        seed: Fixes initial weights and order.
        options: Further fields of the model's configuration, as JSON.
        trackers: tensorboard, wandb, trackio, ...
        resume: Continue the run in `out`.
        json: End with one line of JSON.
    """
    from bilinear_wm import recipes
    from bilinear_wm.data.windows import EpisodeDataset
    from bilinear_wm.training.train import train as run

    # Only the file's facts are needed here: nothing is loaded.
    episodes = EpisodeDataset(data, num_frames=2, in_memory=False)
    recipe = recipes.training(
        data, out, model, size, episodes.file.task or task or "unknown", len(episodes)
    )
    given = {
        "steps": steps,
        "batch_size": batch_size,
        "num_frames": num_frames,
        "learning_rate": learning_rate,
        "eval_every": eval_every,
        "save_every": save_every,
    }
    changes: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    config = replace(
        recipe,
        **changes,
        options=recipe.options | _json_object("--options", options),
        seed=seed,
        task=task,
        trackers=trackers,
        resume=resume,
    )
    numbers = run(config)
    print(f"{out}: trained for {config.steps} steps; load it with bwm.load_model({str(out)!r})")
    _end_with_json(json, numbers)


def train_residual(
    checkpoint: Path,
    data: Path,
    out: Path,
    hidden: int = 256,
    steps: int = 12_000,
    weigh_steps: int = 1500,
    refit_steps: int = 1500,
    num_blocks: int = 2,
    learning_rate: float = 1.5e-3,
    eval_every: int = 2000,
    save_every: int = 1000,
    seed: int = 0,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Weigh a bilinear model's coordinates, fit its dynamics to them, add a planning residual.

    Args:
        checkpoint: The trained model; its encoder stays as it is.
        data: The episodes it was trained on.
        out: The training folder: checkpoints, metrics.jsonl.
        hidden: Width of the residual network.
        steps: Optimizer steps in all.
        weigh_steps: Of them, those that find out how well each coordinate can be predicted; 0 to
            leave the latent's scale alone.
        refit_steps: Those that fit A, B, C and R to the new scale.
        num_blocks: Blocks that a rollout predicts.
        learning_rate: Peak of the schedule of each phase.
        eval_every: Steps between diagnoses on held-out episodes.
        save_every: Steps between checkpoints.
        seed: Fixes initial weights and order.
        resume: Continue the run in `out`.
        json: End with one line of JSON.
    """
    from bilinear_wm.training.residual import ResidualConfig, train_residual as run

    config = ResidualConfig(
        checkpoint,
        data,
        out,
        hidden=hidden,
        steps=steps,
        weigh_steps=weigh_steps,
        refit_steps=refit_steps,
        num_blocks=num_blocks,
        learning_rate=learning_rate,
        eval_every=eval_every,
        save_every=save_every,
        seed=seed,
        resume=resume,
    )
    numbers = run(config)
    print(
        f"{out}: held-out one-block error {numbers['open_loop_1']:.4f} of what a block moves; "
        f"load it with bwm.load_model({str(out)!r})"
    )
    _end_with_json(json, numbers)


def evaluate(
    task: str,
    checkpoint: Path | None = None,
    planner: str = "gauss-newton",
    offset: int = 25,
    episodes: int = 100,
    seed: int = 0,
    data: Path | None = None,
    out: Path | None = None,
    horizon: int | None = None,
    replan_every: int | None = None,
    arrive: Literal["plan", "deadline"] | None = None,
    planner_options: str = "{}",
    paper_settings: bool = False,
    one_by_one: bool = False,
    monitor: bool = False,
    memory: bool = False,
    trajectories: bool = False,
    no_floors: bool = False,
    video: Path | None = None,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Plan to goal pictures in the simulator and count successes.

    Args:
        task: tworoom, pusht, reacher or cube.
        checkpoint: A trained model; not needed for the planners `random` and `none`.
        planner: gauss-newton, cem, icem, mppi, adam, random or none.
        offset: Environment steps from start to goal; twice as many may be taken.
        episodes: How many starts and goals.
        seed: Chooses them; the same for every method.
        data: Episode file whose held-out episodes give them; by default fresh ones are simulated.
        out: Results file (JSON lines): a header, then a row an episode.
        horizon: Blocks a plan looks ahead; the task's recipe by default.
        replan_every: Blocks executed before the next plan; the task's recipe by default, and the
            horizon for whole plans, as the paper has them.
        arrive: When plans that continue another end: with that plan, or at the end of the budget;
            the task's recipe by default.
        planner_options: Further fields of the planner's configuration, as JSON.
        paper_settings: Take horizon and planner settings from the paper's table.
        one_by_one: Plan for one episode at a time, to measure latency.
        monitor: Replan where the model does not explain what happened.
        memory: Begin each plan from the nearest recorded window of the data's training part.
        trajectories: Keep every state on the way in the results file.
        no_floors: Skip the random and the do-nothing policy on the same tasks.
        video: Folder for a video of every episode.
        resume: Complete an interrupted results file.
        json: End with one line of JSON.
    """
    from bilinear_wm import recipes
    from bilinear_wm.evaluation.evaluate import describe, evaluate as run

    recipe = recipes.evaluation(task, planner, offset, paper_settings)
    config = replace(
        recipe,
        checkpoint=checkpoint,
        episodes=episodes,
        seed=seed,
        data=data,
        out=out,
        horizon=recipe.horizon if horizon is None else horizon,
        replan_every=recipe.replan_every if replan_every is None else replan_every,
        arrive=arrive or recipe.arrive,
        planner_options=recipe.planner_options | _json_object("--planner-options", planner_options),
        one_by_one=one_by_one,
        monitor=monitor,
        memory=memory,
        trajectories=trajectories,
        floors=not no_floors,
        video=video,
        resume=resume,
    )
    result = run(config)
    print(describe(config, result))
    _end_with_json(json, result.numbers())


def realtime(
    task: str,
    checkpoint: Path | None = None,
    planner: str = "gauss-newton",
    control_hz: float = 20.0,
    replan: Literal["exhausted", "always"] = "exhausted",
    latency_ms: float | None = None,
    offset: int = 25,
    episodes: int = 100,
    seed: int = 0,
    data: Path | None = None,
    out: Path | None = None,
    horizon: int | None = None,
    planner_options: str = "{}",
    protocol: Literal["paper", "controller"] = "paper",
    monitor: bool = False,
    memory: bool = False,
    live: bool = False,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Chase goals that move while plans are made.

    Args:
        task: tworoom, pusht, reacher or cube, whose goal wanders.
        checkpoint: A trained model; not needed for the planner `random`.
        planner: gauss-newton, cem, icem, mppi, adam or random.
        control_hz: Environment steps a second of real time.
        replan: Begin a plan when the last is exhausted, as the paper does, or always.
        latency_ms: Assume this latency of a planning call instead of measuring it.
        offset: Environment steps from start to the goal's first place; twice as many may be taken.
        episodes: How many tasks, of those that standing still does not solve.
        seed: Chooses tasks and walks; the same for every method.
        data: Episode file whose held-out episodes give them; by default fresh ones are simulated.
        out: Results file (JSON lines): a header, then a row an episode.
        horizon: Blocks a plan looks ahead; the task's recipe by default.
        planner_options: Further fields of the planner's configuration, as JSON.
        protocol: Execute late plans from their beginning and seek every plan from rest, as the
            paper does, or drop what has passed and begin from the plan before, as the real-time
            controller does.
        monitor: Plan afresh where the model does not explain what happened.
        memory: Begin plans that continue none from the nearest recorded window.
        live: Run the simulator against the real clock, with the real-time controller, instead of
            counting latency.
        resume: Complete an interrupted results file.
        json: End with one line of JSON.
    """
    from bilinear_wm import recipes
    from bilinear_wm.evaluation import live as live_run
    from bilinear_wm.evaluation.moving import RealtimeConfig, describe, run_realtime

    recipe = recipes.evaluation(task, planner, offset)
    config = RealtimeConfig(
        task,
        checkpoint,
        planner,
        recipe.planner_options | _json_object("--planner-options", planner_options),
        recipe.horizon if horizon is None else horizon,
        control_hz,
        replan,
        latency_ms,
        offset,
        episodes,
        seed,
        data,
        out,
        resume,
        protocol,
        monitor,
        memory,
    )
    if live:
        lived = live_run.run_live(config)
        print(live_run.describe(config, lived))
        _end_with_json(json, lived.numbers())
        return
    result = run_realtime(config)
    print(describe(config, result))
    _end_with_json(json, result.numbers())


def play(
    task: str = "tworoom",
    checkpoint: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    control_hz: float = 20.0,
    horizon: int | None = None,
) -> None:
    """Serve a page to drag goals on and to push the agent, for a browser on this machine.

    Args:
        task: tworoom, pusht or reacher.
        checkpoint: A trained model; pretrained/TASK by default.
        host: The address to listen on; anybody who reaches it can play.
        port: The port.
        control_hz: Actions a second.
        horizon: Blocks a plan looks ahead; the task's recipe by default.
    """
    from bilinear_wm import recipes
    from bilinear_wm.play.server import serve
    from bilinear_wm.play.session import SharedModel

    if not 0 < port < 65536 or not 0 < control_hz < math.inf:
        raise InputError(
            f"--port, --control-hz: expected 1 to 65535 and more than 0, found {port}, {control_hz}"
        )
    if horizon is not None and horizon < 1:
        raise InputError(f"--horizon: expected at least 1, found {horizon}")
    options, recommended = recipes.playing(task)
    shared = SharedModel(
        task,
        checkpoint or Path("pretrained") / task,
        options,
        recommended if horizon is None else (horizon, horizon),
    )
    print(f"open http://{host}:{port} in a browser; Ctrl-C ends it", flush=True)
    serve(shared, host, port, control_hz)


def geometry(checkpoint: Path, data: Path, out: Path, horizon: int = 5, json: bool = False) -> None:
    """Look at a model's latent space: components, probes, distances, controllable directions.

    Args:
        checkpoint: A trained model.
        data: Episodes of its task, with states.
        out: Folder for geometry.json, pictures and an interactive page.
        horizon: Blocks of the plans whose controllable directions are counted.
        json: End with one line of JSON.
    """
    from bilinear_wm.analysis.geometry import GeometryConfig, describe, run_geometry

    found = run_geometry(GeometryConfig(checkpoint, data, out, horizon))
    print(describe(found))
    print("written:", *sorted(out.iterdir()), sep="\n  ")
    short = {k: v for k, v in found.items() if k not in ("points", "variables", "distances")}
    _end_with_json(json, short | {"spearman": found["distances"]["spearman"]})


def report(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    out: Path = Path("report"),
    json: bool = False,
) -> None:
    """Make tables, figures and one page from results, metrics and geometry files.

    Args:
        folders: Where to look for them.
        out: The folder for what is made.
        json: End with one line of JSON.
    """
    from bilinear_wm.reporting.report import make_report

    made = make_report(folders, out)
    print("written:", *made, sep="\n  ")
    _end_with_json(json, {"files": made})


def reproduce(
    out: Path = Path("reproduction"),
    scale: Literal["tiny", "compact", "paper"] = "compact",
    tasks: tuple[str, ...] = ("tworoom", "pusht", "reacher", "cube"),
    stages: tuple[str, ...] = (
        "collect",
        "train",
        "residual",
        "evaluate",
        "realtime",
        "geometry",
        "report",
    ),
    data: Path | None = None,
    seeds: int = 1,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Collect, train, evaluate, and report: the paper from nothing, resumable step by step.

    Args:
        out: The folder for everything.
        scale: compact for CPUs, paper for GPUs, tiny to see the chain work in minutes.
        tasks: Which tasks.
        stages: Which stages; what earlier ones make must be there.
        data: A folder with TASK.h5 files to use instead of collecting, such as the official ones.
        seeds: Training seeds a model.
        dry_run: Print the steps and an estimate of the time, and do nothing.
        json: End with one line of JSON.
    """
    from bilinear_wm.reproduce import ReproduceConfig, reproduce as run

    outcome = run(ReproduceConfig(out, scale, tasks, stages, data, seeds), dry_run)
    if not dry_run:
        print("summary:", *(f"{step.name}: {ended}" for step, ended in outcome), sep="\n  ")
    _end_with_json(json, {step.name: ended for step, ended in outcome})


def compare(
    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FIRST.jsonl")],
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SECOND.jsonl")],
    json: bool = False,
) -> None:
    """Compare two results files on the tasks that they share (McNemar's exact test).

    Args:
        first: A results file of `bwm evaluate`.
        second: Another, of the same task, offset and seed.
        json: End with one line of JSON.
    """
    from bilinear_wm.reporting.results import compare as run

    result = run(first, second)
    print(result)
    _end_with_json(json, asdict(result))


def publish(
    run: Path,
    out: Path,
    command: str,
    results: tuple[Path, ...] = (),
    sheet: Path | None = None,
) -> None:
    """Make a checkpoint folder to give away from a training run, with a model card.

    Args:
        run: The training folder.
        out: The folder to write.
        command: What was run to make it, commands separated by `;`, for the card.
        results: Results files of `bwm evaluate` for the card's table.
        sheet: The points.png of `bwm geometry`, for the card.
    """
    from bilinear_wm.publish import publish as run_publish

    made = run_publish(run, out, results, command, sheet)
    print(f"{made}: written; load it with bwm.load_model({str(made)!r})")


def demo(
    out: Path = Path("demo"), pretrained: Path = Path("pretrained"), json: bool = False
) -> None:
    """Plan with the pretrained models beside CEM and random actions, and train one from nothing.

    Args:
        out: The folder for everything that is made.
        pretrained: Where the pretrained models are.
        json: End with one line of JSON.
    """
    from bilinear_wm.demo import DemoConfig, run_demo

    numbers, files = run_demo(DemoConfig(out, pretrained))
    print("made:", *files, sep="\n  ")
    _end_with_json(json, {**numbers, "files": files})


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    exit_status = INTERRUPTED

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        nonlocal exit_status
        exit_status = TERMINATED
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        tyro.extras.subcommand_cli_from_dict(
            {
                "collect": collect,
                "inspect": inspect,
                "train": train,
                "train-residual": train_residual,
                "evaluate": evaluate,
                "realtime": realtime,
                "play": play,
                "geometry": geometry,
                "report": report,
                "reproduce": reproduce,
                "compare": compare,
                "publish": publish,
                "demo": demo,
            },
            prog="bwm",
            description="World models that can be controlled in real time.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except InputError as error:
        print(f"bwm: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(
            f"bwm: needs the package {error.name!r}: pip install 'bilinear-world-models[{extra}]'",
            file=sys.stderr,
        )
        return 2
    except OSError as error:  # what the checks could not foresee: a folder that vanished, ...
        print(f"bwm: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"bwm: {stop or 'interrupted'}", file=sys.stderr)
        return getattr(stop, "exit_status", exit_status)
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: expected a JSON object, found {text!r} ({error})") from error
    if not isinstance(values, dict):
        raise InputError(f"{name}: expected a JSON object, found {text!r}")
    return values


def _end_with_json(wanted: bool, content: dict[str, Any]) -> None:
    if wanted:
        print(json.dumps(content, default=str))


if __name__ == "__main__":
    sys.exit(main())
