"""Published LeWM weights as a checkpoint folder: `bwm import-lewm weights.pt --out lewm ...`."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torch import Tensor

from bilinear_wm import disk
from bilinear_wm.data.windows import FRAME_SKIP, EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.reference_lewm import from_reference
from bilinear_wm.stage import Outcome, at_least


@dataclass(frozen=True)
class ImportLewmConfig:
    """A checkpoint of LeWM's authors, to plan with here.

    The weights do not hold how actions were normalised: give the episodes that they were trained
    on, or the numbers.

    Attributes:
        file: Their state dict: .safetensors, or what torch.save writes of tensors alone.
        out: The checkpoint folder to write.
        task: The task whose pictures it knows.
        data: The episodes that it was trained on, for mean and std of the actions.
        action_mean: Of one environment action, instead of `data`.
        action_std: Likewise.
        frame_skip: Environment steps a model step.
        render_quality: How the pictures were drawn.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    out: Path
    task: str
    data: Path | None = None
    action_mean: tuple[float, ...] = ()
    action_std: tuple[float, ...] = ()
    frame_skip: int = FRAME_SKIP
    render_quality: str = "faithful"

    def __post_init__(self) -> None:
        at_least(self, 1, "frame_skip")
        if (self.data is None) != bool(self.action_mean and self.action_std):
            raise InputError(
                "data: expected the episodes that the weights were trained on, or `action_mean` "
                f"and `action_std`, found {'all of them' if self.data else 'neither'}"
            )

    def run(self) -> Outcome:
        """`import_lewm`, in words."""
        model = import_lewm(self)
        count = sum(parameter.numel() for parameter in model.parameters())
        return Outcome(
            f"{self.out}: LeWM, {count:,} weights, pictures of {model.config.image_size} px; load "
            f"it with bwm.load_model({str(self.out)!r})",
            {"out": str(self.out), "parameters": count, "image_size": model.config.image_size},
        )


def import_lewm(config: ImportLewmConfig) -> WorldModel:
    """Write `config.out`, whole or not at all."""
    if config.out.exists():
        raise InputError(f"out {config.out}: exists already; remove it or name another folder")
    mean, std = config.action_mean, config.action_std
    if config.data is not None:
        episodes = EpisodeDataset(config.data, 2, split="all", in_memory=False, validation_share=0)
        mean, std = _numbers(episodes.action_mean), _numbers(episodes.action_std)
    model = from_reference(
        read_weights(config.file),
        str(config.file),
        task=config.task,
        frame_skip=config.frame_skip,
        action_mean=mean,
        action_std=std,
        render_quality=config.render_quality,
    )
    with disk.replacing(config.out) as folder:
        model.save_pretrained(folder)
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by name; nothing but tensors is unpickled."""
    if not path.is_file():
        raise InputError(f"{path}: expected a file of weights, found none")
    if path.suffix == ".safetensors":
        return checkpoint.read_tensors(path)
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: expected tensors (a state dict of torch.save, or .safetensors), found "
            f"{checkpoint.one_line(error)[:120]}; save model.state_dict() where it was trained"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(f"{path}: expected tensors by name, found {type(found).__name__}")
    return found


def _numbers(values: np.ndarray[Any, Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
