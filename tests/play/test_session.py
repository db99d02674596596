"""What a session shows, and what becomes of wishes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bilinear_wm.play.session import Session
from bilinear_wm.play.shared import OFFSET, SharedModel
from bilinear_wm.play.shelf import Shelf
from bilinear_wm.play.world import Score
from bilinear_wm.tasks import make_task
from tests.play.conftest import FOLDERS, at_work, keep_at, wait_for


class Page:
    """What was sent: the newest of each kind and pane, and how many."""

    def __init__(self) -> None:
        self._lock, self.all = threading.Lock(), list[dict[str, Any]]()
        self.pictures: dict[str, NDArray[np.uint8]] = {}

    def __call__(self, message: dict[str, Any], picture: NDArray[np.uint8] | None) -> None:
        with self._lock:
            self.all.append(message)
            if picture is not None:
                self.pictures[message["kind"]] = picture

    def newest(self, kind: str, pane: str = "") -> dict[str, Any] | None:
        with self._lock:
            found = (m for m in reversed(self.all) if m["kind"] == kind)
            return next((m for m in found if m.get("pane", "") == pane), None)

    def now(self, name: str, pane: str = "gauss-newton") -> Any:
        return (self.newest("tick", pane) or {}).get(name)


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def session(shelf: Shelf, page: Page) -> Iterator[Session]:
    made = Session(shelf, page)
    made.start()
    wait_for(lambda: page.now("plan_ms"))
    yield made
    made.stop()
    wait_for(lambda: not at_work())  # a slow planner may be left behind for a while


def test_latents_are_drawn_where_they_are(shared: SharedModel) -> None:
    camera = make_task("tworoom", 64, "fast")
    states = np.array([[50.0, 60.0], [180.0, 170.0]])
    z = shared.model.encode(np.stack([camera.picture(state) for state in states]))
    (trail,) = shared.trails(z)
    assert np.array(trail) == pytest.approx(states / 224, abs=0.03)
    points = np.array(shared.points(z[0]))
    assert points.shape == (16, 2)
    assert ((points >= 0) & (points <= 1)).all()
    near, far = np.array(shared.components(z))
    apart = far - near
    assert np.linalg.norm(apart) <= float((z[0] - z[1]).norm()) + 1e-3
    assert np.linalg.norm(apart) > 0.5 * float((z[0] - z[1]).norm())


def test_a_ghost_is_what_differs_from_the_background(shelf: Shelf) -> None:
    """Not PushT's green T, which is drawn in every picture and is no goal."""
    shared = shelf.load("pusht").result()
    env = make_task("pusht", 224, "fast")
    state = np.array([60.0, 60, 380, 100, 0.3, 0, 0])
    picture, empty = env.picture(state), shared.background
    seen = shared.ghost(picture)[..., 3] > 128
    assert 0.01 < seen.mean() < 0.2
    assert seen[int(60 / 512 * 224), int(60 / 512 * 224)]  # the disc
    red, green, blue = np.moveaxis(empty.astype(int), -1, 0)
    drawn = (green > red + 20) & (green > blue + 20)
    assert drawn.sum() > 500  # the T is part of the background
    assert (seen & drawn).sum() < 0.1 * drawn.sum()
    assert not shared.ghost(empty)[..., 3].any()


def test_tasks_are_those_that_the_behaviour_solved(shared: SharedModel) -> None:
    assert len(shared.tasks) > 5
    for start, goal in shared.tasks:
        assert not make_task("tworoom", 8).success(start, goal)
        assert np.linalg.norm(goal - start) < 8 * OFFSET


def test_score() -> None:
    score = Score()
    for solved in (False, False, True, True):
        score.saw(solved)
    assert (score.reached, score.tried) == (0, 0)  # there was no goal
    score.begin()
    for solved in (False, False, True, True, False):
        score.saw(solved)
    assert (score.reached, score.tried, score.actions) == (1, 1, 3)
    score.aim()  # a goal dropped on the agent is no feat
    score.saw(True)
    assert (score.reached, score.tried) == (1, 1)
    score.begin()
    score.saw(False)
    score.aim()  # moved: still the same try
    score.saw(False)
    score.begin()  # given up
    assert (score.reached, score.tried) == (1, 2)


def test_it_goes_to_new_goals_and_again(session: Session, page: Page) -> None:
    session.wish({"new": True})
    keep_at(lambda: None, until=lambda: page.now("score")[0] >= 1, patience_s=10)
    before = page.newest("goal")
    tried = page.now("score")[1]
    session.wish({"reset": True})
    wait_for(lambda: page.now("score")[1] > tried)
    assert (page.newest("goal") or {})["at"] == (before or {})["at"]  # the same task
    assert page.pictures["goal"].shape == (224, 224, 4)
    assert page.pictures["tick"].shape == (224, 224, 3)


def test_both_planners_have_the_same_goal(session: Session, page: Page) -> None:
    session.wish({"planner": "both"})
    wait_for(lambda: page.now("plan_ms", "icem") and page.now("plan_ms"))
    session.wish({"goal": [0.25, 0.75, 0]})
    wait_for(lambda: (page.newest("goal") or {})["at"] == pytest.approx([0.25, 0.75]))
    first, second = session._acting
    wait_for(lambda: np.array_equal(first.now[1], second.now[1]))
    session.wish({"new": True})
    wait_for(lambda: np.array_equal(first.now[1], second.now[1]) and page.now("tick", "icem"))
    session.wish({"planner": "icem"})
    wait_for(lambda: [world.planner for world in session._acting] == ["icem"])


def test_a_blocked_camera_and_a_jump(session: Session, page: Page) -> None:
    """A jump to another start is no alarm; a camera that sees nothing is."""
    keep_at(lambda: session.wish({"block": True}), until=lambda: page.now("alarm"))
    assert page.now("blocked")
    session.wish({"block": False})
    wait_for(lambda: not page.now("alarm") and not page.now("blocked"))
    seen = len(page.all)
    session.wish({"new": True})
    wait_for(lambda: sum(m.get("source") == "plan" for m in page.all[seen:]) > 3)
    held = [m for m in page.all[seen:] if m.get("source") == "hold"]
    assert {m["reason"] for m in held} <= {"observation is not finite", "no plan"}


def test_tabs_are_loaded_when_they_are_wanted(tmp_path: Path, page: Page) -> None:
    said: list[str] = []
    folders = {**FOLDERS, "cube": tmp_path / "none"}
    shelf = Shelf(folders, "tworoom", study_steps=300, say=said.append)
    session = Session(shelf, page)
    session.start()
    wait_for(lambda: page.now("tick"))
    assert said[0] == f"tworoom: loading {FOLDERS['tworoom']}"
    assert not any(line.startswith("reacher") for line in said)
    session.wish({"task": "pusht"})
    wait_for(lambda: page.newest("loading") and "pusht" in str(page.newest("loading")))
    left = len(page.all)
    session.wish({"task": "tworoom"})  # it does not wait for the other
    wait_for(lambda: any(m.get("task") == "tworoom" for m in page.all[left:]))
    session.wish({"task": "cube"})
    wait_for(lambda: page.newest("failed"))
    assert str(tmp_path / "none") in (page.newest("failed") or {})["error"]
    session.wish({"goal": [0.5, 0.5, 0]})  # of nothing: nobody minds
    session.wish({"task": "reacher"})
    wait_for(lambda: (page.newest("scene") or {})["task"] == "reacher")
    assert (page.newest("loading") or {})["task"] == "reacher"
    wait_for(lambda: page.now("plan_ms"))
    session.stop()
    wait_for(lambda: not at_work())
