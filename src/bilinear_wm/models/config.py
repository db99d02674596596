"""What a model is made of: flat, frozen, written into its checkpoint as config.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from bilinear_wm.errors import InputError, check_choices

Size = Literal["compact", "paper"]

ENCODER_SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "patch_size": 14,
        "stem": "patch",
        "width": 192,
        "depth": 12,
        "heads": 3,
        "projector_hidden": 2048,
    },
    "compact": {
        "patch_size": 16,
        "stem": "conv",
        "width": 128,
        "depth": 2,
        "heads": 4,
        "projector_hidden": 512,
    },
}


@dataclass(frozen=True)
class ModelConfig:
    """The data a model was made for, and its encoder."""

    # The data.
    task: str
    image_size: int
    frame_skip: int
    action_mean: tuple[float, ...]
    """Of one environment action, over the training split."""
    action_std: tuple[float, ...]
    render_quality: str = "unknown"
    # The encoder.
    latent_size: int = 192
    patch_size: int = 16
    stem: Literal["patch", "conv"] = "conv"
    stem_norm: bool = False
    """Batch norms between the stem's convolutions: they see soon how things are turned, not only
    where they are, at the price of noisier latents during training."""
    width: int = 128
    depth: int = 3
    heads: int = 4
    mlp_ratio: int = 4
    projector_hidden: int = 512

    def __post_init__(self) -> None:
        check_choices(self)
        if self.image_size % self.patch_size:
            raise InputError(
                f"patch_size: expected a divisor of image_size {self.image_size}, "
                f"found {self.patch_size}; give another (--options), or pictures of another size"
            )
        if self.stem == "conv" and self.patch_size & (self.patch_size - 1):
            raise InputError(
                f"patch_size: expected a power of two for the conv stem, found {self.patch_size}"
            )
        if self.width % self.heads:
            raise InputError(f"heads: expected a divisor of width {self.width}, found {self.heads}")
        if len(self.action_mean) != len(self.action_std) or min(self.action_std, default=0) <= 0:
            raise InputError(
                "action_mean, action_std: expected equally many numbers and positive stds, "
                f"found {self.action_mean}, {self.action_std}"
            )

    @property
    def action_size(self) -> int:
        """Numbers in one environment action."""
        return len(self.action_mean)

    @property
    def block_size(self) -> int:
        """Numbers in one model action: `frame_skip` environment actions."""
        return self.frame_skip * self.action_size

    def to_dict(self) -> dict[str, Any]:
        """As it stands in config.json."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "config.json") -> Self:
        """The inverse of `to_dict`; unknown and missing keys are refused."""
        known = {field.name for field in fields(cls)}
        for what, keys in (("unknown", set(values) - known), ("missing", known - set(values))):
            if keys:
                raise InputError(
                    f"{where}: {what} {', '.join(sorted(keys))}; expected the keys of "
                    f"{cls.__name__}: the file is damaged or was written by another version"
                )
        restored: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**restored)
