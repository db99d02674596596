"""Somebody else's eyes: a pretrained DINOv2 or DINOv3 of transformers, frozen, and a projector.

    bwm train --data pusht.h5 --out runs/dino --size paper \
        --options '{"encoder": "frozen", "backbone": "facebook/dinov2-small"}'

The latent is LeWM's projector of the class token beside the mean of the patches; nothing but the
projector learns. `backbone` names a folder or a repository of the Hub when a model is made. In the
checkpoint it is the architecture as JSON, and the weights are among the model's own: one folder is
enough, and loading it needs no network and imports no code that a file names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from bilinear_wm.dynamics.layers import Projector
from bilinear_wm.errors import InputError, needed
from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.encoders.vit import PIXEL_MEAN, PIXEL_STD

EXTRA = "pretrained"
KINDS = ("dinov2", "dinov2_with_registers", "dinov3_vit")
"""The architectures that are known, by the names that transformers has for them."""


class FrozenEncoder(nn.Module):
    """uint8 pictures (..., H, W, 3) to latents (..., picture_size)."""

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        transformers = needed("transformers", EXTRA, "encoder 'frozen'")
        told = _architecture(config.backbone)
        made = transformers.AutoConfig.for_model(told.pop("model_type"), **told)
        self.backbone = transformers.AutoModel.from_config(made)
        self.backbone.requires_grad_(False)
        patch = int(made.patch_size)
        height, width = config.picture_shape
        down = max(round(config.backbone_size / patch), 1)
        across = max(round(down * width / height), 1)
        self.size = down * patch, across * patch
        self.skipped = 1 + int(getattr(made, "num_register_tokens", 0))
        self.project = Projector(
            2 * int(made.hidden_size), config.projector_hidden, config.picture_size
        )
        self.register_buffer("pixel_mean", 255 * torch.tensor(PIXEL_MEAN), persistent=False)
        self.register_buffer("pixel_std", 255 * torch.tensor(PIXEL_STD), persistent=False)

    def train(self, mode: bool = True) -> FrozenEncoder:
        """The backbone never trains: no dropout, no statistics."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, pixels: UInt8[Tensor, "*batch h w 3"]) -> Float[Tensor, "*batch d"]:
        batch = pixels.shape[:-3]
        flat = (pixels.reshape(-1, *pixels.shape[-3:]) - self.pixel_mean) / self.pixel_std
        with torch.no_grad():
            resized = F.interpolate(
                flat.permute(0, 3, 1, 2), self.size, mode="bilinear", antialias=True
            )
            tokens: Tensor = self.backbone(resized).last_hidden_state
        seen = torch.cat([tokens[:, 0], tokens[:, self.skipped :].mean(1)], dim=-1)
        latent: Tensor = self.project(seen)
        return latent.float().reshape(*batch, -1)


def pretrained(source: str) -> tuple[str, dict[str, Tensor]]:
    """The architecture and the weights of a folder, or of a repository of the Hub.

    Returns:
        JSON for `ModelConfig.backbone`, and tensors for `FrozenEncoder.backbone`.
    """
    transformers = needed("transformers", EXTRA, "encoder 'frozen'")
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        if config.model_type not in KINDS:
            raise _unknown(source, config.model_type)
        model = transformers.AutoModel.from_pretrained(source, config=config)
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        where = "a folder" if Path(source).exists() else "a folder or a name on the Hub"
        raise InputError(
            f"backbone: expected {where} that transformers can load ({', '.join(KINDS)}), found "
            f"{source!r}: {' '.join(str(error).split())[:160]}"
        ) from error
    told = {k: v for k, v in config.to_diff_dict().items() if _plain(k)}
    return json.dumps(told | {"model_type": config.model_type}), model.state_dict()


def _plain(name: str) -> bool:
    """Whether an entry says how the network is built."""
    return not name.startswith("_") and name not in ("architectures", "dtype", "torch_dtype",
                                                     "transformers_version")  # fmt: skip


def _architecture(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
        kind = told["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            "backbone: expected the architecture of a pretrained encoder as JSON, as "
            f"`models.encoders.frozen.pretrained` gives it, found {text[:60]!r}"
        ) from error
    if kind not in KINDS:
        raise _unknown("backbone", kind)
    return dict(told)


def _unknown(where: str, found: Any) -> InputError:
    return InputError(f"{where}: model_type: expected one of {', '.join(KINDS)}, found {found!r}")
