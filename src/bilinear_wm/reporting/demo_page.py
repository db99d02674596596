"""What `bwm demo` made, as one page: films, bars, a training curve. Reads files, no torch."""

from __future__ import annotations

import base64
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure

from bilinear_wm.reporting import figures
from bilinear_wm.reporting.media import first_frame
from bilinear_wm.reporting.results import Rate

OURS, CEM, RANDOM = "Gauss-Newton", "CEM", "random actions"
COLOURS = {OURS: figures.BLUE, CEM: figures.ORANGE, RANDOM: figures.GREY}


@dataclass(frozen=True)
class Row:
    """One method on one task."""

    task: str
    method: str
    success: Rate
    ms: float = float("nan")
    """A plan, where there is one."""


@dataclass(frozen=True)
class Clip:
    """A film of one attempt."""

    task: str
    caption: str
    path: Path


@dataclass(frozen=True)
class Learned:
    """The model that the demo trained."""

    metrics: list[dict[str, Any]]
    """The rows of its metrics.jsonl."""
    episodes: int
    success: Rate
    sheet: Path
    """The contact sheet of what it learned from."""


@dataclass(frozen=True)
class Shown:
    """Everything on the page."""

    rows: list[Row]
    clips: list[Clip]
    learned: Learned
    next_steps: list[tuple[str, str]]
    """What to do next: a command, and what it does."""

    @property
    def verdict(self) -> str:
        """The measured ratio to CEM, in a sentence."""
        ratios = self.ratios()
        if not ratios:
            return "No plan of CEM was timed."
        ours = [row.ms for row in self.rows if row.method == OURS]
        middle = statistics.median(ratios.values())
        least, most = min(ratios.values()), max(ratios.values())
        return (
            f"On the same models and tasks a plan of CEM takes {middle:.0f} times as long as one "
            f"of Gauss-Newton (median over {len(ratios)} tasks; {least:.0f} to {most:.0f} times), "
            f"which takes {min(ours):.1f} to {max(ours):.1f} ms on this machine."
        )

    @property
    def films(self) -> dict[str, list[Clip]]:
        """Clips by task, in the order of the tasks."""
        tasks = dict.fromkeys(clip.task for clip in self.clips)
        return {task: [clip for clip in self.clips if clip.task == task] for task in tasks}

    def ratios(self) -> dict[str, float]:
        """By task: a plan of CEM over one of ours."""
        ms = {(row.task, row.method): row.ms for row in self.rows}
        tasks = dict.fromkeys(row.task for row in self.rows)
        found = {t: ms.get((t, CEM), np.nan) / ms.get((t, OURS), np.nan) for t in tasks}
        return {task: ratio for task, ratio in found.items() if np.isfinite(ratio)}


def write_page(shown: Shown, out: Path) -> Path:
    """Write the figures, and the page with everything inside."""
    drawn = {
        name: figures.save(draw(shown), out / f"{name}.png")
        for name, draw in (
            ("success", draw_success),
            ("speed", draw_speed),
            ("learning", draw_learning),
        )
    }
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    pages.filters["embedded"] = _embedded
    posters = {clip.path: first_frame(clip.path) for clip in shown.clips}
    page = out / "demo.html"
    page.write_text(
        pages.get_template("demo_page.html").render(
            shown=shown, drawn=drawn, posters=posters, title=figures.task_title
        ),
        encoding="utf-8",
    )
    return page


def _embedded(file: Path | bytes) -> str:
    data = file if isinstance(file, bytes) else file.read_bytes()
    return base64.b64encode(data).decode()


def draw_success(shown: Shown) -> Figure:
    """Bars of success with their intervals."""
    figure, axes = figures.new_figure(width=7.5, height=3.2)
    tasks = list(dict.fromkeys(row.task for row in shown.rows))
    for place, (method, colour) in enumerate(COLOURS.items()):
        some = [row for row in shown.rows if row.method == method]
        x = [tasks.index(row.task) + 0.27 * (place - 1) for row in some]
        height = [100 * row.success.value for row in some]
        low = [100 * (row.success.value - row.success.low) for row in some]
        high = [100 * (row.success.high - row.success.value) for row in some]
        axes.bar(x, height, 0.24, color=colour, label=method)
        error = np.maximum([low, high], 0)
        axes.errorbar(x, height, error, fmt="none", ecolor="black", elinewidth=1, capsize=2)
    counts = {row.task: row.success.count for row in shown.rows}
    names = [f"{figures.task_title(task)}\nn = {counts[task]}" for task in tasks]
    axes.set(xticks=range(len(tasks)), xticklabels=names, ylim=(0, 105), ylabel="success (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def draw_speed(shown: Shown) -> Figure:
    """Bars of the time a plan takes, on a logarithmic scale."""
    figure, axes = figures.new_figure(width=7.5, height=3.2)
    rows = [row for row in shown.rows if np.isfinite(row.ms)]
    tasks = list(dict.fromkeys(row.task for row in rows))
    for place, method in enumerate((CEM, OURS)):
        some = [row for row in rows if row.method == method]
        y = [-tasks.index(row.task) + 0.2 - 0.4 * (1 - place) for row in some]
        axes.barh(y, [row.ms for row in some], 0.36, color=COLOURS[method], label=method)
        for at, row in zip(y, some, strict=True):
            axes.text(1.1 * row.ms, at, _milliseconds(row.ms), va="center", fontsize=9)
    axes.set(
        xscale="log",
        yticks=[-i for i in range(len(tasks))],
        yticklabels=[figures.task_title(task) for task in tasks],
        xlabel="a plan (ms, logarithmic)",
    )
    axes.set_xlim(1, 5 * max((row.ms for row in rows), default=1.0))
    axes.xaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True, frameon=False)
    return figure


def draw_learning(shown: Shown) -> Figure:
    """What the trained model can do on held-out episodes, while it learns."""
    figure, (left, right) = figures.new_figure(2, width=4.2)
    metrics = shown.learned.metrics
    steps = [row["step"] for row in metrics]
    left.plot(steps, [row["open_loop_1"] for row in metrics], "o-", color=figures.BLUE)
    left.axhline(1, color=figures.GREY, linestyle=":")
    left.text(steps[0], 1, "as if nothing moved", va="bottom", color=figures.GREY, fontsize=9)
    left.set(xlabel="training step", title="prediction error, one block ahead")
    left.set_ylim(bottom=0)
    probes = [name for name in metrics[-1] if name.startswith("probe_")]
    for name, colour in zip(probes, (figures.GREEN, figures.ORANGE), strict=False):
        values = [row[name] for row in metrics]
        right.plot(steps, values, "o-", color=colour, label=name.removeprefix("probe_"))
    right.set(xlabel="training step", title="R² of where the dot is, read off linearly")
    right.set_ylim(top=1.02)
    right.legend(frameon=False)
    return figure


def _milliseconds(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:,.0f} ms"


def table(rows: Sequence[Row]) -> str:
    """The same for a terminal."""
    lines = [f"\n{'':<10}{'':<16}{'success (95 % interval)':<26}{'n':>4}{'ms a plan':>12}"]
    for row in rows:
        ms = "" if np.isnan(row.ms) else f"{row.ms:.1f}"
        name = figures.task_title(row.task)
        lines.append(f"{name:<10}{row.method:<16}{row.success!s:<26}{row.success.count:>4}{ms:>12}")
    return "\n".join(lines)
