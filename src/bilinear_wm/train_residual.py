"""A frozen model and its data to the same model with a planning residual.

bwm train-residual --checkpoint runs/pusht --data pusht.h5 --out runs/pusht-residual
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from bilinear_wm import checkpoint
from bilinear_wm.diagnostics import encode_windows, episodes_for
from bilinear_wm.errors import InputError
from bilinear_wm.models import load_model
from bilinear_wm.models.bilinear import BilinearWorldModel
from bilinear_wm.models.residual import ResidualDynamics


@dataclass(frozen=True)
class ResidualConfig:
    """A residual training run.

    Attributes:
        checkpoint: The trained bilinear model.
        data: The episodes it was trained on.
        out: Where the extended checkpoint goes.
        hidden: Width of the residual network.
        max_windows: At most so many training transitions are encoded (once) and used.
    """

    checkpoint: Path
    data: Path
    out: Path
    hidden: int = 256
    steps: int = 3000
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    max_windows: int = 40_000
    seed: int = 0


@dataclass(frozen=True)
class ResidualResult:
    """Held-out one-block prediction error, as RMS over the motion of a block."""

    error_before: float
    error_after: float


def train_residual(config: ResidualConfig, progress: bool = True) -> ResidualResult:
    """Fit r to what the frozen dynamics leaves over; nothing else changes a bit."""
    torch.set_flush_denormal(True)
    frozen = load_model(config.checkpoint)
    if not isinstance(frozen, BilinearWorldModel):
        raise checkpoint.wrong_kind(config.checkpoint, "bilinear", frozen.kind)
    if frozen.config.residual_hidden:
        raise InputError(f"--checkpoint {config.checkpoint}: has a residual already")
    if config.hidden < 1 or config.steps < 1:
        raise InputError(
            f"--hidden, --steps: expected at least 1, found {config.hidden} and {config.steps}"
        )
    if config.out.exists():
        raise InputError(f"--out {config.out}: exists already; name another folder")
    torch.manual_seed(config.seed)
    model = BilinearWorldModel(replace(frozen.config, residual_hidden=config.hidden))
    model.load_state_dict(frozen.state_dict(), strict=False)  # all but the residual
    model.eval()

    train = episodes_for(model, config.data)
    held_out = episodes_for(model, config.data, "validation")
    z, actions, _ = encode_windows(model, train, config.max_windows)
    z_test, actions_test, _ = encode_windows(model, held_out, config.max_windows // 8)
    before = _error(model, z_test, actions_test)
    assert isinstance(model.dynamics, ResidualDynamics)
    optimizer = torch.optim.AdamW(
        model.dynamics.residual.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    scale = (z[:, 1] - z[:, 0]).square().mean()
    bar = tqdm(range(config.steps), desc="train residual", unit="step", disable=not progress)
    for _ in bar:
        chosen = torch.randint(len(z), (config.batch_size,))
        predicted = model.dynamics.step(z[chosen, 0], actions[chosen, 0])
        loss = (predicted - z[chosen, 1]).square().mean() / scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix_str(f"loss {float(loss.detach()):.4f}", refresh=False)
    with checkpoint.replacing(config.out) as fresh:
        model.save_pretrained(fresh)
    return ResidualResult(before, _error(model, z_test, actions_test))


@torch.no_grad()
def _error(model: BilinearWorldModel, z: torch.Tensor, actions: torch.Tensor) -> float:
    error = (model.dynamics.step(z[:, 0], actions[:, 0]) - z[:, 1]).square().mean()
    return float((error / (z[:, 1] - z[:, 0]).square().mean()).sqrt())
