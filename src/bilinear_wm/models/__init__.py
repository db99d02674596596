"""World models: torch, and nothing of environments or episode files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.device import find_device
from bilinear_wm.registry import MODELS

__all__ = ["MODELS", "WorldModel", "load_model"]


def load_model(folder: str | Path, device: str = "cpu") -> WorldModel:
    """Load a checkpoint folder, or the newest checkpoint of a training folder.

    Everything is verified first: nothing is unpickled, no class is named by a file, and a
    damaged, foreign or newer file is refused with its reason.
    """
    place = find_device(device)
    folder = checkpoint.resolve(Path(folder))
    config, tensors = checkpoint.read_folder(folder)
    kind = config.pop("kind", None)
    MODELS.check(kind, f"{folder / checkpoint.CONFIG}: kind")
    where = str(folder / checkpoint.CONFIG)
    tensors = MODELS[kind].renamed(tensors)
    wanted = MODELS[kind].config_class.from_dict(config, where)
    with torch.device("meta"):  # takes no memory, whatever the configuration asks for
        shapes = _make(kind, wanted, where)
    if shapes is not None:
        checkpoint.check_names(folder, shapes.state_dict(), tensors)
    model = _make(kind, wanted, where)
    assert model is not None
    checkpoint.check_names(folder, model.state_dict(), tensors)
    model.load_state_dict(tensors)
    return model.eval().to(place)


def _make(kind: str, config: Any, where: str) -> WorldModel | None:
    """A fresh model; None if its parts cannot be made without memory."""
    try:
        return MODELS[kind](config)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except Exception as error:
        if "meta" in str(error):  # an encoder of the user's that looks at its own numbers
            return None
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{where}: expected a model that can be made, found {reason}") from error
