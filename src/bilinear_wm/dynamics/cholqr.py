"""Cholesky-QR: the orthonormal factor of a tall matrix, robust and differentiable.

With M (d x m, full column rank), G = M^T M = L L^T and Q = M L^-T the columns of Q are
orthonormal and span those of M. Three things make it safe where plain CholQR fails:

- everything that squares the condition number happens in float64, autocast off;
- columns are scaled to unit length first, which leaves Q as it is (Q does not change under
  M -> M T for upper triangular T with positive diagonal);
- a relative shift of 1e-13 keeps G positive definite whatever M is, zero and duplicated
  columns included.

The derivative is written out instead of left to autograd, which would pass through the
derivative of the Cholesky factor. For an incoming gradient Qb, with Y = Q^T Qb:

    Mb = (Qb - Q S) L^-1,    S = triu(Y) + triu(Y, 1)^T
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

SHIFT = 1e-13


def cholqr(matrix: Float[Tensor, "*batch d m"]) -> Float[Tensor, "*batch d m"]:
    """The orthonormal factor Q of `matrix`, in its dtype (at least float32)."""
    if matrix.dtype in (torch.float16, torch.bfloat16):
        matrix = matrix.float()
    result: Tensor = _CholQR.apply(matrix)
    return result


def factor(
    matrix: Float[Tensor, "*batch d m"],
) -> tuple[Float[Tensor, "*batch d m"], Float[Tensor, "*batch m m"]]:
    """Q and L^-1 in float64, by differentiable operations."""
    with torch.autocast(matrix.device.type, enabled=False):
        wide = matrix.double()
        length = wide.detach().norm(dim=-2, keepdim=True)
        length = torch.where(length > 0, length, torch.ones_like(length))
        unit = wide / length
        eye = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
        gram = unit.mT @ unit + SHIFT * eye
        lower, _ = torch.linalg.cholesky_ex(gram)
        inverse = torch.linalg.solve_triangular(lower, eye.expand_as(gram), upper=False)
        return unit @ inverse.mT, inverse / length


def gram_factor(matrix: Float[Tensor, "*batch d m"]) -> Float[Tensor, "*batch m m"]:
    """L alone, in float64: enough to apply Q, as Q b = M (L^-T b), without forming it."""
    wide = matrix.double()  # which autocast leaves alone
    gram = wide.mT @ wide
    squares = gram.detach().diagonal(dim1=-2, dim2=-1)
    shift = F.threshold(SHIFT * squares, 0.0, 1.0)  # 1 where the square is zero
    gram.diagonal(dim1=-2, dim2=-1).add_(shift)
    return torch.linalg.cholesky_ex(gram)[0]


def cholqr_jvp(
    matrix: Float[Tensor, "*batch d m"], tangents: Float[Tensor, "*batch k d m"]
) -> tuple[Float[Tensor, "*batch d m"], Float[Tensor, "*batch k d m"]]:
    """Q and how it moves with the matrix: dQ = W - Q U(Q^T W), W = dM L^-T."""
    q, inverse = (x.to(matrix.dtype) for x in factor(matrix))
    w = tangents @ inverse.mT.unsqueeze(-3)
    return q, w - q.unsqueeze(-3) @ upper(q.mT.unsqueeze(-3) @ w)


def upper(x: Float[Tensor, "*batch m m"]) -> Float[Tensor, "*batch m m"]:
    """U(X) = triu(X) + tril(X, -1)^T."""
    return (x + x.mT) * _upper_half(x.shape[-1], x.dtype, x.device)


@functools.cache
def _upper_half(size: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "size size"]:
    """Ones above the diagonal, halves on it."""
    with torch.inference_mode(False):
        return torch.ones(size, size, dtype=dtype, device=device).triu().fill_diagonal_(0.5)


class _CholQR(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        q, inverse = factor(matrix)
        ctx.save_for_backward(matrix, q, inverse)
        return q.to(matrix.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        matrix, q, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: rebuild the graph
            q, inverse = factor(matrix)
        with torch.autocast(matrix.device.type, enabled=False):
            grad = grads[0].double()
            inner = q.mT @ grad
            symmetric = inner.triu() + inner.triu(1).mT
            limit = torch.finfo(matrix.dtype).max
            return ((grad - q @ symmetric) @ inverse).clamp(-limit, limit).to(matrix.dtype)
