"""The paper's existence argument on a system small enough to see all of it.

    python examples/koopman.py

A control-affine system (paper, Assumption 1) with a slow and a fast coordinate,

    dx1/dt = a x1 + u1,    dx2/dt = b (x2 - x1^2) + (1 + c x1) u2,

is nonlinear in x. Its observables z = (x1, x2, x1^2) close: d(x1^2)/dt = 2 a x1^2 + 2 x1 u1, so

    dz/dt = A z + M(z) u,    M(z) = B + C z

holds exactly, everywhere, in three dimensions (Proposition 1, where in general infinitely many are
needed). M(z) has full column rank wherever the two inputs act independently (Assumption 2), and
there the action can be recovered from a state and its velocity.

Where it stops being exact: at 1 + c x1 = 0 the second input does nothing and cannot be recovered.
And pictures come in discrete time: over a step of length h the action enters x1^2 squared, so that
z' = A_h z + (B_h + C_h z) u is right to first order in h only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics

SLOW, FAST, COUPLING = -0.1, -1.0, 0.4


def velocity(x: Tensor, u: Tensor) -> Tensor:
    """dx/dt, for (..., 2) and (..., 2)."""
    (x1, x2), (u1, u2) = x.unbind(-1), u.unbind(-1)
    return torch.stack(
        [SLOW * x1 + u1, FAST * (x2 - x1.square()) + (1 + COUPLING * x1) * u2], dim=-1
    )


def observe(x: Tensor) -> Tensor:
    """z = (x1, x2, x1^2)."""
    x1, x2 = x.unbind(-1)
    return torch.stack([x1, x2, x1.square()], dim=-1)


def observed_velocity(x: Tensor, u: Tensor) -> Tensor:
    """dz/dt by the chain rule, from the system itself."""
    moving = velocity(x, u)
    return torch.stack([moving[..., 0], moving[..., 1], 2 * x[..., 0] * moving[..., 0]], dim=-1)


def embedding() -> BilinearDynamics:
    """A, B and C by hand: `step` gives dz/dt, the paper's Equation 1."""
    made = BilinearDynamics(3, 2, normalization="none").double()
    with torch.no_grad():
        for matrix in (made.A, made.B, made.C):
            matrix.zero_()
        made.A[0, 0] = SLOW
        made.A[1, 1], made.A[1, 2] = FAST, -FAST
        made.A[2, 2] = 2 * SLOW
        made.B[0, 0] = 1  # u1 moves x1 ...
        made.C[2, 0, 0] = 2  # ... and x1^2 by 2 x1
        made.B[1, 1] = 1  # u2 moves x2 ...
        made.C[1, 1, 0] = COUPLING  # ... by 1 + c x1
    return made


def after(x: Tensor, u: Tensor, duration: float, substeps: int = 200) -> Tensor:
    """The system under a held action, by fourth-order Runge-Kutta."""
    h = duration / substeps
    for _ in range(substeps):
        k1 = velocity(x, u)
        k2 = velocity(x + h / 2 * k1, u)
        k3 = velocity(x + h / 2 * k2, u)
        k4 = velocity(x + h * k3, u)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def discrete_error(duration: float, samples: int = 2000) -> float:
    """Typical error of the best bilinear map in discrete time, found by least squares."""
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, samples, 2, generator=generator).double()
    z, target = observe(x), observe(after(x, u, duration, 20))
    products = (torch.cat([torch.ones(samples, 1), z], dim=1)[..., None] * u[:, None]).flatten(1)
    terms = torch.cat([z, products], dim=1)
    fitted = terms @ torch.linalg.lstsq(terms, target).solution
    return float((fitted - target).square().mean().sqrt())


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    dynamics = embedding()
    x, u = 2 * torch.randn(2, 10_000, 2).double()
    z, moving = observe(x), observed_velocity(x, u)
    print(f"dz/dt = A z + M(z) u, at 10,000 states: off by at most "
          f"{float((dynamics.step(z, u) - moving).abs().max()):.1e}")  # fmt: skip

    independent = (1 + COUPLING * x[:, 0]).abs() > 0.01
    found = dynamics.inverse(z[independent], moving[independent])
    print(f"actions recovered where 1 + c x1 is not near zero: off by at most "
          f"{float((found - u[independent]).abs().max()):.1e}")  # fmt: skip

    for x1 in (0.0, -1.0, -2.4, -2.499, -1 / COUPLING):
        action_map = dynamics.action_map(observe(torch.tensor([x1, 0.3]).double()))
        smallest = float(torch.linalg.svdvals(action_map)[-1])
        print(f"  x1 = {x1:6.3f}: smallest singular value of M(z) {smallest:.1e}")

    print("one step of length h in discrete time, the best bilinear map:")
    for h in (0.4, 0.2, 0.1, 0.05):
        print(f"  h = {h:4.2f}: off by {discrete_error(h):.1e}")


if __name__ == "__main__":
    main()
