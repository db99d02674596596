"""Does the model still explain what happens? The action-recovery monitor.

After a block was executed, the action that the model recovers from the two latents is compared
with the action that was sent. In the directions that pictures show well they agree; a push from
outside, a blocked arm or a changed picture makes them differ.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import WorldModel
from bilinear_wm.observation import Seen

BLOCKS_KEPT = 32
"""Blocks that wait to be looked at, at most, while a plan is made."""


@dataclass(frozen=True)
class Block:
    """A block as it happened."""

    before: Seen
    actions: NDArray[np.float32]
    """Raw, one row a tick."""
    after: Seen


class Trail:
    """What was done between what was seen, in blocks: those of which both ends were seen."""

    def __init__(self, frame_skip: int) -> None:
        self._skip = frame_skip
        self._done: list[NDArray[np.float32]] = []
        self._blocks: deque[Block] = deque(maxlen=BLOCKS_KEPT)
        self.anchor: Seen | None = None
        """Where the next block begins."""

    @property
    def block_ends(self) -> bool:
        """Whether what is seen now would end a block."""
        return self.anchor is not None and len(self._done) == self._skip

    def act(self, action: NDArray[np.float32]) -> None:
        self._done.append(action)
        if len(self._done) > self._skip:  # nobody saw the block's end
            self.anchor, self._done = None, []

    def observe(self, seen: Seen | None) -> None:
        if self.anchor is not None and seen is not None:
            if not self.block_ends:
                return
            self._blocks.append(Block(self.anchor, np.array(self._done), seen))
        self.anchor, self._done = seen, []

    def take(self) -> tuple[Block, ...]:
        """The blocks since the last time."""
        taken = tuple(self._blocks)
        self._blocks.clear()
        return taken


@dataclass(frozen=True)
class ActionMonitor:
    """Compares recovered with executed actions.

    Attributes:
        dynamics: The bilinear dynamics, without a residual.
        threshold: Largest disagreement that still counts as explained.
    """

    dynamics: BilinearDynamics
    threshold: float

    @torch.no_grad()
    def disagreement(
        self,
        z: Float[Tensor, "*batch d"],
        action: Float[Tensor, "*batch m"],
        z_next: Float[Tensor, "*batch d"],
    ) -> Float[Tensor, "*batch"]:
        """Distance between recovered and executed action, averaged over the block."""
        size = self.dynamics.env_action_size
        difference = self.dynamics.inverse(z, z_next) - action
        return difference.unflatten(-1, (-1, size)).mean(-2).norm(dim=-1)

    def fires(
        self, z: Float[Tensor, " d"], action: Float[Tensor, " m"], z_next: Float[Tensor, " d"]
    ) -> bool:
        """Whether one block is not explained."""
        return bool(self.disagreement(z, action, z_next) > self.threshold)

    @classmethod
    def calibrated(
        cls,
        model: WorldModel,
        z: Float[Tensor, "windows frames d"],
        actions: Float[Tensor, "windows frames-1 m"],
        false_alarms: float = 0.01,
    ) -> ActionMonitor:
        """The threshold that a share of undisturbed blocks exceeds."""
        if not isinstance(model.dynamics, BilinearDynamics | ResidualDynamics):
            raise InputError(
                f"monitor: expected a bilinear model, which recovers actions, found {model.kind}"
            )
        dynamics = model.dynamics.structured
        monitor = cls(dynamics, float("inf"))
        values = monitor.disagreement(z[:, :-1], actions, z[:, 1:]).flatten()
        return cls(dynamics, float(torch.quantile(values.float(), 1 - false_alarms)))
