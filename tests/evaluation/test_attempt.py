"""Attempts: what no wall blocks is solved, and nothing is drawn in vain."""

from __future__ import annotations

import numpy as np
import pytest

from bilinear_wm.control.horizon import LoopConfig, Replan
from bilinear_wm.tasks import make_task
from tests.evaluation.conftest import attempts, tworoom_tasks


@pytest.mark.parametrize("replan", ["exhausted", 1, 2])
def test_a_perfect_model_solves_what_no_wall_blocks(replan: Replan) -> None:
    tasks = tworoom_tasks(same_room=True)
    rows = []
    for attempt in attempts(tasks, make_task("tworoom", 64), 5, LoopConfig(5, replan)):
        rows.append(attempt.result())
        assert np.abs(attempt.actions).max(initial=0) <= 1
    assert sorted(row.index for row in rows) == list(range(len(tasks)))
    kept = attempt.result(trajectory=True).trajectory
    assert len(kept) == attempt.steps + 1
    np.testing.assert_allclose(kept[0], attempt.task.start, atol=1e-3)
    for row in rows:
        assert row.success
        assert row.trajectory == []
        assert row.steps <= 50
        assert row.distance < 1


def test_nothing_is_drawn_between_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = make_task("tworoom", 64)
    drawn: list[np.ndarray] = []
    picture = camera.picture

    def noted(state: np.ndarray) -> np.ndarray:
        drawn.append(state)
        return picture(state)

    monkeypatch.setattr(camera, "picture", noted)
    tasks = tworoom_tasks(same_room=False, count=4)
    ended = list(attempts(tasks, camera, 4, LoopConfig(5, "exhausted")))
    assert len(drawn) == len(tasks) + sum(attempt.plans for attempt in ended)
