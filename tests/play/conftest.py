"""A running server, and patience."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from websockets.sync.client import ClientConnection, connect

from bilinear_wm.play import TABS
from bilinear_wm.play.server import SERVER, Play
from bilinear_wm.play.shared import SharedModel
from bilinear_wm.play.shelf import Shelf

PRETRAINED = Path(__file__).parents[2] / "pretrained"
FOLDERS = {task: PRETRAINED / task for task in TABS}
STUDY_STEPS = 1500
"""Enough to tell where things are."""
PATIENCE_S = 300.0
"""However busy the machine is."""


@pytest.fixture(scope="session")
def shelf() -> Shelf:
    return Shelf(FOLDERS, study_steps=STUDY_STEPS)


@pytest.fixture(scope="session")
def shared(shelf: Shelf) -> SharedModel:
    return shelf.load("tworoom").result(PATIENCE_S)


@pytest.fixture
def play(shelf: Shelf) -> Iterator[tuple[Play, int]]:
    with running(Play(shelf)) as served:
        yield served


@contextlib.contextmanager
def running(made: Play) -> Iterator[tuple[Play, int]]:
    """A running server and its port."""
    server = uvicorn.Server(uvicorn.Config(made.app, port=0, **SERVER))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield made, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE_S)
    wait_for(lambda: not at_work())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def at_work() -> list[str]:
    """Threads of sessions."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("bwm-tick", "bwm-plan", "bwm-stage")]


def wait_for(what: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    ends = time.perf_counter() + seconds
    while not what():
        assert time.perf_counter() < ends, "it did not happen"
        time.sleep(0.02)


def keep_at(do: Callable[[], object], until: Callable[[], object], patience_s: float = 5.0) -> None:
    """As a person does who sees no effect: a busy machine may act late, or on what has passed."""
    for _ in range(30):
        do()
        with contextlib.suppress(AssertionError):
            return wait_for(until, patience_s)
    raise AssertionError("it did not happen, however often it was tried")


def join(port: int, task: str = "tworoom", **options: Any) -> ClientConnection:
    """A session of one's own."""
    address = f"ws://127.0.0.1:{port}/session?task={task}"
    return connect(address, open_timeout=PATIENCE_S, ping_interval=None, **options)


def messages(socket: ClientConnection) -> Iterator[dict[str, Any]]:
    while True:
        received = socket.recv(timeout=PATIENCE_S)
        if isinstance(received, str):
            yield json.loads(received)


def first(stream: Iterator[dict[str, Any]], kind: str, **facts: Any) -> dict[str, Any]:
    """The next message of a kind, with these facts in it."""
    return next(m for m in stream if facts.items() <= m.items() and m["kind"] == kind)
