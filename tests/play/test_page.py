"""The whole of it in a real browser."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import ConsoleMessage, Page, sync_playwright

from bilinear_wm.play.server import Play
from tests.play.conftest import PATIENCE_S, keep_at, wait_for

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium")
def test_the_page_in_a_browser(play: tuple[Play, int]) -> None:
    made, port = play
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=1000 * PATIENCE_S
        )
        errors: list[str] = []
        first, second = (_open(browser.new_page(), port, errors) for _ in range(2))
        assert len(made.sessions) == 2  # two pages, two worlds
        for page in (first, second):
            keep_at(partial(_drag_goal_beside, page), until=partial(_now, page, "solved"))
            assert page.locator("#imagined").is_visible()  # the plan, drawn by the model

        first.click("button[data-planner=icem]")
        wait_for(lambda: _now(first, "planner") == "icem")
        assert _now(second, "planner") == "gauss-newton"
        wait_for(lambda: 3 * _now(second, "plan_ms") < _now(first, "plan_ms"))

        wait_for(lambda: not _now(second, "alarm"))
        keep_at(lambda: second.click("#push"), until=second.locator("#light.on").count)

        assert errors == []
        second.close()
        wait_for(lambda: len(made.sessions) == 1)
        browser.close()
    wait_for(lambda: not made.sessions)


def _open(page: Page, port: int, errors: list[str]) -> Page:
    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", said)
    page.set_default_timeout(1000 * PATIENCE_S)
    page.goto(f"http://127.0.0.1:{port}/")
    wait_for(lambda: page.evaluate("view.last !== null"))
    return page


def _now(page: Page, name: str) -> Any:
    return page.evaluate(f"view.last.{name}")


def _drag_goal_beside(page: Page) -> None:
    """To another place of the room that the dot was last seen in."""
    wait_for(lambda: _now(page, "path"))
    x, y = _now(page, "path")[0]
    across, down = 0.12 if x < 0.25 or 0.5 < x < 0.75 else -0.12, 0.1 if y < 0.5 else -0.1
    _drag_goal(page, (x, y), (x + across, y + down))
    before = _now(page, "tick")
    wait_for(lambda: _now(page, "tick") > before)  # from now on `solved` is about this goal


def _drag_goal(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    box = page.locator("#world").bounding_box()
    assert box is not None
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]

    def drag() -> None:
        page.mouse.move(*points[0])
        page.mouse.down()
        page.mouse.move(*points[1], steps=4)
        page.mouse.up()

    keep_at(drag, until=lambda: np.allclose(page.evaluate("view.goal"), end, atol=0.02))
