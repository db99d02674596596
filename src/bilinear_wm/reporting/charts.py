"""The report's figures of runs: each from what was found, or None where its data are missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bilinear_wm.registry import PLANNERS
from bilinear_wm.reporting import figures, published
from bilinear_wm.reporting.findings import FLOORS, Findings, Run, in_order, main_runs
from bilinear_wm.reporting.results import Rate

PATHS = 30
"""Trajectories a panel."""


def own_planners(runs: Sequence[Run]) -> list[Run]:
    """Each published model with the planner that its authors use, the floors, and all others'."""
    return [
        run
        for run in runs
        if run.header["planner"] not in PLANNERS.built_in
        or run.header["planner"] == published.OWN_PLANNERS.get(run.model, run.header["planner"])
    ]


def draw_success(found: Findings) -> Figure | None:
    """Success and planning time at offset 25."""
    runs = own_planners(
        main_runs([r for r in found.runs if not r.moving and r.header["offset"] == 25])
    )
    tasks = _tasks(runs)
    if not tasks:
        return None
    figure, (left, *times) = figures.new_figure(3, width=4.6)
    labels = _labels(runs)
    for place, label in enumerate(labels):
        some, colour = [run for run in runs if run.label == label], figures.colour(label)
        x = [tasks.index(run.header["task"]) + _offset(place, len(labels)) for run in some]
        _bars(left, x, [run.success for run in some], 0.8 / len(labels), colour, label)
        for axis, values in zip(
            times,
            ([run.ms_per_plan for run in some], [run.ms_per_episode for run in some]),
            strict=True,
        ):
            timed = [(at, ms) for at, ms in zip(x, values, strict=True) if ms > 0]
            axis.bar([at for at, _ in timed], [ms for _, ms in timed], 0.8 / len(labels),
                     color=colour)  # fmt: skip
    _published(left, tasks, published.SUCCESS_25["bilinear"], ":", "paper")
    names = [figures.task_title(task) for task in tasks]
    left.set(ylabel="success @25 (%)", ylim=(0, 105))
    for axis, what in zip(times, ("a plan", "an episode"), strict=True):
        axis.set(ylabel=f"ms {what}")
        figures.plain_log(axis)
    for axis in (left, *times):
        axis.set_xticks(range(len(names)), names)
        axis.set_xlim(-0.5, len(names) - 0.5)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def draw_jerk(found: Findings) -> Figure | None:
    """How much consecutive actions differ, in TwoRoom."""
    runs = main_runs([r for r in found.runs if r.header["task"] == "tworoom" and not r.moving
                      and r.header["offset"] == 25])  # fmt: skip
    if not runs:
        return None
    figure, axis = figures.new_figure(width=5.0)
    values = [
        np.array([row.jerk for row in run.rows if row.steps > 1 and not row.solved_at_start])
        for run in runs
    ]
    axis.boxplot(values, orientation="horizontal", tick_labels=[run.label for run in runs],
                 showfliers=False, medianprops={"color": figures.ORANGE})  # fmt: skip
    axis.set(xlabel="mean change between consecutive actions", title="TwoRoom @25")
    return figure


def draw_paths(found: Findings) -> Figure | None:
    """Where the dot went in TwoRoom, for methods whose trajectories were kept."""
    runs = own_planners(main_runs([r for r in found.runs if r.header["task"] == "tworoom"
                                   and not r.moving and r.header["offset"] == 25]))  # fmt: skip
    paths = {
        run.label: [
            figures.Path2D(np.array(row.trajectory)[:, :2], row.goal[:2], row.success)
            for row in sorted(run.rows, key=lambda row: row.index)
            if row.trajectory
        ][:PATHS]
        for run in runs
    }
    paths = {label: some for label, some in paths.items() if some}
    return figures.draw_paths(paths) if paths else None


def draw_horizons(found: Findings) -> Figure | None:
    """Success against the distance of the goal, by the protocol that most methods ran."""
    lines: dict[tuple[str, str], dict[int, Run]] = {}
    for run in main_runs([r for r in own_planners(found.runs) if not r.moving]):
        lines.setdefault((run.header["task"], run.label), {})[run.header["offset"]] = run
    lines = {key: line for key, line in lines.items() if len(line) > 1}
    tasks = in_order((task for task, _ in lines), published.TASKS)
    if not tasks:
        return None
    ranks = {label: next(iter(line.values())).rank for (_, label), line in lines.items()}
    labels = sorted(ranks, key=lambda label: (ranks[label], label))
    figure, axes = figures.new_figure(len(tasks), width=3.0)
    for task, axis in zip(tasks, np.atleast_1d(axes), strict=True):
        for label in labels:
            line = sorted(lines.get((task, label), {}).items())
            rates = [run.success for _, run in line]
            axis.errorbar(
                [offset for offset, _ in line], [100 * r.value for r in rates], _whiskers(rates),
                fmt="o-", capsize=3, color=figures.colour(label), label=label,
            )  # fmt: skip
        offsets = sorted({offset for (name, _), line in lines.items() if name == task
                          for offset in line})  # fmt: skip
        axis.set(title=figures.task_title(task), xlabel="steps to the goal", ylim=(0, 105),
                 xticks=offsets)  # fmt: skip
    np.atleast_1d(axes)[0].set_ylabel("success (%)")
    handles, names = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def draw_moving(found: Findings) -> Figure | None:
    """Moving goals; of several budgets of a planner the best."""
    best: dict[tuple[str, str], Run] = {}
    for run in (run for run in found.runs if run.moving):
        how = "" if run.replan in ("", "exhausted") else f", {run.replan}"
        plain = ", ".join(o for o in run.options if not o.endswith("samples"))
        key = run.label + how + (f", {plain}" if plain else ""), run.header["task"]
        if key not in best or run.success.value > best[key].success.value:
            best[key] = run
    runs = list(best.values())
    tasks = _tasks(runs)
    if not tasks:
        return None
    figure, axis = figures.new_figure(width=6.0)
    ranked = sorted(best.items(), key=lambda item: item[1].rank)
    labels = list(dict.fromkeys(label for (label, _), _ in ranked))
    for place, label in enumerate(labels):
        some = [run for (name, _), run in best.items() if name == label]
        colour = figures.colour(label)
        x = [tasks.index(run.header["task"]) + _offset(place, len(labels)) for run in some]
        _bars(axis, x, [run.success for run in some], 0.8 / len(labels), colour, label)
    _published(axis, tasks, published.MOVING, ":", "paper")
    _published(axis, tasks, published.MOVING_BEST_BASELINE, "--", "its best baseline")
    axis.set_xticks(range(len(tasks)), [f"M-{figures.task_title(task)}" for task in tasks])
    axis.set(ylabel="success (%)", ylim=(0, 105))
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure


def draw_training(found: Findings) -> Figure | None:
    """The forward loss, and the smallest singular value of R."""
    runs = {name: rows for name, rows in found.trainings.items()
            if any("sigma_min" in row for row in rows)}  # fmt: skip
    if not runs:
        return None
    figure, (left, right) = figures.new_figure(2, width=4.4)
    for (name, rows), colour in zip(runs.items(), figures.colours(), strict=False):
        for axis, field in ((left, "val_forward"), (right, "sigma_min")):
            points = [(row["step"], row[field]) for row in rows if field in row]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", ms=3, color=colour, label=name)
    figures.plain_log(left)
    figures.plain_log(right)
    left.set(xlabel="step", ylabel="forward loss, held-out")
    right.set(xlabel="step", ylabel="smallest singular value of R")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def draw_controllers(found: Findings) -> Figure | None:
    """Every model with every planner."""
    runs = main_runs([r for r in found.runs if not r.moving and r.header["offset"] == 25
                      and r.header["planner"] not in FLOORS])  # fmt: skip
    models = in_order((run.model for run in runs), published.MODELS)
    planners = in_order((run.header["planner"] for run in runs), PLANNERS.built_in)
    if len(models) * len(planners) < 2:
        return None
    tasks = _tasks(runs)
    figure, axes = figures.new_figure(
        len(tasks), width=max(3.2, 0.75 * len(planners)), height=1.2 + 0.6 * len(models)
    )
    for task, axis in zip(tasks, np.atleast_1d(axes), strict=True):
        table = np.full((len(models), len(planners)), np.nan)
        for run in runs:
            if run.header["task"] == task:
                place = models.index(run.model), planners.index(run.header["planner"])
                table[place] = 100 * run.success.value
                time = f"{run.ms_per_plan:,.{0 if run.ms_per_plan >= 100 else 1}f} ms"
                text = f"{table[place]:.0f} %\n{time}"
                axis.text(place[1], place[0], text, ha="center", va="center", fontsize=8,
                          color="black" if table[place] > 60 else "white")  # fmt: skip
        axis.imshow(table, vmin=0, vmax=100, cmap="cividis", aspect="auto")
        axis.grid(visible=False)
        axis.set_xticks(range(len(planners)), planners, fontsize=8)
        axis.set_yticks(range(len(models)), models)
        axis.set_title(figures.task_title(task))
    return figure


def _labels(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.label for run in sorted(runs, key=lambda run: run.rank)))


def _tasks(runs: Sequence[Run]) -> list[str]:
    return in_order((run.header["task"] for run in runs), published.TASKS)


def _published(
    axis: Any, tasks: Sequence[str], table: Mapping[str, float], style: str, label: str | None
) -> None:
    """A line across the bars of each task that the table has."""
    for at, task in enumerate(tasks):
        if task in table:
            axis.plot([at - 0.45, at + 0.45], [table[task]] * 2, color="black", lw=1.4, ls=style,
                      label=label)  # fmt: skip
            label = None  # the legend needs it once


def _offset(place: int, count: int) -> float:
    return (place - (count - 1) / 2) * 0.8 / count


def _whiskers(rates: Sequence[Rate]) -> list[list[float]]:
    return [[100 * (r.value - r.low) for r in rates], [100 * (r.high - r.value) for r in rates]]


def _bars(
    axis: Any, x: Sequence[float], rates: Sequence[Rate], width: float, colour: str, label: str
) -> None:
    axis.bar(x, [100 * r.value for r in rates], width, color=colour, label=label,
             yerr=_whiskers(rates), error_kw={"lw": 1, "capsize": 2})  # fmt: skip


FIGURES: tuple[tuple[str, str, Callable[[Findings], Figure | None], str], ...] = (
    ("success", "Success, and planning time a plan and an episode, @25 (paper, Figure 1).",
     draw_success, "fig1"),
    ("variance", "Variance explained by principal components (paper, Figure 2).",
     lambda found: figures.draw_variance(found.geometries) if found.geometries else None, "fig2"),
    ("jerk", "Smoothness in TwoRoom (paper, Figure 3).", draw_jerk, "fig1 --tasks tworoom"),
    ("paths", "Trajectories in TwoRoom, the same starts and goals (paper, Figure 3).", draw_paths,
     "fig1 --tasks tworoom"),
    ("horizons", "Success against the distance of the goal (paper, Figure 4).", draw_horizons,
     "fig4"),
    ("moving", "Moving goals at 20 Hz; of several sample budgets the best (paper, Figure 5).",
     draw_moving, "fig5"),
    ("training", "Forward loss, and the smallest singular value of R (paper, Figure 6).",
     draw_training, "fig6"),
    ("controllers", "Every model with every planner (paper, Figure 7).", draw_controllers, "fig7"),
    ("controllable", "Directions that a plan controls.",
     lambda found: figures.draw_controllable(found.geometries) if found.geometries else None,
     "fig2"),
)  # fmt: skip
"""Name, caption, drawing, and what makes its data: `bwm reproduce --only ...`."""
