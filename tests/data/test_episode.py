"""One episode: its seed, its hand, its expert."""

from __future__ import annotations

import numpy as np
import pytest

from bilinear_wm.data.episode import EVALUATION_STREAM, episode_seed, record_episode
from bilinear_wm.tasks import make_task


def test_seeds_of_data_and_evaluation_never_meet() -> None:
    training = {episode_seed(0, i) for i in range(1000)}
    evaluation = {episode_seed(0, i, EVALUATION_STREAM) for i in range(1000)}
    assert len(training | evaluation) == 2000


def test_a_disturbed_hand_is_held_for_a_while_and_stays_in_the_box() -> None:
    env = make_task("pusht", image_size=8)
    still = env.disturbed(lambda: np.zeros(2, np.float32), 0.6, np.random.default_rng(0))
    actions = np.stack([still() for _ in range(3000)])
    assert actions.dtype == np.float32
    assert np.abs(actions).max() == 1
    changes = np.flatnonzero((np.diff(actions, axis=0) != 0).any(axis=1))
    assert np.diff(changes).min() >= 3
    assert 0.3 < (actions == 0).all(axis=1).mean() < 0.5
    seed = episode_seed(0, 0)
    once, again = (record_episode(env, seed, 1000, disturbance=0.25).actions for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert np.abs(once - record_episode(env, seed, 1000).actions[: len(once)]).max() > 0.1


def test_the_expert_stops_at_its_goal() -> None:
    env = make_task("tworoom", image_size=8)
    lengths = [len(record_episode(env, seed, 100).actions) for seed in range(30)]
    assert min(lengths) < env.episode_steps == max(lengths)


@pytest.mark.slow
def test_cube_behaviour_carries_the_cube() -> None:
    env = make_task("cube", image_size=8, render_quality="fast")
    states = record_episode(env, 3, 1000).states
    height = states[:, 16]
    assert height.max() > 0.1  # lifted
    assert np.linalg.norm(states[-1, 14:16] - states[0, 14:16]) > 0.02
