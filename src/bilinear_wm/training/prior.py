"""A trained model and its data to the same model with an action prior.

    bwm train-prior --checkpoint runs/cube-residual --data cube.h5 --out runs/cube-prior

The rest of the model stays as it is, and every picture is encoded once; `models/prior.py` says what
is learned. It is resumable to the bit, like training.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bilinear_wm.analysis.latents import episodes_for, fingerprint
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.device import find_device
from bilinear_wm.models.prior import BLOCKS, FARTHEST
from bilinear_wm.signals import Held, held
from bilinear_wm.stage import Outcome, at_least
from bilinear_wm.training import run_folder
from bilinear_wm.training.loop import TrainingLoop, run_facts, warm_cosine
from bilinear_wm.training.recorded import Recorded, recorded

WARMUP = 0.05
TOLD = 4000
"""Held-out windows of a diagnosis."""


@dataclass(frozen=True)
class PriorConfig:
    """A training run of the action prior.

    Attributes:
        checkpoint: The trained model, of any kind.
        data: The episodes it was trained on.
        out: The training folder.
        hidden: Width of the network.
        steps: Optimizer steps.
        batch_size: Windows a step.
        learning_rate: Peak of a cosine schedule with a linear warm-up.
        weight_decay: AdamW's.
        seed: Of the weights and the order of the data.
        eval_every: Steps between diagnoses on held-out episodes.
        save_every: Steps between checkpoints.
        device: Where the model runs: cpu, cuda, cuda:1 ...
        resume: Continue the run in `out`.
    """

    checkpoint: Path
    data: Path
    out: Path
    hidden: int = 300
    steps: int = 6000
    batch_size: int = 512
    learning_rate: float = 1.5e-3
    weight_decay: float = 1e-3
    seed: int = 0
    eval_every: int = 1000
    save_every: int = 1000
    device: str = "cpu"
    resume: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "hidden", "steps", "batch_size", "eval_every", "save_every")
        at_least(self, 0, "seed")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate: expected more than 0, found {self.learning_rate}")

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the run it continues."""
        values = asdict(self)
        for name in ("checkpoint", "data", "out", "eval_every", "save_every", "device", "resume"):
            del values[name]
        return values

    def run(self) -> Outcome:
        """`train_prior`, in words."""
        numbers = train_prior(self)
        return Outcome(
            f"{self.out}: held-out actions are told with {numbers[f'prior_error_{BLOCKS}']:.3f} "
            f"of their variance left; load it with bwm.load_model({str(self.out)!r})",
            dict(numbers),
        )


def train_prior(config: PriorConfig, progress: bool = True) -> dict[str, float]:
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
        return _Run(config, signals, progress).run()


class _Hindsight:
    """Ways of any length through recorded latents.

    Args:
        seen: A split in windows of one block.
    """

    def __init__(self, seen: Recorded) -> None:
        self.seen = seen
        first, second = seen.windows.T
        self._block = int(second[0] - first[0])
        """Frames from one block to the next."""
        everywhere = len(seen.frames) + FARTHEST * self._block + 1
        self._row = first.new_full((everywhere,), -1)
        self._row[first] = torch.arange(len(first), device=first.device)
        self.left = torch.zeros_like(first)
        """Blocks from each window's beginning to the end of its episode, as far as it matters."""
        going = torch.ones_like(first, dtype=torch.bool)
        for ahead in range(FARTHEST):
            going &= self._row[first + ahead * self._block] >= 0
            self.left += going

    def ways(
        self, rows: Int[Tensor, " batch"], blocks: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch d"], Float[Tensor, "batch d"], Float[Tensor, "batch blocks m"]]:
        """Where ways of these lengths begin and end, and how they begin; what follows is not."""
        first = self.seen.windows[rows, 0]
        told = self._row[first[:, None] + self._block * torch.arange(BLOCKS, device=first.device)]
        frames = self.seen.frames
        return frames[first], frames[first + blocks * self._block], self.seen.actions[told, 0]


class _Run(TrainingLoop):
    label = "train prior"

    def __init__(self, config: PriorConfig, signals: Held, progress: bool) -> None:
        super().__init__(config, signals, progress)
        self.config = config
        given = load_model(config.checkpoint, config.device)
        if given.config.prior_hidden:
            raise InputError(f"checkpoint {config.checkpoint}: has a prior already")
        train, held_out = (
            episodes_for(given, config.data, split) for split in ("train", "validation")
        )
        self._facts = fingerprint(train) | {
            "checkpoint": checkpoint.weights_hash(config.checkpoint),
            "trained": run_facts(config.checkpoint),
        }
        torch.manual_seed(config.seed)
        self.model: WorldModel = type(given)(replace(given.config, prior_hidden=config.hidden))
        self.model.load_state_dict(given.state_dict(), strict=False)  # all but the prior
        self.model.eval().requires_grad_(False).to(given.device)
        self._train, self._held_out = (
            _Hindsight(recorded(self.model, part, 1, progress)) for part in (train, held_out)
        )
        self._prior = self.model.prior.requires_grad_(True)
        self._prior.prepare(self._train.seen.frames)
        self._optimizer = torch.optim.AdamW(
            self._prior.layers.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
        )
        if run_folder.begun(config.out):
            self.restore()

    def one_step(self) -> dict[str, float]:
        config = self.config
        torch.manual_seed(config.seed + 1_000_003 * self.step)
        device = self.model.device
        rows = torch.randint(len(self._train.seen), (config.batch_size,)).to(device)
        left = self._train.left[rows]
        # Near goals are asked for more often than far ones.
        share = torch.rand(len(rows)).square().to(device)
        blocks = 1 + (share * left).long().clamp(max=left - 1)
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate * warm_cosine(self.step / config.steps, WARMUP)
        loss = self._error(self._train, rows, blocks).mean()
        if not torch.isfinite(loss):
            raise InputError(
                f"{config.out}: the loss is {float(loss.detach())} at step {self.step}; the "
                "last checkpoint is intact; lower the learning rate"
            )
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"prior": float(loss.detach())}

    def _error(
        self, data: _Hindsight, rows: Int[Tensor, " batch"], blocks: Int[Tensor, " batch"]
    ) -> Float[Tensor, " told"]:
        """Squared error of each block that lies before its goal."""
        z, goal, actions = data.ways(rows, blocks)
        missed = (self._prior(z, goal, blocks) - actions).square().mean(-1)
        return missed[torch.arange(BLOCKS, device=missed.device) < blocks[:, None]]

    @torch.no_grad()
    def diagnose(self) -> dict[str, float]:
        """Errors in units of the actions' variance, which is one, for goals near and less near."""
        found = {}
        for blocks in (1, BLOCKS):
            rows = (self._held_out.left >= blocks).nonzero().squeeze(-1)
            rows = rows[:: max(len(rows) // TOLD, 1)]
            error = self._error(self._held_out, rows, torch.full_like(rows, blocks))
            found[f"prior_error_{blocks}"] = float(error.mean())
        return found

    def describe(self, row: dict[str, Any]) -> str:
        return (
            f"step {row['step']}: actions told with {row[f'prior_error_{BLOCKS}']:.3f} of their "
            f"variance left over {BLOCKS} blocks, {row['prior_error_1']:.3f} over one"
        )

    def finished_model(self) -> WorldModel:
        return copy.deepcopy(self.model).eval()

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        return found | checkpoint.optimizer_tensors(self._optimizer)

    def load_tensors(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        weights = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        checkpoint.check_names(folder, self.model.state_dict(), weights)
        self.model.load_state_dict(weights)
        checkpoint.restore_optimizer(self._optimizer, tensors)

    def data_facts(self) -> dict[str, Any]:
        return self._facts
