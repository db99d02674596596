"""Which runs the paper's figures and our tables are made of: one line a results file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bilinear_wm.reporting.published import OWN_PLANNERS
from bilinear_wm.reproduction.sizes import Sizes

MODELS = ("bilinear", "lewm", "smwm")
FLOORS = ("random", "none")
PARTS: dict[str, str] = {
    "fig1": "success and planning time @25, each model with its own planner",
    "fig2": "geometry of the latents (also the paper's Figure 8)",
    "fig4": "success @50 and @75",
    "fig5": "moving goals",
    "fig6": "training",
    "fig7": "every model with every planner @25",
    "residual": "the bilinear model with and without its residual",
    "settings": "the paper's planner settings, with finite differences",
    "whole": "plans executed whole, as in the paper",
    "prior": "the action prior alone",
}
"""What `--only` can ask for."""


@dataclass(frozen=True)
class Experiment:
    """A results file to be made."""

    parts: tuple[str, ...]
    model: str
    """Empty for floors."""
    planner: str
    offset: int = 25
    moving: bool = False
    variant: str = ""
    """In what it departs from the usual run, as it stands in the file's name."""
    budget: dict[str, Any] = field(default_factory=dict)
    """Planner options beyond the recipe's."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Other fields of the evaluation."""

    def name(self, task: str, seed: int = 0) -> str:
        """Of the results file; the first training seed goes without saying."""
        words = ["moving"] * self.moving + [task, self.model, self.planner, str(self.offset)]
        words += [self.variant] + [f"s{seed}"] * (seed > 0)
        return "-".join(word for word in words if word)


def experiments(
    sizes: Sizes, has_residual: bool, has_prior: bool, seed: int = 0
) -> Iterator[Experiment]:
    """All of one task; beyond the first training seed only the bilinear model's main figures."""
    first = sizes.offsets[0]
    for offset in sizes.offsets:
        part = ("fig1", "fig4", "fig7") if offset == first else ("fig4",)
        if seed == 0:
            for floor in FLOORS:
                yield Experiment(part, "", floor, offset)
        for model in MODELS if seed == 0 else MODELS[:1]:
            yield Experiment(part, model, OWN_PLANNERS[model], offset, budget=_budget(sizes, model))
    if seed > 0:
        return
    for model in MODELS:
        for planner in sizes.planners:
            if planner != OWN_PLANNERS[model]:
                search = {} if planner == "gauss-newton" else sizes.search or {}
                yield Experiment(("fig7",), model, planner, first, budget=search)
    if has_residual:
        for offset in sizes.offsets:
            yield Experiment(("residual",), "bilinear", "gauss-newton", offset,
                             variant="structured", settings={"residual": False})  # fmt: skip
    if has_prior:
        yield Experiment(("prior",), "bilinear", "prior", first)
    yield Experiment(("whole",), "bilinear", "gauss-newton", first, variant="whole",
                     settings={"replan_every": None, "arrive": "plan"})  # fmt: skip
    yield Experiment(("settings",), "bilinear", "gauss-newton", first, variant="paper",
                     settings={"paper_settings": True})  # fmt: skip
    yield from chases(sizes)


def chases(sizes: Sizes) -> Iterator[Experiment]:
    """Moving goals: when a plan is exhausted, as in the paper, and whenever one is ready."""
    yield Experiment(("fig5",), "", "random", moving=True)
    for replan in ("exhausted", "always"):
        settings = {"replan": replan}
        variant = "" if replan == "exhausted" else replan
        yield Experiment(("fig5",), "bilinear", "gauss-newton", moving=True, variant=variant,
                         settings=settings)  # fmt: skip
        for model in MODELS[1:]:
            for budget in sizes.chases:
                words = f"{variant}-{budget['samples']}x{budget['iterations']}".lstrip("-")
                yield Experiment(("fig5",), model, "icem", moving=True, variant=words,
                                 budget=budget, settings=settings)  # fmt: skip


def _budget(sizes: Sizes, model: str) -> dict[str, Any]:
    return {} if model == "bilinear" else sizes.search or {}
