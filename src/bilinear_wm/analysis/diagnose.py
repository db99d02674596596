"""Is a model alive? Numbers that show collapse, blindness and bad prediction early."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.analysis.latents import encode_windows, longest_windows
from bilinear_wm.analysis.probes import probe
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models.base import WorldModel
from bilinear_wm.registry import TASKS

NUM_WINDOWS = 400


def diagnose(
    model: WorldModel, train: EpisodeDataset, held_out: EpisodeDataset
) -> dict[str, float]:
    """Losses, latent geometry, linear probes and open-loop error on held-out episodes.

    Args:
        model: In evaluation mode, with calibrated batch norms.
        train: Where the probes are fitted.
        held_out: Where everything is measured.
    """
    train, held_out = longest_windows(train), longest_windows(held_out)
    z, actions, states = encode_windows(model, held_out, NUM_WINDOWS)
    with torch.no_grad():
        loss = model.latent_loss(z, actions)
    numbers = {f"val_{name}": value for name, value in loss.numbers().items()}
    numbers |= model.health()
    numbers |= latent_geometry(z.flatten(0, 1), model.config.action_size)
    numbers |= {f"open_loop_{i}": e for i, e in enumerate(open_loop_error(model, z, actions), 1)}
    if states is not None and model.config.task in TASKS:
        z_fit, _, states_fit = encode_windows(model, train, NUM_WINDOWS)
        assert states_fit is not None
        scores = probe(model.config.task, z_fit, states_fit, z, states)
        numbers |= {f"probe_{name}": score for name, score in scores.items()}
    return numbers


def describe(row: dict[str, Any]) -> str:
    """A diagnosis in one line; docs/training.md defines its words."""
    probes = {k[6:]: v for k, v in row.items() if k.startswith("probe_")}
    parts = [
        f"step {row['step']}: prediction error {row['open_loop_1']:.3f} (1 = nothing moves)",
        *([f"action error {row['val_inverse']:.3f}"] if "val_inverse" in row else []),
        *([f"smallest gain {row['sigma_min']:.3f}"] if "sigma_min" in row else []),
        f"latent std {row['latent_std']:.3f}",
        f"latent rank {row['effective_rank']:.1f}",
        *(["R² of " + ", ".join(f"{k} {v:.3f}" for k, v in probes.items())] if probes else []),
    ]
    return "; ".join(parts)


@torch.no_grad()
def open_loop_error(
    model: WorldModel,
    z: Float[Tensor, "windows t d"],
    actions: Float[Tensor, "windows t-1 m"],
) -> list[float]:
    """RMS error after 1, 2, ... blocks, relative to predicting that nothing moves."""
    predicted = model.dynamics.rollout(z[:, 0], actions)
    error = (predicted - z).square().mean(dim=(0, 2))[1:]
    still = (z[:, :1] - z).square().mean(dim=(0, 2))[1:]
    return (error / still.clamp_min(1e-30)).sqrt().tolist()


def latent_geometry(z: Float[Tensor, "samples d"], action_size: int) -> dict[str, float]:
    """How latents vary: scale, effective rank, share of the leading components."""
    centred = z.double() - z.double().mean(0)
    variance = torch.linalg.svdvals(centred).square() / len(z)
    share = variance / variance.sum().clamp_min(1e-300)
    entropy = -(share * share.clamp_min(1e-300).log()).sum()
    return {
        "latent_std": float(centred.square().mean().sqrt()),
        "effective_rank": float(entropy.exp()),
        "share_pc1": float(share[0]),
        "share_pc2": float(share[:2].sum()),
        "share_action_size": float(share[:action_size].sum()),
    }
