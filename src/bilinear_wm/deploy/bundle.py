"""A bundle in use: pictures to latents, two latents to a plan. No torch anywhere.

The promise is that of every planner (`planning/base.py`): whatever comes in, actions are finite, of
the right shape, inside the box, and never cost more than what the search started from. A plan is a
function of the arguments alone, and threads may share a bundle.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinear_wm.control.box import action_box
from bilinear_wm.deploy import files, native
from bilinear_wm.errors import InputError, needed
from bilinear_wm.planning.kernel import Kernel, Request, Settings, Status
from bilinear_wm.planning.layout import F32, F64, Matrices
from bilinear_wm.units import action_bounds

EXTRA = "export"
LARGEST = 1e12
"""Numbers beyond this are taken for garbage, as in `planning/base.py`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What to do, and what the model expects of it."""

    actions: F32
    """Raw actions, one row per environment step."""
    blocks: F32
    """The same in the model's units, (h, m): what the next plan may begin from."""
    latents: F32
    """Predictions, the present first, (h + 1, d)."""
    cost: float
    """Infinite where the model overflows, NaN after bad input."""
    status: Status
    iterations: int
    seconds: float


def load(path: str | Path, action_low: ArrayLike = -1.0, action_high: ArrayLike = 1.0) -> Bundle:
    """A bundle of `bwm export`, verified.

    Args:
        path: The folder.
        action_low: Smallest raw action, a number or one an entry.
        action_high: Largest raw action.
    """
    return Bundle(Path(path), action_low, action_high)


class Bundle:
    """Encoder and planner of a model; see `load`."""

    def __init__(self, folder: Path, action_low: ArrayLike, action_high: ArrayLike) -> None:
        self.facts, arrays = files.read(folder)
        facts = self.facts
        self.picture_shape = (facts.height, facts.width, 3)
        self._mean, self._std = arrays["action_mean"], arrays["action_std"]
        box = action_box(action_low, action_high, facts.env_action_size)
        self._low, self._high = action_bounds(*box, self._mean, self._std, facts.frame_skip)
        self._noise = {name: array for name, array in arrays.items() if "noise." in name}
        self._prior = Prior(arrays) if "prior.mean" in arrays else None
        self._encoder = _session(folder / files.ENCODER)
        layers = tuple(arrays[f"residual.{i}"] for i in range(6) if f"residual.{i}" in arrays)
        matrices = Matrices(
            env_action_size=facts.env_action_size,
            layers=layers,
            held=arrays.get("held"),
            **{name: arrays[name] for name in ("A", "B", "C", "R", "lift")},
        )
        self.latent_size, self.block_size = matrices.B.shape
        settings = Settings(**{f.name: getattr(facts, f.name) for f in fields(Settings)})
        self._kernel = Kernel(_run(folder, facts), matrices, settings, self._offsets)
        self._kernel.warm_up()
        self.encode(np.zeros(self.picture_shape, np.uint8))
        del arrays
        _give_back()

    def encode(self, picture: NDArray[np.uint8]) -> F32:
        """The latent of one picture, uint8 (H, W, 3)."""
        found = np.asarray(picture)
        if found.shape != self.picture_shape or found.dtype != np.uint8:
            raise InputError(
                f"picture: expected uint8 {self.picture_shape}, found {found.dtype} {found.shape}"
            )
        latent: F32 = self._encoder.run(None, {"picture": found[None]})[0][0]
        return latent

    def plan(
        self,
        now: NDArray[Any],
        goal: NDArray[Any],
        horizon: int | None = None,
        *,
        warm_start: F32 | None = None,
        deadline_s: float | None = None,
    ) -> Plan:
        """Plan from a picture or a latent to another.

        Args:
            now: What is seen now, uint8 (H, W, 3), or its latent (d).
            goal: What is wanted, likewise; encode a goal that stays once, and give its latent.
            horizon: Blocks to plan; by default the bundle's.
            warm_start: Blocks to begin from, (up to horizon, m): usually the rest of the previous
                plan's `blocks`. Where it ends the prior goes on, or rest.
            deadline_s: Return the best plan found after this many seconds, encoding included.
        """
        begun = time.perf_counter()
        h = self.facts.horizon if horizon is None else horizon
        if not isinstance(h, int) or not 1 <= h <= self.facts.max_horizon:
            raise InputError(
                f"horizon: expected 1 to {self.facts.max_horizon} blocks, found {h!r}; "
                "bwm export --max-horizon makes a bundle for longer plans"
            )
        z0, z_goal = self._latent("now", now), self._latent("goal", goal)
        seen = _sane(z0) and _sane(z_goal)
        prior = None
        if self._prior is not None and seen:
            prior = self._prior.propose(z0, z_goal, h)
        start = self._begin(h, warm_start, prior)
        usable = seen and _sane(start)
        if not _sane(start):
            start = np.zeros_like(start)
        start = np.clip(start, self._low, self._high)
        if not usable:
            latents = np.full((h + 1, self.latent_size), np.nan, np.float32)
            return self._made(start, latents, math.nan, "bad_input", 0, begun)
        facts = self.facts
        request = Request(
            z0=z0,
            start=start,
            targets=np.repeat(z_goal[None], h, axis=0),
            weights=np.array([facts.path_weight] * (h - 1) + [facts.goal_weight]),
            low=self._low,
            high=self._high,
            effort=facts.effort,
            about=prior,
            smoothness=facts.smoothness,
            stop_at=math.inf if deadline_s is None else begun + deadline_s,
        )
        found = self._kernel.search(request)
        return self._made(
            found.actions, found.latents, found.cost, found.status, found.iterations, begun
        )

    def to_raw(self, blocks: F32) -> F32:
        """Blocks in the model's units as raw actions, one row per environment step."""
        raw: F32 = blocks.reshape(-1, self.facts.env_action_size) * self._std + self._mean
        return raw

    def _made(
        self, blocks: F32, latents: F32, cost: float, status: Status, count: int, begun: float
    ) -> Plan:
        seconds = time.perf_counter() - begun
        return Plan(self.to_raw(blocks), blocks, latents, cost, status, count, seconds)

    def _latent(self, name: str, seen: NDArray[Any]) -> F32:
        """Of a picture, or what was given as one."""
        found = np.asarray(seen)
        if found.shape == (self.latent_size,) and found.dtype.kind == "f":
            return np.ascontiguousarray(found, np.float32)
        if found.shape != self.picture_shape or found.dtype != np.uint8:
            raise InputError(
                f"{name}: expected a picture, uint8 {self.picture_shape}, or a latent of "
                f"{self.latent_size} numbers, found {found.dtype} {found.shape}"
            )
        return self.encode(found)

    def _begin(self, horizon: int, warm_start: F32 | None, prior: F32 | None) -> F32:
        """What the search begins from."""
        rest = np.zeros((horizon, self.block_size), np.float32)
        begin = rest if prior is None else prior.copy()
        if warm_start is not None:
            given = np.asarray(warm_start, np.float32)
            if given.ndim != 2 or given.shape[1] != self.block_size or len(given) > horizon:
                raise InputError(
                    f"warm_start: expected up to {horizon} blocks of {self.block_size} numbers, "
                    f"found shape {given.shape}"
                )
            begin[: len(given)] = given
        return begin

    def _offsets(self, count: int, horizon: int) -> F64:
        """Of the random candidates: those that torch draws."""
        empty = np.zeros((0, horizon, self.block_size))
        return self._noise.get(f"noise.{horizon}", empty).astype(np.float64)


class Prior:
    """What the recorded behaviour would do: `models/prior.py` in numpy."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._mean, self._std = arrays["prior.mean"], arrays["prior.std"]
        self._block_size = arrays["B"].shape[1]
        count = sum(name.startswith("prior.weight.") for name in arrays)
        self._layers = [
            (arrays[f"prior.weight.{i}"], arrays[f"prior.bias.{i}"]) for i in range(count)
        ]

    def propose(self, z: F32, z_goal: F32, horizon: int) -> F32:
        """A plan of that length; what is not told is rest."""
        ahead = np.zeros(self._layers[0][0].shape[1] - 2 * len(z), np.float32)
        ahead[min(horizon, len(ahead)) - 1] = 1
        x = np.concatenate([(z - self._mean) / self._std, (z_goal - z) / self._std, ahead])
        for i, (weight, bias) in enumerate(self._layers):
            x = weight @ (x if i == 0 else _gelu(x)) + bias
        told = x.reshape(-1, self._block_size)[:horizon]
        return np.pad(told, ((0, horizon - len(told)), (0, 0)))


def _gelu(x: F32) -> F32:
    erf = np.array([math.erf(value) for value in (x * math.sqrt(0.5)).tolist()], np.float32)
    return 0.5 * x * (1 + erf)


def _sane(numbers: F32) -> bool:
    """Whether they are finite and of a size that a model can have produced."""
    return bool(np.abs(numbers).max(initial=0.0) < LARGEST)


def _session(path: Path) -> Any:
    """An encoder on one core; planning has the others."""
    runtime = needed("onnxruntime", EXTRA, f"{path}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # one small picture at a time: an arena only holds more
    try:
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has its own, without a common class
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: expected an encoder, found {reason}; {files.FIX}") from error


def _run(folder: Path, facts: files.Facts) -> Callable[..., None]:
    """The kernel: compiled for this processor beforehand, or by numba now."""
    if native.fits(facts.native):
        return native.NativeRun(folder / files.NATIVE)
    if facts.native:
        log.warning(
            "%s: made for %s, which this machine is not: numba compiles the planner, once",
            folder / files.NATIVE,
            facts.native,
        )
    module = needed("bilinear_wm.planning._compiled", EXTRA, f"{folder}: the planner")
    run: Callable[..., None] = module.run
    return run


def _give_back() -> None:
    """Memory that loading needed and glibc keeps: a fifth of what is resident."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
