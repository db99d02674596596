"""A page to feel the controller: drag the goal, race the planners, push the agent.

    bwm play

`canvas.py` is how mouse and picture meet a task, `shared.py` what all pages share of one task and
`shelf.py` those of all tasks, loaded when they are wanted; `world.py` is one simulation with its
controller, `session.py` what one page shows; `server.py` and `page/` are what a browser sees.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from bilinear_wm.errors import InputError
from bilinear_wm.stage import Outcome, at_least

TABS = ("tworoom", "pusht", "reacher", "cube")
PRETRAINED = Path("pretrained")


@dataclass(frozen=True)
class PlayConfig:
    """A page to play on, with a tab for each task.

    Attributes:
        task: The tab that is open at first: tworoom, pusht, reacher, cube, or a task of your own.
        checkpoint: Its model; pretrained/TASK by default, as for the other tabs.
        host: The address to listen on; anybody who reaches it can play.
        allow_host: Further names by which browsers may ask for the page. Needed where `host` stands
            for all addresses: a page elsewhere could otherwise give itself this machine's.
        port: The port.
        control_hz: Actions a second.
        horizon: Blocks a plan looks ahead; each task's recipe by default.
        device: Where the models run: cpu, cuda, cuda:1 ...
    """

    task: str = "tworoom"
    checkpoint: Path | None = None
    host: str = "127.0.0.1"
    allow_host: tuple[str, ...] = ()
    port: int = 8765
    control_hz: float = 20.0
    horizon: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 0 < self.port < 65536 or not 0 < self.control_hz < float("inf"):
            raise InputError(
                "port, control_hz: expected 1 to 65535 and a number above 0, found "
                f"{self.port}, {self.control_hz}"
            )
        if any("*" in name for name in self.allow_host):
            raise InputError(f"allow_host: expected names, found {', '.join(self.allow_host)}")
        if self.horizon is not None:
            at_least(self, 1, "horizon")

    def run(self) -> Outcome:
        """Serve until Ctrl-C."""
        from bilinear_wm.play.hosts import is_everywhere

        if is_everywhere(self.host) and not self.allow_host:
            raise InputError(
                f"host: {self.host or 'all addresses'}: expected the names by which browsers will "
                "ask for the page (`allow_host`), found none"
            )
        folders = {task: PRETRAINED / task for task in TABS}
        folders[self.task] = self.checkpoint or PRETRAINED / self.task
        with listen(self.host, self.port) as listening:
            # Said before anything is imported: that alone takes seconds.
            print(f"loading {self.task} from {folders[self.task]} ...", flush=True)
            from bilinear_wm.models.checkpoint import resolve
            from bilinear_wm.models.device import find_device
            from bilinear_wm.play.server import serve
            from bilinear_wm.play.shelf import Shelf
            from bilinear_wm.tasks import task_class

            task_class(self.task)
            find_device(self.device)
            resolve(folders[self.task])
            shelf = Shelf(folders, self.task, self.horizon, self.device, say=_print)
            shelf.load(self.task)
            host = f"[{self.host}]" if ":" in self.host else self.host
            _print(f"open http://{host}:{self.port} in a browser; Ctrl-C ends it")
            serve(shelf, listening, self.host, self.control_hz, self.allow_host)
        return Outcome("stopped")


def _print(line: str) -> None:
    print(line, flush=True)


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on: whoever asks from now on is answered, if later."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port: expected a free one, found {port} in use on {host}; give another (`port`)"
            ) from error
        raise InputError(
            f"host: expected an address of this machine, found {host} ({error.strerror or error})"
        ) from error
