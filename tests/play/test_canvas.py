"""What a click, a probe and a push mean in each world."""

from __future__ import annotations

import numpy as np
import pytest

from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.play.canvas import CANVASES, make_canvas
from bilinear_wm.tasks import make_task


@pytest.mark.parametrize("task", CANVASES)
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
    if task == "reacher":
        moved[0] += np.pi
    else:
        moved[:2] = [30, 30] if task == "tworoom" else [40, 40]
    return moved


@pytest.mark.parametrize("task", CANVASES)
def test_probes_point_at_the_agent(task: str) -> None:
    canvas, env = make_canvas(task), make_task(task, image_size=64)
    env.begin(seed=4)
    (point,) = canvas.points({k: v[None] for k, v in env.probe_targets(env.state).items()})
    x, y = (int(64 * share) for share in point)
    empty = env.picture(np.concatenate([env.state[:0], _elsewhere(task, env.state)]))
    changed = np.abs(env.picture(env.state).astype(int) - empty).sum(-1)
    assert changed[y - 2 : y + 3, x - 2 : x + 3].max() > 100  # something is there


@pytest.mark.parametrize("task", CANVASES)
def test_a_push_moves_it(task: str) -> None:
    canvas, env = make_canvas(task), make_task(task, image_size=8)
    env.begin(seed=1)
    before = env.state
    canvas.push(env, np.random.default_rng(0))
    assert np.abs(env.state - before).max() > 5


def test_cube_has_no_canvas(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="expected one of tworoom, pusht, reacher, found 'cube'"):
        make_canvas("cube")
    assert main(["play", "--task", "tworoom", "--checkpoint", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["play", "--horizon", "0"]) == 2
    assert "--horizon: expected at least 1, found 0" in capsys.readouterr().err
