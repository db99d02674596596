"""Everything that plans for a task, from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bilinear_wm.analysis.latents import encode_windows, episodes_for
from bilinear_wm.analysis.probes import LinearProbe
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.models import load_model
from bilinear_wm.models.base import WorldModel
from bilinear_wm.options import make_config
from bilinear_wm.planning import PLANNERS, Planner
from bilinear_wm.tasks import make_task_for, task_class
from bilinear_wm.tasks.base import Task

MONITOR_WINDOWS = PROBED_WINDOWS = 1000
READABLE = 0.5
"""R^2 from which on a variable counts as seen."""


class LoadedPlanner(NamedTuple):
    """A model, a planner on its dynamics, and the task that draws what it sees."""

    model: WorldModel
    planner: Planner
    camera: Task
    bounds: tuple[Tensor, Tensor]


def load_planner(
    task: str,
    checkpoint: Path | None,
    planner: str,
    options: dict[str, Any],
    device: str = "cpu",
    residual: bool = True,
) -> LoadedPlanner:
    """Everything that plans for a task, from a checkpoint; without its residual if asked to."""
    if checkpoint is None:
        raise InputError(f"checkpoint: expected a trained model for {planner}, found none")
    model = load_model(checkpoint, device)
    if not residual:
        if not isinstance(model.dynamics, ResidualDynamics):
            raise InputError(
                "residual: expected a checkpoint with a residual to leave out, found none in "
                f"{checkpoint}"
            )
        model.dynamics = model.dynamics.structured
    camera = checked_camera(model, task, checkpoint)
    made = PLANNERS[planner](model.dynamics, make_planner_config(planner, options))
    low, high = camera.action_space.low, camera.action_space.high  # type: ignore[attr-defined]
    return LoadedPlanner(model, made, camera, model.action_bounds(low, high))


def make_pilot(
    loaded: LoadedPlanner,
    data: Path | None,
    monitor: bool = False,
    state_goals: bool = False,
) -> Pilot:
    """A pilot with what is asked for, set by the data's training part: tasks are held out."""
    model, space = loaded.model, loaded.camera.action_space
    watch, probe = None, None
    if monitor:
        windows = _training_part(model, data, "monitor: expected `data`, which set its threshold")
        z, actions, _ = encode_windows(model, windows, MONITOR_WINDOWS)
        watch = ActionMonitor.calibrated(model, z, actions)
    if state_goals:
        windows = _training_part(model, data, "goal: expected `data`, on which the probe is fitted")
        probe = readable_variables(model, windows)
    low, high = space.low, space.high  # type: ignore[attr-defined]
    return Pilot(model, loaded.planner, low, high, watch, probe=probe)


def readable_variables(model: WorldModel, windows: EpisodeDataset) -> LinearProbe:
    """A linear probe of those of a task's variables that a latent shows."""
    z, _, states = encode_windows(model, windows, PROBED_WINDOWS)
    if states is None:
        raise InputError(f"data {windows.file.path}: expected states, to fit a probe, found none")
    latents, flat = z.flatten(0, 1), states.reshape(-1, states.shape[-1])
    variables = task_class(model.config.task).probe_targets(flat)
    probe = LinearProbe.fitted(latents[::2], {k: v[::2] for k, v in variables.items()})
    scores = probe.scores(latents[1::2], {k: v[1::2] for k, v in variables.items()})
    shown = [name for name, score in scores.items() if score > READABLE]
    if not shown:
        found = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        raise InputError(
            f"goal: expected variables that can be read off latents (R^2 above {READABLE}), "
            f"found {found}"
        )
    # As far apart, in the mean, as latents are: what an effort is worth stays the same.
    probe = probe.only(shown)
    return replace(probe, std=probe.std * float((len(shown) / latents.var(0).sum()).sqrt()))


def goal_variables(pilot: Pilot) -> tuple[str, ...] | None:
    """What goals are given as; None for pictures."""
    return None if pilot.probe is None else pilot.probe.names


def _training_part(model: WorldModel, data: Path | None, complaint: str) -> EpisodeDataset:
    if data is None:
        raise InputError(f"{complaint}, found none")
    return episodes_for(model, data)


def checked_camera(model: WorldModel, task: str, checkpoint: Path) -> Task:
    """A task that draws pictures as the model knows them; refuses a model of another task."""
    facts = model.config
    if facts.task != task:
        raise InputError(
            f"checkpoint {checkpoint}: expected a model of {task}, found one of {facts.task}"
        )
    try:
        camera = make_task_for(model)
    except InputError as error:
        raise InputError(f"checkpoint {checkpoint}: {error}") from error
    if facts.action_size != len(camera.action_names):
        raise InputError(
            f"checkpoint {checkpoint}: expected {len(camera.action_names)} numbers an action, "
            f"found {facts.action_size}"
        )
    return camera


def make_planner_config(planner: str, options: dict[str, Any]) -> Any:
    """The planner's own configuration from plain options."""
    return make_config(PLANNERS[planner].config_class, options, "planner_options")
