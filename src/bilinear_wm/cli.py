"""The command `bwm`. Each subcommand is one stage; errors are one line and exit status 2.

A stage is a frozen configuration with `run` (`stage.py`): flags, their help and their defaults come
from its fields. It is imported when its command is given, so that `bwm --help` costs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import bilinear_wm
from bilinear_wm import disk
from bilinear_wm.errors import InputError, InputWarning
from bilinear_wm.registry import load_plugin
from bilinear_wm.stage import with_flags

INTERRUPTED, TERMINATED = 130, 143
EXTRAS = {
    "matplotlib": "report",
    "sklearn": "report",
    "imageio": "report",
    "jinja2": "report",
    "lance": "swm",
    "pyarrow": "lerobot",
    "av": "lerobot",
    "starlette": "play",
    "uvicorn": "play",
    "websockets": "play",
}
"""Packages that some commands need, and the extra that brings them."""
PLACES = ("out", "video", "sheet")
"""Fields that name what a command will write: checked before it begins."""
EVERYWHERE = (
    "Every command also takes --json (end with one line of JSON) and --plugin MODULE|FILE.py "
    "(register tasks, models, encoders or planners of your own; may be repeated)."
)


@dataclass(frozen=True)
class Command:
    """A subcommand: what it does, its configuration, and where its defaults come from.

    A recipe takes the configuration as it was given, and returns the one whose values the flags
    that were not given have.
    """

    summary: str
    config: str
    recipe: str | None = None


COMMANDS = {
    "collect": Command(
        "Record episodes of a task with its behaviour policy.", "data.collect:CollectConfig"
    ),
    "inspect": Command(
        "Print what an episode file holds, and write a contact sheet.", "data.inspect:InspectConfig"
    ),
    "convert": Command(
        "Write recorded episodes as a LeRobot v3 folder.", "data.convert:ConvertConfig"
    ),
    "train": Command(
        "Train a world model on recorded episodes. Flags that are not given have the values of the "
        "recipe for the task and --size. The same command works under `accelerate launch`.",
        "training.train:TrainConfig",
        "recipes:for_training",
    ),
    "train-residual": Command(
        "Weigh a bilinear model's coordinates, fit its dynamics to them, add a planning residual.",
        "training.residual:ResidualConfig",
    ),
    "train-prior": Command(
        "Teach a model what the recorded behaviour would do: plans then begin and stay near that.",
        "training.prior:PriorConfig",
    ),
    "evaluate": Command(
        "Plan to goal pictures in the simulator and count successes. Flags that are not given have "
        "the values of the task's recipe.",
        "evaluation.evaluate:EvaluateConfig",
        "recipes:for_evaluation",
    ),
    "realtime": Command(
        "Chase goals that move while plans are made. Flags that are not given have the values of "
        "the task's recipe.",
        "evaluation.moving:RealtimeConfig",
        "recipes:for_moving_goals",
    ),
    "play": Command(
        "Serve a page to set goals, race planners and push the agent, for this machine's browsers.",
        "play:PlayConfig",
    ),
    "geometry": Command(
        "Look at a model's latent space: components, probes, distances, controllable directions.",
        "analysis.geometry:GeometryConfig",
    ),
    "report": Command(
        "Make tables, figures and one page from results, metrics and geometry files.",
        "reporting.report:ReportConfig",
    ),
    "reproduce": Command(
        "Collect, train, evaluate, and report: the paper from nothing, resumable step by step.",
        "reproduce:ReproduceConfig",
    ),
    "compare": Command(
        "Compare two results files on the tasks that they share (McNemar's exact test).",
        "reporting.compare:CompareConfig",
    ),
    "publish": Command(
        "Make a checkpoint folder to give away from a training run, with a model card.",
        "publish:PublishConfig",
    ),
    "export": Command(
        "Make a bundle that plans on a robot without torch: ONNX, plain arrays, a compiled kernel.",
        "export:ExportConfig",
    ),
    "bridge": Command(
        "Drive a robot to a goal picture: ROS 2 messages over Zenoh.", "bridge:BridgeConfig"
    ),
    "import-lewm": Command(
        "Make a checkpoint folder of weights that LeWM's authors published.",
        "import_lewm:ImportLewmConfig",
    ),
    "demo": Command(
        "Plan with the pretrained models beside CEM and random actions, and train one from "
        "nothing.",
        "demo:DemoConfig",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in ([], ["-h"], ["--help"], ["--version"]):
        print(f"bwm {bilinear_wm.__version__}" if given == ["--version"] else _help())
        return 0 if given else 2
    exit_status, names, config = INTERRUPTED, frozenset[str](), None

    def terminate(_signal: int, _frame: FrameType | None) -> None:
        nonlocal exit_status
        exit_status = TERMINATED
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, terminate)
    plain, warnings.formatwarning = warnings.formatwarning, _format_warning
    try:
        if given[0] not in COMMANDS:
            raise InputError(f"expected one of {', '.join(COMMANDS)}, found {given[0]!r}")
        shared, rest = _shared().parse_known_args(given[1:])
        for source in shared.plugin:
            load_plugin(source)
        command = COMMANDS[given[0]]
        config_class = _load(command.config)
        names = frozenset(f.name for f in fields(config_class)) - _positional(config_class)
        config = _parse(given[0], command, config_class, rest)
        for name in PLACES:
            place = getattr(config, name, None)
            if isinstance(place, Path):
                disk.check_writable(place, name)
        outcome = config.run()
        print(outcome.text)
        if shared.json:
            print(json.dumps(outcome.numbers, default=str))
    except InputError as error:
        return _complain(with_flags(str(error), names))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _complain(
            f"needs the package {error.name!r}: pip install 'bilinear-world-models[{extra}]'"
        )
    except OSError as error:  # what the checks could not foresee: a folder that vanished, ...
        return _complain(_reason(error))
    except KeyboardInterrupt as stop:
        _complain(with_flags(str(stop) or _interrupted(config), names))
        return getattr(stop, "exit_status", exit_status)
    finally:
        warnings.formatwarning = plain
        signal.signal(signal.SIGTERM, previous)
    return 0


def _parse(name: str, command: Command, config_class: Any, arguments: list[str]) -> Any:
    """The configuration that was asked for: what was given, over what the recipe says."""
    import tyro

    # tyro makes errors of its own of those that a configuration raises: it parses into a twin that
    # raises none.
    unchecked = {"__post_init__": lambda _: None, "__doc__": config_class.__doc__}
    twin = type(config_class.__name__, (config_class,), unchecked)

    def parse(default: Any = None) -> Any:
        given = tyro.cli(
            twin,
            prog=f"bwm {name}",
            description=f"{command.summary} {EVERYWHERE}",
            args=arguments,
            default=None if default is None else twin(**_values(default)),
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        return config_class(**_values(given))

    config = parse()
    if command.recipe is None:
        return config
    recipe = _load(command.recipe)(config)
    # Flags are switched by naming them: they begin as the configuration has them.
    switches = {f.name: f.default for f in fields(config) if isinstance(f.default, bool)}
    recipe = replace(recipe, **switches)
    config = parse(default=recipe)
    merged = {
        field.name: {**getattr(recipe, field.name), **getattr(config, field.name)}
        for field in fields(config)
        if isinstance(getattr(recipe, field.name), dict)
    }
    return replace(config, **merged)


def _values(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _load(address: str) -> Any:
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(f"bilinear_wm.{module}"), name)


def _positional(config_class: Any) -> set[str]:
    """Fields that are given without a flag."""
    return {field.name for field in fields(config_class) if "Positional" in str(field.type)}


def _shared() -> argparse.ArgumentParser:
    """What every command takes; plugins must be there before anything is checked."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog="bwm")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plugin", action="append", default=[])
    return parser


def _help() -> str:
    lines = [
        "usage: bwm COMMAND [OPTIONS]",
        "",
        "World models that can be controlled in real time.",
    ]
    lines += ["", "commands:"]
    lines += [
        f"  {name:<16}{command.summary.partition('. ')[0].rstrip('.')}"
        for name, command in COMMANDS.items()
    ]
    return "\n".join([*lines, "", EVERYWHERE, "`bwm COMMAND --help` tells the rest."])


def _interrupted(config: Any) -> str:
    """Whether what was interrupted can be continued, and how."""
    begun = getattr(config, "out", None) is not None
    if begun and hasattr(config, "resume"):
        return f"interrupted; the same command with `resume` continues {config.out}"
    return "interrupted"


def _reason(error: OSError) -> str:
    """The system's complaint, the file first."""
    if error.filename is None or error.strerror is None:
        return " ".join(str(error).split())
    return f"{error.filename}: {error.strerror}"


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    line: str | None = None,
) -> str:  # fmt: skip
    """Ours in one line, like errors; others with where they come from."""
    if issubclass(category, InputWarning):
        return f"bwm: warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _complain(message: str) -> int:
    print(f"bwm: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
