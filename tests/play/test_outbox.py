"""What waits for a page: the newest of each kind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from bilinear_wm.play.outbox import Outbox
from tests.play.conftest import PATIENCE_S


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
        return (await asyncio.wait_for(outbox.get(), PATIENCE_S))[0]

    assert asyncio.run(waiting()) == {"tick": 1}
