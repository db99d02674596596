"""A film of an attempt: what happens, what the plan expects, and the goal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bilinear_wm.models.base import WorldModel

Frame = NDArray[np.uint8]
FPS = 10


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
        from bilinear_wm.reporting.media import write_video

        path.parent.mkdir(parents=True, exist_ok=True)
        gap = np.full((goal.shape[0], 2, 3), 128, np.uint8)
        frames = [*self.frames, last]
        panels = [frames, [goal] * len(frames)]
        if self._imagined:
            imagined = self._imagined[: len(frames)]
            panels.insert(1, imagined + [imagined[-1]] * (len(frames) - len(imagined)))
        pictures = []
        for shown in zip(*panels, strict=True):
            parts = [part for picture in shown for part in (gap, picture)]
            pictures.append(np.concatenate(parts[1:], axis=1))
        write_video(path, pictures, fps=FPS)
