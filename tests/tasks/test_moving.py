"""Goals that wander: as fast as said, where they may be, the same for everybody."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bilinear_wm.data.episode import episode_seed, simulate_episode
from bilinear_wm.tasks import TASK_NAMES, make_task
from bilinear_wm.tasks.base import GoalMotion, Task
from bilinear_wm.tasks.moving import GoalWalk, MovingGoal
from bilinear_wm.tasks.tworoom import WALL_LEFT, WALL_RIGHT, TwoRoom, _in_door


@pytest.fixture(scope="module", params=TASK_NAMES)
def env(request: pytest.FixtureRequest) -> Task:
    made = make_task(request.param, image_size=8)
    made.begin(seed=3)
    return made


def test_goals_move_at_their_speed_and_stay_inside(env: Task) -> None:
    motion = env.goal_motion
    walk = GoalWalk(type(env), env.goal, [1, 2])
    path = np.array([walk[t] for t in range(200)])
    for entries in motion.axes:  # what moves together keeps its distance
        np.testing.assert_allclose(
            np.ptp(path[:, entries] - path[:, entries[:1]], axis=0), 0, atol=1e-9
        )
    leading = [entries[0] for entries in motion.axes]
    lengths = np.linalg.norm(np.diff(path[:, leading], axis=0), axis=1)
    np.testing.assert_allclose(lengths, motion.speed * motion.v_max)
    still = np.setdiff1d(np.arange(path.shape[1]), np.concatenate(motion.axes))
    assert np.ptp(path[:, still], axis=0).max(initial=0) == 0
    assert all(env.goal_may_move(a, b) for a, b in itertools.pairwise(path))


def test_directions_are_uniform() -> None:
    walk = GoalWalk(TwoRoom, np.array([56.0, 112.0]), [0], GoalMotion(((0,), (1,)), 1e-6, 1.0))
    steps = np.diff([walk[t] for t in range(4001)], axis=0) / 1e-6
    angles = np.arctan2(steps[:, 1], steps[:, 0])
    counts, _ = np.histogram(angles, bins=8, range=(-np.pi, np.pi))
    assert np.abs(counts - 500).max() < 5 * np.sqrt(500)


def test_a_seed_fixes_the_walk_whoever_acts(env: Task) -> None:
    moving = MovingGoal(env, seed=5)
    paths = []
    for action in (0.0, 1.0):
        moving.reset(seed=7)
        goals = []
        for _ in range(4):
            moving.advance(np.full(len(env.action_names), action))
            goals.append(env.goal)
        paths.append(goals)
    np.testing.assert_array_equal(paths[0], paths[1])
    other = GoalWalk(type(env), paths[0][0], [8])
    assert np.any(other[4] != GoalWalk(type(env), paths[0][0], [7])[4])


def test_goals_of_tworoom_pass_the_wall_only_through_the_door() -> None:
    walk = GoalWalk(TwoRoom, np.array([60.0, 60.0]), [0])
    path = np.array([walk[t] for t in range(3000)])
    inside = (path[:, 0] > WALL_LEFT) & (path[:, 0] < WALL_RIGHT)
    assert all(_in_door(y) for y in path[inside, 1])
    assert (path[:, 0] < WALL_LEFT).any()
    assert (path[:, 0] > WALL_RIGHT).any()
    assert not TwoRoom.goal_may_move(np.array([90.0, 150.0]), np.array([134.0, 150.0]))
    assert TwoRoom.goal_may_move(np.array([97.0, 49.0]), np.array([127.0, 50.0]))


def test_the_speed_of_tworoom_is_that_of_its_data() -> None:
    env = make_task("tworoom", image_size=8)
    moves = []
    for i in range(60):
        states = simulate_episode(env, episode_seed(0, i)).states
        moves.append(np.linalg.norm(np.diff(states, axis=0), axis=1))
    measured = np.percentile(np.concatenate(moves), 95)
    assert measured == pytest.approx(TwoRoom.goal_motion.v_max, abs=0.02)


def test_a_goal_that_can_go_nowhere_stays() -> None:
    far_out = np.array([-500.0, -500.0])
    assert np.array_equal(GoalWalk(TwoRoom, far_out, [0])[3], far_out)


def test_success_is_judged_where_the_goal_is_now() -> None:
    env = make_task("tworoom", image_size=8)
    moving = MovingGoal(env)
    moving.reset(seed=0, options={"state": [60, 60], "goal": [60, 90]})
    solved = [moving.advance([0, 0]) for _ in range(100)]
    assert any(solved)  # it wanders over the agent ...
    assert not all(solved)  # ... and on
    assert moving.step([0, 0])[4]["goal"] == pytest.approx(env.goal)
