"""The checks of shapes are on, in every room."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError

from bilinear_wm.analysis.diagnose import latent_geometry
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.cholqr import cholqr
from bilinear_wm.planning.base import search_result


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cholqr(torch.zeros(3)),
        lambda: search_result(torch.zeros(2, 3, 4), torch.zeros(5), 1, 1),
        lambda: ActionMonitor(BilinearDynamics(4, 2), 1.0).disagreement(
            torch.zeros(3, 4), torch.zeros(3, 2), torch.zeros(5, 4)
        ),
        lambda: latent_geometry(torch.zeros(2, 3, 4), 2),
    ],
    ids=["dynamics", "planning", "control", "analysis"],
)
def test_a_wrong_shape_is_found_out(wrong: Callable[[], object]) -> None:
    with pytest.raises(TypeCheckError):
        wrong()
