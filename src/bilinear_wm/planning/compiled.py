"""What torch hands to the kernel: a dynamics, and problems one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.residual import ResidualDynamics
from bilinear_wm.planning.base import PlannableDynamics, Search, SearchResult
from bilinear_wm.planning.kernel import Kernel, Request, Settings
from bilinear_wm.planning.layout import F32, F64, Matrices
from bilinear_wm.planning.objective import Effort, Objective, Reach, Smoothness
from bilinear_wm.planning.offsets import random_offsets

if TYPE_CHECKING:
    from bilinear_wm.planning.gauss_newton import GaussNewtonConfig

log = logging.getLogger(__name__)


def compiled_search(
    dynamics: PlannableDynamics, lift: Tensor, config: GaussNewtonConfig
) -> CompiledSearch | None:
    """The kernel where it applies, see `kernel_applies`, and where numba is."""
    if not kernel_applies(dynamics):
        return None
    try:
        from bilinear_wm.planning._compiled import run
    except ImportError:
        log.warning(
            "numba is not installed: single plans run in torch, several times slower; "
            "pip install 'bilinear-world-models[fast]'"
        )
        return None
    assert isinstance(dynamics, BilinearDynamics | ResidualDynamics)
    return CompiledSearch(run, dynamics, lift, config)


def kernel_applies(dynamics: PlannableDynamics) -> bool:
    """Whether it is bilinear dynamics in single precision on the CPU.

    The residual may be added, if its layers are those that the kernel knows.
    """
    if type(dynamics) not in (BilinearDynamics, ResidualDynamics):
        return False
    assert isinstance(dynamics, BilinearDynamics | ResidualDynamics)
    base = dynamics.structured
    return (
        base.normalization == "cholqr"
        and base.action_size <= base.latent_size
        and base.A.device.type == "cpu"
        and base.A.dtype == torch.float32
    )


def matrices(dynamics: BilinearDynamics | ResidualDynamics, lift: Tensor) -> Matrices:
    """A dynamics as the kernel takes it; arrays share the parameters' memory."""
    base, held = dynamics.structured, None
    layers: tuple[F32, ...] = ()
    if isinstance(dynamics, ResidualDynamics):
        layers = tuple(p.detach().numpy() for p in dynamics.residual.parameters())
        held = dynamics.held_basis().detach().numpy()
    a, b, c, r = (x.detach().numpy() for x in (base.A, base.B, base.C, base.R))
    return Matrices(a, b, c, r, lift.numpy(), dynamics.env_action_size, layers, held)


def settings(config: GaussNewtonConfig) -> Settings:
    """What the kernel knows of a configuration."""
    return Settings(**{field.name: getattr(config, field.name) for field in fields(Settings)})


class CompiledSearch:
    """The kernel for a dynamics in torch, whose parameters may change; threads may share it."""

    def __init__(
        self,
        run: Callable[..., None],
        dynamics: BilinearDynamics | ResidualDynamics,
        lift: Tensor,
        config: GaussNewtonConfig,
    ) -> None:
        self._dynamics, self._lift, self._config = dynamics, lift, config
        self._parameters = list(dynamics.parameters())
        self._versions = self._now()
        self._lock = threading.Lock()
        self.kernel = Kernel(run, matrices(dynamics, lift), settings(config), self._noise)
        self.kernel.warm_up()

    def knows(self, objective: Objective) -> bool:
        """Whether it plans for that: one Reach, at most one Effort and one Smoothness."""
        kinds = [type(term) for term in objective.terms]
        steps = [t.env_action_size for t in objective.terms if isinstance(t, Smoothness)]
        return (
            Reach in kinds
            and len(set(kinds)) == len(kinds)
            and {Reach, Effort, Smoothness}.issuperset(kinds)
            and {self._dynamics.env_action_size}.issuperset(steps)
        )

    def search(self, search: Search) -> SearchResult | None:
        """One problem.

        None where directions are so nearly dependent that torch should plan: Q then is mostly
        rounding, and two engines would roll out different plans.
        """
        versions = self._now()
        if versions != self._versions:
            with self._lock:
                self.kernel.take(matrices(self._dynamics, self._lift))
                self._versions = versions
        found = self.kernel.search(_request(search))
        if found.flat:
            return None
        return SearchResult(
            torch.from_numpy(found.actions)[None],
            torch.tensor([found.cost], dtype=torch.float32),
            (found.status,),
            (found.iterations,),
            torch.from_numpy(found.latents)[None],
        )

    def _now(self) -> list[int]:
        """Changes with the parameters."""
        return [parameter._version for parameter in self._parameters]

    def _noise(self, count: int, horizon: int) -> F64:
        offsets: F64 = random_offsets(self._config, self._lift, count, horizon).double().numpy()
        return offsets


def _request(search: Search) -> Request:
    terms: dict[str, Any] = {}
    for term in search.objective.terms:
        if isinstance(term, Reach):
            terms |= {"targets": term.targets.numpy()[0], "weights": np.array(term.weights)}
        elif isinstance(term, Effort):
            about = None if term.about is None else term.about[0].numpy()
            terms |= {"effort": term.weight, "about": about}
        elif isinstance(term, Smoothness):
            terms["smoothness"] = term.weight
    return Request(
        z0=search.z0.numpy()[0],
        start=search.start.numpy()[0],
        low=None if search.low is None else search.low.numpy(),
        high=None if search.high is None else search.high.numpy(),
        stop_at=search.stop_at,
        **terms,
    )
