"""Is a model alive? Numbers that show collapse, blindness and bad prediction early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.dataset import EpisodeDataset, Split
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel
from bilinear_wm.tasks import TASK_NAMES, task_class

MAX_BLOCKS = 5
NUM_WINDOWS = 400
CALIBRATION_BATCHES = 8
CHUNK = 256
RIDGE = 1e-4


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
    numbers |= model.vitals()
    numbers |= latent_geometry(z.flatten(0, 1), model.config.action_size)
    numbers |= {f"open_loop_{i}": e for i, e in enumerate(open_loop_error(model, z, actions), 1)}
    if states is not None and model.config.task in TASK_NAMES:
        z_fit, _, states_fit = encode_windows(model, train, NUM_WINDOWS)
        assert states_fit is not None
        scores = probe(model.config.task, z_fit, states_fit, z, states)
        numbers |= {f"probe_{name}": score for name, score in scores.items()}
    return numbers


def describe(row: dict[str, Any]) -> str:
    """A diagnosis in one line."""
    probes = {k[6:]: v for k, v in row.items() if k.startswith("probe_")}
    parts = [
        f"step {row['step']}",
        f"forward {row['val_forward']:.4f}",
        *([f"inverse {row['val_inverse']:.3f}"] if "val_inverse" in row else []),
        *([f"sigma_min {row['sigma_min']:.3f}"] if "sigma_min" in row else []),
        f"std {row['latent_std']:.3f}",
        f"rank {row['effective_rank']:.1f}",
        f"1-block {row['open_loop_1']:.3f}",
        *([" ".join(f"{k} {v:.3f}" for k, v in probes.items())] if probes else []),
    ]
    return "  ".join(parts)


def episodes_for(model: WorldModel, path: Path, split: Split = "train") -> EpisodeDataset:
    """Windows of two pictures as the model knows them, in its units; refuses other pictures."""
    facts = model.config
    known = facts.render_quality != "unknown"
    data = EpisodeDataset(
        path,
        2,
        frame_skip=facts.frame_skip,
        split=split,
        image_size=facts.image_size,
        render_quality=facts.render_quality if known else None,
        in_memory=False,
    )
    if data.action_size != facts.action_size:
        raise InputError(
            f"{path}: expected {facts.action_size} numbers an action, found {data.action_size}"
        )
    data.action_mean = np.array(facts.action_mean, np.float32)
    data.action_std = np.array(facts.action_std, np.float32)
    return data


def fingerprint(data: EpisodeDataset) -> dict[str, Any]:
    """Enough to tell one episode file from another."""
    actions = np.nan_to_num(data.file.actions.astype(np.float64))
    return {
        "episodes": data.file.num_episodes,
        "rows": int(data.file.lengths.sum()),
        "actions": f"{actions.sum():.6f} {np.square(actions).sum():.6f}",
    }


@torch.no_grad()
def calibrate(model: WorldModel, train: EpisodeDataset, batch_size: int) -> Tensor:
    """Re-estimate the batch norms on training data; returns latents for `finalize`.

    Running averages lag far behind weights that still move, and evaluation would then see other
    latents than training does. The result depends on weights and data alone, not on history.
    """
    norms = model.batch_norms()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over what follows
    model.train()
    device = model.device
    for indices in _spread(len(train), CALIBRATION_BATCHES * batch_size, batch_size):
        batch = train.batch(indices)
        pixels = torch.from_numpy(batch.pixels).to(device)
        model.loss(pixels, torch.from_numpy(batch.actions).to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
    return encode_windows(model, train, CHUNK)[0].flatten(0, 1)


@torch.no_grad()
def encode_windows(
    model: WorldModel, data: EpisodeDataset, count: int
) -> tuple[Tensor, Tensor, NDArray[np.float64] | None]:
    """Latents, actions and states of windows spread evenly over a dataset."""
    device = model.device
    latents, actions, states = [], [], []
    for indices in _spread(len(data), count, max(CHUNK // data.num_frames, 1)):
        batch = data.batch(indices)
        latents.append(model.encode(batch.pixels))
        actions.append(torch.from_numpy(batch.actions).to(device))
        if batch.states is not None:
            states.append(batch.states)
    return torch.cat(latents), torch.cat(actions), np.concatenate(states) if states else None


@torch.no_grad()
def open_loop_error(model: WorldModel, z: Tensor, actions: Tensor) -> list[float]:
    """RMS error after 1, 2, ... blocks, relative to predicting that nothing moves."""
    predicted = model.dynamics.rollout(z[:, 0], actions)
    error = (predicted - z).square().mean(dim=(0, 2))[1:]
    still = (z[:, :1] - z).square().mean(dim=(0, 2))[1:]
    return (error / still.clamp_min(1e-30)).sqrt().tolist()


def latent_geometry(z: Tensor, action_size: int) -> dict[str, float]:
    """Spread of the latents: scale, effective rank, share of the leading components."""
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


def probe(
    task: str,
    z_fit: Tensor,
    states_fit: NDArray[np.float64],
    z: Tensor,
    states: NDArray[np.float64],
) -> dict[str, float]:
    """R^2 of a ridge regression from latents to each state variable, on held-out data."""
    inputs, test = (x.flatten(0, 1).double().cpu().numpy() for x in (z_fit, z))
    mean, std = inputs.mean(0), inputs.std(0) + 1e-12
    x, x_test = (_with_ones((a - mean) / std) for a in (inputs, test))
    targets = task_class(task).probe_targets
    y, y_test = (targets(s.reshape(-1, s.shape[-1])) for s in (states_fit, states))
    penalty = RIDGE * len(x) * np.eye(x.shape[1])
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.stack(list(y.values()), axis=1))
    scores = {}
    for column, (name, truth) in enumerate(y_test.items()):
        residual = np.square(truth - x_test @ weights[:, column]).mean()
        scores[name] = float(1 - residual / max(truth.var(), 1e-12))
    return scores


def longest_windows(data: EpisodeDataset) -> EpisodeDataset:
    """Windows of up to `MAX_BLOCKS` blocks, as long as the episodes allow."""
    for num_frames in range(MAX_BLOCKS + 1, 2, -1):
        longer = data.reframed(num_frames)
        if len(longer):
            return longer
    return data.reframed(2)


def _with_ones(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def _spread(total: int, count: int, chunk: int) -> Iterator[NDArray[np.int64]]:
    chosen = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    for start in range(0, len(chosen), chunk):
        yield chosen[start : start + chunk]
