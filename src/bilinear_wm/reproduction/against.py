"""What was reproduced, beside what was published with the package."""

from __future__ import annotations

from pathlib import Path

from bilinear_wm.reporting.compare import paired
from bilinear_wm.reporting.results import rate, read_results


def against(made: Path, committed: Path) -> list[str]:
    """Lines of a table: every results file that is in both folders, with a paired test."""
    names = sorted(path.name for path in made.glob("*.jsonl") if (committed / path.name).exists())
    if not names:
        return []
    width = max(len(name) for name in names)
    lines = [f"{'':{width}}  reproduced  committed  McNemar's p"]
    for name in names:
        ours, theirs = read_results(made / name)[1], read_results(committed / name)[1]
        here, there = (100 * rate([r.success for r in rows]).value for rows in (ours, theirs))
        p = paired(ours, theirs).p_value
        lines.append(f"{name:{width}}  {here:8.1f} %  {there:7.1f} %  {p:.3g}")
    return lines
