"""Principal components of the pictures, read off the latent: keeps in it what pictures show.

Neither term of the paper's objective asks for anything but what actions move at once. In PushT
the block's pose is then missing from the latent. A linear readout that must tell the leading
principal components of the shrunken picture keeps it there. The components are fixed before
training, so there is no decoder to learn; and because the readout is linear, distances between
latents follow distances between (blurred) pictures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

SHRUNKEN = 16
"""Height and width of the pictures whose components are taken."""


class PictureComponents(nn.Module):
    """A linear readout of `count` picture components from a latent.

    Component i, of standard deviation s_i over the data, is told in units of sqrt(s_i s_1): large
    features count more than small ones, but not as much more as in the picture.
    """

    mean: Tensor
    basis: Tensor

    def __init__(self, latent_size: int, count: int) -> None:
        super().__init__()
        size = 3 * SHRUNKEN**2
        self.readout = nn.Linear(latent_size, count)
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("basis", torch.zeros(size, count))

    @torch.no_grad()
    def fit(self, pixels: UInt8[Tensor, "pictures h w 3"]) -> None:
        """Find the components of some pictures."""
        flat = shrunken(pixels).double()
        self.mean.copy_(flat.mean(0))
        _, singular, directions = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
        count = self.basis.shape[1]
        std = singular[:count] / len(flat) ** 0.5
        scale = (std * std[0]).sqrt().clamp_min(1e-12)
        signs = directions[:count].sum(1).sign()  # an SVD leaves them open
        self.basis.copy_((directions[:count] * (signs / scale)[:, None]).T)

    def error(
        self, z: Float[Tensor, "*batch d"], pixels: UInt8[Tensor, "*batch h w 3"]
    ) -> Float[Tensor, ""]:
        """Mean squared error of the components read off the latents."""
        target = (shrunken(pixels.flatten(0, -4)) - self.mean) @ self.basis
        return (self.readout(z).flatten(0, -2) - target).square().mean()

    @torch.no_grad()
    def draw(self, z: Float[Tensor, "*batch d"]) -> UInt8[Tensor, "*batch size size 3"]:
        """The small picture that a latent tells of."""
        flat = self.mean + self.readout(z) @ torch.linalg.pinv(self.basis)
        pictures = flat.unflatten(-1, (3, SHRUNKEN, SHRUNKEN)).movedim(-3, -1)
        return (255 * pictures).round().clamp(0, 255).to(torch.uint8)


def shrunken(pixels: UInt8[Tensor, "pictures h w 3"]) -> Float[Tensor, "pictures n"]:
    """Pictures of 16 px, flat, with values in 0..1."""
    small = F.interpolate(
        pixels.permute(0, 3, 1, 2).float(), size=(SHRUNKEN, SHRUNKEN), mode="area"
    )
    return small.flatten(1) / 255
