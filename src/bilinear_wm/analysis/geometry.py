"""What a latent space looks like: checkpoint + held-out episodes -> geometry.json and figures.

    bwm geometry --checkpoint pretrained/tworoom --data tworoom.h5 --out geometry/tworoom

Principal components beside physical variables, probes, distances, and how many directions actions
control (paper, Section 5.1 and Appendix C.3). `figures.py` draws from the file alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from bilinear_wm.analysis.diagnose import latent_geometry
from bilinear_wm.analysis.latents import encode_windows, episodes_for
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.models import load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning.sensitivity import analytic, finite_difference
from bilinear_wm.registry import TASKS
from bilinear_wm.reporting import figures
from bilinear_wm.reporting.media import (
    Strip,
    contact_sheet,
    enlarge,
    with_points,
    write_picture,
)
from bilinear_wm.reporting.results import machine_facts
from bilinear_wm.stage import Outcome
from bilinear_wm.tasks import task_class

SAMPLES = 2000
SHOWN = 1000
PAIRS = 4000
NEIGHBOURS = 5
JACOBIANS = 64
COMPONENTS = 20
SHEET, SHEET_SIZE = 8, 192
"""Pictures on the contact sheet of a model, and how large they are shown."""
CONTROLLED = 0.01
"""A direction counts as controlled if its singular value is at least this share of the largest."""


@dataclass(frozen=True)
class GeometryConfig:
    """A look at a latent space.

    Attributes:
        checkpoint: The world model.
        data: Episodes; probes are fitted on those that training used, everything is measured on
            the others.
        out: The folder for geometry.json, pictures and a page.
        horizon: Blocks of the endpoint whose controllable directions are counted.
        device: Where the model runs: cpu, cuda, cuda:1 ...
    """

    checkpoint: Path
    data: Path
    out: Path
    horizon: int = 5
    device: str = "cpu"

    def run(self) -> Outcome:
        """`run_geometry`, in words."""
        found = run_geometry(self)
        written = "\n  ".join(["written:", *map(str, sorted(self.out.iterdir()))])
        short = {k: v for k, v in found.items() if k not in ("points", "variables", "distances")}
        numbers = short | {"spearman": found["distances"]["spearman"]}
        return Outcome(f"{describe(found)}\n{written}", numbers)


def run_geometry(config: GeometryConfig) -> dict[str, Any]:
    """Measure, write geometry.json and draw; returns what the file holds."""
    if config.horizon < 1:
        raise InputError(f"horizon: expected at least one block, found {config.horizon}")
    model = load_model(config.checkpoint, config.device)
    train = episodes_for(model, config.data)
    held_out = episodes_for(model, config.data, "validation")
    task = train.file.task or model.config.task
    if task not in TASKS or train.file.states is None:
        raise InputError(f"data {config.data}: expected a known task and states, found none")
    if task != model.config.task:
        raise InputError(
            f"data {config.data}: expected episodes of {model.config.task}, found {task}"
        )
    z_fit, states_fit = _latents(model, train)
    z, states = _latents(model, held_out)
    targets = task_class(task).probe_targets
    seen = targets(states)
    pca = PCA(min(COMPONENTS, z.shape[1], len(z))).fit(z)
    projected = pca.transform(z)
    chosen = np.unique(np.linspace(0, len(z) - 1, min(SHOWN, len(z))).astype(int))
    singular = controllable(model, torch.from_numpy(z).float(), config.horizon)
    found = {
        "task": task,
        "model": model.kind,
        "checkpoint": str(config.checkpoint),
        "samples": len(z),
        "action_size": model.config.action_size,
        "latent_size": model.config.latent_size,
        **latent_geometry(torch.from_numpy(z), model.config.action_size),
        "variance": pca.explained_variance_ratio_.tolist(),
        "linear_probes": probes(z_fit, targets(states_fit), z, seen, linear=True),
        "neighbour_probes": probes(z_fit, targets(states_fit), z, seen, linear=False),
        "correlations": correlations(projected[:, :COMPONENTS], seen),
        "distances": distances(z, states, task),
        "controllable": {
            "horizon": config.horizon,
            "singular_values": singular,
            "rank": int((np.array(singular) >= CONTROLLED * singular[0]).sum()),
            "threshold": CONTROLLED,
        },
        "points": projected[chosen, :3].round(5).tolist(),
        "variables": {name: values[chosen].round(5).tolist() for name, values in seen.items()},
        **machine_facts(),
    }
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "geometry.json").write_text(json.dumps(found) + "\n")
    figures.draw_geometry(found, config.out)
    if model.config.encoder == "points":
        some = held_out.batch(np.linspace(0, len(held_out) - 1, SHEET).astype(int))
        write_picture(config.out / "points.png", points_sheet(model, some.observation[:, 0]))
    return found


def points_sheet(model: WorldModel, observation: Any) -> NDArray[np.uint8]:
    """A contact sheet of a model: pictures with its points on them, above what it draws."""
    pixels, z = model.present(observation).cpu().numpy(), model.encode(observation)
    places = model.points(z).cpu().numpy()
    both = zip(pixels, places, strict=True)
    seen = np.stack([with_points(picture, at, SHEET_SIZE) for picture, at in both])
    strips = [Strip("seen, with points", seen)]
    if model.draws:
        drawn = np.stack([enlarge(f, SHEET_SIZE) for f in model.draw(z).cpu().numpy()])
        strips.append(Strip("drawn from them", drawn))
    return contact_sheet(strips)


def _latents(
    model: WorldModel, data: EpisodeDataset
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    z, _, states = encode_windows(model, data, SAMPLES // 2)
    assert states is not None
    return z.flatten(0, 1).double().cpu().numpy(), states.reshape(-1, states.shape[-1])


def probes(
    z_fit: NDArray[np.float64],
    fit: dict[str, NDArray[np.float64]],
    z: NDArray[np.float64],
    truth: dict[str, NDArray[np.float64]],
    linear: bool,
) -> dict[str, float]:
    """R^2 of each variable on held-out episodes: ridge regression, or the nearest neighbours."""
    wanted = np.stack(list(fit.values()), axis=1)
    if linear:
        reader = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 4, 8)))
    else:
        reader = make_pipeline(KNeighborsRegressor(NEIGHBOURS))
    # A single variable would come back without its axis.
    predicted = reader.fit(z_fit, wanted).predict(z).reshape(len(z), -1)
    scores = {}
    for column, (name, values) in enumerate(truth.items()):
        error = np.square(values - predicted[:, column]).mean()
        scores[name] = float(1 - error / max(values.var(), 1e-12))
    return scores


def correlations(
    projected: NDArray[np.float64], seen: dict[str, NDArray[np.float64]]
) -> dict[str, list[float]]:
    """Of each physical variable with each principal component."""
    found = {}
    for name, values in seen.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = [
                float(np.nan_to_num(np.corrcoef(values, projected[:, i])[0, 1]))
                for i in range(min(projected.shape[1], 6))
            ]
    return found


def distances(z: NDArray[np.float64], states: NDArray[np.float64], task: str) -> dict[str, Any]:
    """Pairs of held-out pictures: how far apart in the latent, how far in the world."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, len(z), (2, PAIRS))
    latent = np.linalg.norm(z[first] - z[second], axis=1)
    world = task_class(task).distance(states[first], states[second])
    return {
        "spearman": float(spearmanr(latent, world).statistic),
        "latent": latent[:SHOWN].round(5).tolist(),
        "world": np.asarray(world)[:SHOWN].round(4).tolist(),
        "unit": "multiples of what counts as success",
    }


@torch.no_grad()
def controllable(model: WorldModel, z: Float[Tensor, "samples d"], horizon: int) -> list[float]:
    """Singular values of the endpoint's Jacobian in all actions of a plan, averaged over states.

    They say in how many directions a plan can move the latent, beside how many numbers it has.
    """
    dynamics = model.dynamics
    starts = z[torch.linspace(0, len(z) - 1, min(JACOBIANS, len(z))).long()].to(model.device)
    plans = starts.new_zeros(len(starts), horizon, dynamics.action_size)
    differentiate = analytic if hasattr(dynamics, "step_jet") else finite_difference
    every = torch.eye(dynamics.action_size, device=model.device)
    _, tangents = differentiate(dynamics, starts, plans, every, list(range(horizon)))
    values = torch.linalg.svdvals(tangents.latents[-1].double())
    return values.mean(0).tolist()


def describe(found: dict[str, Any]) -> str:
    """A few lines for people."""
    lead = found["variance"]
    size = found["action_size"]
    scores = [
        f"  {name:<16}{linear:>8.3f}{found['neighbour_probes'][name]:>12.3f}"
        for name, linear in found["linear_probes"].items()
    ]
    control = found["controllable"]
    return "\n".join(
        [
            f"{found['model']} on {found['task']}, {found['samples']} held-out pictures: effective "
            f"rank {found['effective_rank']:.2f} of {found['latent_size']}; the first {size} "
            f"components (as many as an action has numbers) hold {100 * sum(lead[:size]):.1f} %",
            f"  {'R2':<16}{'linear':>8}{'neighbours':>12}",
            *scores,
            f"distances in latent and world agree in rank by {found['distances']['spearman']:.2f} "
            "(Spearman)",
            f"plans of {control['horizon']} blocks move the endpoint in {control['rank']} "
            f"directions (singular values above {control['threshold']:g} of the largest)",
        ]
    )
