"""Linear probes: what can be read off a latent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.tasks import task_class

RIDGE = 1e-4

Variables = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class LinearProbe:
    """Physical variables as W z + b, by ridge regression on standardised latents.

    Attributes:
        names: Of the variables.
        matrix: W.
        offset: b.
        std: Of each variable in the data that it was fitted to; what counts as one where states
            are goals.
    """

    names: tuple[str, ...]
    matrix: Float[Tensor, "n d"]
    offset: Float[Tensor, " n"]
    std: Float[Tensor, " n"]

    @classmethod
    def fitted(cls, z: Float[Tensor, "samples d"], variables: Variables) -> Self:
        """The probe of some latents and the variables that belong to them."""
        inputs = z.double().cpu().numpy()
        mean, std = inputs.mean(0), inputs.std(0) + 1e-12
        x = np.concatenate([(inputs - mean) / std, np.ones((len(inputs), 1))], axis=1)
        y = np.stack(list(variables.values()), axis=1)
        penalty = RIDGE * len(x) * np.eye(x.shape[1])
        weights = np.linalg.solve(x.T @ x + penalty, x.T @ y)
        matrix = weights[:-1] / std[:, None]
        offset = weights[-1] - mean @ matrix
        found = (torch.from_numpy(part) for part in (matrix.T.copy(), offset, y.std(0) + 1e-12))
        return cls(tuple(variables), *found)

    def read(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch n"]:
        """The variables of latents."""
        return z.to(self.matrix) @ self.matrix.T + self.offset

    def only(self, names: Sequence[str]) -> Self:
        """The probe of some of the variables."""
        rows = [self.names.index(name) for name in names]
        parts = (part[rows] for part in (self.matrix, self.offset, self.std))
        return type(self)(tuple(names), *parts)

    def scores(self, z: Float[Tensor, "samples d"], variables: Variables) -> dict[str, float]:
        """R^2 of each variable on other latents."""
        found = self.read(z.cpu()).numpy()
        return {
            name: float(1 - np.square(truth - read).mean() / max(truth.var(), 1e-12))
            for (name, truth), read in zip(variables.items(), found.T, strict=True)
        }


def probe(
    task: str,
    z_fit: Float[Tensor, "windows t d"],
    states_fit: NDArray[np.float64],
    z: Float[Tensor, "others u d"],
    states: NDArray[np.float64],
) -> dict[str, float]:
    """R^2 of a linear probe of each of a task's variables, on held-out data."""
    targets = task_class(task).probe_targets
    fit, test = (targets(s.reshape(-1, s.shape[-1])) for s in (states_fit, states))
    return LinearProbe.fitted(z_fit.flatten(0, 1), fit).scores(z.flatten(0, 1), test)
