"""Pictures that say which they are."""

from __future__ import annotations

from typing import Any

import numpy as np


def numbered(count: int, size: int = 8) -> np.ndarray:
    """Pictures that say which they are."""
    return np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, size, size, 3), np.uint8
    )


def values(pictures: np.ndarray) -> Any:
    return pictures[..., 0, 0, 0].tolist()
