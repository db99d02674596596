"""What every task offers: a gymnasium environment that shows pictures.

A task is defined by a few methods: how a step changes the state, what a state looks
like, when a state counts as the goal, where episodes start, and who acts while data is
recorded. The picture is a pure function of the state (`Task.picture`), so a goal is
drawn without disturbing the simulation and a step that nobody looks at draws nothing.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinear_wm.errors import InputError
from bilinear_wm.observation import CAMERA, Observation, ObservationSpec, recent

Pixels = NDArray[np.uint8]
State = NDArray[np.float64]
Action = NDArray[np.float32]
Policy = Callable[[], Action]
RenderQuality = Literal["faithful", "fast"]

DISTURBED_STEPS, DISTURBED_SHARE = (3, 11), 0.6
"""How long a disturbance lasts, and how many of them are not zero."""


@dataclass(frozen=True)
class GoalMotion:
    """How a task's goal wanders (see `moving.py`)."""

    axes: tuple[tuple[int, ...], ...]
    """One entry a dimension of the walk: the numbers of the state that move together in it."""
    v_max: float
    """95th percentile of the motion in one environment step of the behaviour data."""
    speed: float
    """sigma, the goal's speed as a multiple of v_max (the paper's)."""


class Task(gymnasium.Env[Pixels, Action], abc.ABC):
    """A world with a settable state, a goal state and its picture.

    Args:
        image_size: Height and width of the picture in pixels.
        render_quality: `faithful` draws the benchmark's picture; `fast` may trade up to
            1/255 of average pixel value for speed. Tasks that draw cheaply ignore it.
        render_mode: Only `rgb_array` (gymnasium's name for "render returns a picture").
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    action_names: ClassVar[tuple[str, ...]]
    goal_size: ClassVar[int]
    """Length of the benchmark's own goal vector; `set_goal` takes it or a whole state."""
    cameras: ClassVar[tuple[str, ...]] = (CAMERA,)
    """What `picture_from` knows; the first is the benchmark's, which `picture` shows."""
    episode_steps: ClassVar[int]
    """Longest episode that the behaviour policy records, in environment steps."""
    behaviour_ends_at_goal: ClassVar[bool] = False
    """Whether the behaviour policy works towards the goal and stops there."""
    goal_motion: ClassVar[GoalMotion]

    def __init__(
        self,
        image_size: int = 224,
        render_quality: RenderQuality = "faithful",
        render_mode: str = "rgb_array",
    ) -> None:
        if not isinstance(image_size, int) or not 8 <= image_size <= 4096:
            raise InputError(
                f"image_size: expected a whole number from 8 to 4096, found {image_size!r}"
            )
        if render_quality not in get_args(RenderQuality):
            raise InputError(
                f"render_quality: expected one of {get_args(RenderQuality)}, "
                f"found {render_quality!r}"
            )
        if render_mode not in self.metadata["render_modes"]:
            raise InputError(f"render_mode: expected 'rgb_array', found {render_mode!r}")
        self.image_size = image_size
        self.render_quality: RenderQuality = render_quality
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(self.action_names),), np.float32)
        self._goal: State | None = None
        self._pixels: Pixels | None = None
        self._build()

    # What a new task defines.

    @abc.abstractmethod
    def _build(self) -> None:
        """Make the simulator and whatever drawing needs."""

    @property
    @abc.abstractmethod
    def state(self) -> State:
        """The simulator's state (a copy)."""

    @abc.abstractmethod
    def _restore(self, state: State) -> None:
        """Put the simulator into `state`, forgetting everything that came before."""

    @abc.abstractmethod
    def _simulate(self, action: Action) -> None:
        """Advance the simulator by one environment step."""

    @abc.abstractmethod
    def picture(self, state: State) -> Pixels:
        """What `state` looks like. Never touches the running simulation."""

    @abc.abstractmethod
    def _sample_start(self) -> tuple[State, State]:
        """Draw a start state and a goal state from `self.np_random`."""

    @abc.abstractmethod
    def behaviour(self) -> Policy:
        """The policy that records data, for the episode that `reset` has just begun."""

    @staticmethod
    @abc.abstractmethod
    def success(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether each state solves each goal state (both broadcast over leading axes)."""

    @staticmethod
    @abc.abstractmethod
    def distance(states: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far each state is from each goal, in units of what still counts as success."""

    @staticmethod
    @abc.abstractmethod
    def goal_may_move(before: State, after: State) -> bool:
        """Whether a goal may go from one state to the other in a straight line."""

    def disturbed(self, act: Policy, strength: float, rng: np.random.Generator) -> Policy:
        """A behaviour whose hand is pushed: a random action is added, for a few steps at a time.

        A behaviour that always answers a state in the same way does not show what other actions
        would have done there; a model then knows its habits, and planners leave them.
        docs/experiments.md has what that costs in PushT and Cube.

        Args:
            act: The behaviour.
            strength: Standard deviation of what is added.
            rng: Decides when and what.
        """
        low, high = self.action_space.low, self.action_space.high  # type: ignore[attr-defined]
        offset, left = np.zeros_like(low), 0

        def pushed() -> Action:
            nonlocal offset, left
            if left == 0:
                left = int(rng.integers(*DISTURBED_STEPS))
                offset = (rng.random() < DISTURBED_SHARE) * rng.normal(0, strength, low.shape)
            left -= 1
            return np.clip(act() + offset, low, high).astype(low.dtype)

        return pushed

    @staticmethod
    def window_shares(
        states: NDArray[np.float64], later: NDArray[np.float64]
    ) -> dict[str, NDArray[np.bool_]]:
        """Further facts about pairs of states that say whether data is lively enough."""
        return {}

    @classmethod
    def probe_targets(cls, states: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """What a linear probe should find in a latent; angles as sine and cosine."""
        return {name: states[..., i] for i, name in enumerate(cls.state_names)}

    def _complete_goal(self, goal: State) -> State:
        """Turn the benchmark's goal vector into a state that can be drawn."""
        return goal

    # What every task has.

    @property
    def goal(self) -> State:
        """The goal as a state (a copy)."""
        if self._goal is None:
            raise InputError(f"{self.name}: no goal yet; call reset() or set_goal() first")
        return self._goal.copy()

    @property
    def solved(self) -> bool:
        """Whether there is a goal and the current state solves it."""
        return self._goal is not None and bool(self.success(self.state, self._goal))

    def set_state(self, state: ArrayLike) -> None:
        """Put the world into `state` (see `state_names`)."""
        self._restore(self._vector("state", state, (len(self.state_names),)))
        self._pixels = None

    def set_goal(self, goal: ArrayLike) -> None:
        """Set the goal: a whole state, or the benchmark's goal vector (`goal_size`)."""
        vector = self._vector("goal", goal, (len(self.state_names), self.goal_size))
        complete = len(vector) == len(self.state_names)
        self._goal = vector if complete else self._complete_goal(vector)

    def clear_goal(self) -> None:
        """Have no goal: no step ends the episode."""
        self._goal = None

    def picture_from(self, camera: str, state: State) -> Pixels:
        """What `state` looks like from one of `cameras`."""
        return self.picture(state)

    def observe(self, spec: ObservationSpec, states: Sequence[State] | None = None) -> Observation:
        """What a model that wants `spec` sees.

        Args:
            spec: What is wanted.
            states: Those of an episode so far, one a step, where a history is wanted; one alone
                is seen at rest. By default the current state.
        """
        for what, names, known in (
            ("cameras", spec.cameras, self.cameras),
            ("proprioception", spec.proprioception, self.state_names),
        ):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise InputError(
                    f"{self.name}: {what}: expected some of {', '.join(known)}, "
                    f"found {', '.join(unknown)}"
                )
        columns = [self.state_names.index(name) for name in spec.proprioception]

        def look(state: State) -> Observation:
            pictures = {camera: self.picture_from(camera, state) for camera in spec.cameras}
            return Observation(pictures, state[columns].astype(np.float32) if columns else None)

        return recent(spec, [self.state] if states is None else states, look)

    def goal_pixels(self) -> Pixels:
        """The picture of the goal state."""
        return self.picture(self.goal)

    def render(self) -> Pixels:
        """The picture of the current state, drawn at most once per state."""
        if self._pixels is None:
            self._pixels = self.picture(self.state)
        return self._pixels.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Pixels, dict[str, Any]]:
        """Begin an episode; `options` may give `state` and `goal`."""
        self.begin(seed=seed, options=options)
        return self.render(), self._info()

    def begin(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """`reset` without a picture."""
        super().reset(seed=seed)
        options = options or {}
        unknown = set(options) - {"state", "goal"}
        if unknown:
            raise InputError(f"reset: expected options 'state' and 'goal', found {sorted(unknown)}")
        start, goal = self._sample_start()
        self.set_state(options.get("state", start))
        self.set_goal(options.get("goal", goal))

    def step(self, action: ArrayLike) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """One environment step with its picture; `terminated` says that the goal is reached."""
        solved = self.advance(action)
        return self.render(), float(solved), solved, False, self._info()

    def advance(self, action: ArrayLike) -> bool:
        """`step` without a picture: returns whether the goal is reached."""
        self._simulate(self._vector("action", action, (len(self.action_names),), np.float32))
        self._pixels = None
        return self.solved

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"state": self.state, "success": self.solved}
        if self._goal is not None:
            info["goal"] = self.goal
        return info

    def _vector(
        self, what: str, value: ArrayLike, lengths: tuple[int, ...], dtype: type = np.float64
    ) -> NDArray[Any]:
        vector: NDArray[Any] = np.array(value, dtype=dtype)
        if vector.ndim != 1 or len(vector) not in lengths:
            expected = " or ".join(str(n) for n in dict.fromkeys(lengths))
            raise InputError(
                f"{self.name}: {what}: expected a vector of {expected} numbers, "
                f"found shape {vector.shape}"
            )
        if not np.isfinite(vector).all():
            raise InputError(f"{self.name}: {what}: expected finite numbers, found {vector}")
        return vector


def sine_cosine(name: str, angle: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """An angle as two numbers without a jump."""
    return {f"sin_{name}": np.sin(angle), f"cos_{name}": np.cos(angle)}


def wrapped_angle(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """The angle's representative in [-pi, pi)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi
