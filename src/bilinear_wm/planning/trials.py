"""What both engines of Gauss-Newton try: how many candidates, and how steps are damped."""

from __future__ import annotations

import math

TRIALS = 4
"""Steps among which the best is taken."""
ENOUGH = 0.75
"""Of what the quadratic promises: a first step that brings as much is taken as it is."""
DAMPINGS = (0.0, *(10.0**power for power in range(-3, 8)))
"""Of the steps in turn, in units of the Hessian's mean diagonal and beside the planner's own."""
MOST_ALIGNED = 8
"""Candidates along one line: more of them see little that is new."""


def num_aligned(candidates: int) -> int:
    """How many of the candidates go down the gradient; the others are random."""
    return min(math.ceil(candidates / 2), MOST_ALIGNED)
