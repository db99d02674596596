"""A trained model and its data to the same model with a planning residual.

    bwm train-residual --checkpoint runs/pusht --data pusht.h5 --out runs/pusht-residual

The encoder stays as it is, and every picture is encoded once. Three phases follow, all of them on
latents, so that they take seconds to minutes:

1. *weigh*: a first residual shows how well each coordinate can be predicted. Points differ: some
   flicker or jump, and a planner that trusts all alike spends its plan on noise. The latent's
   scale takes the weights 1 / error, so that planners know nothing of it.
2. *refit*: A, B, C and R are fitted to the new scale by the paper's objective, then frozen.
3. *residual*: r is fitted to what they leave over, by rollouts of several blocks, each coordinate
   in units of its own motion.

It is resumable to the bit, like training.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.analysis.diagnose import describe, diagnose
from bilinear_wm.analysis.latents import episodes_for, fingerprint
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.bilinear import BilinearWorldModel
from bilinear_wm.models.device import find_device
from bilinear_wm.signals import Held, held
from bilinear_wm.training import run_folder
from bilinear_wm.training.config import ResidualConfig
from bilinear_wm.training.loop import TrainingLoop, run_facts, warm_cosine
from bilinear_wm.training.recorded import CHUNK, recorded

__all__ = ["ResidualConfig", "coordinate_weights", "train_residual"]
CLIP_NORM = 1.0
WARMUP = 0.05
WEIGHED = 4000
"""Held-out windows by which coordinates are weighed."""
STILL = 0.07
"""A coordinate whose std is below this share of the largest carries nothing ..."""
MUTED = 0.1
"""... and gets this weight, relative to the median."""
LARGEST_WEIGHT = 2.0


def train_residual(config: ResidualConfig, progress: bool = True) -> dict[str, float]:
    """Train until `config.steps`; returns the last diagnosis.

    Raises:
        TrainingInterrupted: On SIGINT or SIGTERM, with everything saved.
    """
    torch.set_flush_denormal(True)
    find_device(config.device)  # before anything is made
    with (
        run_folder.locked(config.out, config.resume),
        held(twice_is_enough=True) as signals,
    ):
        with signals.raising():
            run = _Run(config, signals, progress)
        return run.run()


class _Run(TrainingLoop):
    label = "train residual"

    def __init__(self, config: ResidualConfig, signals: Held, progress: bool) -> None:
        super().__init__(config, signals, progress)
        self.config = config
        frozen = load_model(config.checkpoint, config.device)
        if not isinstance(frozen, BilinearWorldModel):
            raise checkpoint.wrong_kind(config.checkpoint, "bilinear", frozen.kind)
        if frozen.config.residual_hidden:
            raise InputError(f"checkpoint {config.checkpoint}: has a residual already")
        if config.weigh_steps and frozen.scale is None:
            raise InputError(
                f"weigh_steps: expected 0 for the encoder {frozen.config.encoder!r}, which has "
                f"no points to weigh, found {config.weigh_steps}"
            )
        self._train_data = episodes_for(frozen, config.data)
        self._held_out_data = episodes_for(frozen, config.data, "validation")
        self._facts = fingerprint(self._train_data) | {
            "checkpoint": checkpoint.weights_hash(config.checkpoint),
            "trained": run_facts(config.checkpoint),
        }
        torch.manual_seed(config.seed)
        self.model = frozen.with_residual(config.hidden).to(frozen.device).eval()
        self._recorded = recorded(self.model, self._train_data, config.num_blocks, progress)
        self._held_out = recorded(self.model, self._held_out_data, config.num_blocks, progress)
        self._begin()
        if run_folder.begun(config.out):
            self.restore()

    # The phases.

    @property
    def _phase(self) -> tuple[str, int, int]:
        """Name, first step and number of steps of the phase that `step` is in."""
        config = self.config
        if self.step < config.weigh_steps:
            return "weigh", 0, config.weigh_steps
        refitted = config.weigh_steps + config.refit_steps
        if self.step < refitted:
            return "refit", config.weigh_steps, config.refit_steps
        return "residual", refitted, config.steps - refitted

    def _begin(self) -> None:
        """Set up the phase that `step` is in, but for its state."""
        name, _, _ = self._phase
        parameters = self._trained(name)
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(
            parameters, lr=self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        if name != "refit":
            self._unit = self._motion_unit()

    def _trained(self, phase: str) -> list[torch.nn.Parameter]:
        dynamics = self._dynamics
        trained = dynamics.structured if phase == "refit" else dynamics.residual
        return list(trained.parameters())

    @property
    def _dynamics(self) -> ResidualDynamics:
        assert isinstance(self.model.dynamics, ResidualDynamics)
        return self.model.dynamics

    def one_step(self) -> dict[str, float]:
        phase, first, count = self._phase
        if self.step == first:
            if phase == "refit" and self.config.weigh_steps:
                self._weigh()
            if phase != "refit":
                torch.manual_seed(self.config.seed)
                self._dynamics.reset_residual(self._recorded.frames)
            self._begin()
        torch.manual_seed(self.config.seed + 1_000_003 * self.step)
        z, actions = self._recorded.batch(
            torch.randint(len(self._recorded), (self.config.batch_size,)).to(self.model.device)
        )
        for group in self._optimizer.param_groups:
            group["lr"] = self.config.learning_rate * warm_cosine(
                (self.step - first) / count, WARMUP
            )
        if phase == "refit":
            loss = self.model.latent_loss(z, actions).total
        else:
            predicted = self._dynamics.rollout(z[:, 0], actions)[:, 1:]
            loss = ((predicted - z[:, 1:]).square() / self._unit).mean()
        if not torch.isfinite(loss):
            raise InputError(
                f"{self.config.out}: the loss is {float(loss.detach())} at step {self.step}; the "
                "last checkpoint is intact; lower the learning rate"
            )
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained(phase), CLIP_NORM)
        self._optimizer.step()
        return {phase: float(loss.detach())}

    def _motion_unit(self) -> Float[Tensor, " d"]:
        """The squared change of each coordinate in a block, bounded from below."""
        frames, windows = self._recorded.frames, self._recorded.windows
        unit = (frames[windows[:, 1]] - frames[windows[:, 0]]).square().mean(0)
        return unit + 0.02 * unit.max()

    @torch.no_grad()
    def _weigh(self) -> None:
        """Scale the latent's coordinates by how well they can be predicted."""
        z, actions = self._held_out.spaced(WEIGHED)
        error = (self._dynamics.step(z[:, 0], actions[:, 0]) - z[:, 1]).square().mean(0).sqrt()
        weight = coordinate_weights(error, self._recorded.frames.std(0))
        scale = self.model.scale
        assert scale is not None
        self._rescale(scale * weight, scale)
        scale.mul_(weight)
        self._dynamics.structured.rescale(weight)

    def _rescale(self, scale: Tensor, before: Tensor) -> None:
        """Latents at another scale; a resumed run must do the same operation, to the bit."""
        for part in (self._recorded, self._held_out):
            part.frames.mul_(scale / before)

    # Diagnosis and state.

    def diagnose(self) -> dict[str, float]:
        return diagnose(self.model, self._train_data, self._held_out_data)

    def describe(self, row: dict[str, Any]) -> str:
        return describe(row)

    def finished_model(self) -> WorldModel:
        model = copy.deepcopy(self.model)
        model.finalize(self._recorded.frames[:: max(len(self._recorded.frames) // CHUNK, 1)])
        return model.eval()

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        return found | checkpoint.optimizer_tensors(self._optimizer)

    def load_tensors(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        weights = self.model.renamed(
            {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        )
        checkpoint.check_names(folder, self.model.state_dict(), weights)
        before = None if self.model.scale is None else self.model.scale.clone()
        self.model.load_state_dict(weights)
        if before is not None and self.model.scale is not None:
            self._rescale(self.model.scale, before)
        self._begin()
        checkpoint.restore_optimizer(self._optimizer, tensors)

    def data_facts(self) -> dict[str, Any]:
        return self._facts


def coordinate_weights(error: Float[Tensor, " d"], std: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """1 / error, with median 1 over the coordinates that vary; those that do not are muted."""
    active = std > STILL * std.max()
    typical = error[active].median()
    weight = (typical / error.clamp_min(1e-9)).clamp(max=LARGEST_WEIGHT)
    return torch.where(active, weight, MUTED * torch.ones_like(weight))
