"""What waits to be sent to one page: the newest of each kind, however slowly it reads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

Item = tuple[dict[str, Any], bytes | None]


class Outbox:
    """Filled from any thread, emptied by the event loop in which it was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock, self._items = threading.Lock(), dict[tuple[str, str], Item]()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, message: dict[str, Any], picture: bytes | None = None) -> None:
        """Send this in the place of what waits of the same kind for the same pane.

        What is about a scene that is left is not sent after the next scene has begun.
        """
        kind, pane = message["kind"], message.get("pane", "")
        with self._lock:
            woken = not self._items
            if kind == "scene":
                about_pages = ("hello", "error")
                self._items = {k: v for k, v in self._items.items() if k[0] in about_pages}
            self._items[kind, pane] = message, picture
        if woken:
            self._loop.call_soon_threadsafe(self._filled.set)

    async def get(self) -> Item:
        """The next to send, once there is one."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.pop(next(iter(self._items)))
                self._filled.clear()
            await self._filled.wait()
