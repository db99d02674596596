"""Figures in one style, from plain data: no torch, no simulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from bilinear_wm.reporting import cells
from bilinear_wm.tasks import tworoom

mpl.rcParams["text.parse_math"] = False  # names come from files, and are no formulas

BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, GREY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F",
)  # fmt: skip
"""Okabe and Ito's colours, which colour-blind readers tell apart."""
STYLE: dict[Any, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
TITLES = {"tworoom": "TwoRoom", "pusht": "PushT", "reacher": "Reacher", "cube": "Cube"}
PAGE = Path(__file__).parent / "projection.html"


def new_figure(columns: int = 1, width: float = 4.0, height: float = 3.2) -> tuple[Figure, Any]:
    """A figure with a row of axes."""
    with plt.rc_context(STYLE):
        return plt.subplots(1, columns, figsize=(width * columns, height), squeeze=True)


def save(figure: Figure, path: Path) -> Path:
    with plt.rc_context(STYLE):
        figure.savefig(path)
    plt.close(figure)
    return path


def draw_geometry(found: dict[str, Any], folder: Path) -> list[Path]:
    """Everything of a geometry.json: pictures, and a page to turn the projection on."""
    made = [
        save(draw_variance([found]), folder / "variance.png"),
        save(draw_components(found), folder / "components.png"),
        save(draw_projections(found), folder / "projections.png"),
        save(draw_distances(found), folder / "distances.png"),
        save(draw_controllable([found]), folder / "controllable.png"),
    ]
    page = folder / "projection.html"
    page.write_text(turning_page(found))
    return [*made, page]


def turning_page(found: dict[str, Any]) -> str:
    """A page on which the projection turns."""
    data = {"points": found["points"], "variables": found["variables"], "title": title(found)}
    return PAGE.read_text().replace("{{data}}", cells.script(data))


def task_title(task: str) -> str:
    """A task of somebody's own is called what it calls itself."""
    return TITLES.get(task, task)


def title(found: dict[str, Any]) -> str:
    return f"{task_title(found['task'])}, {found['model']}"


def draw_variance(several: Sequence[dict[str, Any]]) -> Figure:
    """Variance explained by principal components, the action's size marked."""
    figure, axis = new_figure(width=4.6)
    for found, colour in zip(several, colours(), strict=False):
        share = np.cumsum(found["variance"])
        axis.plot(
            range(1, len(share) + 1), 100 * share, "o-", ms=3, color=colour, label=title(found)
        )
    for size in sorted({found["action_size"] for found in several}):
        axis.axvline(size, color=GREY, ls="--", lw=1)
        axis.annotate(f"action: {size}", (size, 2), xytext=(4, 0), textcoords="offset points",
                      color=GREY, fontsize=9)  # fmt: skip
    axis.set(xlabel="principal components", ylabel="variance explained (%)", ylim=(0, 102))
    axis.legend(loc="lower right")
    return figure


def draw_components(found: dict[str, Any]) -> Figure:
    """How physical variables go with principal components."""
    names = list(found["correlations"])
    values = np.abs(np.array([found["correlations"][name] for name in names]))
    figure, axis = new_figure(width=4.6, height=0.9 + 0.32 * len(names))
    image = axis.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    axis.grid(visible=False)
    axis.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axis.set_xticks(range(values.shape[1]), [f"PC{i + 1}" for i in range(values.shape[1])])
    for (row, column), value in np.ndenumerate(values):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8,
                  color="black" if value > 0.6 else "white")  # fmt: skip
    axis.set_title(f"{title(found)}: |correlation|")
    figure.colorbar(image, ax=axis, shrink=0.9)
    return figure


def draw_projections(found: dict[str, Any], variables: int = 3) -> Figure:
    """The first two components, coloured by physical variables; then three, by the first."""
    points = np.array(found["points"])
    names = list(found["variables"])[:variables]
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(3.6 * (len(names) + 1), 3.3))
        for place, name in enumerate(names, start=1):
            axis = figure.add_subplot(1, len(names) + 1, place)
            drawn = axis.scatter(
                points[:, 0], points[:, 1], c=found["variables"][name], s=5, cmap="viridis"
            )
            axis.set(xlabel="PC1", ylabel="PC2" if place == 1 else "", title=name.replace("_", " "))
            figure.colorbar(drawn, ax=axis, shrink=0.85)
        if points.shape[1] >= 3:
            solid = figure.add_subplot(1, len(names) + 1, len(names) + 1, projection="3d")
            solid.scatter(*points[:, :3].T, c=found["variables"][names[0]], s=4, cmap="viridis")
            solid.set(xlabel="PC1", ylabel="PC2", zlabel="PC3", title=names[0].replace("_", " "))
            solid.tick_params(labelsize=7)
        figure.suptitle(title(found))
    return figure


def draw_distances(found: dict[str, Any]) -> Figure:
    """Latent distance against distance in the world."""
    pairs = found["distances"]
    figure, axis = new_figure(width=4.2)
    axis.scatter(pairs["world"], pairs["latent"], s=5, alpha=0.5, color=BLUE, edgecolors="none")
    axis.set(xlabel=f"distance in the world\n({pairs['unit']})", ylabel="latent distance",
             title=f"{title(found)}: Spearman {pairs['spearman']:.2f}")  # fmt: skip
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    return figure


def draw_controllable(several: Sequence[dict[str, Any]]) -> Figure:
    """Singular values of the endpoint's Jacobian."""
    figure, axis = new_figure(width=4.6)
    for found, colour in zip(several, colours(), strict=False):
        values = np.array(found["controllable"]["singular_values"])
        label = f"{title(found)}: {found['controllable']['rank']}"
        axis.plot(range(1, len(values) + 1), values / values[0], color=colour, label=label)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.axhline(several[0]["controllable"]["threshold"], color=GREY, ls="--", lw=1)
    axis.set(xlabel="direction", ylabel="singular value (of the largest)",
             title="directions that a plan controls")  # fmt: skip
    axis.legend()
    return figure


class Path2D(NamedTuple):
    """Where a dot went in one episode."""

    positions: NDArray[np.float64]
    goal: Sequence[float]
    """Nothing where the file does not tell."""
    solved: bool


def draw_paths(paths: Mapping[str, Sequence[Path2D]]) -> Figure:
    """Where the dot of TwoRoom went, one panel a method: from a dot towards a cross."""
    figure, axes = new_figure(len(paths), width=3.2, height=3.4)
    inside = tworoom.BORDER, tworoom.CANVAS - tworoom.BORDER
    wall = tworoom.WALL_X - tworoom.WALL_HALF
    door = tworoom.DOOR_Y - tworoom.DOOR_HALF, tworoom.DOOR_Y + tworoom.DOOR_HALF
    for (label, episodes), axis in zip(paths.items(), np.atleast_1d(axes), strict=True):
        for low, high in ((inside[0], door[0]), (door[1], inside[1])):
            axis.add_patch(
                Rectangle((wall, low), 2 * tworoom.WALL_HALF, high - low, color=GREY, lw=0)
            )
        for path in episodes:
            axis.plot(*path.positions.T, color=BLUE if path.solved else ORANGE, lw=0.8, alpha=0.8)
            axis.plot(*path.positions[0], "o", ms=2.5, color="black")
            if path.goal:
                axis.plot(*path.goal, "x", ms=3.5, mew=0.9, color="black")
        count = sum(path.solved for path in episodes)
        axis.set(xlim=inside, ylim=inside[::-1], aspect="equal", xticks=[], yticks=[])
        axis.set_title(f"{label}\n{count} of {len(episodes)} solved", fontsize=9)
        axis.grid(visible=False)
        for side in axis.spines.values():
            side.set_visible(True)
    return figure


def plain_log(axis: Any) -> None:
    """A logarithmic y axis with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    low, high = axis.get_ylim()
    axis.yaxis.set_minor_formatter("{x:g}" if high / low < 8 else "")


METHODS = {
    "bilinear, gauss-newton": BLUE,
    "bilinear, cem": SKY,
    "bilinear, icem": "#004C78",
    "bilinear, prior": "#7F3C8D",
    "smwm, cem": GREEN,
    "smwm, icem": "#6ACBAA",
    "smwm, gauss-newton": "#00573F",
    "lewm, cem": ORANGE,
    "lewm, icem": YELLOW,
    "lewm, gauss-newton": "#8C3D00",
    "random": GREY,
    "none": "#BFBFBF",
}
"""One colour a method in every figure: models by hue, planners by shade."""


def colour(label: str) -> str:
    """Of a method, whatever options follow its name; pink for what is somebody's own."""
    fits = [name for name in METHODS if label == name or label.startswith(f"{name},")]
    return METHODS[max(fits, key=len)] if fits else PINK


def colours() -> Iterator[str]:
    """In the order in which they are used, over and over."""
    return itertools.cycle((BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, GREY))
