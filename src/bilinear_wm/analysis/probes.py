"""Linear probes: what can be read off a latent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.tasks import task_class

RIDGE = 1e-4


def probe(
    task: str,
    z_fit: Tensor,
    states_fit: NDArray[np.float64],
    z: Tensor,
    states: NDArray[np.float64],
) -> dict[str, float]:
    """R^2 of a ridge regression from latents to each state variable, on held-out data."""
    inputs, test = (x.flatten(0, 1).double().cpu().numpy() for x in (z_fit, z))
    mean, std = inputs.mean(0), inputs.std(0) + 1e-12
    x, x_test = (_with_ones((a - mean) / std) for a in (inputs, test))
    targets = task_class(task).probe_targets
    y, y_test = (targets(s.reshape(-1, s.shape[-1])) for s in (states_fit, states))
    penalty = RIDGE * len(x) * np.eye(x.shape[1])
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.stack(list(y.values()), axis=1))
    scores = {}
    for column, (name, truth) in enumerate(y_test.items()):
        residual = np.square(truth - x_test @ weights[:, column]).mean()
        scores[name] = float(1 - residual / max(truth.var(), 1e-12))
    return scores


def _with_ones(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)
