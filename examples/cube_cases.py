"""Which Cube tasks are solved: by where the cube is at the start and at the goal.

python examples/cube_cases.py results/cube-bilinear-gauss-newton-25.jsonl [cube.h5]

The file is the one that tasks were taken from, if they were not freshly simulated.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from bilinear_wm.evaluation.goals import choose_goals
from bilinear_wm.reporting.results import read_results

HEIGHT, LIFTED = 16, 0.03  # the cube's z in the state; its centre at rest is at 0.02 m


def main(results: Path, data: Path | None = None) -> None:
    header, rows = read_results(results)
    drawn = choose_goals(data, "cube", header["offset"], header["episodes"], header["seed"])
    tasks = {task.index: task for task in drawn}
    solved: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for row in rows:
        if row.solved_at_start:
            continue
        ends = (tasks[row.index].start, tasks[row.index].goal)
        case = " to ".join("air" if state[HEIGHT] > LIFTED else "table" for state in ends)
        total[case] += 1
        solved[case] += row.success
    for case in sorted(total):
        print(f"{case}: {solved[case]} of {total[case]}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
