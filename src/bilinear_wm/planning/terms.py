"""Costs of the user: whatever can be said as residuals of latents and actions.

    goal = StateGoal(probe.matrix, probe.offset, target)
    problem = PlanProblem(z, None, horizon=5, terms=(goal,))

A cost of your own is one method, `residual`; its derivatives are carried along by forward-mode
differentiation, r_dot = dr/dz J + dr/da E, and give the Gauss-Newton part 1/2 |r|^2,
gradient r_dot^T r, Hessian r_dot^T r_dot. All planners in torch take them; the compiled kernel
leaves problems that have them to torch.

Physical quantities are read off a latent by a linear map, s = W z + b (`analysis/probes.py` fits
one). Numbers that belong to a problem may be given once for all, or one row a problem.
"""

from __future__ import annotations

import abc
import functools
import warnings
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.planning.objective import (
    Actions,
    Costs,
    Latents,
    Quadratic,
    SeveralActions,
    SeveralLatents,
    Tangents,
    Term,
)


@functools.cache
def _load_rules() -> None:
    """Torch compiles its forward-mode rules when they are first used, and warns of its own way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.zeros(1),))


class Residuals(Term):
    """weight / 2 |r(latents, actions)|^2."""

    weight: float
    per_problem: ClassVar[tuple[str, ...]] = ()
    """Fields that may have a leading axis, one row a problem."""

    @abc.abstractmethod
    def residual(
        self, latents: SeveralLatents, actions: SeveralActions
    ) -> Float[Tensor, "batch samples n"]:
        """What should be zero."""

    def value(self, latents: SeveralLatents, actions: SeveralActions) -> Costs:
        return 0.5 * self.weight * self.residual(latents, actions).square().sum(-1)

    def quadratic(self, latents: Latents, actions: Actions, tangents: Tangents) -> Quadratic:
        _load_rules()
        k = tangents.actions.shape[-1]
        moving = [F.pad(rows, (0, 0, 0, k - rows.shape[-2])) for rows in tangents.latents]
        z_dot = torch.stack([torch.zeros_like(moving[0]), *moving], dim=2)
        a_dot = tangents.actions.permute(2, 0, 1).expand(len(actions), -1, -1, -1)
        z, a = latents[:, None].expand_as(z_dot), actions[:, None].expand_as(a_dot)
        primals, tangent = (z.contiguous(), a.contiguous()), (z_dot, a_dot.contiguous())
        found, slopes = torch.func.jvp(self.residual, primals, tangent)  # type: ignore[misc]
        r = found[:, 0].unsqueeze(-1)
        gradient = self.weight * (slopes @ r).squeeze(-1)
        return Quadratic(gradient, self.weight * (slopes @ slopes.mT))

    def rows(self, index: Int[Tensor, " rows"]) -> Self:
        chosen = {
            name: getattr(self, name)[index.to(getattr(self, name).device)]
            for name in self.per_problem
            if self._has_rows(name)
        }
        return replace(self, **chosen) if chosen else self  # type: ignore[type-var]

    def _has_rows(self, name: str) -> bool:
        return bool(getattr(self, name).ndim > 1)

    def _given(self, name: str) -> Tensor:
        """A field that belongs to problems, shaped to meet (batch, samples, ..., n)."""
        value: Tensor = getattr(self, name)
        return value[:, None] if self._has_rows(name) else value


@dataclass(frozen=True)
class ReadOut(Residuals):
    """What is common to costs of physical quantities s = W z + b.

    Attributes:
        matrix: W.
        offset: b.
    """

    matrix: Float[Tensor, "n d"]
    offset: Float[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.offset.shape != self.matrix.shape[:1]:
            raise InputError(
                "matrix, offset: expected shapes (n, d) and (n), found "
                f"{tuple(self.matrix.shape)} and {tuple(self.offset.shape)}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                raise InputError(f"{field.name}: expected finite numbers, found NaN or infinity")

    def read(self, latents: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch n"]:
        """W z + b."""
        return latents @ self.matrix.to(latents).T + self.offset.to(latents)


@dataclass(frozen=True)
class StateGoal(ReadOut):
    """End where the quantities are the target: (s_H - target) / unit.

    Attributes:
        target: One a quantity, or a row a problem.
        unit: What counts as one, a number a quantity; their standard deviations, say.
    """

    target: Float[Tensor, "*batch n"]
    unit: Float[Tensor, " n"] | None = None
    weight: float = 1.0
    per_problem: ClassVar[tuple[str, ...]] = ("target",)

    def residual(
        self, latents: SeveralLatents, actions: SeveralActions
    ) -> Float[Tensor, "batch samples n"]:
        error = self.read(latents[..., -1, :]) - self._given("target").to(latents)
        return error if self.unit is None else error / self.unit.to(latents)


@dataclass(frozen=True)
class StatePath(ReadOut):
    """Pass given quantities after each block: (s_t - path_t) / unit, t = 1 ... H.

    Attributes:
        path: (H, n), for all problems.
        unit: What counts as one, a number a quantity.
    """

    path: Float[Tensor, "h n"]
    unit: Float[Tensor, " n"] | None = None
    weight: float = 1.0

    def residual(
        self, latents: SeveralLatents, actions: SeveralActions
    ) -> Float[Tensor, "batch samples n"]:
        if len(self.path) != latents.shape[-2] - 1:
            raise InputError(
                f"path: expected a row for each of {latents.shape[-2] - 1} blocks, "
                f"found {len(self.path)}"
            )
        error = self.read(latents[..., 1:, :]) - self.path.to(latents)
        error = error if self.unit is None else error / self.unit.to(latents)
        return error.flatten(-2)


@dataclass(frozen=True)
class KeepOut(ReadOut):
    """Stay away from a point: max(0, radius - |s_t - centre|) / radius after each block.

    Only the latents after whole blocks are known, so the radius should be larger than half of what
    a block moves; otherwise plans step over it.

    Attributes:
        centre: Of the forbidden ball, in the quantities' units.
        radius: Of the ball.
    """

    centre: Float[Tensor, "*batch n"]
    radius: float
    weight: float = 1.0
    per_problem: ClassVar[tuple[str, ...]] = ("centre",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.radius > 0:
            raise InputError(f"radius: expected more than 0, found {self.radius}")

    def residual(
        self, latents: SeveralLatents, actions: SeveralActions
    ) -> Float[Tensor, "batch samples n"]:
        centre = self._given("centre").to(latents)
        away = self.read(latents[..., 1:, :]) - centre.unsqueeze(-2)
        distance = (away.square().sum(-1) + 1e-12 * self.radius**2).sqrt()
        return (1 - distance / self.radius).clamp_min(0)


@dataclass(frozen=True)
class ActionLimit(Residuals):
    """Softly keep a number of each block between bounds that differ from block to block.

    Attributes:
        low: (H, m); -inf where there is none.
        high: (H, m); inf where there is none.
    """

    low: Float[Tensor, "h m"]
    high: Float[Tensor, "h m"]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.low.shape != self.high.shape or not bool((self.low <= self.high).all()):
            raise InputError(
                "low, high: expected equal shapes (H, m) and low at most high, found "
                f"{tuple(self.low.shape)} and {tuple(self.high.shape)}"
            )

    def residual(
        self, latents: SeveralLatents, actions: SeveralActions
    ) -> Float[Tensor, "batch samples n"]:
        below = (self.low.to(actions) - actions).clamp_min(0)
        above = (actions - self.high.to(actions)).clamp_min(0)
        return (above - below).flatten(-2)
