"""Our worlds against trajectories recorded from the benchmark's own environments."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bilinear_wm.tasks import make_task

STATE_TOLERANCE = {"tworoom": 1e-6, "pusht": 1e-6, "reacher": 1e-6, "cube": 1e-4}
PICTURE_TOLERANCE = {"tworoom": 2, "pusht": 2, "reacher": 2, "cube": 6}

Reference = Callable[[str], dict[str, np.ndarray]]


def test_states_and_success_flags(task_name: str, reference: Reference) -> None:
    recorded = reference(task_name)
    env = make_task(task_name, image_size=8, render_quality="fast")
    env.begin(seed=0)
    successes = 0
    for states, actions, goal, flags in zip(
        *(recorded[key] for key in ("states", "actions", "goals", "success")), strict=True
    ):
        env.set_state(states[0])
        env.set_goal(goal)
        np.testing.assert_allclose(env.state, states[0], rtol=0, atol=STATE_TOLERANCE[task_name])
        for action, expected, flag in zip(actions, states[1:], flags, strict=True):
            if np.isnan(action).any():
                break
            solved = env.advance(action)
            np.testing.assert_allclose(env.state, expected, rtol=0, atol=STATE_TOLERANCE[task_name])
            assert solved == flag
            successes += solved
    assert successes == recorded["success"].sum() > 0


def test_pictures(task_name: str, reference: Reference) -> None:
    recorded = reference(task_name)
    env = make_task(task_name)
    for states, frames in zip(recorded["states"], recorded["frames"], strict=False):
        for step, frame in zip(recorded["frame_steps"], frames, strict=True):
            if not np.isnan(states[step]).any():
                difference = np.abs(env.picture(states[step]).astype(int) - frame).mean()
                assert difference <= PICTURE_TOLERANCE[task_name]
    env.close()


@pytest.mark.parametrize("name", ["reacher", "cube"])
@pytest.mark.parametrize("image_size", [64, 224])
def test_fast_pictures_stay_close(name: str, image_size: int, reference: Reference) -> None:
    states = reference(name)["states"][:, ::8].reshape(-1, reference(name)["states"].shape[-1])
    states = states[~np.isnan(states).any(axis=1)][:8]
    faithful, fast = (make_task(name, image_size, quality) for quality in ("faithful", "fast"))
    for state in states:
        difference = faithful.picture(state).astype(int) - fast.picture(state)
        assert np.abs(difference).mean() <= 1
    faithful.close()
    fast.close()
