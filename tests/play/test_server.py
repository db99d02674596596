"""The server: what it answers, whom it refuses, how many it takes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from bilinear_wm.play.server import FRAMES_WAITING, MAX_SESSIONS, Play, Waiting, enqueue
from tests.play.conftest import PATIENCE_S, join, messages, wait_for


def test_messages_of_a_session(play: tuple[Play, int]) -> None:
    _, port = play
    with join(port) as socket:
        stream = messages(socket)
        first = next(stream)
        assert first["planners"] == ["gauss-newton", "icem"]
        for bad, complaint in (
            ("[1]", "expected an object"),
            ("{}", "expected goal, planner or push"),
            ('{"goal": [0.5, "x", 0]}', "expected three numbers"),
            ('{"goal": [0.5, NaN, 0]}', "expected three numbers"),
            ('{"planner": "cem"}', "expected one of gauss-newton, icem"),
            ("nonsense", "Expecting value"),
        ):
            socket.send(bad)
            error = next(m["error"] for m in stream if "error" in m)
            assert complaint in error
        socket.send('{"goal": [0.25, 0.75, 0]}')
        assert next(m["goal"] for m in stream if "goal" in m) == pytest.approx([0.25, 0.75])
        assert next(m for m in stream if m.get("source") == "plan")["path"]


def test_a_slow_page_misses_frames_and_nothing_else() -> None:
    waiting: Waiting = asyncio.Queue()
    for tick in range(50):
        enqueue(waiting, {"tick": tick}, b"")
    enqueue(waiting, {"goal": [0.5, 0.5]}, b"")
    left = [waiting.get_nowait()[0] for _ in range(waiting.qsize())]
    assert left == [*({"tick": tick} for tick in range(FRAMES_WAITING)), {"goal": [0.5, 0.5]}]


def test_strangers_are_refused(play: tuple[Play, int]) -> None:
    _, port = play
    evil = Origin("http://evil.example")
    with pytest.raises(InvalidStatus, match="403"), join(port, origin=evil):
        pass
    headers = {"Host": "evil.example"}
    with pytest.raises(InvalidStatus, match="400"), join(port, additional_headers=headers):
        pass
    with join(port, origin=Origin(f"http://127.0.0.1:{port}")) as socket:
        assert "hint" in next(messages(socket))


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
