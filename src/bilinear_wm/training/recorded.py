"""A split of an episode file in latents: every observation encoded once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models.base import WorldModel

CHUNK = 512


@dataclass(frozen=True)
class Recorded:
    """A split in latents."""

    frames: Float[Tensor, "frames d"]
    windows: Tensor
    """(windows, blocks + 1): which frames."""
    actions: Float[Tensor, "windows blocks m"]

    def __len__(self) -> int:
        return len(self.windows)

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The latents and the actions of some windows."""
        return self.frames[self.windows[rows]], self.actions[rows]

    def spaced(self, count: int) -> tuple[Tensor, Tensor]:
        """Those of windows from all over the split."""
        rows = torch.linspace(0, len(self) - 1, min(count, len(self))).long()
        return self.batch(rows.to(self.windows.device))


@torch.no_grad()
def recorded(model: WorldModel, data: EpisodeDataset, num_blocks: int, progress: bool) -> Recorded:
    """Encode a split, in windows of that many blocks."""
    bar = tqdm(
        total=data.num_pictures, desc="encode", unit="picture", disable=not progress, leave=False
    )
    parts = []
    with bar:
        for observation in data.observations(CHUNK):
            parts.append(model.encode(observation))
            bar.update(len(parts[-1]))
    windows = data.reframed(num_blocks + 1)
    everything = range(len(windows))
    return Recorded(
        torch.cat(parts),
        torch.from_numpy(windows.frames_of(everything)).to(model.device),
        torch.from_numpy(windows.actions_of(everything)).to(model.device),
    )
