"""The neural dynamics that LeWM and SMWM share: a causal transformer steered by actions.

It is LeWM's to the letter: weights that were published for it give the same latents here
(`models/reference_lewm.py`).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bilinear_wm.dynamics.base import Dynamics
from bilinear_wm.dynamics.layers import Projector, attend


@runtime_checkable
class PredictorSizes(Protocol):
    """What the predictor needs to know; `models/predictor.py` has the configuration."""

    @property
    def latent_size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def action_size(self) -> int: ...
    @property
    def history(self) -> int: ...
    @property
    def projector_hidden(self) -> int: ...
    @property
    def predictor_depth(self) -> int: ...
    @property
    def predictor_heads(self) -> int: ...
    @property
    def predictor_head_size(self) -> int: ...
    @property
    def predictor_hidden(self) -> int: ...
    @property
    def predictor_dropout(self) -> float: ...
    @property
    def action_channels(self) -> int: ...
    @property
    def action_hidden(self) -> int: ...


STEERED_EPS = 1e-6
"""Of the norms that actions steer."""


class PredictorDynamics(Dynamics):
    """Predicts the next latent from up to `history` latents and the actions taken in them."""

    def __init__(self, config: PredictorSizes) -> None:
        super().__init__()
        self.latent_size, self.action_size = config.latent_size, config.block_size
        self.env_action_size = config.action_size
        self.history = config.history
        width = config.latent_size
        self.embed_action = nn.Sequential(
            nn.Linear(config.block_size, config.action_channels),
            nn.Linear(config.action_channels, config.action_hidden),
            nn.SiLU(),
            nn.Linear(config.action_hidden, width),
        )
        self.position = nn.Parameter(torch.randn(1, config.history, width))
        self.blocks = nn.ModuleList(SteeredBlock(config) for _ in range(config.predictor_depth))
        self.norm = nn.LayerNorm(width)
        self.project = Projector(width, config.projector_hidden, width)

    def predict(
        self, z: Float[Tensor, "batch time d"], a: Float[Tensor, "batch time m"]
    ) -> Float[Tensor, "batch time d"]:
        """The latent after each of up to `history` steps, each seeing those before it."""
        steer = self.embed_action(a)
        x = z + self.position[:, : z.shape[1]]
        for block in self.blocks:
            x = block(x, steer)
        result: Tensor = self.project(self.norm(x))
        return result.to(z.dtype)

    def step(
        self, z: Float[Tensor, "*batch d"], a: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch d"]:
        flat = self.predict(z.reshape(-1, 1, z.shape[-1]), a.reshape(-1, 1, a.shape[-1]))
        return flat.view_as(z)

    def rollout(
        self, z0: Float[Tensor, "*batch d"], actions: Float[Tensor, "*batch h m"]
    ) -> Float[Tensor, "*batch h+1 d"]:
        batch = z0.shape[:-1]
        latents = [z0.reshape(-1, z0.shape[-1])]
        a = actions.reshape(-1, *actions.shape[-2:])
        for step in range(a.shape[1]):
            first = max(step + 1 - self.history, 0)
            context = torch.stack(latents[first:], dim=1)
            latents.append(self.predict(context, a[:, first : step + 1])[:, -1])
        stacked = torch.stack(latents, dim=1)
        return stacked.reshape(*batch, *stacked.shape[1:])


class SteeredBlock(nn.Module):
    """A transformer block whose norms are shifted, scaled and gated by the action (AdaLN-zero).

    What was shifted and scaled is normalised once more, with weights, before attention and MLP.
    """

    def __init__(self, config: PredictorSizes) -> None:
        super().__init__()
        width, inner = config.latent_size, config.predictor_heads * config.predictor_head_size
        self.heads = config.predictor_heads
        self.norm_attention = nn.LayerNorm(width, eps=STEERED_EPS, elementwise_affine=False)
        self.norm_mlp = nn.LayerNorm(width, eps=STEERED_EPS, elementwise_affine=False)
        self.renorm_attention, self.renorm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * inner, bias=False), nn.Linear(inner, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, config.predictor_hidden),
            nn.GELU(),
            nn.Dropout(config.predictor_dropout),
            nn.Linear(config.predictor_hidden, width),
        )
        self.dropout = nn.Dropout(config.predictor_dropout)
        last = nn.Linear(width, 6 * width)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.steer = nn.Sequential(nn.SiLU(), last)

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.steer(action).chunk(6, dim=-1)
        inner = self.norm_attention(x) * (1 + scale_a) + shift_a
        dropout = self.dropout.p if self.training else 0.0
        qkv = self.qkv(self.renorm_attention(inner))
        attended = self.out(attend(qkv, self.heads, causal=x.shape[1] > 1, dropout=dropout))
        x = x + gate_a * self.dropout(attended)
        inner = self.norm_mlp(x) * (1 + scale_m) + shift_m
        result: Tensor = x + gate_m * self.dropout(self.mlp(self.renorm_mlp(inner)))
        return result
