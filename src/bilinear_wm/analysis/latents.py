"""Episode files as a model sees them: windows in its units, their latents, calibrated norms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.data.windows import EpisodeDataset, Split
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel

MAX_BLOCKS = 5
CALIBRATION_BATCHES = 8
CHUNK = 256
FINGERPRINT_WINDOWS = 64


def episodes_for(model: WorldModel, path: Path, split: Split = "train") -> EpisodeDataset:
    """Windows of two observations as the model knows them; refuses other pictures."""
    facts = model.config
    known = facts.render_quality != "unknown"
    data = EpisodeDataset(
        path,
        2,
        frame_skip=facts.frame_skip,
        spec=facts.observes,
        split=split,
        image_size=facts.picture_shape,
        render_quality=facts.render_quality if known else None,
        in_memory=False,
    )
    told = data.file.task
    if "unknown" not in (told or "unknown", facts.task) and told != facts.task:
        raise InputError(f"{path}: expected episodes of {facts.task}, found {told}")
    if data.action_size != facts.action_size:
        raise InputError(
            f"{path}: expected {facts.action_size} numbers an action, found {data.action_size}"
        )
    data.action_mean = np.array(facts.action_mean, np.float32)
    data.action_std = np.array(facts.action_std, np.float32)
    return data


def fingerprint(data: EpisodeDataset) -> dict[str, Any]:
    """Enough to tell one episode file from another: counts, all actions, some of what is seen."""
    actions = np.nan_to_num(data.file.actions.astype(np.float64))
    seen = hashlib.sha256()
    for indices in _evenly(len(data), FINGERPRINT_WINDOWS, FINGERPRINT_WINDOWS):
        observation = data.batch(indices).observation
        for array in (*observation.pictures.values(), observation.proprioception):
            if array is not None:
                seen.update(np.asarray(array).tobytes())
    return {
        "episodes": data.file.num_episodes,
        "rows": int(data.file.lengths.sum()),
        "actions": f"{actions.sum():.6f} {np.square(actions).sum():.6f}",
        "seen": seen.hexdigest(),
    }


@torch.no_grad()
def calibrate(
    model: WorldModel, train: EpisodeDataset, batch_size: int
) -> Float[Tensor, "samples d"]:
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
    for indices in _evenly(len(train), CALIBRATION_BATCHES * batch_size, batch_size):
        batch = train.batch(indices)
        model.loss(batch.observation, torch.from_numpy(batch.actions).to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()
    return encode_windows(model, train, CHUNK)[0].flatten(0, 1)


@torch.no_grad()
def encode_windows(
    model: WorldModel, data: EpisodeDataset, count: int
) -> tuple[
    Float[Tensor, "windows t d"], Float[Tensor, "windows t-1 m"], NDArray[np.float64] | None
]:
    """Latents, actions and states of windows taken evenly from a dataset."""
    device = model.device
    latents, actions, states = [], [], []
    for indices in _evenly(len(data), count, max(CHUNK // data.num_frames, 1)):
        batch = data.batch(indices)
        latents.append(model.encode(batch.observation))
        actions.append(torch.from_numpy(batch.actions).to(device))
        if batch.states is not None:
            states.append(batch.states)
    return torch.cat(latents), torch.cat(actions), np.concatenate(states) if states else None


def longest_windows(data: EpisodeDataset) -> EpisodeDataset:
    """Windows of up to `MAX_BLOCKS` blocks, as long as the episodes allow."""
    for num_frames in range(MAX_BLOCKS + 1, 2, -1):
        longer = data.reframed(num_frames)
        if len(longer):
            return longer
    return data.reframed(2)


def _evenly(total: int, count: int, chunk: int) -> Iterator[NDArray[np.int64]]:
    chosen = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    for start in range(0, len(chosen), chunk):
        yield chosen[start : start + chunk]
