"""What all pages share of one task: the model, the planners, and what its latents mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.analysis.probes import LinearProbe
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.data.episode import EVALUATION_STREAM, episode_seed, simulate_episode
from bilinear_wm.evaluation.load import checked_camera, load_planner, make_planner_config
from bilinear_wm.models.bilinear import BilinearWorldModel
from bilinear_wm.models.encoders.points import PointsEncoder
from bilinear_wm.planning import PLANNERS, Planner
from bilinear_wm.play.canvas import Canvas, make_canvas
from bilinear_wm.play.card import Measured, measured
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import State, Task

PLANNERS_SHOWN = ("gauss-newton", "icem")
STUDY_STEPS = 3000
"""Environment steps of fresh behaviour that say what latents mean."""
FIRST_EPISODE = 20_000
"""Of its stream: evaluations use those from 0 on."""
FALSE_ALARMS = 0.001
OFFSET = 25
"""Steps from a start to its goal, as in the measured tasks."""
VIEW = 224
BACKGROUNDS, CLOUD = 25, 300
"""Pictures of which the background is the median, and latents that a page shows as a cloud."""
FAINT, CLEAR = 35, 60
"""Differences from the background at which a ghost begins to be seen, and is seen fully: more than
a shadow makes."""


class Say(Protocol):
    def __call__(self, line: str, share: float | None = None) -> None: ...


class SharedModel:
    """A model with everything that its pages show.

    Args:
        task: The task.
        checkpoint: Its model.
        options: Of the planners, by name.
        loop: How plans are made.
        device: Where the model runs.
        study_steps: Environment steps of fresh behaviour to learn from what latents mean.
        say: Told what is being done, and its share that is done; may raise, to end it.
    """

    def __init__(
        self,
        task: str,
        checkpoint: Path,
        options: dict[str, dict[str, Any]],
        loop: LoopConfig,
        device: str = "cpu",
        study_steps: int | None = None,
        say: Say = lambda line, share=None: None,
    ) -> None:
        self.task, self.loop, self._checkpoint = task, loop, checkpoint
        self.canvas: Canvas = make_canvas(task)
        say(f"loading {checkpoint}")
        first, *others = PLANNERS_SHOWN
        loaded = load_planner(task, checkpoint, first, options.get(first, {}), device)
        self.model = loaded.model
        self.planners: dict[str, Planner] = {first: loaded.planner} | {
            name: PLANNERS[name](
                loaded.model.dynamics, make_planner_config(name, options.get(name, {}))
            )
            for name in others
        }
        self.measured: dict[str, Measured | None] = {
            name: measured(checkpoint, name, OFFSET) for name in PLANNERS_SHOWN
        }
        self.has_points = isinstance(self.model.encoder, PointsEncoder)
        watch = "watching fresh episodes, to learn what its latents mean"
        say(watch)
        steps = STUDY_STEPS if study_steps is None else study_steps
        self._study(loaded.camera, steps, lambda share: say(watch, share))
        loaded.camera.close()

    def make_camera(self) -> Task:
        """Draws what the model sees; one for each world, which threads do not share."""
        return checked_camera(self.model, self.task, self._checkpoint)

    @torch.no_grad()
    def _study(self, camera: Task, steps: int, tell: Callable[[float], None]) -> None:
        """Probe, components, monitor, background and tasks, from fresh behaviour episodes."""
        skip = self.model.config.frame_skip
        rng = np.random.default_rng(0)
        latents, seen, windows, blocks = [], [], [], []
        self.tasks: list[tuple[State, State]] = []
        """Starts, each with a goal that the behaviour reached from there."""
        index = watched = 0
        while watched < steps or not self.tasks:
            tell(min(watched / steps, 1.0))
            seed = episode_seed(0, FIRST_EPISODE + index, EVALUATION_STREAM)
            episode, index = simulate_episode(camera, seed), index + 1
            watched += len(episode.actions)
            states = episode.states[::skip]
            z = self.model.encode(np.stack([camera.picture(state) for state in states]))
            raw = torch.from_numpy(
                np.asarray(episode.actions[: (len(states) - 1) * skip], np.float32)
            )
            latents.append(z)
            seen.append(states)
            windows.append(torch.stack([z[:-1], z[1:]], dim=1))
            blocks.append(self.model.to_model_actions(raw.to(z))[:, None])
            if len(episode.states) > OFFSET:
                start = int(rng.integers(len(episode.states) - OFFSET))
                pair = episode.states[start], episode.states[start + OFFSET]
                if not camera.success(*pair):
                    self.tasks.append(pair)
        z, states = torch.cat(latents), np.concatenate(seen)
        self._probe = LinearProbe.fitted(z, camera.probe_targets(states))
        self._mean = z.mean(0)
        self._axes = torch.linalg.svd(z - self._mean, full_matrices=False).Vh[:2]
        some = np.linspace(0, len(z) - 1, min(CLOUD, len(z))).astype(int)
        self.cloud = self.components(z[some])
        self.monitor: ActionMonitor | None = None
        if isinstance(self.model, BilinearWorldModel):
            self.monitor = ActionMonitor.calibrated(
                self.model, torch.cat(windows), torch.cat(blocks), FALSE_ALARMS
            )
        self.background = self._seen_behind(states)

    def _seen_behind(self, states: NDArray[np.float64]) -> NDArray[np.uint8]:
        """What is there whatever moves: the median of many pictures."""
        env = make_task(self.task, VIEW, "fast")
        some = np.linspace(0, len(states) - 1, BACKGROUNDS).astype(int)
        pictures = np.stack([env.picture(state) for state in states[some]])
        env.close()
        return np.median(pictures, axis=0).astype(np.uint8)

    def ghost(self, goal: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A goal picture (h, w, 4) whose opacity is its difference from the background."""
        difference = np.abs(goal.astype(int) - self.background).max(-1, keepdims=True)
        opacity = np.clip((difference - FAINT) / (CLEAR - FAINT), 0, 1)
        return np.concatenate([goal, np.rint(255 * opacity).astype(np.uint8)], axis=-1)

    def trails(self, z: Float[Tensor, "n d"]) -> list[list[list[float]]]:
        """Where things are in the picture as latents say: the agent's way first."""
        values = self._probe.read(z.cpu()).numpy()
        seen = {name: values[:, i] for i, name in enumerate(self._probe.names)}
        return [_rounded(trail) for trail in self.canvas.trails(seen)]

    def points(self, z: Float[Tensor, " d"]) -> list[list[float]]:
        """The encoder's points as shares of the picture; none where it has none."""
        if not self.has_points:
            return []
        return _rounded((self.model.points(z).double().cpu().numpy() + 1) / 2)

    def components(self, z: Float[Tensor, "n d"]) -> list[list[float]]:
        """The first two principal components of latents."""
        return _rounded(((z - self._mean) @ self._axes.T).double().cpu().numpy())


def _rounded(pairs: NDArray[np.float64]) -> list[list[float]]:
    return [[round(float(x), 4), round(float(y), 4)] for x, y in pairs]
