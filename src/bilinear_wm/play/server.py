"""The page's server: one page, one WebSocket a session, for this machine's browsers only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from socket import socket as Socket
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bilinear_wm.errors import InputError
from bilinear_wm.play.hosts import LOOPBACK, is_everywhere
from bilinear_wm.play.outbox import Outbox
from bilinear_wm.play.session import Session
from bilinear_wm.play.shelf import Shelf

log = logging.getLogger(__name__)

MAX_SESSIONS = 4
CONNECTIONS = 64
"""Of browsers and of whoever else, at one time."""
LONGEST_MESSAGE, LONGEST_COMPLAINT = 2**16, 300
LEFT_BEHIND_S = 10.0
REFUSED, BUSY = 1008, 1013  # WebSocket close codes
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src data:; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
SERVER: dict[str, Any] = {
    "log_level": "warning",
    "ws_per_message_deflate": False,  # compressing frames would take longer than copying them
    "ws_max_size": LONGEST_MESSAGE,
    "limit_concurrency": CONNECTIONS,
    "timeout_graceful_shutdown": 5,  # planners end what they are at; pages do not hold up Ctrl-C
}
PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
}


class Play:
    """The application and its running sessions.

    Args:
        shelf: The models, by task.
        host: The address that is listened on.
        control_hz: Actions a second.
        allow_host: Further names by which browsers may ask for the page.
    """

    def __init__(
        self,
        shelf: Shelf,
        host: str = "127.0.0.1",
        control_hz: float = 20.0,
        allow_host: Sequence[str] = (),
    ) -> None:
        self._shelf, self._control_hz = shelf, control_hz
        self.sessions: set[Session] = set()
        self._begun = self._places = 0
        hosts = [*LOOPBACK, *allow_host, *(() if is_everywhere(host) else (host,))]
        self.app = Starlette(
            routes=[*map(_route, FILES), WebSocketRoute("/session", self._serve_session)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        )

    async def _serve_session(self, socket: WebSocket) -> None:
        if not _same_origin(socket):
            log.warning("refused a page of %s", socket.headers.get("origin"))
            await socket.close(REFUSED)
            return
        # A place is taken before anything is awaited, or many at once would all find one free.
        if self._places >= MAX_SESSIONS:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await socket.accept()
                await socket.send_json(
                    {"kind": "error", "error": f"{MAX_SESSIONS} pages are open already"}
                )
                await socket.close(BUSY)
            return
        self._places += 1
        try:
            await self._run_session(socket)
        finally:
            self._places -= 1

    async def _run_session(self, socket: WebSocket) -> None:
        outbox = Outbox()

        def send(message: dict[str, Any], picture: NDArray[np.uint8] | None) -> None:
            outbox.put(message, None if picture is None else picture.tobytes())

        await socket.accept()
        self._begun += 1
        task = socket.query_params.get("task")
        session = Session(self._shelf, send, self._control_hz, self._begun, task)
        session.start()
        self.sessions.add(session)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_push_frames(socket, outbox))
                group.create_task(_take_wishes(socket, session, outbox))
        except* (WebSocketDisconnect, RuntimeError) as ended:
            log.info("session ended: %s", ended.exceptions[0])
        finally:
            await asyncio.to_thread(session.stop)
            self.sessions.discard(session)


def _route(path: str) -> Route:
    """One of the page's files, read once."""
    name, kind = FILES[path]
    text = (PAGE / name).read_text(encoding="utf-8")

    async def answer(_: Request) -> Response:
        return Response(text, media_type=kind, headers=SECURITY)

    return Route(path, answer)


async def _push_frames(socket: WebSocket, outbox: Outbox) -> None:
    while True:
        message, picture = await outbox.get()
        await socket.send_json(message | {"picture": picture is not None})
        if picture is not None:
            await socket.send_bytes(picture)


async def _take_wishes(socket: WebSocket, session: Session, outbox: Outbox) -> None:
    while True:
        received = await socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1000))
        try:
            session.wish(_read(received.get("text")))
        except InputError as error:
            outbox.put({"kind": "error", "error": str(error)[:LONGEST_COMPLAINT]})
        await asyncio.sleep(0)  # a page that floods does not keep the others waiting


def _read(text: str | None) -> Any:
    if text is None:
        raise InputError("message: expected text, found bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"message: expected JSON, found {error}") from error


def _same_origin(socket: WebSocket) -> bool:
    """A browser says which page opens the connection: only our own may."""
    origin = socket.headers.get("origin")
    return origin is None or origin.split("://", 1)[-1] == socket.headers.get("host")


def serve(
    shelf: Shelf,
    listening: Socket,
    host: str = "127.0.0.1",
    control_hz: float = 20.0,
    allow_host: Sequence[str] = (),
) -> None:
    """Serve on a socket until interrupted."""
    play = Play(shelf, host, control_hz, allow_host)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(uvicorn.Config(play.app, **SERVER)).run(sockets=[listening])
    shelf.close()
    for thread in threading.enumerate():  # planners that were left behind
        if thread.name.startswith("bwm-"):
            thread.join(LEFT_BEHIND_S)
