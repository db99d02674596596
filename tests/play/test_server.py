"""The server: what it answers, whom it refuses, how many it takes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from bilinear_wm.cli import main
from bilinear_wm.play.server import LONGEST_MESSAGE, MAX_SESSIONS, Play
from bilinear_wm.play.shelf import Shelf
from tests.play.conftest import (
    PATIENCE_S,
    PRETRAINED,
    first,
    free_port,
    join,
    messages,
    running,
    wait_for,
)


def test_messages_of_a_session(play: tuple[Play, int]) -> None:
    _, port = play
    with join(port) as socket:
        stream = messages(socket)
        hello = next(stream)
        assert hello["planners"] == ["gauss-newton", "icem"]
        assert hello["tasks"] == ["tworoom", "pusht", "reacher", "cube"]
        assert first(stream, "scene")["task"] == "tworoom"
        for bad, complaint in (
            ("[1]", "expected an object"),
            ("{}", "expected one of task, planner, goal"),
            ('{"task": "nowhere"}', "expected one of tworoom, pusht"),
            ('{"task": ["tworoom"]}', "expected one of tworoom, pusht"),
            ('{"block": 1}', "expected true or false"),
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
            assert complaint in first(stream, "error")["error"]
        socket.send('{"goal": [0.25, 0.75, 0]}')
        while first(stream, "goal")["at"] != pytest.approx([0.25, 0.75]):
            pass  # that of the beginning
        assert first(stream, "tick", source="plan")["trails"]


def test_strangers_are_refused(play: tuple[Play, int]) -> None:
    _, port = play
    evil = Origin("http://evil.example")
    with pytest.raises(InvalidStatus, match="403"), join(port, origin=evil):
        pass
    headers = {"Host": "evil.example"}
    with pytest.raises(InvalidStatus, match="400"), join(port, additional_headers=headers):
        pass
    with join(port, origin=Origin(f"http://127.0.0.1:{port}")) as socket:
        assert next(messages(socket))["kind"] == "hello"


def test_there_are_only_so_many_sessions_and_they_end(play: tuple[Play, int]) -> None:
    made, port = play
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_SESSIONS):
            stack.enter_context(join(port))
        wait_for(lambda: len(made.sessions) == MAX_SESSIONS)
        with join(port) as one_more:
            assert "are open already" in next(messages(one_more))["error"]
            with pytest.raises(ConnectionClosed):
                one_more.recv(timeout=PATIENCE_S)
    wait_for(lambda: not made.sessions)


@pytest.mark.slow
def test_a_flood_of_goals_takes_no_memory(play: tuple[Play, int]) -> None:
    """From a page that never reads; each goal is answered with a picture of 150 kB."""
    _, port = play
    with join(port) as socket:
        first(messages(socket), "scene")
        before = psutil.Process().memory_info().rss
        for i in range(3000):
            socket.send(json.dumps({"goal": [i / 3000, 0.5, 0]}))
        assert psutil.Process().memory_info().rss - before < 100 * 2**20
        stream = messages(socket)
        while first(stream, "goal")["at"][0] < 0.9:
            pass  # the newest is what counts in the end


def test_long_messages_end_the_connection(play: tuple[Play, int]) -> None:
    _, port = play
    with join(port, max_size=None) as socket:
        socket.send("x" * (LONGEST_MESSAGE + 1))
        with pytest.raises(ConnectionClosed, match="1009"):
            while True:
                socket.recv(timeout=PATIENCE_S)


def test_a_place_is_taken_before_anything_is_awaited(play: tuple[Play, int]) -> None:
    made, port = play

    async def rush(count: int) -> list[dict[str, Any]]:
        async with contextlib.AsyncExitStack() as stack:
            address = f"ws://127.0.0.1:{port}/session"
            patient = partial(connect_async, open_timeout=PATIENCE_S, ping_interval=None)
            contexts = [patient(address) for _ in range(count)]
            sockets = await asyncio.gather(*map(stack.enter_async_context, contexts))
            return [json.loads(await socket.recv()) for socket in sockets]

    answers = asyncio.run(rush(30))
    assert sum(answer["kind"] == "hello" for answer in answers) == MAX_SESSIONS
    assert sum("are open already" in answer.get("error", "") for answer in answers) == 26
    wait_for(lambda: not made.sessions)


def test_names_must_be_given_for_all_addresses(
    shelf: Shelf, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page elsewhere can give itself this machine's address, but not its name."""
    for host in ("0.0.0.0", "::", ""):
        assert main(["play", "--host", host]) == 2
        assert "--allow-host" in capsys.readouterr().err
    assert main(["play", "--allow-host", "*"]) == 2
    with running(Play(shelf, "0.0.0.0", allow_host=("robot.local",))) as (_, port):
        for name, status in (("robot.local", 200), ("evil.example", 400), ("127.0.0.1", 200)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request("GET", "/", headers={"Host": f"{name}:{port}"})
            answer = connection.getresponse()
            assert answer.status == status
            if status == 200:
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert "unsafe" not in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            connection.close()


def test_every_file_of_the_page(play: tuple[Play, int]) -> None:
    _, port = play
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"),
                       ("/draw.js", "text/javascript"), ("/style.css", "text/css")):  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        text = answer.read().decode()
        assert "http://" not in text  # nothing from elsewhere
        assert "https://" not in text
        connection.close()


def test_the_command_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    port = str(free_port())
    assert main(["play", "--checkpoint", "nowhere", "--port", port]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("loading tworoom from nowhere")
    assert "nowhere" in said.err
    assert main(["play", "--task", "nonsense", "--port", port]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert main(["play", "--horizon", "0"]) == 2
    assert "--horizon: expected at least 1, found 0" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["play", "--port", port]) == 2
    said = capsys.readouterr()
    assert said.out == ""  # nothing was loaded
    assert said.err.count("\n") == 1
    assert f"--port: expected a free one, found {port} in use" in said.err
    assert main(["play", "--host", "192.0.2.1"]) == 2  # nobody's
    assert "--host: expected an address of this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_the_port_is_open_before_anything_is_loaded() -> None:
    port = free_port()
    command = [sys.executable, "-m", "bilinear_wm.cli", "play", "--port", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=PRETRAINED.parent
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading tworoom from pretrained/tworoom ...\n"
        with join(port) as page:  # answered once it is there
            assert next(messages(page))["kind"] == "hello"
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    assert f"open http://127.0.0.1:{port} in a browser" in said
    assert said.endswith("stopped\n")
    assert process.returncode == 0
