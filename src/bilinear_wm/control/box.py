"""Raw actions, and the box that they must be in."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinear_wm.errors import InputError

Action = NDArray[np.float32]


def action_box(low: ArrayLike, high: ArrayLike, size: int) -> tuple[Action, Action]:
    """Bounds for every entry of an action; refuses what is no box."""
    try:
        lowest, highest = (
            np.broadcast_to(np.asarray(bound, np.float32), (size,)).copy() for bound in (low, high)
        )
        sound = bool((lowest <= highest).all())
    except ValueError:
        sound = False
    if not sound:
        raise InputError(
            f"action_low, action_high: expected one number or {size} each, the first no larger "
            f"than the second (and none NaN), found {low!r}, {high!r}"
        )
    return lowest, highest
