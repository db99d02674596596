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
from bilinear_wm.observation import (
    Observation,
    ObservationSpec,
    concatenate,
)
from bilinear_wm.tasks import make_task
from tests.data.conftest import numbered, values


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
    train, held_out, test = (
        EpisodeDataset(tworoom_file, split=split) for split in ("train", "validation", "test")
    )
    assert len(train.episodes) == 18
    assert len(held_out.episodes) == len(test.episodes) == 1
    assert len({*train.episodes, *held_out.episodes, *test.episodes}) == 20
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
        parts = split_episodes(count)
        assert sorted([*parts.train, *parts.validation, *parts.test]) == list(range(count))
        assert len(parts.train) >= 1
        held_out = max(round(count / 10), 2 if count >= 4 else min(count - 1, 1))
        assert len(parts.validation) + len(parts.test) == held_out
        assert len(parts.validation) - len(parts.test) in (0, 1)


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
        ({"split": "later"}, "split: expected one of"),
        ({"validation_share": 1.5}, "validation_share"),
    ]:
        with pytest.raises(InputError, match=message):
            EpisodeDataset(tworoom_file, **options)  # type: ignore[arg-type]


def test_out_of_range(tworoom_file: Path) -> None:
    data = EpisodeDataset(tworoom_file)
    with pytest.raises(IndexError):
        data[len(data)]


def hand_made(path: Path, lengths: tuple[int, ...] = (7, 9), stride: int = 1) -> Path:
    """Two episodes; picture i of the file has the value i, its second camera 100 + i."""
    rows, offsets = sum(lengths), np.concatenate([[0], np.cumsum(lengths)[:-1]])
    kept = sum(-(-length // stride) for length in lengths)
    with h5py.File(path, "w") as file:
        file.attrs["frame_stride"] = stride
        file["pixels"], file["side"] = numbered(kept), numbered(kept) + np.uint8(100)
        file["action"] = np.random.default_rng(0).normal(size=(rows, 1)).astype(np.float32)
        file["joints"] = np.stack([np.arange(rows), -np.arange(rows)], 1).astype(np.float32)
        file["force"] = np.arange(rows, dtype=np.float64) / 10
        file["ep_len"], file["ep_offset"] = np.array(lengths), offsets
    return path


def window(data: EpisodeDataset, episode: int, step: int) -> Observation:
    everything = data.batch(range(len(data)))
    at = np.flatnonzero((everything.episodes == episode) & (everything.steps == step))
    return everything.observation[int(at[0])]


@pytest.mark.parametrize("in_memory", [True, False])
def test_windows_with_a_history(tmp_path: Path, in_memory: bool) -> None:
    path = hand_made(tmp_path / "hand.h5")
    spec = ObservationSpec(("side", "pixels"), ("joints", "force"), num_observed=2, every=3)
    data = EpisodeDataset(path, 2, frame_skip=2, spec=spec, split="all", in_memory=in_memory)
    assert len(data) == 5 + 7  # as many as without a history
    seen = window(data, 1, 2)
    assert list(seen.pictures) == ["side", "pixels"]
    assert values(seen.pictures["pixels"]) == [[7, 9], [8, 11]]  # the first one of it repeated
    assert values(seen.pictures["side"]) == [[107, 109], [108, 111]]
    assert seen.proprioception[..., 0].tolist() == [[7, 9], [8, 11]]
    assert seen.proprioception[..., 1].tolist() == [[-7, -9], [-8, -11]]
    np.testing.assert_allclose(seen.proprioception[..., 2], [[0.7, 0.9], [0.8, 1.1]])
    assert values(data.batch([0]).pixels) == [[100, 102]]  # present ones of the first camera
    (trained,) = split_episodes(2)[0]
    rows = slice(0, 7) if trained == 0 else slice(7, 16)
    np.testing.assert_allclose(data.proprioception_mean[0], np.arange(16)[rows].mean())
    np.testing.assert_allclose(data.proprioception_std[1], np.arange(16)[rows].std(), rtol=1e-6)


def test_every_recorded_moment_once(tmp_path: Path) -> None:
    path = hand_made(tmp_path / "hand.h5", (7, 9), stride=2)
    spec = ObservationSpec(proprioception=("force",), num_observed=2, every=4)
    data = EpisodeDataset(path, 2, frame_skip=2, spec=spec, split="all")
    parts = list(data.observations(4))
    assert [len(part.pictures["pixels"]) for part in parts] == [4, 5]
    moments = concatenate(parts)
    assert values(moments.pictures["pixels"])[4:] == [[4, 4], [4, 5], [4, 6], [5, 7], [6, 8]]
    for index in range(len(data)):
        held = moments[data.frames_of([index])[0]]
        np.testing.assert_array_equal(
            held.pictures["pixels"], data[index].observation.pictures["pixels"][0]
        )
        np.testing.assert_array_equal(
            held.proprioception, data[index].observation.proprioception[0]
        )


def test_what_a_file_lacks_is_named(tmp_path: Path, dense_file: Path) -> None:
    path = hand_made(tmp_path / "hand.h5", (8, 10), stride=2)
    for spec, message in [
        (ObservationSpec(("pixels", "top")), "column 'top': expected it to exist, found only"),
        (ObservationSpec(("pixels", "force")), "column 'force': expected dtype uint8"),
        (ObservationSpec(num_observed=2, every=3), "observed_every: expected a multiple of the fi"),
        (ObservationSpec(proprioception=("elbow",)), r"columns of 18 floats \(action, force, join"),
        (ObservationSpec(proprioception=("side",)), "found 'side'"),
    ]:
        with pytest.raises(InputError, match=message):
            EpisodeDataset(path, 2, frame_skip=2, spec=spec)
    with pytest.raises(InputError, match=r"state variables \(agent_x, agent_y\) or col.*'elbow'"):
        EpisodeDataset(dense_file, spec=ObservationSpec(proprioception=("elbow",)))
    with h5py.File(path, "a") as file:
        file["small"] = numbered(9, size=4)
        file["force"][3] = np.nan
    with pytest.raises(
        InputError, match="'small': expected pictures like the first camera's, 8 px"
    ):
        EpisodeDataset(path, 2, frame_skip=2, spec=ObservationSpec(("pixels", "small")))
    with pytest.raises(InputError, match="column 'force', episode 0, step 3: expected finite"):
        EpisodeDataset(path, 2, frame_skip=2, spec=ObservationSpec(proprioception=("force",)))
