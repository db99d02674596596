"""R, the matrix that says how far each action moves a latent: free, or bounded from below."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class FreeMatrix(nn.Module):
    """A square matrix that starts as a multiple of the identity."""

    def __init__(self, size: int, start: float) -> None:
        super().__init__()
        self.values = nn.Parameter(start * torch.eye(size))

    def matrix(self) -> Tensor:
        return self.values


class BoundedMatrix(nn.Module):
    """U diag(sqrt(epsilon) + softplus(s)) V^T: no singular value below sqrt(epsilon).

    Starts as a multiple of the identity, U = V, in the basis of the discrete cosine transform
    over the actions of a block: its first columns are the actions that are held, which pictures
    show best, so that singular values can part without the basis turning first. The softplus is
    as sharp as the start is small, lest small values hardly move.
    """

    def __init__(self, size: int, start: float, min_singular: float, env_action_size: int) -> None:
        super().__init__()
        self.root = min_singular**0.5
        above = max(start - self.root, 1e-3)
        self.sharpness = 1 / above
        self.left = parametrizations.orthogonal(nn.Linear(size, size, bias=False))
        self.right = parametrizations.orthogonal(nn.Linear(size, size, bias=False))
        basis = torch.kron(_cosines(size // env_action_size), torch.eye(env_action_size))
        with torch.no_grad():
            self.left.weight = self.right.weight = basis
        self.excess = nn.Parameter(torch.full((size,), math.log(math.e - 1) * above))
        self._known: tuple[list[tuple[int, int, torch.dtype]], Tensor] | None = None

    def matrix(self) -> Tensor:
        """Computed once for the same parameters, unless a gradient is wanted."""
        if torch.is_grad_enabled():
            return self._product()
        state = [(p.data_ptr(), p._version, p.dtype) for p in self.parameters()]
        if self._known is None or self._known[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                self._known = state, self._product()
        return self._known[1]

    def _product(self) -> Tensor:
        singular = self.root + F.softplus(self.excess, beta=self.sharpness)
        product: Tensor = (self.left.weight * singular) @ self.right.weight.mT
        return product


def _cosines(size: int) -> Tensor:
    """The orthonormal discrete cosine transform, one frequency a column."""
    steps, frequencies = torch.arange(size) + 0.5, torch.arange(size)
    waves = torch.cos(torch.pi / size * steps[:, None] * frequencies)
    return waves / waves.norm(dim=0)
