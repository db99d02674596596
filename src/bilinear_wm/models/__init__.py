"""World models: torch, and nothing of environments or episode files."""

from __future__ import annotations

from pathlib import Path

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
    where = find_device(device)
    folder = checkpoint.resolve(Path(folder))
    config, tensors = checkpoint.read_folder(folder)
    kind = config.pop("kind", None)
    MODELS.check(kind, f"{folder / checkpoint.CONFIG}: kind")
    cls = MODELS[kind]
    model = cls(cls.config_class.from_dict(config, str(folder / checkpoint.CONFIG)))
    tensors = model.renamed(tensors)
    checkpoint.check_names(folder, model.state_dict(), tensors)
    model.load_state_dict(tensors)
    return model.eval().to(where)
