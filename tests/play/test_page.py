"""The whole of it in a real browser, every tab.

    BWM_SCREENSHOTS=docs/images pytest -m alone tests/play

also writes the pictures of the documentation.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from bilinear_wm.play import TABS
from bilinear_wm.play.card import measured
from tests.play.conftest import FOLDERS, PATIENCE_S, PRETRAINED, free_port, keep_at, wait_for

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SCREENSHOTS = os.environ.get("BWM_SCREENSHOTS")
WIDE, NARROW = {"width": 1280, "height": 940}, {"width": 390, "height": 844}
LARGEST = 200_000
"""Bytes of a picture in the documentation."""
pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"], timeout=1000 * PATIENCE_S
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The command itself, ended by Ctrl-C when all is done."""
    chosen = free_port()
    command = [sys.executable, "-m", "bilinear_wm.cli", "play", "--port", str(chosen)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=PRETRAINED.parent
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("loading tworoom")  # the port is open
        yield chosen
        process.send_signal(signal.SIGINT)
        at_last = threading.Timer(PATIENCE_S, process.kill)
        at_last.start()
        said = process.stdout.read().splitlines()
        at_last.cancel()
    assert process.returncode == 0
    assert said[-1] == "stopped"
    loaded = [line.split(":")[0] for line in said if ": ready after" in line]
    assert loaded == list(TABS)  # each once, when it was wanted


def test_every_tab(browser: Browser, port: int) -> None:
    """Loaded when it is wanted; a new goal, a ghost of it, plans, and the measured rate."""
    errors: list[str] = []
    page = _open(browser, port, errors)
    for task in TABS:
        page.set_viewport_size(WIDE)  # type: ignore[arg-type]
        page.click(f"[data-task={task}]")
        _wait_for_scene(page, task)
        assert page.locator("[aria-selected=true]").inner_text().lower() == task
        wait_for(lambda: _pane(page, "plan_ms"))
        _check_ghost(page)
        rate = measured(FOLDERS[task], "gauss-newton", 25)
        assert rate is not None
        assert page.locator("#measured dd").first.inner_text() == str(rate)
        assert "not measured" in page.locator("#measured dd").last.inner_text()
        draws, points = (page.evaluate(f"view.scene.{name}") for name in ("draws", "points"))
        if draws:
            wait_for(page.locator(".imagined").is_visible)
        assert page.locator("#show-points").is_enabled() == points
        if points:
            page.keyboard.press("o")
            assert page.locator("#show-points").is_checked()
        assert len(_pane(page, "trails")) == (2 if task in ("pusht", "cube") else 1)
        assert len(_pane(page, "latents")[0]) == 2
        page.click("[data-do=new]")
        wait_for(lambda: _pane(page, "round") == 2 and _pane(page, "source") == "plan")
        _picture(page, f"play-{task}")
        page.set_viewport_size(NARROW)  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        if points:
            page.keyboard.press("o")
    _picture(page, "play-phone")
    assert errors == []
    page.context.close()


def test_two_planners_a_push_and_a_blocked_camera(browser: Browser, port: int) -> None:
    errors: list[str] = []
    page = _open(browser, port, errors)
    keep_at(partial(_tap_goal_beside, page), until=lambda: _pane(page, "solved"))
    x, y = page.evaluate("view.goal.at")
    page.keyboard.press("ArrowDown" if y < 0.5 else "ArrowUp")
    wait_for(lambda: abs(page.evaluate("view.goal.at[1]") - y) > 0.01)
    assert page.evaluate("view.goal.at[0]") == pytest.approx(x, abs=0.01)

    wait_for(lambda: not _pane(page, "alarm"))
    keep_at(lambda: page.click("[data-do=push]"), until=page.locator(".light.on").count)
    assert "blocked or moved" in page.locator(".explained").inner_text()
    wait_for(lambda: not _pane(page, "alarm"))
    page.keyboard.press("b")
    wait_for(page.locator(".cover").is_visible)
    wait_for(page.locator(".light.on").count)
    page.click("[data-do=block]")
    wait_for(page.locator(".cover").is_hidden)

    page.click("[data-planner=both]")
    wait_for(lambda: page.locator(".pane").count() == 2)
    wait_for(lambda: _pane(page, "plan_ms") and _pane(page, "plan_ms", "icem"))
    wait_for(lambda: 3 * _pane(page, "plan_ms") < _pane(page, "plan_ms", "icem"))
    page.click("[data-do=new]")
    wait_for(lambda: _pane(page, "score")[0] > 0)  # the other may still be on its way
    _picture(page, "play-beside")
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert errors == []
    page.context.close()


def _open(browser: Browser, port: int, errors: list[str]) -> Page:
    page = browser.new_page(viewport=WIDE, has_touch=True)  # type: ignore[arg-type]

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", said)
    page.set_default_timeout(1000 * PATIENCE_S)
    page.goto(f"http://127.0.0.1:{port}/")
    _wait_for_scene(page, TABS[0])
    return page


def _wait_for_scene(page: Page, task: str) -> None:
    wait_for(lambda: page.evaluate("view.scene?.task") == task)
    wait_for(lambda: page.evaluate("!!view.panes.get('gauss-newton')?.last"))


def _pane(page: Page, name: str, planner: str = "gauss-newton") -> Any:
    return page.evaluate(f"view.panes.get('{planner}')?.last?.{name}")


def _check_ghost(page: Page) -> None:
    """Some of the goal is seen, most of it through."""
    wait_for(lambda: page.evaluate("!!view.goal.ghost"))
    share = page.evaluate(
        "(() => { const g = view.goal.ghost, d = g.getContext('2d')"
        ".getImageData(0, 0, g.width, g.height).data; let n = 0;"
        "for (let i = 3; i < d.length; i += 4) n += d[i] > 60; return 4 * n / d.length; })()"
    )
    assert 0.001 < share < 0.5


def _tap_goal_beside(page: Page) -> None:
    """To another place of the room that the dot was last seen in; with a finger."""
    wait_for(lambda: _pane(page, "trails"))
    x, y = _pane(page, "trails")[0][0]
    across, down = 0.12 if x < 0.25 or 0.5 < x < 0.75 else -0.12, 0.1 if y < 0.5 else -0.1
    place = x + across, y + down

    def tap() -> None:
        box = page.locator(".world").bounding_box()
        assert box is not None
        page.touchscreen.tap(
            box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"]
        )

    keep_at(tap, until=lambda: np.allclose(page.evaluate("view.goal.at"), place, atol=0.02))
    before = _pane(page, "tick")
    wait_for(lambda: _pane(page, "tick") > before)  # from now on `solved` is about this goal


def _picture(page: Page, name: str) -> None:
    if SCREENSHOTS is None:
        return
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    file = Path(SCREENSHOTS) / f"{name}.jpg"
    page.screenshot(path=file, type="jpeg", quality=80)
    assert file.stat().st_size < LARGEST
