"""What is asked of a planner: a problem in latent space, and how plans are weighed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor

from bilinear_wm.errors import InputError, check_choices
from bilinear_wm.planning.objective import Term


class PlannableDynamics(Protocol):
    """What planners need of a dynamics; `step_jet` too, for analytic sensitivities."""

    latent_size: int
    action_size: int
    env_action_size: int

    def rollout(self, z0: Tensor, actions: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class PlanProblem:
    """Where to go from where; one problem, or a batch with a leading axis.

    Attributes:
        z0: The latent now, (d) or (batch, d).
        z_goal: The latent to reach, of the same shape; None where `terms` say what to reach.
        horizon: Blocks to plan.
        action_low: Lower bounds of a block in model units, see `WorldModel.action_bounds`.
        action_high: Upper bounds.
        path: Latents to pass after each block, (horizon, d) or (batch, horizon, d); counts where
            the planner's `path_weight` is positive. By default the goal itself.
        terms: Further costs, such as those of `planning/terms.py`.
        prior: A plan to begin from, (horizon, m) with the problem's batch axis if any; effort
            counts from it. By default rest.
    """

    z0: Tensor
    z_goal: Tensor | None
    horizon: int = 5
    action_low: Tensor | None = None
    action_high: Tensor | None = None
    path: Tensor | None = None
    terms: tuple[Term, ...] = ()
    prior: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.horizon, int) or self.horizon < 1:
            raise InputError(f"horizon: expected at least one block, found {self.horizon!r}")
        goal = self.z0 if self.z_goal is None else self.z_goal
        if self.z0.ndim not in (1, 2) or self.z0.shape != goal.shape:
            raise InputError(
                "z0, z_goal: expected two latents (d) or two batches (batch, d), found "
                f"{tuple(self.z0.shape)} and {tuple(goal.shape)}"
            )
        if self.z_goal is None and (not self.terms or self.path is not None):
            raise InputError(
                "z_goal: expected a latent to reach, or terms that say what to reach, and no path "
                f"without one; found none, {len(self.terms)} terms and "
                f"{'no path' if self.path is None else 'a path'}"
            )
        if not all(isinstance(term, Term) for term in self.terms):
            raise InputError(f"terms: expected objects of class Term, found {self.terms!r}")
        shape = (*self.z0.shape[:-1], self.horizon, self.z0.shape[-1])
        if self.path is not None and self.path.shape != shape:
            raise InputError(f"path: expected shape {shape}, found {tuple(self.path.shape)}")
        if (self.action_low is None) != (self.action_high is None):
            raise InputError("action_low, action_high: expected both or neither, found one")
        if self.action_low is not None and self.action_high is not None:
            if self.action_low.shape != self.action_high.shape or self.action_low.ndim != 1:
                raise InputError(
                    "action_low, action_high: expected two vectors of one block's length, found "
                    f"{tuple(self.action_low.shape)} and {tuple(self.action_high.shape)}"
                )
            if not bool((self.action_low <= self.action_high).all()):
                raise InputError("action_low: expected at most action_high, found more (or NaN)")


@dataclass(frozen=True)
class PlannerConfig:
    """The objective, common to all planners.

    Attributes:
        goal_weight: lambda_g of the paper's table, on 1/2 |z_H - z_goal|^2.
        path_weight: The same for the latents on the way, against the path or the goal.
        effort: c, on 1/2 |a|^2, or on 1/2 |a - prior|^2 where the problem has a prior.
        smoothness: On half the squared changes between consecutive environment actions.
        seed: Of whatever is random; the same call gives the same plan.
    """

    goal_weight: float = 1.0
    path_weight: float = 0.0
    effort: float = 0.0
    smoothness: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("goal_weight", "path_weight", "effort", "smoothness"):
            require(name, getattr(self, name) >= 0, "a number that is not negative", self)


def require(name: str, holds: bool, expected: str, config: PlannerConfig) -> None:
    """Refuse a configuration with a sentence that names the field."""
    if not holds:
        names = {field.name for field in fields(config)}
        found = getattr(config, name) if name in names else None
        raise InputError(f"{name}: expected {expected}, found {found!r}")
