"""One episode of a task's behaviour: a pure function of (seed, index)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bilinear_wm.data.file import Episode
from bilinear_wm.tasks.base import Task

TRAINING_STREAM, EVALUATION_STREAM, VALIDATION_STREAM = 0, 1, 2
"""Seeds of recorded data and of freshly simulated test and validation episodes never meet."""


def episode_seed(seed: int, index: int, stream: int = TRAINING_STREAM) -> int:
    """The seed of episode `index` in a stream of episodes."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(stream, index))
    return int(sequence.generate_state(1, np.uint64)[0])


def record_episode(
    env: Task, seed: int, frame_stride: int = 1, disturbance: float = 0.0
) -> Episode:
    """Let the behaviour policy act for one episode; keep every n-th picture."""
    return run_episode(env, seed, frame_stride, disturbance)


def simulate_episode(env: Task, seed: int) -> Episode:
    """The same episode without a single picture, undisturbed."""
    return run_episode(env, seed, None, 0.0)


def run_episode(
    env: Task,
    seed: int,
    frame_stride: int | None,
    disturbance: float,
    check: Callable[[], None] | None = None,
) -> Episode:
    env.begin(seed=seed)
    act = env.behaviour()
    if disturbance > 0:
        rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(1,)))
        act = env.disturbed(act, disturbance, rng)
    if not env.behaviour_ends_at_goal:
        env.clear_goal()
    states, actions = [env.state], []
    frames = [] if frame_stride is None else [env.render()]
    for step in range(1, env.episode_steps + 1):
        if check is not None:
            check()
        actions.append(act())
        reached = env.advance(actions[-1])
        states.append(env.state)
        if frame_stride is not None and step % frame_stride == 0:
            frames.append(env.render())
        if reached:
            break
    side = env.image_size
    pixels = np.array(frames, np.uint8).reshape(-1, side, side, 3)
    return Episode(pixels, np.stack(actions), np.stack(states))
