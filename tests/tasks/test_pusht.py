"""The scripted demonstrator: lively, purposeful, inside the arena."""

from __future__ import annotations

import numpy as np
import pytest

from bilinear_wm.data.episode import episode_seed, record_episode
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.pusht import PushT, clearance, to_block, to_world


@pytest.fixture(scope="module")
def episodes() -> list[np.ndarray]:
    env = make_task("pusht", image_size=8)
    return [record_episode(env, episode_seed(0, i), 1000).states for i in range(40)]


def test_the_block_keeps_moving(episodes: list[np.ndarray]) -> None:
    before = np.concatenate([states[:-25] for states in episodes])
    after = np.concatenate([states[25:] for states in episodes])
    (moves,) = PushT.window_shares(before, after).values()
    assert moves.mean() >= 0.75
    assert PushT.success(before, after).mean() <= 0.02


def test_contact_is_kept_most_of_the_time(episodes: list[np.ndarray]) -> None:
    gaps = [clearance(state[:2], state[2:5]) for states in episodes for state in states]
    assert np.mean(np.array(gaps) < 17) > 0.5


def test_everything_stays_in_the_arena(episodes: list[np.ndarray]) -> None:
    states = np.concatenate(episodes)
    assert states[:, :4].min() > 0
    assert states[:, :4].max() < 512


def test_motion_is_smooth(episodes: list[np.ndarray]) -> None:
    steps = [np.diff(states[:, :2], axis=0) for states in episodes]
    speed = np.concatenate([np.linalg.norm(s, axis=1) for s in steps])
    assert 15 < np.percentile(speed, 95) < 28  # the benchmark's demonstrators: 22.4 px
    turns = np.concatenate([np.linalg.norm(np.diff(s, axis=0), axis=1) for s in steps])
    assert turns.mean() < 0.5 * speed.mean()


def test_frames_of_reference_invert() -> None:
    rng = np.random.default_rng(0)
    points, pose = rng.normal(size=(5, 2)), np.array([100.0, 50.0, 1.2])
    np.testing.assert_allclose(to_block(to_world(points, pose), pose), points)


def test_clearance_is_a_signed_distance() -> None:
    pose = np.array([0.0, 0.0, 0.0])
    assert clearance(np.array([0.0, -10.0]), pose) == pytest.approx(10)
    assert clearance(np.array([0.0, 15.0]), pose) == pytest.approx(-15)
    assert clearance(np.array([63.0, -4.0]), pose) == pytest.approx(5)
