"""Attempts as a `View` shows them: what is seen, what plans expect, what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilinear_wm.control.box import Action
from bilinear_wm.control.loop import Delivery
from bilinear_wm.models.base import WorldModel
from bilinear_wm.view import View

if TYPE_CHECKING:
    from bilinear_wm.evaluation.attempt import Attempt


class Watcher:
    """Shows attempts, each under its number: `episode/003/camera` and so on."""

    def __init__(self, view: View, model: WorldModel) -> None:
        self._view, self._model = view, model

    def planned(self, attempt: Attempt, made: Delivery) -> None:
        """A plan came: where its points are, what it predicts, what it does and costs."""
        view, model, plan = self._view, self._model, made.plan
        place, step = _place(attempt), attempt.steps
        if model.config.encoder == "points":
            points = model.points(plan.latents[0]).cpu().numpy()
            view.points(step, f"{place}/camera/points", points, model.config.picture_shape)
        if model.draws:
            view.picture(step, f"{place}/predicted", model.draw(plan.latents[1:]).cpu().numpy())
        view.table(step, f"{place}/plan", made.actions)
        numbers = {"cost": float(plan.cost)}
        view.numbers(step, place, numbers)
        times = {"encode_ms": 1e3 * made.encode_seconds, "plan_ms": 1e3 * made.plan_seconds}
        view.numbers(step, f"{place}/timing", times)

    def stepping(self, attempt: Attempt, action: Action) -> None:
        """What is seen before an action, and the action."""
        self._look(attempt)
        names = attempt.env.action_names
        values = dict(zip(names, map(float, action), strict=True))
        self._view.numbers(attempt.steps, f"{_place(attempt)}/action", values)

    def ended(self, attempt: Attempt) -> None:
        """What is seen in the end."""
        self._look(attempt)

    def _look(self, attempt: Attempt) -> None:
        view, place, step, env = self._view, _place(attempt), attempt.steps, attempt.env
        view.picture(step, f"{place}/camera", attempt.picture())
        view.picture(step, f"{place}/goal", attempt.goal_picture())
        view.numbers(step, place, {"distance": float(env.distance(env.state, env.goal))})


def _place(attempt: Attempt) -> str:
    return f"episode/{attempt.task.index:03d}"
