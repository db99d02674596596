"""The page's server: one page, one WebSocket a session, for this machine's browsers only."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from bilinear_wm.errors import InputError
from bilinear_wm.play.session import Session, SharedModel

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost")
MAX_SESSIONS = 4
FRAMES_WAITING = 2
REFUSED, BUSY = 1008, 1013  # WebSocket close codes
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'",
    "Cache-Control": "no-store",
}
SERVER: dict[str, Any] = {"log_level": "warning", "ws_per_message_deflate": False}
"""Frames go as they are: compressing them would take longer than copying them."""
Waiting = asyncio.Queue[tuple[dict[str, Any], bytes | None]]


class Play:
    """The application and its running sessions."""

    def __init__(
        self, shared: SharedModel, host: str = "127.0.0.1", control_hz: float = 20.0
    ) -> None:
        self._shared, self._control_hz = shared, control_hz
        self.sessions: set[Session] = set()
        self._begun = 0
        page = (Path(__file__).parent / "page.html").read_text()
        self._page = page.replace("{{task}}", shared.task)
        hosts = [*LOOPBACK, host] if host not in ("0.0.0.0", "::") else ["*"]
        self.app = Starlette(
            routes=[Route("/", self._serve_page), WebSocketRoute("/session", self._serve_session)],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
        )

    async def _serve_page(self, _: Request) -> HTMLResponse:
        return HTMLResponse(self._page, headers=SECURITY)

    async def _serve_session(self, socket: WebSocket) -> None:
        if not _same_origin(socket):
            log.warning("refused a page of %s", socket.headers.get("origin"))
            await socket.close(REFUSED)
            return
        await socket.accept()
        if len(self.sessions) >= MAX_SESSIONS:
            await socket.send_json({"error": f"{MAX_SESSIONS} pages are open already"})
            await socket.close(BUSY)
            return
        loop = asyncio.get_running_loop()
        waiting: Waiting = asyncio.Queue()

        def send(message: dict[str, Any], picture: NDArray[np.uint8] | None) -> None:
            data = None if picture is None else picture.tobytes()
            loop.call_soon_threadsafe(enqueue, waiting, message, data)

        self._begun += 1
        session = await asyncio.to_thread(
            Session, self._shared, send, self._control_hz, self._begun
        )
        self.sessions.add(session)
        try:
            await asyncio.to_thread(session.start)
            async with asyncio.TaskGroup() as group:
                group.create_task(_push_frames(socket, waiting))
                group.create_task(_take_wishes(socket, session))
        except* (WebSocketDisconnect, RuntimeError) as ended:
            log.info("session ended: %s", ended.exceptions[0])
        finally:
            await asyncio.to_thread(session.stop)
            self.sessions.discard(session)


def enqueue(waiting: Waiting, message: dict[str, Any], picture: bytes | None) -> None:
    """A page that does not keep up misses frames, and nothing else."""
    if not {"tick", "imagined"} & set(message) or waiting.qsize() < FRAMES_WAITING:
        waiting.put_nowait((message, picture))


async def _push_frames(socket: WebSocket, waiting: Waiting) -> None:
    while True:
        message, picture = await waiting.get()
        await socket.send_json(message | {"picture": picture is not None})
        if picture is not None:
            await socket.send_bytes(picture)


async def _take_wishes(socket: WebSocket, session: Session) -> None:
    while True:
        text = await socket.receive_text()
        try:
            session.wish(json.loads(text))
        except (InputError, ValueError) as error:
            await socket.send_json({"error": str(error), "picture": False})


def _same_origin(socket: WebSocket) -> bool:
    """A browser says which page opens the connection: only our own may."""
    origin = socket.headers.get("origin")
    return origin is None or origin.split("://", 1)[-1] == socket.headers.get("host")


def serve(
    shared: SharedModel,
    host: str = "127.0.0.1",
    port: int = 8765,
    control_hz: float = 20.0,
) -> None:
    """Serve until interrupted."""
    play = Play(shared, host, control_hz)
    uvicorn.run(play.app, host=host, port=port, **SERVER)
