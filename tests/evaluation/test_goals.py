"""Starts and goals: fixed by a seed, never those of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.episode import EVALUATION_STREAM, episode_seed
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.windows import split_episodes
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.goals import goals_from_data, simulated_goals


def test_tasks_are_fixed_by_the_seed_and_held_out(tworoom_file: Path) -> None:
    first = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=0)
    again = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=0)
    other = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=1)
    facts = lambda tasks: [(t.episode, t.start_step) for t in tasks]  # noqa: E731
    assert facts(first) == facts(again) != facts(other)
    assert len(set(facts(first))) == 8
    file = EpisodeFile(tworoom_file)
    parts = split_episodes(file.num_episodes)
    for task in first:
        assert task.episode in parts.test
        states = file.episode_states(task.episode)
        assert np.array_equal(task.start, states[task.start_step])
        assert np.array_equal(task.goal, states[task.start_step + 10])


def test_validation_and_test_share_no_episode(tworoom_file: Path) -> None:
    chosen = [goals_from_data(tworoom_file, "tworoom", 10, 8, 0, s) for s in ("validation", "test")]
    first, second = ({task.episode for task in tasks} for tasks in chosen)
    assert not first & second
    fresh = [simulated_goals("tworoom", 10, 3, 0, split) for split in ("validation", "test")]
    assert not {t.start.tobytes() for t in fresh[0]} & {t.start.tobytes() for t in fresh[1]}


def test_a_small_file_has_no_test_episodes(tmp_path: Path) -> None:
    path = tmp_path / "few.h5"
    collect(CollectConfig("tworoom", path, 3, image_size=16, workers=1), progress=False)
    assert goals_from_data(path, "tworoom", 10, 2, 0, "validation")
    with pytest.raises(InputError, match=r"expected at least 4 episodes, .* found 3"):
        goals_from_data(path, "tworoom", 10, 2, 0)


@pytest.mark.parametrize("task", ["tworoom", "pusht", "reacher"])
def test_simulated_tasks_never_meet_training(task: str) -> None:
    tasks = simulated_goals(task, 10, 3, seed=0)
    assert len({(t.episode, t.start_step) for t in tasks}) == 3
    training = {episode_seed(0, i) for i in range(2000)}
    assert not training & {episode_seed(0, i, EVALUATION_STREAM) for i in range(2000)}
