"""The planning residual: what the structured dynamics cannot say, learned after it is frozen.

    f(z, a) = S(z, a) + (I - P(z) P(z)^T) r(z, a),    S(z, a) = A z + M(z) a

P(z) is an orthonormal basis of the coherent control directions M(z) E: what actions held constant
over a block do. The projection leaves those directions to the structured model, so that the
residual can sharpen predictions (contacts, walls) but not take control away from it.

Where M(z) = Q(z) R, P follows from Q: the columns of Q are orthonormal, so CholQR(Q R E) = Q T with
the constant T = CholQR(R E).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.dynamics.base import Dynamics
from bilinear_wm.dynamics.bilinear import BilinearDynamics, apply
from bilinear_wm.dynamics.cholqr import cholqr, cholqr_jvp


class Gate(nn.Module):
    """x (1 + x / sqrt(1 + x^2)) / 2: shaped like a GELU, of operations that a CPU has in hardware.

    Its slope is (1 + s) / 2 + x c^3 / 2 with c = 1 / sqrt(1 + x^2) and s = x c.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 + 0.5 * x * torch.rsqrt(1 + x * x))

    def slope(self, x: Tensor) -> Tensor:
        c = torch.rsqrt(1 + x * x)
        return 0.5 + 0.5 * x * c * (1 + c * c)


class ResidualDynamics(Dynamics):
    """Bilinear dynamics and a planning residual.

    Args:
        structured: A, B, C and R; frozen from now on.
        hidden: Width of the residual network.
    """

    coherent: Tensor

    def __init__(self, structured: BilinearDynamics, hidden: int) -> None:
        super().__init__()
        self.latent_size, self.action_size = d, m = structured.latent_size, structured.action_size
        self.env_action_size = structured.env_action_size
        self.structured = structured.requires_grad_(False)
        self.residual = nn.Sequential(
            nn.Linear(d + m, hidden), Gate(), nn.Linear(hidden, hidden), Gate(),
            nn.Linear(hidden, d),
        )  # fmt: skip
        self._zero_last()
        repeats = m // self.env_action_size
        coherent = torch.eye(self.env_action_size).repeat(repeats, 1) / repeats**0.5
        self.register_buffer("coherent", coherent, persistent=False)

    def _zero_last(self) -> None:
        """Begin as the structured model."""
        last = self.residual[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    @torch.no_grad()
    def reset_residual(self, z: Float[Tensor, "samples d"]) -> None:
        """Forget the residual; its first layer standardises latents like these."""
        for layer in self.residual:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        self._zero_last()
        std = z.std(0)
        first = self.residual[0]
        assert isinstance(first, nn.Linear)
        first.weight[:, : self.latent_size] /= std.clamp_min(0.02 * std.max())
        first.bias.sub_(first.weight[:, : self.latent_size] @ z.mean(0))

    def step(
        self, z: Float[Tensor, "*batch d"], a: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch d"]:
        r = self.residual(torch.cat([z, a], dim=-1))
        base = self.structured
        tilde = base.directions(z)
        if base.normalization == "none":
            q, p = tilde, cholqr(tilde @ self.coherent)
        else:
            q = cholqr(tilde)
            a, p = a @ base.R.T, q @ self.held_basis()
        return z @ base.A.T + apply(q, a) + _reject(p, r)

    def held_basis(self) -> Float[Tensor, "m k"]:
        """T: the coherent control directions in the basis of Q."""
        return cholqr(self.structured.R @ self.coherent)

    def step_jet(
        self, z: Float[Tensor, "*batch z_rows d"], a: Float[Tensor, "*batch a_rows m"]
    ) -> Float[Tensor, "*batch a_rows d"]:
        """Adds d[(I - P P^T) r] = (I - P P^T) rdot - Pdot P^T r - P Pdot^T r."""
        base = self.structured
        z_next = base.step_jet(z, a)
        z = F.pad(z, (0, 0, 0, a.shape[-2] - z.shape[-2]))
        tilde, tilde_dot = base.directions(z[..., 0, :]), base.turn(z[..., 1:, :])
        if base.normalization == "none":
            p, p_dot = cholqr_jvp(tilde @ self.coherent, tilde_dot @ self.coherent)
        else:
            q, q_dot = cholqr_jvp(tilde, tilde_dot)
            p, p_dot = q @ self.held_basis(), q_dot @ self.held_basis()
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
                assert isinstance(layer, Gate)
                x, x_dot = layer(x), layer.slope(x).unsqueeze(-2) * x_dot
        return x, x_dot


def _reject(p: Float[Tensor, "*batch d k"], r: Float[Tensor, "*batch d"]) -> Tensor:
    """The part of r outside the span of p."""
    along = p @ (p.mT @ r.unsqueeze(-1))
    return r - along.squeeze(-1)
