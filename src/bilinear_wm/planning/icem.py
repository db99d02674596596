"""iCEM: CEM with coloured noise and elites that survive (paper, Appendix B.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.planning.base import PlannableDynamics, require
from bilinear_wm.planning.cem import CEMConfig, CEMPlanner


@dataclass(frozen=True)
class ICEMConfig(CEMConfig):
    """Settings beyond CEM's.

    Attributes:
        colour: beta: the noise's power falls with frequency to this power; 0 is white.
        survivors: Elites that join the next population as they are, together with the mean.
    """

    colour: float = 2.0
    survivors: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("colour", self.colour >= 0, "a number that is not negative", self)
        fits = 0 <= self.survivors <= min(self.elites, self.samples - 2)
        require("survivors", fits, "0 to elites, fewer than samples - 1", self)


class ICEMPlanner(CEMPlanner):
    """No population decay and no shift between calls, as in the paper."""

    config_class = ICEMConfig
    config: ICEMConfig

    def __init__(self, dynamics: PlannableDynamics, config: ICEMConfig | None = None) -> None:
        super().__init__(dynamics, config or ICEMConfig())

    def _noise(
        self, count: int, horizon: int, generator: torch.Generator
    ) -> Float[Tensor, "count h m"]:
        """Coloured over environment steps, so that smoothness reaches across blocks."""
        white = super()._noise(count, horizon, generator)
        steps = white.unflatten(-1, (-1, self.dynamics.env_action_size)).flatten(1, 2)
        return coloured(steps, self.config.colour).reshape(white.shape)

    def _kept(
        self,
        mean: Float[Tensor, "batch h m"],
        elites: Float[Tensor, "batch elites h m"] | None,
    ) -> Float[Tensor, "batch kept h m"]:
        if elites is None or self.config.survivors == 0:
            return mean[:, None][:, :0]
        return torch.cat([elites[:, : self.config.survivors], mean[:, None]], dim=1)


def coloured(
    white: Float[Tensor, "count steps a"], colour: float
) -> Float[Tensor, "count steps a"]:
    """Scale the Fourier coefficients by f^(-colour / 2), then back to unit variance.

    The mean takes the weight of the lowest frequency. The variance is set for each step from the
    weights alone: the sequences stay Gaussian and independent of each other.
    """
    if colour == 0:
        return white
    steps = white.shape[1]
    frequency = torch.fft.rfftfreq(steps, dtype=white.dtype)
    frequency[0] = 1 / steps
    weight = frequency ** (-colour / 2)
    shaped = torch.fft.irfft(torch.fft.rfft(white, dim=1) * weight[:, None], n=steps, dim=1)
    # Variance of a step: the mean of the squared weights over all frequencies of both signs.
    twice = torch.full_like(weight, 2.0)
    twice[0] = 1.0
    if steps % 2 == 0:
        twice[-1] = 1.0
    return shaped / ((twice * weight.square()).sum() / steps).sqrt()
