"""What a report says before it lists: what was reproduced, and against whom."""

from __future__ import annotations

from collections.abc import Sequence

from bilinear_wm.reporting import figures, published
from bilinear_wm.reporting.compare import paired
from bilinear_wm.reporting.findings import Run, in_order, main_runs
from bilinear_wm.reporting.results import Rate
from bilinear_wm.reporting.summary import SIGNIFICANT, best_baseline, ours


def verdict(runs: Sequence[Run]) -> list[str]:
    """A line a task, and one on speed; nothing without runs of the bilinear model @25."""
    fixed = [run for run in main_runs(runs) if not run.moving]
    lines = []
    for task in in_order((run.header["task"] for run in fixed), published.TASKS):
        at = [run for run in fixed if run.header["task"] == task]
        mine = ours(at, 25)
        if mine is not None:
            words = [f"{figures.task_title(task)}: {mine.success} @25", _paper(mine)]
            words.append(_baseline(mine, best_baseline(at)))
            lines.append("; ".join(word for word in words if word) + ".")
    return lines + _speed(fixed)


def _paper(mine: Run) -> str:
    figure = published.SUCCESS_25["bilinear"].get(mine.header["task"])
    if figure is None:
        return ""
    return f"{_beside(mine.success, figure / 100)} the paper's {figure:g} %"


def _beside(found: Rate, figure: float) -> str:
    if found.low > figure:
        return "above"
    return "below" if found.high < figure else "level with"


def _baseline(mine: Run, other: Run | None) -> str:
    if other is None:
        return "no baseline was run"
    test = paired(mine.rows, other.rows)
    named = f"{other.model.upper()} with {other.planner}, {100 * other.success.value:.0f} %"
    if test.p_value >= SIGNIFICANT:
        return f"no different from {named} (p = {test.p_value:.2g})"
    ahead = test.only_first > test.only_second
    return f"{'ahead of' if ahead else 'behind'} {named} (p = {test.p_value:.2g})"


def _speed(fixed: Sequence[Run]) -> list[str]:
    """How much longer sampling takes: of all tasks, the smallest and the largest ratio."""
    ratios: dict[str, list[float]] = {}
    for run in (run for run in fixed if run.planner == "cem"):
        mine = ours([r for r in fixed if r.header["task"] == run.header["task"]], 25)
        if mine is not None and run.header["offset"] == 25 and mine.ms_per_plan > 0:
            ratios.setdefault(run.model, []).append(run.ms_per_plan / mine.ms_per_plan)
    said = [
        f"{model}'s {_times(found)}" for model, found in sorted(ratios.items(), key=lambda x: x[0])
    ]
    return [f"A plan by CEM takes longer than ours by: {', '.join(said)}."] if said else []


def _times(found: Sequence[float]) -> str:
    low, high = f"{min(found):,.0f}", f"{max(found):,.0f}"
    return f"{low} x" if low == high else f"{low} to {high} x"
