"""CholQR: right where it can be, finite everywhere."""

from __future__ import annotations

import pytest
import torch

from bilinear_wm.dynamics.cholqr import cholqr, cholqr_jvp


def conditioned(count: int, d: int, m: int, kappa: torch.Tensor) -> torch.Tensor:
    """Random matrices with given condition numbers."""
    left, _ = torch.linalg.qr(torch.randn(count, d, m, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(count, m, m, dtype=torch.float64))
    exponent = torch.linspace(0, 1, m, dtype=torch.float64)
    singular = kappa.double()[:, None] ** -exponent
    return (left * singular[:, None]) @ right


@pytest.mark.parametrize("autocast", [False, True])
def test_ten_thousand_matrices_stay_finite(autocast: bool) -> None:
    torch.manual_seed(0)
    count, d, m = 10_000, 40, 6
    kappa = 10 ** (12 * torch.rand(count))
    matrix = conditioned(count, d, m, kappa)
    matrix *= (10 ** (40 * torch.rand(count) - 20))[:, None, None]
    matrix[::10, :, 2] = 0  # zero columns
    matrix[1::10, :, 4] = matrix[1::10, :, 1]  # duplicated columns
    matrix[2::100] = 0
    matrix = matrix.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        q = cholqr(matrix)
    assert q.dtype == torch.float32
    assert torch.isfinite(q).all()
    (gradient,) = torch.autograd.grad(q, matrix, torch.randn_like(q))
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_are_orthonormal(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    matrix = conditioned(2000, 192, 10, 10 ** (3 * torch.rand(2000))).to(dtype)
    q = cholqr(matrix).double()
    deviation = torch.linalg.matrix_norm(q.mT @ q - torch.eye(10, dtype=torch.float64))
    assert deviation.max() <= 1e-6
    # and they span what the matrix spans, with a positive triangular factor
    upper = q.mT @ matrix.double()
    assert (upper.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert upper.tril(-1).abs().max() < 1e-5
    torch.testing.assert_close(q @ upper, matrix.double(), atol=1e-5, rtol=1e-5)


def test_derivatives() -> None:
    torch.manual_seed(2)
    matrix = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(cholqr, matrix)
    assert torch.autograd.gradgradcheck(cholqr, matrix)


def test_tangents_match_autograd() -> None:
    torch.manual_seed(3)
    matrix = torch.randn(9, 4, dtype=torch.float64)
    tangents = torch.randn(5, 9, 4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(cholqr, matrix)
    q, moved = cholqr_jvp(matrix, tangents)
    torch.testing.assert_close(q, cholqr(matrix))
    torch.testing.assert_close(moved, torch.einsum("abij,kij->kab", jacobian, tangents))


def test_a_gauge_leaves_it_alone() -> None:
    torch.manual_seed(4)
    matrix = torch.randn(8, 4, dtype=torch.float64)
    gauge = torch.randn(4, 4, dtype=torch.float64).triu()
    gauge.diagonal().abs_().add_(0.1)
    torch.testing.assert_close(cholqr(matrix @ gauge), cholqr(matrix))


def test_low_precision_input() -> None:
    assert cholqr(torch.randn(6, 3, dtype=torch.bfloat16)).dtype == torch.float32
