"""Sizes of the transformer that LeWM and SMWM predict with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bilinear_wm.models.config import ModelConfig

PREDICTOR_SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "predictor_depth": 6,
        "predictor_heads": 16,
        "predictor_head_size": 64,
        "predictor_hidden": 2048,
    },
    "compact": {
        "predictor_depth": 2,
        "predictor_heads": 4,
        "predictor_head_size": 32,
        "predictor_hidden": 384,
    },
}


@dataclass(frozen=True)
class PredictorConfig(ModelConfig):
    """Attributes:
    history: Latents that the predictor sees at once.
    """

    history: int = 1
    predictor_depth: int = 2
    predictor_heads: int = 4
    predictor_head_size: int = 32
    predictor_hidden: int = 384
    predictor_dropout: float = 0.1
    action_channels: int = 10
    action_hidden: int = 768
