"""Clients of `bwm play` that nobody invited, on the loopback: it lives on, small and answering."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from attack.common import Attack, Tally
from attack.files import HOSTILE
from bilinear_wm.play.server import MAX_SESSIONS, SERVER, Play
from bilinear_wm.play.shelf import Shelf

PRETRAINED = Path(__file__).parents[1] / "pretrained"
LARGEST_GROWTH = 300 * 2**20
FLOOD = 2000
WISHES = ("task", "planner", "goal", "push", "block", "new", "reset")
RAW = (
    b"", b"\x00" * 4096, b"GET / HTTP/1.1\r\n", b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01" * 99,
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx",
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
)  # fmt: skip


def attack_play(attack: Attack) -> Iterator[Tally]:
    task = "tworoom"
    made = Play(Shelf({task: PRETRAINED / task}))
    server = uvicorn.Server(uvicorn.Config(made.app, port=0, **SERVER))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    before = psutil.Process().memory_info().rss
    try:
        yield _strangers(attack, port)
        yield _messages(attack, port)
        yield _bytes(attack, port)
        yield _rush(attack, made, port)
        yield _floods(attack, port)
        tally = Tally("the page afterwards")
        with tally.case():
            assert _status(port, "localhost") == 200, "the page is not served any more"
            grown = psutil.Process().memory_info().rss - before
            assert grown < LARGEST_GROWTH, f"memory grew by {grown >> 20} MiB"
            _wait(lambda: not made.sessions, "sessions are left")
        yield tally
    finally:
        server.should_exit = True
        thread.join(30)


def _address(port: int) -> str:
    return f"ws://127.0.0.1:{port}/session"


def _status(port: int, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/", headers={"Host": host})
        return connection.getresponse().status


def _strangers(attack: Attack, port: int) -> Tally:
    """Other names and other origins are refused."""
    tally = Tally("strange hosts and origins")
    for index in attack.times(60):
        name = f"evil{index}.example"
        with tally.case():
            if index % 2:
                assert _status(port, name) == 400, "a strange host was served"
                continue
            try:
                with connect(_address(port), origin=Origin(f"http://{name}")):
                    raise AssertionError("a strange origin was let in")
            except InvalidHandshake:
                pass
    return tally


def _messages(attack: Attack, port: int) -> Tally:
    """Whatever is said, the session goes on, or ends; the next one begins."""
    tally = Tally("hostile messages")
    said: list[Any] = [json.dumps({k: v}) for v in HOSTILE for k in WISHES]
    said += [json.dumps({"goal": [v, 0.5, 0]}) for v in HOSTILE]
    said += [
        b"",
        b"\xff" * 100,
        "",
        "{",
        "[" * 60_000,
        "nul",
        '{"goal": [1e999, 0, 0]}',
        "x" * 70_000,
    ]
    attack.rng.shuffle(said)
    for index in attack.times(200):
        with tally.case(), contextlib.suppress(ConnectionClosed), _session(port) as page:
            page.send(said[index % len(said)])
            page.send('{"push": 1}')
            for _ in range(4):
                page.recv(timeout=30)
    return tally


def _bytes(attack: Attack, port: int) -> Tally:
    """What is not even HTTP."""
    tally = Tally("bytes that are no request")
    for index in attack.times(60):
        with tally.case(), socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
            raw.settimeout(1)
            with contextlib.suppress(OSError):
                raw.sendall(RAW[index % len(RAW)])
                raw.recv(100)
    with tally.case():
        assert _status(port, "localhost") == 200, "the page is not served any more"
    return tally


def _rush(attack: Attack, made: Play, port: int) -> Tally:
    """Many at once: no more sessions than there are places."""
    tally = Tally("rushes of 40 clients")
    for _ in attack.times(4):
        with tally.case():
            _wait(lambda: not made.sessions, "sessions are left")
            answers: list[str] = []
            threads = [threading.Thread(target=_ask, args=(port, answers)) for _ in range(40)]
            most = 0
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                most = max(most, len(made.sessions))
                time.sleep(0.005)
            assert most <= MAX_SESSIONS, f"{most} sessions at once"
            assert any("hello" in answer for answer in answers), "nobody got in"
    return tally


def _ask(port: int, answers: list[str]) -> None:
    unlucky = (ConnectionClosed, InvalidHandshake, InvalidMessage, OSError)
    with contextlib.suppress(*unlucky), connect(_address(port), open_timeout=60) as page:
        answers.append(str(page.recv(timeout=60)))
        time.sleep(0.5)


def _floods(attack: Attack, port: int) -> Tally:
    """Goals from a client that never reads."""
    tally = Tally(f"floods of {FLOOD} goals")
    for _ in attack.times(3):
        with tally.case(), _session(port) as page:
            before = psutil.Process().memory_info().rss
            for i in range(FLOOD):
                page.send(json.dumps({"goal": [i / FLOOD, 0.5, 0]}))
            grown = psutil.Process().memory_info().rss - before
            assert grown < LARGEST_GROWTH, f"memory grew by {grown >> 20} MiB"
    return tally


@contextlib.contextmanager
def _session(port: int) -> Iterator[ClientConnection]:
    """A place, once there is one."""
    ends = time.monotonic() + 60
    while True:
        page = connect(_address(port), open_timeout=60, max_size=None)
        with page:
            first = str(page.recv(timeout=60))
            if "hello" in first:
                yield page
                return
        assert time.monotonic() < ends, "no place becomes free"
        time.sleep(0.1)


def _wait(until: Any, complaint: str) -> None:
    ends = time.monotonic() + 60
    while not until():
        assert time.monotonic() < ends, complaint
        time.sleep(0.05)
