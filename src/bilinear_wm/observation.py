"""What is seen at one moment: pictures of one or several cameras, joint angles, what came before.

    spec = ObservationSpec(cameras=("pixels", "side"), proprioception=("wrist",), num_observed=2)
    observation = task.observe(spec)
    z = model.encode(observation)

A plain uint8 array stands for the observation of a model that knows one camera and nothing else.
Whatever has a history has it in an axis of its own, oldest first, before the axes of one picture or
vector. What came before an episode's first observation is taken to be that observation, in recorded
windows and in running episodes alike (`ObservationSpec.looks_back`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError

CAMERA = "pixels"
"""The camera that every task and every episode file has."""


@dataclass(frozen=True)
class Observation:
    """Pictures and numbers, as arrays or tensors that share their leading axes.

    Indexing, `stack` and `concatenate` work on the leading axes, as they do for one array.
    """

    pictures: Mapping[str, Any]
    """By camera: uint8 (..., H, W, 3)."""
    proprioception: Any = None
    """float32 (..., n), where the model wants it."""

    def map(self, change: Callable[[Any], Any]) -> Observation:
        """The same of changed arrays."""
        pictures = {camera: change(array) for camera, array in self.pictures.items()}
        numbers = None if self.proprioception is None else change(self.proprioception)
        return Observation(pictures, numbers)

    def __getitem__(self, index: Any) -> Observation:
        return self.map(lambda array: array[index])


Seen = NDArray[Any] | Observation
"""An observation, or the pictures of one camera as a plain array."""


def is_finite(seen: Seen) -> bool:
    """Whether every number of it is."""
    if not isinstance(seen, Observation):
        return bool(np.isfinite(seen).all())
    numbers = [] if seen.proprioception is None else [seen.proprioception]
    return all(bool(np.isfinite(array).all()) for array in (*seen.pictures.values(), *numbers))


def together(observations: Sequence[Seen]) -> Seen:
    """Several, of one kind, as one, along a new leading axis."""
    some = [one for one in observations if isinstance(one, Observation)]
    return stack(some) if some else np.stack([np.asarray(one) for one in observations])


def stack(observations: Sequence[Observation]) -> Observation:
    """Several as one, along a new leading axis."""
    return _join(observations, np.stack)


def concatenate(observations: Sequence[Observation]) -> Observation:
    """Several as one, along their first axis."""
    return _join(observations, np.concatenate)


def _join(
    observations: Sequence[Observation], join: Callable[[list[Any]], NDArray[Any]]
) -> Observation:
    first = observations[0]
    pictures = {
        camera: join([observation.pictures[camera] for observation in observations])
        for camera in first.pictures
    }
    if first.proprioception is None:
        return Observation(pictures)
    return Observation(pictures, join([o.proprioception for o in observations]))


@dataclass(frozen=True)
class ObservationSpec:
    """What a model wants to see.

    Attributes:
        cameras: Names of cameras, in the order of the latent.
        proprioception: Names of state variables, or of columns of numbers in an episode file.
        num_observed: Observations a moment: the present one and those before it.
        every: Environment steps between them.
    """

    cameras: tuple[str, ...] = (CAMERA,)
    proprioception: tuple[str, ...] = ()
    num_observed: int = 1
    every: int = 5

    def __post_init__(self) -> None:
        for name, least in (("cameras", 1), ("proprioception", 0)):
            found = getattr(self, name)
            names = isinstance(found, tuple) and all(isinstance(n, str) and n for n in found)
            if not names or len(found) < least or len(set(found)) < len(found):
                some = "at least one name" if least else "names"
                raise InputError(f"{name}: expected a list of {some}, each once, found {found!r}")
        for name, value in (("observed", self.num_observed), ("observed_every", self.every)):
            if type(value) is not int or value < 1:
                raise InputError(f"{name}: expected a whole number >= 1, found {value!r}")

    @property
    def is_picture(self) -> bool:
        """Whether one picture of one camera is all."""
        return len(self.cameras) == 1 and not self.proprioception and self.num_observed == 1

    def looks_back(self, steps: Any) -> NDArray[np.int64]:
        """The steps that are observed at each step of an episode: (..., num_observed)."""
        back = self.every * np.arange(self.num_observed - 1, -1, -1)
        return np.maximum(np.asarray(steps, np.int64)[..., None] - back, 0)

    def of(self, seen: Any) -> Observation:
        """An observation with all that is wanted; a plain array is the pictures of one camera."""
        if not isinstance(seen, Observation):
            if len(self.cameras) > 1 or self.proprioception:
                raise InputError(f"observation: expected {self}, found a plain array of pictures")
            seen = Observation({self.cameras[0]: seen})
        missing = [camera for camera in self.cameras if camera not in seen.pictures]
        if missing:
            raise InputError(
                f"observation: expected pictures of the cameras {', '.join(self.cameras)}, "
                f"found only {', '.join(seen.pictures) or 'none'}"
            )
        if self.proprioception and seen.proprioception is None:
            raise InputError(
                f"observation: expected proprioception ({', '.join(self.proprioception)}), "
                "found none"
            )
        wanted = Observation(
            {camera: seen.pictures[camera] for camera in self.cameras},
            seen.proprioception if self.proprioception else None,
        )
        if self.num_observed > 1:
            self._check_history(wanted)
        return wanted

    def _check_history(self, observation: Observation) -> None:
        shapes = [(name, np.shape(a), -4) for name, a in observation.pictures.items()]
        if self.proprioception:
            shapes.append(("proprioception", np.shape(observation.proprioception), -2))
        for name, shape, axis in shapes:
            if len(shape) < -axis or shape[axis] != self.num_observed:
                one = "H, W, 3" if axis == -4 else "n"
                raise InputError(
                    f"observation: {name}: expected a history of {self.num_observed}, shape "
                    f"(..., {self.num_observed}, {one}), found {tuple(shape)}; "
                    "bilinear_wm.observation.History keeps one"
                )

    def __str__(self) -> str:
        parts = [f"pictures of {', '.join(self.cameras)}"]
        if self.proprioception:
            parts.append(f"the numbers {', '.join(self.proprioception)}")
        if self.num_observed > 1:
            parts.append(f"a history of {self.num_observed}")
        return " and ".join(parts)


class History:
    """The last observations of a running episode, as a recorded window would hold them.

    Add one every environment step; `now` is what a model of this spec encodes.
    """

    def __init__(self, spec: ObservationSpec) -> None:
        self._spec = spec
        self._kept: deque[Observation] = deque(maxlen=spec.every * (spec.num_observed - 1) + 1)

    def add(self, seen: Any) -> Self:
        """Take the observation of one moment, without a history."""
        one = ObservationSpec(self._spec.cameras, self._spec.proprioception)
        self._kept.append(one.of(seen))
        return self

    def clear(self) -> None:
        """Another episode begins."""
        self._kept.clear()

    @property
    def now(self) -> Observation:
        """The observation with its history; of the first one alone: at rest."""
        if not self._kept:
            raise InputError("history: expected at least one observation, found none; add one")
        return recent(self._spec, self._kept, lambda observation: observation)


def recent(
    spec: ObservationSpec, moments: Sequence[Any], observe: Callable[[Any], Observation]
) -> Observation:
    """The observation at the last of an episode's moments, one a step, with its history.

    Args:
        spec: What is wanted.
        moments: Whatever `observe` takes: states, or observations. As many as the history spans
            are enough, and one alone is repeated: a goal, at rest.
        observe: One moment as an observation without history.
    """
    steps = [int(step) for step in spec.looks_back(len(moments) - 1)]
    seen = {step: observe(moments[step]) for step in dict.fromkeys(steps)}
    if spec.num_observed == 1:
        return seen[steps[0]]
    return stack([seen[step] for step in steps])
