"""SIGINT and SIGTERM, acted on where it is safe: between two steps, episodes or rows."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupted(KeyboardInterrupt):
    """A signal, with the status that a command ends with."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_status = 128 + number


class Held:
    """The signals that came since they are held."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.handlers: dict[int, Handler] = {}
        self.raises = False

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """They do not wait meanwhile: what is done here may be given up anywhere."""
        if self.received:
            raise Interrupted(self.received[0])
        self.raises = True
        try:
            yield
        finally:
            self.raises = False

    def let_through(self) -> None:
        """Do now what the first of them would have done at once."""
        if self.received:
            number = self.received[0]
            handler = self.handlers[number]
            if not callable(handler):
                raise Interrupted(number)
            handler(number, None)


@contextlib.contextmanager
def held(twice_is_enough: bool = False) -> Iterator[Held]:
    """Signals wait until they are asked for; in threads other than the main one none come.

    Raised anywhere, an interrupt can hit a process pool or an optimizer in the middle of something
    that must be whole. With `twice_is_enough` a second signal does not wait.
    """
    waiting = Held()

    def note(number: int, _frame: FrameType | None) -> None:
        if waiting.received and twice_is_enough:
            raise Interrupted(number)
        waiting.received.append(number)
        if waiting.raises:
            raise Interrupted(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not None:  # otherwise not Python's business
                waiting.handlers[number] = before
                signal.signal(number, note)
    try:
        yield waiting
    finally:
        for caught, handler in waiting.handlers.items():
            signal.signal(caught, handler)
