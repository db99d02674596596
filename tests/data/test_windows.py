"""Windows, statistics, split and order."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from bilinear_wm.data.windows import EpisodeDataset, split_episodes
from bilinear_wm.errors import InputError
from bilinear_wm.tasks import make_task


def test_windows_are_what_the_file_says(tworoom_file: Path) -> None:
    data = EpisodeDataset(tworoom_file, num_frames=3)
    batch = data.batch(data.order(0, 0)[:16])
    assert batch.pixels.shape == (16, 3, 32, 32, 3)
    assert batch.actions.shape == (16, 2, 10)
    assert batch.states is not None
    env = make_task("tworoom", image_size=32)
    for row in range(16):
        episode, step = batch.episodes[row], batch.steps[row]
        first = data.file.offsets[episode] + step
        for frame in range(3):
            state = data.file.episode_states(episode)[step + 5 * frame]
            np.testing.assert_array_equal(batch.states[row, frame], state)
            np.testing.assert_array_equal(batch.pixels[row, frame], env.picture(state))
        raw = batch.actions[row].reshape(10, 2) * data.action_std + data.action_mean
        np.testing.assert_allclose(raw, data.file.actions[first : first + 10], atol=1e-6)
    assert np.isfinite(batch.actions).all()


def test_every_window_is_there_once(tworoom_file: Path, dense_file: Path) -> None:
    for path, stride in ((tworoom_file, 5), (dense_file, 1)):
        data = EpisodeDataset(path, split="all")
        expected = {
            (episode, step)
            for episode, length in enumerate(data.file.lengths)
            for step in range(0, length - 5, stride)
        }
        everything = data.batch(np.arange(len(data)))
        found = list(zip(everything.episodes.tolist(), everything.steps.tolist(), strict=True))
        assert len(found) == len(expected)
        assert set(found) == expected


def test_memory_and_disk_agree(dense_file: Path) -> None:
    in_memory = EpisodeDataset(dense_file, num_frames=4, in_memory=True)
    on_disk = EpisodeDataset(dense_file, num_frames=4, in_memory=False)
    assert in_memory.in_memory
    assert not on_disk.in_memory
    chosen = in_memory.order(3, 1)[:20]
    np.testing.assert_array_equal(in_memory.batch(chosen).pixels, on_disk.batch(chosen).pixels)


def test_split_is_by_whole_episodes(tworoom_file: Path) -> None:
    train, held_out = (
        EpisodeDataset(tworoom_file, split=split) for split in ("train", "validation")
    )
    assert len(train.episodes) == 18
    assert len(held_out.episodes) == 2
    assert not set(train.episodes) & set(held_out.episodes)
    np.testing.assert_array_equal(train.action_mean, held_out.action_mean)
    rows = np.concatenate(
        [
            np.arange(train.file.offsets[e], train.file.offsets[e] + train.file.lengths[e] - 1)
            for e in train.episodes
        ]
    )
    actions = train.file.actions[rows].astype(np.float64)
    np.testing.assert_allclose(train.action_mean, actions.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(train.action_std, actions.std(axis=0), atol=1e-6)
    other = EpisodeDataset(tworoom_file, split="validation", split_seed=1)
    assert set(other.episodes) != set(held_out.episodes)


def test_small_splits() -> None:
    for count in range(1, 30):
        train, held_out = split_episodes(count)
        assert sorted([*train, *held_out]) == list(range(count))
        assert len(train) >= 1
        assert len(held_out) == (0 if count == 1 else max(round(count / 10), 1))


def _order(path: Path) -> list[int]:
    return EpisodeDataset(path).order(4, 2).tolist()


def test_order_is_a_pure_function(tworoom_file: Path) -> None:
    data = EpisodeDataset(tworoom_file)
    order = data.order(4, 2)
    assert sorted(order) == list(range(len(data)))
    assert (order != data.order(4, 3)).any()
    assert (order != data.order(5, 2)).any()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_order, [tworoom_file] * 2) == [order.tolist()] * 2
    batches = list(data.batches(32, seed=4, epoch=2))
    resumed = list(data.batches(32, seed=4, epoch=2, first_batch=3))
    assert len(batches) == len(data) // 32
    np.testing.assert_array_equal(batches[3].pixels, resumed[0].pixels)
    np.testing.assert_array_equal(batches[-1].steps, resumed[-1].steps)


def test_files_without_states_train_too(dense_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "pixels-only.h5"
    shutil.copyfile(dense_file, path)
    with h5py.File(path, "a") as file:
        del file["state"]
    assert EpisodeDataset(path)[0].states is None


def test_mismatches_are_named(tworoom_file: Path) -> None:
    for options, message in [
        ({"image_size": 64}, "expected pictures of 64 px, found 32 px"),
        ({"render_quality": "faithful"}, "expected faithful pictures, found fast"),
        ({"frame_skip": 3}, "expected a multiple of the file's frame_stride 5"),
        ({"num_frames": 0}, "expected at least 1"),
        ({"num_frames": 60}, "expected episodes of at least 296 rows"),
        ({"split": "test"}, "split: expected one of"),
        ({"validation_share": 1.5}, "validation_share"),
    ]:
        with pytest.raises(InputError, match=message):
            EpisodeDataset(tworoom_file, **options)  # type: ignore[arg-type]


def test_out_of_range(tworoom_file: Path) -> None:
    data = EpisodeDataset(tworoom_file)
    with pytest.raises(IndexError):
        data[len(data)]
