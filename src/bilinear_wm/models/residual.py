"""The planning residual: what the structured dynamics cannot say, learned after it is frozen.

    f(z, a) = S(z, a) + (I - P(z) P(z)^T) r(z, a),    S(z, a) = A z + M(z) a

P(z) is an orthonormal basis of the coherent control directions M(z) E: what actions held constant
over a block do. The projection leaves those directions to the structured model, so that the
residual can sharpen predictions (contacts, walls) but not take control away from it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.models.bilinear import BilinearDynamics
from bilinear_wm.models.cholqr import cholqr, cholqr_jvp


class ResidualDynamics(BilinearDynamics):
    """Bilinear dynamics with a planning residual.

    Args:
        base: The dynamics to extend; its parameters become this module's, frozen.
        hidden: Width of the residual network.
    """

    coherent: Tensor

    def __init__(self, base: BilinearDynamics, hidden: int) -> None:
        nn.Module.__init__(self)
        self.latent_size, self.action_size = d, m = base.latent_size, base.action_size
        self.env_action_size = base.env_action_size
        self.normalization = base.normalization
        self.A, self.B, self.C, self.scale = base.A, base.B, base.C, base.scale
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        last = nn.Linear(hidden, d)
        nn.init.zeros_(last.weight)  # begin as the structured model
        nn.init.zeros_(last.bias)
        self.residual = nn.Sequential(
            nn.Linear(d + m, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), last
        )  # fmt: skip
        repeats = m // base.env_action_size
        coherent = torch.eye(base.env_action_size).repeat(repeats, 1) / repeats**0.5
        self.register_buffer("coherent", coherent, persistent=False)

    def step(
        self, z: Float[Tensor, "*batch d"], a: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch d"]:
        p = cholqr(self.action_map(z) @ self.coherent)
        r = self.residual(torch.cat([z, a], dim=-1))
        return super().step(z, a) + _reject(p, r)

    def step_jet(
        self, z: Float[Tensor, "*batch z_rows d"], a: Float[Tensor, "*batch a_rows m"]
    ) -> Float[Tensor, "*batch a_rows d"]:
        """Adds d[(I - P P^T) r] = (I - P P^T) rdot - Pdot P^T r - P Pdot^T r."""
        z_next = super().step_jet(z, a)
        z = F.pad(z, (0, 0, 0, a.shape[-2] - z.shape[-2]))
        tilde, tilde_dot = self.directions(z[..., 0, :]), self.spread(z[..., 1:, :])
        if self.normalization == "none":
            m_z, m_dot = tilde, tilde_dot
        else:
            q, q_dot = cholqr_jvp(tilde, tilde_dot)
            m_z, m_dot = q @ self.R, q_dot @ self.R
        p, p_dot = cholqr_jvp(m_z @ self.coherent, m_dot @ self.coherent)
        jet = torch.cat([z, a], dim=-1)
        r, r_dot = self._residual_jvp(jet[..., 0, :], jet[..., 1:, :])
        inner = torch.einsum("...ij,...i->...j", p, r)
        inner_dot = torch.einsum("...kij,...i->...kj", p_dot, r)
        turned = torch.einsum("...kij,...j->...ki", p_dot, inner) + inner_dot @ p.mT
        added = torch.cat([r.unsqueeze(-2), r_dot], dim=-2)
        added = added - added @ p @ p.mT
        return z_next + added - F.pad(turned, (0, 0, 1, 0))

    def _residual_jvp(self, x: Tensor, x_dot: Tensor) -> tuple[Tensor, Tensor]:
        """The network and its tangents, layer by layer."""
        for layer in self.residual:
            if isinstance(layer, nn.Linear):
                x, x_dot = layer(x), x_dot @ layer.weight.T
            else:
                slope = torch.func.vmap(torch.func.grad(F.gelu))(x.reshape(-1))
                x, x_dot = layer(x), slope.view_as(x).unsqueeze(-2) * x_dot
        return x, x_dot


def _reject(p: Float[Tensor, "*batch d k"], r: Float[Tensor, "*batch d"]) -> Tensor:
    """The part of r outside the span of p."""
    along = p @ (p.mT @ r.unsqueeze(-1))
    return r - along.squeeze(-1)
