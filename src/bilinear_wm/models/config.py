"""What a model is made of: flat, frozen, written into its checkpoint as config.json."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from bilinear_wm.errors import InputError, check_choices
from bilinear_wm.observation import CAMERA, ObservationSpec
from bilinear_wm.options import check_types, from_json
from bilinear_wm.registry import ENCODERS

Size = Literal["compact", "paper"]

ENCODER_SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "encoder": "vit",
        "patch_size": 14,
        "width": 192,
        "depth": 12,
        "heads": 3,
        "projector_hidden": 2048,
    },
    "compact": {
        "encoder": "points",
        "drawing_weight": 60.0,
        "shift_weight": 3.0,
        "projector_hidden": 512,
    },
}

LATER = {"cameras", "proprioception", "proprioception_mean", "proprioception_std",
         "observed", "observed_every", "drawing_focus", "prior_hidden", "image_width",
         "backbone", "backbone_size"}  # fmt: skip
"""Fields that checkpoints of format 2 may lack: they then have the defaults."""
LARGEST = {"depth": 256, "image_size": 4096, "observed": 1024}
LARGEST_SIZE = 2**16
"""Of every other whole number: a file may ask for what no machine can make."""


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
    encoder: str = "points"
    """`points`, `vit`, `frozen` or one of your own, which makes latents of `projector_size`
    numbers."""
    num_points: int = 16
    """K of the points encoder; its latent has 2 K numbers."""
    grid: int = 16
    """Cells of its maps from top to bottom, a divisor of the image size; cells are square."""
    channels: int = 64
    projector_size: int = 192
    """Numbers in the latent of every encoder but points."""
    patch_size: int = 14
    stem: Literal["patch", "conv"] = "patch"
    """How patches become tokens: each by itself, or by strided convolutions with batch norms."""
    width: int = 192
    depth: int = 12
    heads: int = 3
    mlp_ratio: int = 4
    projector_hidden: int = 512
    """Of the vision transformer, and of the baselines' predictors."""
    backbone: str = ""
    """Of the frozen encoder: a folder or a name on the Hub; in a checkpoint its architecture."""
    backbone_size: int = 224
    """Height that pictures are brought to for it."""
    # The anchor.
    drawing_weight: float = 0.0
    """Of the drawing anchor, for the points encoder; 0 for none."""
    drawing_focus: float = 1.0
    """Share of each picture's pixels that it counts, the hardest; 1 for all of them alike."""
    shift_weight: float = 0.0
    """Of a term by which points move with the picture when it is shifted; 0 for none."""
    # The plan to begin from.
    prior_hidden: int = 0
    """Width of the action prior (`bwm train-prior`); 0 while there is none."""
    # What is observed.
    cameras: tuple[str, ...] = (CAMERA,)
    """Each has an encoder of its own."""
    proprioception: tuple[str, ...] = ()
    """State variables, or columns of the episode file, that the model sees beside pictures."""
    proprioception_mean: tuple[float, ...] = ()
    """Of each of its numbers, over the training split."""
    proprioception_std: tuple[float, ...] = ()
    observed: int = 1
    """Observations a latent is made of: the present one and those before it."""
    observed_every: int | None = None
    """Environment steps between them; by default a block, `frame_skip`."""
    image_width: int | None = None
    """Of the pictures; by default they are square, and `image_size` is their height."""

    def __post_init__(self) -> None:
        check_choices(self)
        self._check_ranges()
        ENCODERS.check(self.encoder, "encoder")
        self._check_observation()
        for name in ("drawing_weight", "shift_weight"):
            if getattr(self, name) > 0 and self.encoder != "points":
                raise InputError(
                    f"{name}: expected 0 for the encoder {self.encoder!r}, which has no points, "
                    f'found {getattr(self, name)}; add \'"drawing_weight": 0, "shift_weight": 0\''
                )
        if not 0 < self.drawing_focus <= 1:
            raise InputError(
                "drawing_focus: expected a share of the pixels above 0 and at most 1, "
                f"found {self.drawing_focus}"
            )
        if len(self.action_mean) != len(self.action_std) or min(self.action_std, default=0) <= 0:
            raise InputError(
                "action_mean, action_std: expected equally many numbers and positive stds, "
                f"found {self.action_mean}, {self.action_std}"
            )

    def _check_ranges(self) -> None:
        for name, value in vars(self).items():
            largest = LARGEST.get(name, LARGEST_SIZE)
            if type(value) is int and not 0 <= value <= largest:
                raise InputError(f"{name}: expected 0 to {largest}, found {value}")
            numbers = value if isinstance(value, tuple) else (value,)
            if not all(math.isfinite(x) for x in numbers if isinstance(x, float)):
                raise InputError(f"{name}: expected finite numbers, found {value}")
        for name in ("image_size", "frame_skip", "observed"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, found {getattr(self, name)}")

    def _check_observation(self) -> None:
        spec, mean, std = self.observes, self.proprioception_mean, self.proprioception_std
        numbers = bool(mean) == bool(spec.proprioception) and len(mean) >= len(spec.proprioception)
        if not numbers or len(mean) != len(std) or min(std, default=1) <= 0:
            raise InputError(
                "proprioception_mean, proprioception_std: expected equally many numbers and "
                f"positive stds for {list(spec.proprioception)}, found {mean}, {std}; "
                "training takes them from the episode file"
            )

    @property
    def picture_shape(self) -> tuple[int, int]:
        """Height and width of the pictures."""
        return self.image_size, self.image_size if self.image_width is None else self.image_width

    @property
    def action_size(self) -> int:
        """Numbers in one environment action."""
        return len(self.action_mean)

    @property
    def observes(self) -> ObservationSpec:
        """What `encode` wants to see."""
        every = self.frame_skip if self.observed_every is None else self.observed_every
        return ObservationSpec(self.cameras, self.proprioception, self.observed, every)

    @property
    def picture_size(self) -> int:
        """Numbers that one picture becomes."""
        return 2 * self.num_points if self.encoder == "points" else self.projector_size

    @property
    def latent_size(self) -> int:
        """Numbers in a latent."""
        once = len(self.cameras) * self.picture_size + len(self.proprioception_mean)
        return self.observed * once

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
        missing = known - LATER - set(values)
        for what, keys in (("unknown", set(values) - known), ("missing", missing)):
            if keys:
                raise InputError(
                    f"{where}: {what} {', '.join(sorted(keys))}; expected the keys of "
                    f"{cls.__name__}: the file is damaged or was written by another version"
                )
        restored = from_json(cls, values)
        check_types(cls, restored, where)
        try:
            return cls(**restored)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
