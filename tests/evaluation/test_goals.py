"""Starts and goals: fixed by a seed, never those of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bilinear_wm.data.episode import EVALUATION_STREAM, episode_seed
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.windows import split_episodes
from bilinear_wm.evaluation.goals import goals_from_data, simulated_goals


def test_tasks_are_fixed_by_the_seed_and_held_out(tworoom_file: Path) -> None:
    first = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=0)
    again = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=0)
    other = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=1)
    facts = lambda tasks: [(t.episode, t.start_step) for t in tasks]  # noqa: E731
    assert facts(first) == facts(again) != facts(other)
    assert len(set(facts(first))) == 8
    file = EpisodeFile(tworoom_file)
    _, held_out = split_episodes(file.num_episodes, 0.1, 0)
    for task in first:
        assert task.episode in held_out
        states = file.episode_states(task.episode)
        assert np.array_equal(task.start, states[task.start_step])
        assert np.array_equal(task.goal, states[task.start_step + 10])


@pytest.mark.parametrize("task", ["tworoom", "pusht", "reacher"])
def test_simulated_tasks_never_meet_training(task: str) -> None:
    tasks = simulated_goals(task, 10, 3, seed=0)
    assert len({(t.episode, t.start_step) for t in tasks}) == 3
    training = {episode_seed(0, i) for i in range(2000)}
    assert not training & {episode_seed(0, i, EVALUATION_STREAM) for i in range(2000)}
