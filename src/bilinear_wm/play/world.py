"""One simulation with its controller: a pane of a page."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bilinear_wm.control.box import Action
from bilinear_wm.control.loop import Delivery, Tick
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.play.shared import VIEW, SharedModel
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import State

LIGHT_S = 1.0
"""How long the light stays on after the model did not explain something."""

Send = Callable[[dict[str, Any], NDArray[np.uint8] | None], None]


@dataclass
class Score:
    """Goals reached of those tried. One that is solved when it is set does not count."""

    reached: int = 0
    tried: int = 0
    rounds: int = 0
    """How often the world was set anew."""
    actions: int | None = None
    """That the last one took."""
    _since: int | None = None
    """Actions since the goal was set; none once it is reached."""
    _was_open: bool = False

    def begin(self) -> None:
        """Another goal; one that was not reached is given up."""
        self.tried += self._since is not None and self._was_open
        self.rounds += 1
        self.aim()

    def aim(self) -> None:
        """The goal is moved: it is still the same try."""
        self._since, self._was_open = 0, False

    def saw(self, solved: bool) -> None:
        """An action was taken."""
        if self._since is None:
            return
        self._since += 1
        if not solved:
            self._was_open = True
            return
        if self._was_open:
            self.reached, self.tried, self.actions = self.reached + 1, self.tried + 1, self._since
        self._since = None


class World:
    """A world, in which one planner acts. `send` takes messages from the ticking thread.

    Args:
        shared: What all worlds of the task share.
        planner: Of those shown.
        send: Takes a message and perhaps a picture.
        control_hz: Ticks a second.
    """

    def __init__(
        self, shared: SharedModel, planner: str, send: Send, control_hz: float = 20.0
    ) -> None:
        self.planner, self.score = planner, Score()
        self._shared, self._send, self._control_hz = shared, send, control_hz
        self._env = make_task(shared.task, VIEW, "fast")
        self._camera = shared.make_camera()
        self._black = np.zeros((self._camera.image_size,) * 2 + (3,), np.uint8)
        self._nothing = np.full(self._black.shape, np.nan)
        self._lock, self._wishes = threading.Lock(), dict[str, Any]()
        self._blocked, self._leads = False, True
        self._controller: RealTimeController | None = None
        self._forget()

    def _forget(self) -> None:
        self._light_until, self._disagreement = -math.inf, 0.0
        self._imagined: Delivery | None = None
        self._before: Delivery | None = None
        """The last plan of what has ended."""

    def place(self, state: State, goal: State) -> None:
        """Set it up, at rest; wishes are taken from now on."""
        self._env.set_state(state)
        self._env.set_goal(goal)
        self._now = self._env.state
        self._wishes, self._blocked, self.score = {}, False, Score()
        self._forget()

    def start(self, leads: bool = True) -> None:
        """Begin to act; the world that leads tells the page what the goal is."""
        shared, planner = self._shared, self._shared.planners[self.planner]
        self._leads = leads
        self._controller = RealTimeController(
            shared.model,
            planner,
            self._control_hz,
            shared.loop,
            pilot=Pilot(shared.model, planner, monitor=shared.monitor),
            act=self._act,
            on_tick=self._show,
            on_plan=self._watch,
            deadline_s=math.inf,  # a slow planner is to be felt
            max_age_s=math.inf,  # between two ticks this world stands still
        )
        self._set_goal(self._env.goal)
        self.score.begin()
        self._look()
        self._controller.start()

    @property
    def controller(self) -> RealTimeController:
        assert self._controller is not None
        return self._controller

    def stop(self) -> None:
        """Stop acting."""
        if self._controller is not None:
            self._controller.stop()

    def close(self) -> None:
        """Free what draws."""
        self._env.close()
        self._camera.close()

    @property
    def now(self) -> tuple[State, State]:
        """The state at the last tick, and the goal."""
        return self._now, self._env.goal

    def wish(self, **wishes: Any) -> None:
        """Something to do at the next tick; the newest of each kind is done.

        Args:
            wishes: `begin` a (state, goal), a `goal` state, a `push` by a seed, `blocked` or not.
        """
        with self._lock:
            if "begin" in wishes:
                self._wishes.pop("goal", None)
            self._wishes |= wishes

    def _act(self, action: Action) -> None:
        """One step of the world, in the ticking thread."""
        with self._lock:
            wishes, self._wishes = self._wishes, {}
        self._blocked = wishes.get("blocked", self._blocked)
        if "begin" in wishes:
            state, goal = wishes["begin"]
            self._env.set_state(state)
            self._set_goal(goal)
            self.score.begin()
            self._forget()
            self._before = self.controller.loop.last
            # Nobody saw how it came here: what was planned and watched ends.
            self.controller.observe(self._nothing)
        else:
            if "push" in wishes:
                rng = np.random.default_rng(wishes["push"])
                self._shared.canvas.push(self._env, rng)
            self._env.advance(action)
            self._look()
        if "goal" in wishes:
            self._set_goal(wishes["goal"])
            self.score.aim()
        self._now = self._env.state

    def _look(self) -> None:
        self._now = self._env.state
        self.controller.observe(self._black if self._blocked else self._camera.picture(self._now))

    def _set_goal(self, goal: State) -> None:
        picture = self._camera.picture(goal)
        self._env.set_goal(goal)
        self.controller.set_goal(picture)
        if self._leads:
            (latent,) = self._shared.components(self._shared.model.encode(picture)[None])
            self._send(
                {"kind": "goal", "at": self._shared.canvas.goal_point(goal), "latent": latent},
                self._shared.ghost(self._env.picture(goal)),
            )

    def _watch(self, made: Delivery) -> None:
        """Does the model explain what happened? In the planning thread."""
        if made.disagreement is not None:
            self._disagreement = made.disagreement
        if made.alarms:
            self._light_until = time.perf_counter() + LIGHT_S

    @torch.no_grad()
    def _show(self, tick: Tick) -> None:
        made, state, goal = self.controller.loop.last, self._now, self._env.goal
        made = None if made is self._before else made
        shared, monitor = self._shared, self._shared.monitor
        solved = bool(self._env.success(state, goal))
        self.score.saw(solved)
        message = {
            "kind": "tick",
            "pane": self.planner,
            "tick": tick.index,
            "source": tick.source,
            "reason": tick.reason,
            "solved": solved,
            "distance": float(self._env.distance(state, goal)),
            "blocked": self._blocked,
            "alarm": time.perf_counter() < self._light_until,
            "disagreement": self._disagreement / monitor.threshold if monitor else 0.0,
            "round": self.score.rounds,
            "score": [self.score.reached, self.score.tried, self.score.actions],
            "plan_ms": None, "trails": [], "points": [], "latents": [],
        }  # fmt: skip
        if made is not None:
            latents = made.plan.latents
            message |= {
                "plan_ms": 1e3 * made.plan.seconds,
                "trails": shared.trails(latents),
                "points": shared.points(latents[0]),
                "latents": shared.components(latents),
            }
        self._send(message, self._env.picture(state))
        if made is not None and made is not self._imagined and shared.model.draws:
            self._imagined = made
            pictures = shared.model.draw(made.plan.latents[1:]).cpu().numpy()
            count, size = pictures.shape[:2]
            self._send(
                {"kind": "imagined", "pane": self.planner, "count": count, "size": size},
                np.concatenate(list(pictures), axis=1),
            )
