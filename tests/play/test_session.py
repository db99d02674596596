"""What a session shows."""

from __future__ import annotations

import numpy as np
import pytest

from bilinear_wm.play.session import SharedModel
from bilinear_wm.tasks import make_task


def test_latents_are_drawn_where_they_are(shared: SharedModel) -> None:
    camera = make_task("tworoom", 64, "fast")
    states = np.array([[50.0, 60.0], [180.0, 170.0]])
    z = shared.model.encode(np.stack([camera.picture(state) for state in states]))
    assert np.array(shared.path(z)) == pytest.approx(states / 224, abs=0.03)
