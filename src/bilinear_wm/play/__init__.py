"""A page to feel the controller: drag the goal, switch the planner, push the agent.

    bwm play --task tworoom --checkpoint pretrained/tworoom

`canvas.py` is how mouse and picture meet a task, `session.py` one simulation with its controller,
`server.py` and `page.html` what a browser sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bilinear_wm import recipes
from bilinear_wm.errors import InputError
from bilinear_wm.stage import Outcome, at_least


@dataclass(frozen=True)
class PlayConfig:
    """A page to play on.

    Attributes:
        task: tworoom, pusht or reacher.
        checkpoint: A trained model; pretrained/TASK by default.
        host: The address to listen on; anybody who reaches it can play.
        allow_host: Further names by which browsers may ask for the page. Needed where `host` stands
            for all addresses: a page elsewhere could otherwise give itself this machine's.
        port: The port.
        control_hz: Actions a second.
        horizon: Blocks a plan looks ahead; the task's recipe by default.
        device: Where the model runs: cpu, cuda, cuda:1 ...
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
        from bilinear_wm.play.server import is_everywhere, serve
        from bilinear_wm.play.session import SharedModel

        if is_everywhere(self.host) and not self.allow_host:
            raise InputError(
                f"host: {self.host or 'all addresses'}: expected the names by which browsers will "
                "ask for the page (`allow_host`), found none"
            )
        options, recommended = recipes.playing(self.task)
        shared = SharedModel(
            self.task,
            self.checkpoint or Path("pretrained") / self.task,
            options,
            recommended if self.horizon is None else (self.horizon, self.horizon),
            self.device,
        )
        print(f"open http://{self.host}:{self.port} in a browser; Ctrl-C ends it", flush=True)
        serve(shared, self.host, self.port, self.control_hz, self.allow_host)
        return Outcome("stopped")
