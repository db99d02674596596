"""The page: what a click means, who may connect, and the whole of it in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import uvicorn
from playwright.sync_api import Page, sync_playwright
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from bilinear_wm import recipes
from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.play.canvas import CANVASES, make_canvas
from bilinear_wm.play.outbox import Outbox
from bilinear_wm.play.server import LONGEST_MESSAGE, MAX_SESSIONS, SERVER, Play
from bilinear_wm.play.session import SharedModel
from bilinear_wm.tasks import make_task

PRETRAINED = Path(__file__).parents[2] / "pretrained"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


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


@pytest.mark.parametrize("task", CANVASES)
def test_probes_point_at_the_agent(task: str) -> None:
    canvas, env = make_canvas(task), make_task(task, image_size=64)
    env.begin(seed=4)
    (point,) = canvas.points({k: v[None] for k, v in env.probe_targets(env.state).items()})
    x, y = (int(64 * share) for share in point)
    empty = env.picture(np.concatenate([env.state[:0], _elsewhere(task, env.state)]))
    changed = np.abs(env.picture(env.state).astype(int) - empty).sum(-1)
    assert changed[y - 2 : y + 3, x - 2 : x + 3].max() > 100  # something is there


def _elsewhere(task: str, state: np.ndarray) -> np.ndarray:
    """The same world with the agent somewhere else."""
    moved = state.copy()
    if task == "reacher":
        moved[0] += np.pi
    else:
        moved[:2] = [30, 30] if task == "tworoom" else [40, 40]
    return moved


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


@pytest.fixture(scope="module")
def shared() -> SharedModel:
    return SharedModel("tworoom", PRETRAINED / "tworoom", *recipes.playing("tworoom"))


@pytest.fixture
def play(shared: SharedModel) -> Iterator[tuple[Play, int]]:
    """A running server and its port."""
    with running(Play(shared)) as served:
        yield served


@contextlib.contextmanager
def running(made: Play) -> Iterator[tuple[Play, int]]:
    server = uvicorn.Server(uvicorn.Config(made.app, port=0, **SERVER))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield made, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(10)
    wait_for(lambda: not [t for t in threading.enumerate() if t.name in ("bwm-tick", "bwm-plan")])


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    ends = time.perf_counter() + seconds
    while not what():
        assert time.perf_counter() < ends, "it did not happen"
        time.sleep(0.02)


def keep_at(do: Callable[[], object], until: Callable[[], object], patience_s: float = 5.0) -> None:
    """As a person does who sees no effect: a busy machine may act late, or on what has passed."""
    for _ in range(10):
        do()
        with contextlib.suppress(AssertionError):
            return wait_for(until, patience_s)
    raise AssertionError("it did not happen, however often it was tried")


def messages(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    while True:
        received = socket.recv(timeout=20)
        if isinstance(received, str):
            yield json.loads(received)


def test_latents_are_drawn_where_they_are(shared: SharedModel) -> None:
    camera = make_task("tworoom", 64, "fast")
    states = np.array([[50.0, 60.0], [180.0, 170.0]])
    z = shared.model.encode(np.stack([camera.picture(state) for state in states]))
    assert np.array(shared.path(z)) == pytest.approx(states / 224, abs=0.03)


def test_messages_of_a_session(play: tuple[Play, int]) -> None:
    _, port = play
    with connect(f"ws://127.0.0.1:{port}/session") as socket:
        stream = messages(socket)
        first = next(stream)
        assert first["planners"] == ["gauss-newton", "icem"]
        for bad, complaint in (
            ("[1]", "expected an object"),
            ("{}", "expected goal, planner or push"),
            ('{"goal": [0.5, "x", 0]}', "expected three numbers"),
            ('{"goal": [0.5, NaN, 0]}', "expected three numbers"),
            ('{"planner": "cem"}', "expected one of gauss-newton, icem"),
            ('{"goal": [1e999, 0, 0]}', "expected three numbers"),
            ('{"goal": [true, 0, 0]}', "expected three numbers"),
            (f'{{"goal": [1{"0" * 400}, 0, 0]}}', "expected three numbers"),
            ("nonsense", "Expecting value"),
            (b"binary", "expected text, found bytes"),
            ("[" * 50_000, "message: expected JSON"),
        ):
            socket.send(bad)
            error = next(m["error"] for m in stream if "error" in m)
            assert complaint in error
        socket.send('{"goal": [0.25, 0.75, 0]}')
        assert next(m["goal"] for m in stream if "goal" in m) == pytest.approx([0.25, 0.75])
        assert next(m for m in stream if m.get("source") == "plan")["path"]


def test_a_slow_page_gets_the_newest_of_each_kind() -> None:
    async def slow() -> list[dict[str, Any]]:
        outbox = Outbox()
        outbox.put({"hint": "drag", "size": 224})
        for tick in range(50):
            outbox.put({"tick": tick}, b"picture")
            outbox.put({"goal": [tick, tick]}, b"picture")
        return [(await outbox.get())[0] for _ in range(len(outbox))]

    assert asyncio.run(slow()) == [
        {"hint": "drag", "size": 224}, {"tick": 49}, {"goal": [49, 49]},
    ]  # fmt: skip


def test_what_comes_from_another_thread_wakes_the_page() -> None:
    async def waiting() -> dict[str, Any]:
        outbox = Outbox()
        threading.Timer(0.05, outbox.put, ({"tick": 1},)).start()
        return (await asyncio.wait_for(outbox.get(), 20))[0]

    assert asyncio.run(waiting()) == {"tick": 1}


def test_a_flood_of_goals_takes_no_memory(play: tuple[Play, int]) -> None:
    """From a page that never reads; each goal is answered with a picture of 150 kB."""
    _, port = play
    with connect(f"ws://127.0.0.1:{port}/session") as socket:
        next(messages(socket))
        before = psutil.Process().memory_info().rss
        for i in range(3000):
            socket.send(json.dumps({"goal": [i / 3000, 0.5, 0]}))
        assert psutil.Process().memory_info().rss - before < 100 * 2**20
        stream = messages(socket)
        while next(m["goal"] for m in stream if "goal" in m)[0] < 0.9:
            pass  # the newest is what counts in the end


def test_long_messages_end_the_connection(play: tuple[Play, int]) -> None:
    _, port = play
    with connect(f"ws://127.0.0.1:{port}/session", max_size=None) as socket:
        socket.send("x" * (LONGEST_MESSAGE + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            while True:
                socket.recv(timeout=20)


def test_strangers_are_refused(play: tuple[Play, int]) -> None:
    _, port = play
    address = f"ws://127.0.0.1:{port}/session"
    with pytest.raises(InvalidStatus, match="403"), connect(address, origin="http://evil.example"):  # type: ignore[arg-type]
        pass
    headers = {"Host": "evil.example"}
    with pytest.raises(InvalidStatus, match="400"), connect(address, additional_headers=headers):
        pass
    with connect(address, origin=f"http://127.0.0.1:{port}") as socket:  # type: ignore[arg-type]
        assert "hint" in next(messages(socket))


def test_there_are_only_so_many_sessions_and_they_end(play: tuple[Play, int]) -> None:
    made, port = play
    address = f"ws://127.0.0.1:{port}/session"
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_SESSIONS):
            stack.enter_context(connect(address))
        wait_for(lambda: len(made.sessions) == MAX_SESSIONS)
        with connect(address) as one_more:
            assert "are open already" in next(messages(one_more))["error"]
            with pytest.raises(ConnectionClosed):
                one_more.recv(timeout=10)
    wait_for(lambda: not made.sessions)


def test_a_place_is_taken_before_anything_is_awaited(play: tuple[Play, int]) -> None:
    made, port = play

    async def rush(count: int) -> list[dict[str, Any]]:
        async with contextlib.AsyncExitStack() as stack:
            contexts = [connect_async(f"ws://127.0.0.1:{port}/session") for _ in range(count)]
            sockets = await asyncio.gather(*map(stack.enter_async_context, contexts))
            return [json.loads(await socket.recv()) for socket in sockets]

    answers = asyncio.run(rush(30))
    assert sum("hint" in answer for answer in answers) == MAX_SESSIONS
    assert sum("are open already" in answer.get("error", "") for answer in answers) == 26
    wait_for(lambda: not made.sessions)


def test_names_must_be_given_for_all_addresses(
    shared: SharedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page elsewhere can give itself this machine's address, but not its name."""
    for host in ("0.0.0.0", "::", ""):
        assert main(["play", "--host", host]) == 2
        assert "--allow-host" in capsys.readouterr().err
    assert main(["play", "--allow-host", "*"]) == 2
    with running(Play(shared, "0.0.0.0", allow_host=("robot.local",))) as (_, port):
        for name, status in (("robot.local", 200), ("evil.example", 400), ("127.0.0.1", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/", headers={"Host": f"{name}:{port}"})
            answer = connection.getresponse()
            assert answer.status == status
            if status == 200:
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            connection.close()


@pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium")
def test_the_page_in_a_browser(play: tuple[Play, int]) -> None:
    made, port = play
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        first, second = (_open(browser.new_page(), port) for _ in range(2))
        assert len(made.sessions) == 2  # two pages, two worlds
        for page in (first, second):
            keep_at(partial(_drag_goal_beside, page), until=partial(_now, page, "solved"))
            assert page.locator("#imagined").is_visible()  # the plan, drawn by the model

        first.click("button[data-planner=icem]")
        wait_for(lambda: _now(first, "planner") == "icem" and _now(first, "plan_ms") > 50)
        assert _now(second, "planner") == "gauss-newton"
        wait_for(lambda: _now(second, "plan_ms") < _now(first, "plan_ms"))

        wait_for(lambda: not _now(second, "alarm"))
        keep_at(lambda: second.click("#push"), until=second.locator("#light.on").count)

        assert first.errors == [] == second.errors  # type: ignore[attr-defined]
        second.close()
        wait_for(lambda: len(made.sessions) == 1)
        browser.close()
    wait_for(lambda: not made.sessions)


def _open(page: Page, port: int) -> Page:
    page.errors = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.errors.append(str(error)))  # type: ignore[attr-defined]
    page.on("console", lambda m: m.type == "error" and page.errors.append(m.text))  # type: ignore[attr-defined]
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
