"""Principal components of the pictures, held in the latent: keeps there what pictures show.

Neither term of the paper's objective asks for anything but what actions move at once. In PushT
the block's pose is then missing from the latent. Here the first entries of the latent must tell
the leading principal components of the shrunken picture. The components are fixed before
training, so there is no decoder to learn; and because the entries are the components themselves,
two latents are at least as far apart as their (blurred) pictures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

SHRUNKEN = 16
"""Height and width of the pictures whose components are taken."""


class PictureComponents(nn.Module):
    """Ties the first `count` entries of a latent to picture components.

    Component i, of standard deviation s_i over the data, is told in units of sqrt(s_i s_1): large
    features count more than small ones, but not as much more as in the picture.
    """

    mean: Tensor
    basis: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        size = 3 * SHRUNKEN**2
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("basis", torch.zeros(size, count))

    @torch.no_grad()
    def fit(self, pixels: UInt8[Tensor, "pictures h w 3"]) -> None:
        """Find the components of some pictures."""
        flat = shrunken(pixels).double()
        self.mean.copy_(flat.mean(0))
        _, singular, directions = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
        count = self.count
        std = singular[:count] / len(flat) ** 0.5
        scale = (std * std[0]).sqrt().clamp_min(1e-12)
        signs = directions[:count].sum(1).sign()  # an SVD leaves them open
        self.basis.copy_((directions[:count] * (signs / scale)[:, None]).T)

    def error(
        self, z: Float[Tensor, "*batch d"], pixels: UInt8[Tensor, "*batch h w 3"]
    ) -> Float[Tensor, ""]:
        """Mean squared error of the components that the latents tell."""
        target = (shrunken(pixels.flatten(0, -4)) - self.mean) @ self.basis
        return (z[..., : self.count].flatten(0, -2) - target).square().mean()

    @torch.no_grad()
    def draw(self, z: Float[Tensor, "*batch d"]) -> UInt8[Tensor, "*batch size size 3"]:
        """The small picture that a latent tells of."""
        flat = self.mean + z[..., : self.count] @ torch.linalg.pinv(self.basis)
        pictures = flat.unflatten(-1, (3, SHRUNKEN, SHRUNKEN)).movedim(-3, -1)
        return (255 * pictures).round().clamp(0, 255).to(torch.uint8)


def shrunken(pixels: UInt8[Tensor, "pictures h w 3"]) -> Float[Tensor, "pictures n"]:
    """Pictures of 16 px, flat, with values in 0..1."""
    small = F.interpolate(
        pixels.permute(0, 3, 1, 2).float(), size=(SHRUNKEN, SHRUNKEN), mode="area"
    )
    return small.flatten(1) / 255
