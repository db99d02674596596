"""One simulation with its controller, for one page."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.control.box import Action
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Delivery, Tick
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.data.episode import EVALUATION_STREAM, episode_seed, simulate_episode
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.load import checked_camera, load_planner, make_planner_config
from bilinear_wm.models.bilinear import BilinearWorldModel
from bilinear_wm.planning import PLANNERS, Planner
from bilinear_wm.play.canvas import Canvas, make_canvas
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task

PLANNERS_SHOWN = ("gauss-newton", "icem")
EPISODES = 40
FALSE_ALARMS = 0.001
VIEW = 224
RIDGE = 1e-6
LIGHT_S = 1.0

Send = Callable[[dict[str, Any], NDArray[np.uint8] | None], None]


class SharedModel:
    """What all pages share: the model, the planners, what a latent looks like, the monitor."""

    def __init__(
        self,
        task: str,
        checkpoint: Path,
        options: dict[str, dict[str, Any]],
        horizons: tuple[int, int],
        device: str = "cpu",
    ) -> None:
        self.task, self.horizons, self._checkpoint = task, horizons, checkpoint
        self.canvas: Canvas = make_canvas(task)
        first, *others = PLANNERS_SHOWN
        loaded = load_planner(task, checkpoint, first, options.get(first, {}), device)
        self.model = loaded.model
        self.planners: dict[str, Planner] = {first: loaded.planner} | {
            name: PLANNERS[name](
                loaded.model.dynamics, make_planner_config(name, options.get(name, {}))
            )
            for name in others
        }
        self._study(loaded.camera)

    def make_camera(self) -> Task:
        """Draws what the model sees; one for each session, which threads do not share."""
        return checked_camera(self.model, self.task, self._checkpoint)

    @torch.no_grad()
    def _study(self, camera: Task) -> None:
        """Fit a probe of what can be seen, and set the monitor, on fresh behaviour episodes."""
        skip = self.model.config.frame_skip
        latents, targets, windows, blocks = [], [], [], []
        for i in range(EPISODES):
            episode = simulate_episode(camera, episode_seed(0, 20_000 + i, EVALUATION_STREAM))
            states = episode.states[::skip]
            z = self.model.encode(np.stack([camera.picture(state) for state in states]))
            whole = len(states) - 1
            raw = torch.from_numpy(np.asarray(episode.actions[: whole * skip], np.float32))
            latents.append(z)
            targets.append(states)
            windows.append(torch.stack([z[:-1], z[1:]], dim=1))
            blocks.append(self.model.to_model_actions(raw.to(z))[:, None])
        z = torch.cat(latents).double().cpu()
        seen = camera.probe_targets(np.concatenate(targets))
        self._names = tuple(seen)
        ones = torch.ones(len(z), 1, dtype=z.dtype)
        inputs = torch.cat([z, ones], dim=1)
        wanted = torch.from_numpy(np.stack([seen[name] for name in self._names], axis=1))
        gram = inputs.T @ inputs
        ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=z.dtype)
        self._probe = torch.linalg.solve(gram + ridge, inputs.T @ wanted)
        self.monitor: ActionMonitor | None = None
        if isinstance(self.model, BilinearWorldModel):
            self.monitor = ActionMonitor.calibrated(
                self.model, torch.cat(windows), torch.cat(blocks), FALSE_ALARMS
            )

    def path(self, z: Tensor) -> list[list[float]]:
        """Where latents are in the picture."""
        inputs = torch.cat([z.double().cpu(), torch.ones(len(z), 1, dtype=torch.double)], dim=1)
        values = (inputs @ self._probe).numpy()
        seen = {name: values[:, i] for i, name in enumerate(self._names)}
        return [[float(x), float(y)] for x, y in self.canvas.points(seen)]


class Session:
    """One page's world. `send` takes messages from the ticking thread.

    Args:
        shared: What all sessions share.
        send: Takes a message and perhaps a picture.
        control_hz: Ticks a second.
        seed: Of the start and of pushes.
    """

    def __init__(
        self, shared: SharedModel, send: Send, control_hz: float = 20.0, seed: int = 0
    ) -> None:
        self._shared, self._send = shared, send
        self._rng = np.random.default_rng(seed)
        self._env = make_task(shared.task, VIEW, "fast")
        self._camera = shared.make_camera()
        self._env.begin(seed=seed)
        self._wishes: dict[str, Any] = {}
        self._planner = PLANNERS_SHOWN[0]
        self._light_until = -math.inf
        self._imagined: Delivery | None = None
        self._disagreement = 0.0
        self._lock = threading.Lock()
        first, longest = shared.horizons
        planner = shared.planners[self._planner]
        self.controller = RealTimeController(
            shared.model,
            planner,
            control_hz,
            LoopConfig(first, max_horizon=longest),
            pilot=Pilot(shared.model, planner, monitor=shared.monitor),
            act=self._act,
            on_tick=self._show,
            on_plan=self._watch,
            deadline_s=math.inf,  # a slow planner is to be felt
        )

    def start(self) -> None:
        self._send({"hint": self._shared.canvas.hint, "turns": self._shared.canvas.turns,
                    "planners": PLANNERS_SHOWN, "size": VIEW,
                    "monitor": self._shared.monitor is not None}, None)  # fmt: skip
        self._set_goal(self._env.goal)
        self.controller.observe(self._camera.picture(self._env.state))
        self.controller.start()

    def stop(self) -> None:
        self.controller.stop()
        self._env.close()
        self._camera.close()

    def wish(self, message: Any) -> None:
        """Something from the page: a goal, a planner, a push.

        The newest of each is carried out at the next tick.
        """
        if not isinstance(message, dict):
            raise InputError(f"message: expected an object, found {type(message).__name__}")
        wish: dict[str, Any]
        if "goal" in message:
            wish = {"goal": _goal(message["goal"])}
        elif "planner" in message:
            wish = {"planner": message["planner"]}
            if message["planner"] not in PLANNERS_SHOWN:
                raise InputError(
                    f"planner: expected one of {', '.join(PLANNERS_SHOWN)}, "
                    f"found {message['planner']!r}"
                )
        elif "push" in message:
            wish = {"push": True}
        else:
            raise InputError(f"message: expected goal, planner or push, found {sorted(message)}")
        with self._lock:
            self._wishes |= wish

    def _act(self, action: Action) -> None:
        """One step of the world, in the ticking thread."""
        with self._lock:
            wishes, self._wishes = self._wishes, {}
        if "goal" in wishes:
            x, y, angle = wishes["goal"]
            self._set_goal(self._shared.canvas.goal(x, y, angle, self._env.state))
        if "planner" in wishes:
            self._planner = wishes["planner"]
            self.controller.pilot.planner = self._shared.planners[self._planner]
        if "push" in wishes:
            self._shared.canvas.push(self._env, self._rng)
        self._env.advance(action)
        self.controller.observe(self._camera.picture(self._env.state))

    def _set_goal(self, goal: NDArray[np.float64]) -> None:
        self._env.set_goal(goal)
        self.controller.set_goal(self._camera.picture(goal))
        point = self._shared.canvas.goal_point(goal)
        self._send({"goal": point}, self._env.picture(goal))

    def _watch(self, made: Delivery) -> None:
        """Does the model explain what happened? In the planning thread."""
        if made.disagreement is not None:
            self._disagreement = made.disagreement
        if made.alarms:
            self._light_until = time.perf_counter() + LIGHT_S

    def _show(self, tick: Tick) -> None:
        made, state, goal = self.controller.loop.last, self._env.state, self._env.goal
        monitor = self._shared.monitor
        self._send(
            {
                "tick": tick.index,
                "source": tick.source,
                "reason": tick.reason,
                "planner": self._planner,
                "plan_ms": None if made is None else 1e3 * made.plan.seconds,
                "path": [] if made is None else self._shared.path(made.plan.latents),
                "solved": bool(self._env.success(state, goal)),
                "distance": float(self._env.distance(state, goal)),
                "alarm": time.perf_counter() < self._light_until,
                "disagreement": self._disagreement / monitor.threshold if monitor else 0.0,
            },
            self._env.picture(state),
        )
        if made is not None and made is not self._imagined and self._shared.model.draws:
            self._imagined = made
            pictures = self._shared.model.draw(made.plan.latents[1:]).cpu().numpy()
            count, size = pictures.shape[:2]
            self._send({"imagined": count, "size": size}, np.concatenate(list(pictures), axis=1))


def _goal(given: Any) -> tuple[float, float, float]:
    """A place, not far outside the picture, and an angle."""
    try:
        x, y, angle = (float(number) for number in given if type(number) in (int, float))
        finite = len(given) == 3 and all(map(math.isfinite, (x, y, angle)))
    except (TypeError, ValueError, OverflowError):
        finite = False
    if not finite:
        found = repr(given)
        found = found if len(found) < 100 else f"{found[:100]}..."
        raise InputError(f"goal: expected three numbers x, y, angle, found {found}")
    return min(max(x, -1.0), 2.0), min(max(y, -1.0), 2.0), math.remainder(angle, 2 * math.pi)
