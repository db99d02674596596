"""Which starts and goals an evaluation uses: fixed by a seed, the same for every method.

A goal is where a behaviour episode was `offset` environment steps after the start. Episodes come
from the held-out part of an episode file, or are simulated with seeds that training never uses.
Settings are chosen on validation episodes and reported on test episodes; no episode is in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data.episode import (
    EVALUATION_STREAM,
    VALIDATION_STREAM,
    episode_seed,
    simulate_episode,
)
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.windows import SMALLEST, split_episodes
from bilinear_wm.errors import InputError
from bilinear_wm.tasks import make_task

HeldOut = Literal["validation", "test"]
STREAMS: dict[HeldOut, int] = {"validation": VALIDATION_STREAM, "test": EVALUATION_STREAM}


@dataclass(frozen=True)
class StartGoal:
    """Go from one recorded state to a later one."""

    index: int
    episode: int
    start_step: int
    start: NDArray[np.float64]
    goal: NDArray[np.float64]


def choose_goals(
    data: Path | None, task: str, offset: int, count: int, seed: int, split: HeldOut = "test"
) -> list[StartGoal]:
    """From the held-out episodes of a file, or from fresh ones."""
    if count < 1 or offset < 1:
        raise InputError(f"episodes, offset: expected at least 1, found {count} and {offset}")
    if seed < 0:
        raise InputError(f"seed: expected at least 0, found {seed}")
    if data is not None:
        return goals_from_data(data, task, offset, count, seed, split)
    return simulated_goals(task, offset, count, seed, split)


def goals_from_data(
    path: Path, task: str, offset: int, count: int, seed: int, split: HeldOut = "test"
) -> list[StartGoal]:
    """Starts and goals from the episodes that training holds out."""
    file = EpisodeFile(path)
    if file.task is not None and file.task != task:
        raise InputError(f"data {path}: expected episodes of {task}, found {file.task}")
    if file.states is None:
        raise InputError(
            f"data {path}: expected states, to set up starts and to judge success, found none; "
            "evaluate without `data` on freshly simulated episodes"
        )
    chosen = getattr(split_episodes(file.num_episodes), split)
    if len(chosen) == 0:
        raise InputError(
            f"data {path}: expected at least {SMALLEST} episodes, of which two are held out, to "
            f"validate and to test, found {file.num_episodes}"
        )
    episodes = [(int(e), file.episode_states(int(e))) for e in chosen]
    return _choose(episodes, offset, count, seed, f"data {path}")


def simulated_goals(
    task: str, offset: int, count: int, seed: int, split: HeldOut = "test"
) -> list[StartGoal]:
    """Starts and goals from fresh episodes, one an episode as far as they are long enough."""
    env = make_task(task, image_size=8)
    episodes: list[tuple[int, NDArray[np.float64]]] = []
    long_enough = 0
    for i in range(4 * count):
        episode = simulate_episode(env, episode_seed(seed, i, STREAMS[split]))
        episodes.append((i, episode.states))
        long_enough += len(episode.states) > offset
        if long_enough >= count or (i >= 20 and long_enough == 0):
            break
    env.close()
    return _choose(episodes, offset, count, seed, f"task {task}")


def _choose(
    episodes: list[tuple[int, NDArray[np.float64]]], offset: int, count: int, seed: int, where: str
) -> list[StartGoal]:
    """Different episodes first; a second start in an episode only when all have had one."""
    usable = [(e, states) for e, states in episodes if len(states) > offset]
    if not usable:
        longest = max((len(states) for _, states in episodes), default=0) - 1
        raise InputError(
            f"{where}: expected episodes of more than {offset} steps (`offset`), "
            f"found at most {longest}"
        )
    rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(7, offset)))
    chosen: list[StartGoal] = []
    taken: set[tuple[int, int]] = set()
    available = sum(len(states) - offset for _, states in usable)
    if available < count:
        raise InputError(
            f"{where}: expected at least {count} starts (`episodes`) with a goal {offset} steps "
            f"later, found {available}"
        )
    while len(chosen) < count:
        for place in rng.permutation(len(usable)):
            episode, states = usable[place]
            step = int(rng.integers(len(states) - offset))
            if (episode, step) in taken or len(chosen) == count:
                continue
            taken.add((episode, step))
            chosen.append(
                StartGoal(len(chosen), episode, step, states[step], states[step + offset])
            )
    return chosen
