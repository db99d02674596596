"""The units of actions: raw ones as environments take them, blocks of them as models do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def action_bounds(low: F32, high: F32, mean: F32, std: F32, frame_skip: int) -> tuple[F32, F32]:
    """A box of raw actions as bounds on a block of a model's.

    Rounded inwards, so that what is inside them is inside the raw box once it is raw again.

    Args:
        low: Smallest raw action, one number an entry.
        high: Largest raw action.
        mean: Of raw actions, in the model's training data.
        std: Likewise.
        frame_skip: Actions a block.
    """
    limits = []
    for limit, inwards in ((low, np.inf), (high, -np.inf)):
        bound = (limit - mean) / std
        for _ in range(8):
            back = bound * std + mean
            outside = back < limit if inwards > 0 else back > limit
            bound = np.where(outside, np.nextafter(bound, np.float32(inwards)), bound)
        limits.append(np.tile(bound, frame_skip))
    return limits[0], limits[1]
