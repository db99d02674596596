"""The bilinear dynamics.

Legend, with the paper's letters: z latent (d), a block of z-scored actions (m),

    z' = A z + M(z) a,    M(z) = Q(z) R,    Q(z) = CholQR(B + C z)         (paper, Eq. 3)

A (d x d) is the drift, B (d x m) and C (d x m x d) generate the directions in which actions
move the latent, R (m x m) says how far. Because Q has orthonormal columns,

    M^T M = R^T R,    a = (R^T R)^-1 R^T Q^T (z' - A z),                   (paper, Eq. 4)

so actions can be recovered wherever R is regular, whatever the latent.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.dynamics.base import Dynamics
from bilinear_wm.dynamics.cholqr import SHIFT, cholqr, gram_factor, upper
from bilinear_wm.dynamics.gain import BoundedMatrix, FreeMatrix


class BilinearDynamics(Dynamics):
    """A, B, C and R."""

    def __init__(
        self,
        latent_size: int,
        action_size: int,
        normalization: Literal["cholqr", "none"] = "cholqr",
        min_singular: float = 0.0,
        gain_init: float = 1.0,
        env_action_size: int | None = None,
    ) -> None:
        super().__init__()
        self.latent_size, self.action_size = d, m = latent_size, action_size
        self.env_action_size = env_action_size or action_size
        self.normalization = normalization
        self.A = nn.Parameter(torch.eye(d))
        self.B = nn.Parameter(torch.randn(d, m) / d**0.5)
        self.C = nn.Parameter(torch.randn(d, m, d) * (0.5 / d))
        self.gain: FreeMatrix | BoundedMatrix = (
            BoundedMatrix(m, gain_init, min_singular, self.env_action_size)
            if min_singular > 0
            else FreeMatrix(m, gain_init)
        )

    @property
    def structured(self) -> BilinearDynamics:
        """What there is without a residual: itself."""
        return self

    @property
    def R(self) -> Float[Tensor, "m m"]:  # noqa: N802
        """How far each action moves the latent along the columns of Q."""
        return self.gain.matrix()

    def directions(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d m"]:
        """B + C z."""
        return self.B + self.turn(z)

    def turn(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d m"]:
        """C z: how the latent turns the directions."""
        # z @ C^T with the long side last runs several times faster than C @ z.
        flat = z @ self.C.view(-1, self.latent_size).T
        return flat.view(*z.shape, self.action_size)

    def action_map(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d m"]:
        """M(z)."""
        tilde = self.directions(z)
        return tilde if self.normalization == "none" else cholqr(tilde) @ self.R

    def affine(
        self, z: Float[Tensor, "*batch d"]
    ) -> tuple[Float[Tensor, "*batch d"], Float[Tensor, "*batch d m"]]:
        """A z and M(z): a step as an affine function of the action."""
        return z @ self.A.T, self.action_map(z)

    def step(
        self, z: Float[Tensor, "*batch d"], a: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch d"]:
        """A z + M(z) a."""
        tilde, drift = self.directions(z), z @ self.A.T
        if self.normalization == "none":
            return drift + apply(tilde, a)
        w = _back_solve(gram_factor(tilde), (a @ self.R.T).unsqueeze(-1))
        return drift + (tilde @ w).squeeze(-1)

    def inverse(
        self, z: Float[Tensor, "*batch d"], z_next: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch m"]:
        """The action that explains a transition best."""
        return self.transition(z, z_next)[1]

    def transition(
        self, z: Float[Tensor, "*batch d"], z_next: Float[Tensor, "*batch d"]
    ) -> tuple[Float[Tensor, "*batch d m"], Float[Tensor, "*batch m"], Float[Tensor, "*batch d"]]:
        """M(z), the recovered action, and what actions must explain: z' - A z."""
        moved = z_next - z @ self.A.T
        if self.normalization == "none":
            m_z = self.directions(z)
            return m_z, _least_squares(m_z.mT @ m_z, apply(m_z.mT, moved)), moved
        q, r = cholqr(self.directions(z)), self.R
        return q @ r, _least_squares(r.mT @ r, apply(q.mT, moved) @ r), moved

    def step_jet(
        self, z: Float[Tensor, "*batch z_rows d"], a: Float[Tensor, "*batch a_rows m"]
    ) -> Float[Tensor, "*batch a_rows d"]:
        """One step, and how it carries tangents: a latent or an action above its tangents.

        Rows pair up; where the action has more tangents, those of the latent begin (zdot = 0).
        With T = B + C z = Q L^T, b = R a, and Mdot = C zdot for a tangent:

            dQ = W - Q U(X),    W = Mdot L^-T,    X = Q^T W = (Q^T Mdot) L^-T
            z'dot = A zdot + Mdot (L^-T b) + Q (R adot - U(X) b)

        with U(X) = triu(X) + tril(X, -1)^T. W is not formed, and all rows pass A and C together.
        """
        k = z.shape[-2] - 1
        drift, turned = z @ self.A.T, self.turn(z)
        q, m_dot = turned.select(-3, 0).add_(self.B), turned.narrow(-3, 1, k)
        b, push = a.narrow(-2, 0, 1).mT, a
        if self.normalization == "cholqr":
            r, inverse = self.R, _inverse_factor(q)
            q, b, push = q @ inverse.mT, r @ b, a @ r.T
            if k:
                inner = q.mT.unsqueeze(-3) @ m_dot
                x = upper((inner.flatten(-3, -2) @ inverse.mT).view_as(inner))
                push.narrow(-2, 1, k).sub_((x.flatten(-3, -2) @ b).view(x.shape[:-1]))
            b = inverse.mT @ b
        drift.narrow(-2, 1, k).add_((m_dot.flatten(-3, -2) @ b).view(m_dot.shape[:-1]))
        z_next = push @ q.mT
        z_next.narrow(-2, 0, 1 + k).add_(drift)
        return z_next

    @torch.no_grad()
    def rescale(self, weight: Float[Tensor, " d"]) -> None:
        """Roughly the same dynamics for latents multiplied by `weight`.

        Roughly, because normalized directions do not stay so: it is where a fit begins.
        """
        self.A.mul_(weight[:, None] / weight)
        self.B.mul_(weight[:, None])
        self.C.mul_(weight[:, None, None] / weight)

    @torch.no_grad()
    def fold_gauge(self, z: Float[Tensor, "batch d"]) -> None:
        """Condition B + C z without changing Q: B -> B T, C -> C T with T = chol(E[G])^-T."""
        if self.normalization == "none":
            return
        tilde = self.directions(z).double()
        gram = (tilde.mT @ tilde).mean(0)
        eye = torch.eye(self.action_size, dtype=gram.dtype, device=gram.device)
        lower = torch.linalg.cholesky(gram + SHIFT * gram.diagonal().mean() * eye)
        gauge = torch.linalg.solve_triangular(lower, eye, upper=False).mT
        self.B.copy_(self.B.double() @ gauge)
        self.C.copy_(torch.einsum("ijl,jk->ikl", self.C.double(), gauge))


def apply(
    matrix: Float[Tensor, "*batch i j"], vector: Float[Tensor, "*batch j"]
) -> Float[Tensor, "*batch i"]:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _back_solve(
    lower: Float[Tensor, "*batch m m"], right: Float[Tensor, "*batch m k"]
) -> Float[Tensor, "*batch m k"]:
    """L^-T right, solved in float64."""
    return torch.linalg.solve_triangular(lower.mT, right.double(), upper=True).to(right.dtype)


def _inverse_factor(tilde: Float[Tensor, "*batch d m"]) -> Float[Tensor, "*batch m m"]:
    """L^-1, computed in float64."""
    lower = gram_factor(tilde)
    eye = _identity(lower.shape[-1], lower.device)
    return torch.linalg.solve_triangular(lower, eye, upper=False).to(tilde.dtype)


@functools.cache
def _identity(size: int, device: torch.device) -> Float[Tensor, "size size"]:
    with torch.inference_mode(False):
        return torch.eye(size, dtype=torch.float64, device=device)


def _least_squares(
    gram: Float[Tensor, "*batch m m"], right: Float[Tensor, "*other m"]
) -> Float[Tensor, "*other m"]:
    """Solve gram x = right for a positive (semi)definite matrix, in float64, never failing."""
    wide = gram.double()
    eye = torch.eye(wide.shape[-1], dtype=wide.dtype, device=wide.device)
    shift = SHIFT * wide.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    lower, _ = torch.linalg.cholesky_ex(wide + (shift + torch.finfo(wide.dtype).tiny) * eye)
    solution = torch.cholesky_solve(
        right.double().unsqueeze(-1), lower.expand(*right.shape[:-1], -1, -1)
    )
    return solution.squeeze(-1).to(right.dtype)
