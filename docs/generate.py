"""What is made when the documentation is built; mkdocs runs this as a hook.

A page for every command, from its own help; the diagram of the rooms, from the layers that
import-linter holds; pictures of the pretrained models, from their folders.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from bilinear_wm.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
WIDTH = 100
ROOMS = {
    "cli": "the commands",
    "recipes": "every published run as a function",
    "play": "the live page",
    "training": "episodes → checkpoints",
    "evaluation": "goals → results",
    "control": "one loop, one pilot, threads, monitor",
    "analysis": "latents of whole files, probes, geometry",
    "planning": "(dynamics, problem) → plan",
    "models": "encoder + dynamics + objective, checkpoint",
    "data": "episode files, windows, collecting",
    "reporting": "results, figures, pages",
    "dynamics": "how actions move a latent",
    "tasks": "the worlds",
}
"""What stands under a name in the diagram."""


def help_of(name: str) -> str:
    """What `bwm NAME --help` prints, as plain text of a fixed width."""
    os.environ.update(COLUMNS=str(WIDTH), NO_COLOR="1")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([name, "--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).strip()
    lines = [
        line if len(line) <= WIDTH else textwrap.fill(line, WIDTH) for line in plain.split("\n")
    ]
    return "\n".join(lines)


def diagram() -> str:
    """The layers as boxes: folders blue, files grey."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    width, high, gap = 880, 44, 10
    height = len(layers) * (high + gap) + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" text-anchor="middle" role="img" '
        'aria-label="The rooms of the package, in layers">'
    ]
    for row, layer in enumerate(layers):
        names = [name.strip().removeprefix("bilinear_wm.") for name in layer.split("|")]
        wide = (width - gap) / len(names) - gap
        y = gap + row * (high + gap)
        for column, name in enumerate(names):
            x = gap + column * (wide + gap)
            middle = f"{x + wide / 2:.1f}"
            room = (ROOT / "src" / "bilinear_wm" / name).is_dir()
            colours = ("#e7f0fa", "#4a78a8") if room else ("#f4f1ea", "#a89a78")
            told = ROOMS.get(name, "")
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{high}" rx="6" '
                f'fill="{colours[0]}" stroke="{colours[1]}"/>'
                f'<text x="{middle}" y="{y + (19 if told else 27)}" font-size="13">'
                f"{name}{'/' if room else ''}</text>"
                f'<text x="{middle}" y="{y + 35}" font-size="11" fill="#444">{told}</text>'
            )
    return "".join([*parts, "</svg>"])


def on_config(config: Any) -> Any:
    """Put the commands into the table of contents."""
    pages = [{f"bwm {name}": f"commands/{name}.md"} for name in COMMANDS]
    commands = [{"All commands": "commands/index.md"}, *pages]
    for entry in config.nav:
        if "Commands" in entry:
            entry["Commands"] = commands
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add what is made."""
    rows = ["# Commands", "", "| command | what it does |", "| --- | --- |"]
    for name, command in COMMANDS.items():
        rows.append(f"| [bwm {name}]({name}.md) | {command.summary} |")
        page = f"# bwm {name}\n\n{command.summary}\n\n```text\n{help_of(name)}\n```\n"
        files.append(File.generated(config, f"commands/{name}.md", content=page))
    index = "\n".join(rows) + "\n"
    files.append(File.generated(config, "commands/index.md", content=index))
    files.append(File.generated(config, "images/rooms.svg", content=diagram()))
    for sheet in sorted((ROOT / "pretrained").glob("*/points.png")):
        target = f"images/points-{sheet.parent.name}.png"
        files.append(File.generated(config, target, abs_src_path=str(sheet)))
    return files
