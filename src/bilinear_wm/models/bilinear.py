"""The bilinear world model: an encoder, and z' = A z + CholQR(B + C z) R a.

`dynamics/bilinear.py` has the legend; the objective is the paper's P-hat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics, apply
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.models.base import Loss, WorldModel
from bilinear_wm.models.config import ModelConfig


@dataclass(frozen=True)
class BilinearConfig(ModelConfig):
    """Attributes:
    normalization: `cholqr` as above; `none` for the strictly bilinear map of the paper's
        Equation 1, M(z) = B + C z, with the pseudo-inverse of its Equation 2.
    min_singular: epsilon of the paper's Problem (P): R^T R >= epsilon I by construction;
        0 leaves R free.
    inverse_weight: lambda of the paper's objective.
    gain_init: R starts as this multiple of the identity.
    forward_unit: What the forward error is measured in: `latent` units, as in the paper, or
        `motion`, the typical squared change of the latent in a block. The second does not
        depend on the latents' scale, so that shrinking them gains nothing.
    residual_hidden: Width of the planning residual; 0 while there is none.
    """

    normalization: Literal["cholqr", "none"] = "cholqr"
    min_singular: float = 0.0
    inverse_weight: float = 30.0
    gain_init: float = 1.0
    forward_unit: Literal["latent", "motion"] = "latent"
    residual_hidden: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.latent_size < self.block_size:
            name, each = ("num_points", 2) if self.encoder == "points" else ("projector_size", 1)
            lacking = self.block_size - self.latent_size
            least = getattr(self, name) + -(-lacking // (each * len(self.cameras) * self.observed))
            raise InputError(
                f"{name}: expected at least {least}, for a latent of as many numbers as a block of "
                f"actions has ({self.block_size}), found {getattr(self, name)}"
            )


class BilinearWorldModel(WorldModel):
    """Encoder and bilinear dynamics, trained by the paper's objective (its P-hat)."""

    kind = "bilinear"
    config_class = BilinearConfig
    config: BilinearConfig
    dynamics: BilinearDynamics | ResidualDynamics

    def __init__(self, config: BilinearConfig) -> None:
        super().__init__(config)
        structured = BilinearDynamics(
            config.latent_size,
            config.block_size,
            config.normalization,
            config.min_singular,
            config.gain_init,
            config.action_size,
        )
        hidden = config.residual_hidden
        self.dynamics = ResidualDynamics(structured, hidden) if hidden > 0 else structured

    def with_residual(self, hidden: int) -> BilinearWorldModel:
        """A copy with a residual, which adds nothing yet."""
        model = BilinearWorldModel(replace(self.config, residual_hidden=hidden))
        model.load_state_dict(self.state_dict(), strict=False)  # all but the dynamics
        model.dynamics.structured.load_state_dict(self.dynamics.structured.state_dict())
        return model

    def latent_loss(
        self, z: Float[Tensor, "batch frames d"], actions: Float[Tensor, "batch frames-1 m"]
    ) -> Loss:
        """Forward error + lambda * error of the recovered actions, as means (and the options)."""
        with torch.autocast(z.device.type, enabled=False):
            m_z, recovered, moved = self.dynamics.structured.transition(z[:, :-1], z[:, 1:])
            forward = (moved - apply(m_z, actions)).square().mean()
            inverse = (actions - recovered).square().mean()
            if self.config.forward_unit == "motion":
                forward = forward / typical_motion(z)
            return Loss(forward + self.config.inverse_weight * inverse, forward, inverse)

    @torch.no_grad()
    def health(self) -> dict[str, float]:
        """Collapse begins where the smallest singular value of R goes to zero."""
        singular = torch.linalg.svdvals(self.dynamics.structured.R.double())
        return {"sigma_min": float(singular[-1]), "sigma_max": float(singular[0])}

    def finalize(self, z: Float[Tensor, "batch d"]) -> None:
        self.dynamics.structured.fold_gauge(z)

    @staticmethod
    def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """R was called scale, and a residual had A, B, C and R beside it, not inside."""
        extended = any(name.startswith("dynamics.residual.") for name in tensors)
        inside = "dynamics.structured." if extended else "dynamics."

        def now(name: str) -> str:
            if re.match(r"dynamics\.([ABC]$|scale\.)", name) is None:
                return name
            name = name.replace("dynamics.", inside, 1).replace(".scale.", ".gain.")
            return name.replace(".gain.spread", ".gain.excess")

        return {now(name): tensor for name, tensor in tensors.items()}


def typical_motion(z: Float[Tensor, "batch frames d"]) -> Float[Tensor, ""]:
    """The geometric mean over transitions of the mean squared change of the latent.

    Less swayed by a few large changes than the arithmetic mean, of which a hundredth is added so
    that standing still counts, but not for ever.
    """
    change = (z[:, 1:] - z[:, :-1]).square().mean(-1)
    floor = 0.01 * change.detach().mean() + torch.finfo(z.dtype).tiny
    return (change + floor).log().mean().exp()
