"""What a plan should achieve: a sum of small terms, each with its own derivatives.

A Gauss-Newton step needs, besides a term's value, its gradient and the Gauss-Newton part of its
Hessian in the k free directions of the search: latents move by the tangents J_t (d x k), actions
by the lift E (H m x k). Latents are (*batch, H + 1, d) with z_0 first, actions (*batch, H, m).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

Latents = Float[Tensor, "batch t d"]
Actions = Float[Tensor, "batch t-1 m"]
SeveralLatents = Float[Tensor, "batch samples t d"]
SeveralActions = Float[Tensor, "batch samples t-1 m"]
Costs = Float[Tensor, "batch samples"]
"""One plan a problem, or several; t = H + 1."""


@dataclass(frozen=True)
class Tangents:
    """How latents and actions move along the free directions.

    Direction j acts from one block on, and the directions are in the order of those blocks, so
    that the latent after t + 1 blocks depends on a leading part of them.
    """

    latents: Sequence[Float[Tensor, "batch _ d"]]
    """J_1^T ... J_H^T: one direction a row."""
    actions: Float[Tensor, "h m k"]
    """E."""


@dataclass(frozen=True)
class Quadratic:
    """Gradient and Gauss-Newton Hessian of a term in the free directions."""

    gradient: Float[Tensor, "batch k"]
    hessian: Float[Tensor, "*batch k k"]


class Term(abc.ABC):
    """One summand of the objective, for a batch of problems."""

    @abc.abstractmethod
    def value(self, latents: SeveralLatents, actions: SeveralActions) -> Costs:
        """Its value for several plans a problem."""

    @abc.abstractmethod
    def quadratic(self, latents: Latents, actions: Actions, tangents: Tangents) -> Quadratic:
        """Its derivatives at one plan a problem."""

    def rows(self, index: Int[Tensor, " rows"]) -> Self:
        """The same term for some of the problems."""
        return self


@dataclass(frozen=True)
class Reach(Term):
    """sum_t w_t / 2 |z_t - target_t|^2: end at a goal, or follow a path to it.

    gradient  sum_t w_t J_t^T (z_t - target_t),    Hessian  sum_t w_t J_t^T J_t
    """

    targets: Float[Tensor, "batch h d"]
    weights: tuple[float, ...]
    """One per block; zero where the latent is free."""

    def value(self, latents: SeveralLatents, actions: SeveralActions) -> Costs:
        total = self._part(latents, len(self.weights) - 1)
        for t, weight in enumerate(self.weights[:-1]):
            if weight:
                total = total + self._part(latents, t)
        return total

    def _part(self, latents: SeveralLatents, t: int) -> Costs:
        error = latents[:, :, t + 1] - self.targets[:, None, t]
        return 0.5 * self.weights[t] * error.square().sum(-1)

    def quadratic(self, latents: Latents, actions: Actions, tangents: Tangents) -> Quadratic:
        gradient, hessian = self._slopes(latents, tangents, len(self.weights) - 1)
        for t, weight in enumerate(self.weights[:-1]):
            if weight:
                k = tangents.latents[t].shape[-2]
                first, second = self._slopes(latents, tangents, t)
                gradient[:, :k] += first
                hessian[:, :k, :k] += second
        return Quadratic(gradient.squeeze(-1), hessian)

    def _slopes(
        self, latents: Latents, tangents: Tangents, t: int
    ) -> tuple[Float[Tensor, "batch k 1"], Float[Tensor, "batch k k"]]:
        rows = tangents.latents[t]
        weighted = self.weights[t] * rows
        error = (latents[:, t + 1] - self.targets[:, t]).unsqueeze(-1)
        return weighted @ error, weighted @ rows.mT

    def rows(self, index: Int[Tensor, " rows"]) -> Self:
        return replace(self, targets=self.targets[index])


@dataclass(frozen=True)
class Effort(Term):
    """c / 2 |a - p|^2, with gradient c E^T (a - p) and Hessian c E^T E."""

    weight: float
    about: Float[Tensor, "batch h m"] | None = None
    """p; rest where there is none."""

    def value(self, latents: SeveralLatents, actions: SeveralActions) -> Costs:
        if self.about is not None:
            actions = actions - self.about[:, None]
        return 0.5 * self.weight * actions.square().sum((-2, -1))

    def quadratic(self, latents: Latents, actions: Actions, tangents: Tangents) -> Quadratic:
        if self.about is not None:
            actions = actions - self.about
        e = tangents.actions.flatten(0, 1)
        return Quadratic(self.weight * (actions.flatten(1) @ e), self.weight * (e.mT @ e))

    def rows(self, index: Tensor) -> Self:
        return self if self.about is None else replace(self, about=self.about[index])


@dataclass(frozen=True)
class Smoothness(Term):
    """s / 2 sum_i |u_i+1 - u_i|^2 over consecutive environment actions u, across blocks too.

    With D the differences: gradient s (D E)^T D a, Hessian s (D E)^T D E.
    """

    weight: float
    env_action_size: int

    def value(self, latents: SeveralLatents, actions: SeveralActions) -> Costs:
        return 0.5 * self.weight * self._changes(actions).square().sum((-2, -1))

    def quadratic(self, latents: Latents, actions: Actions, tangents: Tangents) -> Quadratic:
        de = self._changes(tangents.actions.permute(2, 0, 1)).flatten(1)
        da = self._changes(actions).flatten(1)
        return Quadratic(self.weight * (da @ de.mT), self.weight * (de @ de.mT))

    def _changes(self, actions: Float[Tensor, "*batch h m"]) -> Float[Tensor, "*batch s a"]:
        steps = actions.unflatten(-1, (-1, self.env_action_size)).flatten(-3, -2)
        return steps.diff(dim=-2)


@dataclass(frozen=True)
class Objective:
    """The sum of its terms."""

    terms: tuple[Term, ...]

    @property
    def built_in(self) -> bool:
        """Whether all its terms are of this file."""
        return all(type(term) in (Reach, Effort, Smoothness) for term in self.terms)

    def value(self, latents: SeveralLatents, actions: SeveralActions) -> Costs:
        """The cost of several plans a problem; infinite where a prediction overflowed."""
        total = self.terms[0].value(latents, actions)
        for term in self.terms[1:]:
            total = total + term.value(latents, actions)
        return total.nan_to_num(torch.inf, torch.inf)

    def quadratic(self, latents: Latents, actions: Actions, tangents: Tangents) -> Quadratic:
        """Its derivatives at one plan a problem."""
        parts = [term.quadratic(latents, actions, tangents) for term in self.terms]
        gradient, hessian = parts[0].gradient, parts[0].hessian
        for part in parts[1:]:
            gradient, hessian = gradient + part.gradient, hessian + part.hessian
        return Quadratic(gradient, hessian)

    def rows(self, index: Int[Tensor, " rows"]) -> Objective:
        """The objective of some of the problems."""
        return Objective(tuple(term.rows(index) for term in self.terms))
