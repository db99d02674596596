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
        outbox.put({"kind": "hello"})
        for tick in range(50):
            for pane in ("gauss-newton", "icem"):
                outbox.put({"kind": "tick", "pane": pane, "tick": tick}, b"picture")
            outbox.put({"kind": "goal", "at": [tick, tick]}, b"picture")
        return [(await outbox.get())[0] for _ in range(len(outbox))]

    assert asyncio.run(slow()) == [
        {"kind": "hello"},
        {"kind": "tick", "pane": "gauss-newton", "tick": 49},
        {"kind": "tick", "pane": "icem", "tick": 49},
        {"kind": "goal", "at": [49, 49]},
    ]


def test_nothing_of_the_last_scene_comes_after_the_next() -> None:
    async def changed() -> list[str]:
        outbox = Outbox()
        for kind in ("hello", "scene", "goal", "tick", "imagined", "error", "loading", "scene"):
            outbox.put({"kind": kind})
        return [(await outbox.get())[0]["kind"] for _ in range(len(outbox))]

    assert asyncio.run(changed()) == ["hello", "error", "scene"]


def test_what_comes_from_another_thread_wakes_the_page() -> None:
    async def waiting() -> dict[str, Any]:
        outbox = Outbox()
        threading.Timer(0.05, outbox.put, ({"kind": "tick"},)).start()
        return (await asyncio.wait_for(outbox.get(), PATIENCE_S))[0]

    assert asyncio.run(waiting()) == {"kind": "tick"}
