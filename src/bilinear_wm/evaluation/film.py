"""A film of an attempt: what happens, what the plan expects, and the goal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.models.base import WorldModel

Frame = NDArray[np.uint8]
FPS, GAP = 10, 8


class Film:
    """Pictures on the way; of what plans expect too, if the model draws."""

    def __init__(self, model: WorldModel) -> None:
        self._model = model
        self.frames: list[Frame] = []
        self._imagined: list[Frame] = []

    def imagine(self, latents: Tensor) -> None:
        """From the next step on, a plan expects these, one a block."""
        if self._model.draws:
            pictures = self._model.draw(latents).cpu().numpy()
            skip = self._model.config.frame_skip
            self._imagined[len(self.frames) :] = list(pictures.repeat(skip, axis=0))

    def write(self, path: Path, last: Frame, goal: Frame) -> None:
        """As MP4, ending with a last picture."""
        from bilinear_wm.reporting.media import (
            TITLE,
            VIDEO_SIZE,
            enlarge,
            title_bar,
            write_video,
        )

        path.parent.mkdir(parents=True, exist_ok=True)
        frames = [*self.frames, last]
        panels = {"now": frames, "goal": [goal] * len(frames)}
        if self._imagined:
            imagined = self._imagined[: len(frames)]
            imagined += [imagined[-1]] * (len(frames) - len(imagined))
            panels = {"now": frames, "imagined": imagined, "goal": panels["goal"]}
        height, width = enlarge(goal, VIDEO_SIZE).shape[:2]
        gap = np.full((height, GAP, 3), 255, np.uint8)
        words = [part for name in panels for part in (title_bar(name, width), gap[:TITLE])]
        head = np.concatenate(words[:-1], axis=1)
        pictures = []
        for shown in zip(*panels.values(), strict=True):
            parts = [part for picture in shown for part in (enlarge(picture, VIDEO_SIZE), gap)]
            pictures.append(np.concatenate([head, np.concatenate(parts[:-1], axis=1)]))
        write_video(path, pictures, fps=FPS)
