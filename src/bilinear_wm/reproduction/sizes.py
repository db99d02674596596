"""How much of everything, at each scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from bilinear_wm import recipes
from bilinear_wm.tasks import TASK_NAMES

Budget = dict[str, Any]
"""Options of a planner that say how hard it searches."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    image_size: int
    frame_stride: int
    render_quality: Literal["faithful", "fast"]
    episodes: dict[str, int]
    tasks: int
    """Starts and goals an evaluation."""
    share: float = 1.0
    """Of the recipes' training steps."""
    offsets: tuple[int, ...] = (25, 50, 75)
    planners: tuple[str, ...] = ("gauss-newton", "cem", "icem")
    search: Budget | None = None
    """Options of sampling planners; None for the paper's 300 samples x 30 iterations."""
    chases: tuple[Budget, ...] = ()
    """Of the baselines' iCEM for moving goals: every plan must be there in time, so all are tried
    and the best is reported."""


CHASES: tuple[Budget, ...] = tuple(
    {"samples": samples, "iterations": iterations, "elites": 10}
    for samples, iterations in ((30, 3), (100, 5), (300, 10))
)
COMPACT = Sizes(64, 5, "fast", recipes.COMPACT_EPISODES, tasks=100, chases=CHASES)
SIZES: dict[str, Sizes] = {
    "tiny": Sizes(
        32, 5, "fast", dict.fromkeys(TASK_NAMES, 20), tasks=2, share=0.002, offsets=(25,),
        planners=("gauss-newton", "cem"), search={"samples": 20, "elites": 5, "iterations": 2},
        chases=({"samples": 20, "elites": 5, "iterations": 2},),
    ),
    "quick": replace(
        COMPACT, episodes={task: n // 5 for task, n in COMPACT.episodes.items()}, tasks=20,
        share=0.2, offsets=(25,), search={"samples": 100, "elites": 10, "iterations": 10},
        chases=CHASES[:1],
    ),
    "compact": COMPACT,
    "paper": Sizes(
        224, 1, "faithful", dict.fromkeys(TASK_NAMES, 10_000), tasks=100, chases=CHASES
    ),
}  # fmt: skip

SECONDS_AN_EPISODE = {"tworoom": 0.01, "pusht": 0.05, "reacher": 0.03, "cube": 0.2}
SECONDS_A_STEP = 0.4
SECONDS_A_TASK = {"gauss-newton": 0.5, "prior": 0.4, "random": 0.05, "none": 0.05}
"""Rough figures of two CPU cores at the compact scale, for the estimate; sampling takes longer."""
SECONDS_OF_SAMPLING = 4.0
