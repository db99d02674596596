"""What a latent says beside the points of one picture: further cameras, joint angles, velocities.

For each observation of the history the latents of the cameras (an encoder each) and the z-scored
proprioception are joined to u; the latent is the present u and how it has moved,

    z = scale * (u_now, k_1 (u_now - u_before), k_2 (u_now - u_before_that), ...)

with k_i such that a difference is what the motion would be in one block: positions and velocities
are then numbers of one size, and a goal at rest has zeros for all velocities.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.errors import InputError
from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.drawing import Drawing
from bilinear_wm.models.encoders import make_encoder
from bilinear_wm.observation import Observation


class Senses(nn.Module):
    """Observations to latents, for models that see more than one picture of one camera."""

    mean: Tensor
    std: Tensor
    per_block: Tensor
    scale: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.spec, self.picture_size = config.observes, config.picture_size
        further = self.spec.cameras[1:]
        self.encoders = nn.ModuleList(make_encoder(config) for _ in further)
        if config.drawing_weight > 0:
            self.drawings = nn.ModuleList(Drawing(config) for _ in further)
        before = torch.arange(self.spec.num_observed - 1, 0, -1)
        per_block = config.frame_skip / (self.spec.every * before)
        for name, values in (
            ("mean", torch.tensor(config.proprioception_mean)),
            ("std", torch.tensor(config.proprioception_std)),
            ("per_block", per_block.unsqueeze(-1)),
        ):
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("scale", torch.ones(config.latent_size))

    def forward(self, first: nn.Module, seen: Observation) -> Float[Tensor, "*batch d"]:
        """Latents; `first` is the encoder of the first camera."""
        encoders = (first, *self.encoders)
        parts = [
            encoder(seen.pictures[camera])
            for camera, encoder in zip(self.spec.cameras, encoders, strict=True)
        ]
        if self.spec.proprioception:
            parts.append(self._proprioception(seen.proprioception))
        u = torch.cat(parts, dim=-1)
        if self.spec.num_observed > 1:
            now, before = u[..., -1:, :], u[..., :-1, :]
            moved = (now - before) * self.per_block
            u = torch.cat([now, moved], dim=-2).flatten(-2)
        return u * self.scale

    def of_camera(self, z: Float[Tensor, "*batch d"], camera: str) -> Float[Tensor, "*batch p"]:
        """The part of latents that a camera's present picture became, as its encoder gave it."""
        first = self.spec.cameras.index(camera) * self.picture_size
        part = slice(first, first + self.picture_size)
        return z[..., part] / self.scale[part]

    def _proprioception(self, numbers: Tensor) -> Tensor:
        if numbers.shape[-1:] != self.mean.shape:
            raise InputError(
                f"observation: proprioception: expected {len(self.mean)} numbers "
                f"({', '.join(self.spec.proprioception)}), found shape {tuple(numbers.shape)}"
            )
        return (numbers.float() - self.mean) / self.std
