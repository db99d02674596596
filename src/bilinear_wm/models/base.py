"""What every world model offers: encode, step, roll out, and a loss to learn from."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from bilinear_wm import units
from bilinear_wm.dynamics.base import Dynamics
from bilinear_wm.dynamics.layers import BatchNorm
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint
from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.drawing import Drawing
from bilinear_wm.models.encoders import make_encoder
from bilinear_wm.models.encoders.points import LARGEST_SHIFT, PointsEncoder, shifted
from bilinear_wm.models.prior import ActionPrior
from bilinear_wm.models.senses import Senses
from bilinear_wm.observation import Observation


@dataclass(frozen=True)
class Loss:
    """The objective and the terms it is made of."""

    total: Float[Tensor, ""]
    forward: Float[Tensor, ""]
    """Mean squared error of the predicted latents."""
    inverse: Float[Tensor, ""] | None = None
    """Mean squared error of the recovered actions, where the model recovers them."""
    regularizer: Float[Tensor, ""] | None = None
    drawing: Float[Tensor, ""] | None = None
    """Error of the drawn pictures, where the model draws, as a share of the mean picture's."""

    def numbers(self) -> dict[str, float]:
        """The terms that there are, as plain numbers."""
        return {k: float(v.detach()) for k, v in vars(self).items() if v is not None}


class WorldModel(nn.Module, PyTorchModelHubMixin, abc.ABC):
    """An encoder and a dynamics, learned together from observations and actions."""

    kind: ClassVar[str]
    config_class: ClassVar[type[ModelConfig]]
    dynamics: Dynamics
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = make_encoder(config)
        if config.drawing_weight > 0:
            self.drawing = Drawing(config)
        if not config.observes.is_picture:
            self.senses = Senses(config)
        if config.prior_hidden > 0:
            self.prior = ActionPrior(config.latent_size, config.block_size, config.prior_hidden)
        self.register_buffer("action_mean", torch.tensor(config.action_mean), persistent=False)
        self.register_buffer("action_std", torch.tensor(config.action_std), persistent=False)

    # Learning.

    @abc.abstractmethod
    def latent_loss(
        self, z: Float[Tensor, "batch frames d"], actions: Float[Tensor, "batch frames-1 m"]
    ) -> Loss:
        """The objective, from the latents of windows and the actions between them."""

    def loss(
        self,
        observation: Observation | UInt8[Tensor, "batch frames h w 3"],
        actions: Float[Tensor, "batch blocks m"],
    ) -> Loss:
        """The objective on windows of observations, and the anchor; each is encoded once."""
        seen = self._seen(observation)
        z = self._latents(seen)
        loss = self.latent_loss(z, actions)
        total, error = loss.total, None
        if self.draws:
            error = torch.stack([self._drawing_error(z, seen, c) for c in self._cameras]).mean()
            total = total + self.config.drawing_weight * error
        if self.config.shift_weight > 0:
            errors = [self._shift_error(z[:, 0], seen[:, 0], camera) for camera in self._cameras]
            total = total + self.config.shift_weight * torch.stack(errors).mean()
        return replace(loss, total=total, drawing=error)

    def _drawing_error(self, z: Tensor, seen: Observation, camera: str) -> Tensor:
        error: Tensor = self._of(camera)[1].error(
            self.points(z, camera), self.present(seen, camera)
        )
        return error

    def _shift_error(self, z: Tensor, seen: Observation, camera: str) -> Tensor:
        """How far points are from moving with a shifted picture, in squared cells of the grid."""
        by = torch.randint(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (len(z), 2), device=z.device)
        encoder, _ = self._of(camera)
        after = encoder.points(encoder(shifted(self.present(seen, camera), by)))
        moved = after - self.points(z, camera)
        height, width = self.config.picture_shape
        wanted = by * (2 / torch.tensor([width, height], device=z.device))
        cell = torch.tensor([width, height], device=z.device) * (self.config.grid / height)
        error = (moved - wanted[:, None]) * (cell / 2)
        return error.square().mean()

    def forward(self, observation: Any, actions: Tensor) -> Loss:
        """`loss`, under the name that distributed training wraps."""
        return self.loss(observation, actions)

    def prepare(self, observation: Any) -> None:
        """What a fresh model needs to know of the data, given some observations."""
        seen = self._seen(observation)
        for camera in self._cameras if self.draws else ():
            self._of(camera)[1].prepare(self.present(seen, camera))

    def finalize(self, z: Float[Tensor, "batch d"]) -> None:
        """Last touches before a checkpoint is written, given some latents; changes no plan."""

    def health(self) -> dict[str, float]:
        """Further numbers that tell whether this kind of model is healthy."""
        return {}

    def batch_norms(self) -> list[BatchNorm]:
        """The layers whose running statistics evaluation depends on."""
        return [module for module in self.modules() if isinstance(module, BatchNorm)]

    # Using.

    @torch.no_grad()
    def encode(self, observation: Any) -> Float[Tensor, "*batch d"]:
        """Latents of observations (see `config.observes`), given as arrays or tensors.

        A model that sees one camera and nothing else takes its uint8 pictures (..., H, W, 3) too.

        Raises:
            InputError: If pictures are not uint8 (0 to 255), or not of the model's size.
        """
        return self._latents(self._seen(observation))

    def _seen(self, observation: Any) -> Observation:
        """What the model wants of an observation, as tensors."""
        wanted = self.config.observes.of(observation)
        seen = wanted.map(lambda array: torch.as_tensor(array, device=self.device))
        for camera, pictures in seen.pictures.items():
            self._check_pictures(camera, pictures)
        return seen

    def _check_pictures(self, camera: str, pictures: Tensor) -> None:
        """Refuse what would be encoded to something else than it shows, or not at all."""
        shape = (*self.config.picture_shape, 3)
        if pictures.dtype != torch.uint8:
            raise InputError(
                f"observation: {camera}: expected uint8, from 0 to 255, found "
                f"{str(pictures.dtype).removeprefix('torch.')}; of shares in [0, 1] it is "
                "(255 * pictures).round().astype('uint8')"
            )
        if tuple(pictures.shape[-3:]) != shape:
            raise InputError(
                f"observation: {camera}: expected pictures of shape {shape}, found "
                f"{tuple(pictures.shape[-3:])}; bwm.make_task_for(model) draws them so"
            )

    def _latents(self, seen: Observation) -> Float[Tensor, "*batch d"]:
        if not self.config.observes.is_picture:
            z: Tensor = self.senses(self.encoder, seen)
        else:
            z = self.encoder(seen.pictures[self._cameras[0]])
        return z

    @property
    def _cameras(self) -> tuple[str, ...]:
        return self.config.cameras

    def _of(self, camera: str) -> tuple[Any, Any]:
        """The encoder of a camera, and its drawing (None where there is none)."""
        index = self._cameras.index(camera)
        if index == 0:
            return self.encoder, self.drawing if self.draws else None
        drawing = self.senses.drawings[index - 1] if self.draws else None
        return self.senses.encoders[index - 1], drawing

    def present(self, observation: Any, camera: str | None = None) -> UInt8[Tensor, "*batch h w 3"]:
        """The present picture of a camera (the first), without what came before."""
        pictures: Tensor = self._seen(observation).pictures[self._known(camera)]
        return pictures[..., -1, :, :, :] if self.config.observed > 1 else pictures

    @property
    def scale(self) -> Tensor | None:
        """What each coordinate of the latent is multiplied by, where that can be changed."""
        if not self.config.observes.is_picture:
            return self.senses.scale
        return self.encoder.scale if isinstance(self.encoder, PointsEncoder) else None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.action_mean.device

    @property
    def draws(self) -> bool:
        """Whether `draw` works: the model has a decoder."""
        return self.config.drawing_weight > 0

    def points(
        self, z: Float[Tensor, "*batch d"], camera: str | None = None
    ) -> Float[Tensor, "*batch k 2"]:
        """Where the latent says that things are in the present picture of a camera (the first).

        x to the right, y down, both in [-1, 1].
        """
        if not isinstance(self.encoder, PointsEncoder):
            raise InputError(
                f"points: expected a model with the points encoder, found {self.config.encoder!r}"
            )
        camera = self._known(camera)
        if not self.config.observes.is_picture:
            z = self.senses.of_camera(z, camera)
        points: Tensor = self._of(camera)[0].points(z)
        return points

    def _known(self, camera: str | None) -> str:
        if camera is not None and camera not in self._cameras:
            raise InputError(
                f"camera: expected one of {', '.join(self._cameras)}, found {camera!r}"
            )
        return self._cameras[0] if camera is None else camera

    def draw(
        self, z: Float[Tensor, "*batch d"], camera: str | None = None
    ) -> UInt8[Tensor, "*batch h w 3"]:
        """Pictures of latents, seen or predicted, as a camera (the first) would show them."""
        if not self.draws:
            raise InputError(
                "draw: expected a model with a decoder, found one without; "
                "train one with the points encoder and a drawing_weight (--size compact)"
            )
        drawn: Tensor = self._of(self._known(camera))[1].draw(self.points(z, camera))
        return drawn

    @torch.no_grad()
    def propose(
        self, z: Float[Tensor, "batch d"], z_goal: Float[Tensor, "batch d"], horizon: int
    ) -> Float[Tensor, "batch horizon m"] | None:
        """What the recorded behaviour would do, where the model has learned that."""
        if self.config.prior_hidden == 0:
            return None
        return self.prior.propose(z, z_goal, horizon)

    def to_env_actions(self, actions: Float[Tensor, "*batch h m"]) -> Float[Tensor, "*batch s a"]:
        """Model actions as raw actions, one row per environment step."""
        raw = actions.unflatten(-1, (self.config.frame_skip, -1)).flatten(-3, -2)
        return raw * self.action_std + self.action_mean

    def to_model_actions(self, raw: Float[Tensor, "*batch s a"]) -> Float[Tensor, "*batch h m"]:
        """The inverse of `to_env_actions`."""
        scaled = (raw - self.action_mean) / self.action_std
        return scaled.unflatten(-2, (-1, self.config.frame_skip)).flatten(-2)

    def action_bounds(self, low: Any, high: Any) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """A box of raw actions as bounds on a block of model actions, for `PlanProblem`.

        Rounded inwards, so that `to_env_actions` of anything inside is inside the raw box.
        """
        size = self.config.action_size
        least, most = (np.broadcast_to(np.asarray(x, np.float32), (size,)) for x in (low, high))
        mean, std = self.action_mean.cpu().numpy(), self.action_std.cpu().numpy()
        smallest, largest = units.action_bounds(least, most, mean, std, self.config.frame_skip)
        return torch.from_numpy(smallest).to(self.device), torch.from_numpy(largest).to(self.device)

    # Storing: huggingface-hub's mixin, with loading that is always strict.

    @staticmethod
    def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Stored weights by their present names, where earlier versions had others."""
        return tensors

    def _save_pretrained(self, save_directory: Path) -> None:
        config = {"kind": self.kind, **self.config.to_dict()}
        checkpoint.write_folder(save_directory, config, self.state_dict())

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        **hub_options: Any,
    ) -> Self:
        """Load a checkpoint folder, or download one from the Hub; anything amiss is refused.

        Args:
            pretrained_model_name_or_path: A folder, or a name on the Hub.
            revision: The commit to download. Without one it is the newest, which may change.
            hub_options: Further arguments of `huggingface_hub.snapshot_download`.
        """
        from bilinear_wm.models import load_model

        folder = Path(pretrained_model_name_or_path)
        if not folder.exists():
            name = str(pretrained_model_name_or_path)
            folder = Path(snapshot_download(name, revision=revision, **hub_options))
        model = load_model(folder)
        if not isinstance(model, cls):
            raise checkpoint.wrong_kind(folder, cls.kind, model.kind)
        return model

    def generate_model_card(self, *_: Any, **facts: Any) -> ModelCard:
        """The README of a checkpoint folder."""
        return ModelCard(checkpoint.model_card(self.kind, self.config.to_dict(), facts))
