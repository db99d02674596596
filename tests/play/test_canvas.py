"""What a click, a probe and a push mean in each world."""

from __future__ import annotations

import numpy as np
import pytest

from bilinear_wm.errors import InputError
from bilinear_wm.play.canvas import CANVASES, Canvas, make_canvas
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.cube import CUBE_QPOS, _pinch_poses, in_picture

DRAGGED = [task for task, canvas in CANVASES.items() if canvas.drags]


@pytest.mark.parametrize("task", DRAGGED)
def test_a_click_is_where_the_goal_is(task: str) -> None:
    canvas, env = make_canvas(task), make_task(task, image_size=8)
    env.begin(seed=0)
    for x, y in ((0.3, 0.6), (0.65, 0.4)):
        goal = canvas.goal(x, y, 0.5, env.state)
        assert canvas.goal_point(goal) == pytest.approx((x, y), abs=0.01)
        env.set_goal(goal)  # a whole state
    for x, y in ((0.0, 0.0), (1.0, 1.0), (0.5, 0.8), (0.5, 0.5)):  # walls, centres, out of reach
        goal = canvas.goal(x, y, 3.0, env.state)
        assert env.goal_may_move(goal, goal)


def _elsewhere(task: str, state: np.ndarray) -> np.ndarray:
    """The same world with the agent somewhere else."""
    moved = state.copy()
    if task in ("reacher", "cube"):
        moved[0] += np.pi
    else:
        moved[:2] = [30, 30] if task == "tworoom" else [40, 40]
    return moved


@pytest.mark.parametrize("task", CANVASES)
def test_probes_point_at_the_agent(task: str) -> None:
    canvas, env = make_canvas(task), make_task(task, image_size=64)
    env.begin(seed=4)
    variables = {k: v[None] for k, v in env.probe_targets(env.state).items()}
    trails = canvas.trails(variables)
    assert [trail.shape for trail in trails] == [(1, 2)] * len(trails)
    x, y = (int(64 * share) for share in trails[0][0])
    empty = env.picture(_elsewhere(task, env.state))
    changed = np.abs(env.picture(env.state).astype(int) - empty).sum(-1)
    assert changed[y - 2 : y + 3, x - 2 : x + 3].max() > 100  # something is there
    env.close()


def test_what_is_moved_has_a_trail_of_its_own() -> None:
    for task, column in (("pusht", slice(2, 4)), ("cube", slice(CUBE_QPOS, CUBE_QPOS + 3))):
        canvas, env = make_canvas(task), make_task(task, image_size=64, render_quality="fast")
        env.begin(seed=4)
        trails = canvas.trails({k: v[None] for k, v in env.probe_targets(env.state).items()})
        x, y = (int(64 * share) for share in trails[1][0])
        assert canvas.goal_point(env.state) == pytest.approx(tuple(trails[1][0]))
        away = env.state
        away[column] += 0.15 if task == "cube" else 120
        changed = np.abs(env.picture(env.state).astype(int) - env.picture(away)).sum(-1)
        assert changed[y - 1 : y + 2, x - 1 : x + 2].max() > 60
        env.close()


@pytest.mark.parametrize("task", CANVASES)
def test_a_push_moves_it(task: str) -> None:
    canvas, env = make_canvas(task), make_task(task, image_size=8)
    env.begin(seed=1)
    before = env.state
    canvas.push(env, np.random.default_rng(0))
    assert np.abs(env.state - before).max() > (0.05 if task == "cube" else 5)
    env.close()


def test_any_task_has_a_canvas() -> None:
    env = make_task("tworoom", image_size=8)
    env.begin(seed=1)
    before = env.state
    Canvas().push(env, np.random.default_rng(0))
    assert np.abs(env.state - before).max() > 5
    assert Canvas().trails({}) == []
    with pytest.raises(InputError, match="it cannot be dragged"):
        make_canvas("cube").goal(0.5, 0.5, 0, env.state)
    with pytest.raises(InputError, match="nonsense"):
        make_canvas("nonsense")


def test_cube_is_seen_by_its_camera() -> None:
    """What is further right in the world's picture is further right here; all is inside."""
    env = make_task("cube", image_size=8)
    env.begin(seed=0)
    places = np.concatenate([_pinch_poses(env.state[None])[:, :3], env.state[None, 14:17]])
    seen = in_picture(places)
    assert ((seen > 0) & (seen < 1)).all()
    assert seen[0, 1] < seen[1, 1]  # the gripper is above the cube
    env.close()
