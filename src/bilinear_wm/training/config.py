"""Settings of training runs, which the command line is made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bilinear_wm.errors import InputError
from bilinear_wm.models.config import Size
from bilinear_wm.stage import JsonObject, Outcome, at_least
from bilinear_wm.view import Kind


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        data: The episode file.
        out: The training folder.
        model: bilinear, lewm, smwm or one of your own.
        size: The recipe: `compact` for CPUs, `paper` for GPUs.
        options: Fields of the model's configuration.
        steps: Optimizer steps.
        batch_size: Windows a step, over all processes.
        num_frames: Pictures a window.
        learning_rate: Peak of a cosine schedule with a linear warm-up.
        weight_decay: AdamW's.
        clip_norm: The largest norm of a step's gradients.
        warmup_share: The share of all steps that the warm-up takes.
        seed: Of the weights, the order of the data and the dropout.
        eval_every: Steps between diagnoses on held-out episodes.
        save_every: Steps between checkpoints.
        task: The task, where the file does not tell.
        trackers: `tensorboard`, `wandb`, `trackio`: whatever accelerate knows.
        device: Where to train: cpu, cuda, cuda:1 ...; by default what accelerate chooses.
        workers: Processes that read ahead; by default none where pictures fit into memory.
        view: `rerun` writes losses, held-out pictures, their points and what is drawn of them as a
            recording in `out`.
        resume: Continue the run in `out`.
    """

    data: Path
    out: Path
    model: str = "bilinear"
    size: Size = "compact"
    options: JsonObject = field(default_factory=dict)
    steps: int = 4000
    batch_size: int = 64
    num_frames: int = 4
    learning_rate: float = 1e-3
    weight_decay: float = 1e-3
    clip_norm: float = 1.0
    warmup_share: float = 0.01
    seed: int = 0
    eval_every: int = 500
    save_every: int = 250
    task: str | None = None
    trackers: tuple[str, ...] = ()
    device: str | None = None
    workers: int | None = None
    view: Kind | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "batch_size", "eval_every", "save_every")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate: expected more than 0, found {self.learning_rate}")
        at_least(self, 0, "seed", *(() if self.workers is None else ("workers",)))

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the run it continues."""
        values = asdict(self)
        for name in (
            "data",
            "out",
            "eval_every",
            "save_every",
            "trackers",
            "device",
            "workers",
            "view",
            "resume",
            "task",
            "size",
        ):
            del values[name]
        return values

    def run(self) -> Outcome:
        """`train`, in words."""
        from bilinear_wm.training.train import train

        numbers = train(self)
        return Outcome(
            f"{self.out}: trained for {self.steps} steps; load it with "
            f"bwm.load_model({str(self.out)!r})",
            dict(numbers),
        )


@dataclass(frozen=True)
class ResidualConfig:
    """A residual training run.

    Attributes:
        checkpoint: The trained bilinear model.
        data: The episodes it was trained on.
        out: The training folder.
        hidden: Width of the residual network.
        steps: Optimizer steps in all.
        weigh_steps: Of them, those of the first phase; 0 to leave the latent's scale alone.
        refit_steps: Those of the second.
        num_blocks: Blocks that a rollout predicts.
        batch_size: Rollouts a step.
        learning_rate: Peak of a cosine schedule with a linear warm-up, in each phase.
        weight_decay: AdamW's.
        seed: Of the weights and the order of the data.
        eval_every: Steps between diagnoses on held-out episodes.
        save_every: Steps between checkpoints.
        device: Where to train: cpu, cuda, cuda:1 ...
        resume: Continue the run in `out`.
    """

    checkpoint: Path
    data: Path
    out: Path
    hidden: int = 256
    steps: int = 12_000
    weigh_steps: int = 1500
    refit_steps: int = 1500
    num_blocks: int = 2
    batch_size: int = 256
    learning_rate: float = 1.5e-3
    weight_decay: float = 1e-4
    seed: int = 0
    eval_every: int = 2000
    save_every: int = 1000
    device: str = "cpu"
    resume: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "hidden", "num_blocks", "batch_size", "eval_every", "save_every")
        at_least(self, 0, "weigh_steps", "refit_steps", "seed")
        if self.weigh_steps and not self.refit_steps:
            raise InputError(
                "refit_steps: expected at least 1 with `weigh_steps`, because the dynamics must "
                "follow the new scale, found 0"
            )
        if self.steps <= self.weigh_steps + self.refit_steps:
            raise InputError(
                f"steps: expected more than `weigh_steps` {self.weigh_steps} and `refit_steps` "
                f"{self.refit_steps} together, found {self.steps}; give more, or fewer of those"
            )
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate: expected more than 0, found {self.learning_rate}")

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the run it continues."""
        values = asdict(self)
        for name in ("checkpoint", "data", "out", "eval_every", "save_every", "device", "resume"):
            del values[name]
        return values

    def run(self) -> Outcome:
        """`train_residual`, in words."""
        from bilinear_wm.training.residual import train_residual

        numbers = train_residual(self)
        return Outcome(
            f"{self.out}: held-out one-block error {numbers['open_loop_1']:.4f} of what a block "
            f"moves; load it with bwm.load_model({str(self.out)!r})",
            dict(numbers),
        )
