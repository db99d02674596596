"""Episode files: every kind of damage is named, nothing bad is read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from bilinear_wm.data import guard
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.errors import InputError

PIXELS = "thinned/pixels"


def damaged(source: Path, target: Path, damage: Callable[[h5py.File], None]) -> Path:
    shutil.copyfile(source, target)
    with h5py.File(target, "a") as file:
        damage(file)
    return target


def replace(file: h5py.File, name: str, values: np.ndarray) -> None:
    del file[name]
    file[name] = values


def test_a_good_file_opens(tworoom_file: Path) -> None:
    file = EpisodeFile(tworoom_file)
    assert file.num_episodes == 20
    assert (file.task, file.image_size, file.frame_stride) == ("tworoom", 32, 5)
    assert file.render_quality == "fast"
    assert file.format == "hdf5"
    assert np.isnan(file.actions[file.offsets + file.lengths - 1]).all()


def test_the_public_schema_opens(dense_file: Path, tmp_path: Path) -> None:
    """Their files carry no attributes, and name the state otherwise."""

    def strip(file: h5py.File) -> None:
        for name in list(file.attrs):
            del file.attrs[name]
        state = file["state"][:]
        del file["state"]
        file["qpos"], file["qvel"] = state[:, :1], state[:, 1:]

    ours = EpisodeFile(dense_file)
    theirs = EpisodeFile(damaged(dense_file, tmp_path / "public.h5", strip))
    assert theirs.task is None
    assert theirs.render_quality is None
    assert ours.states is not None
    assert theirs.states is not None
    np.testing.assert_array_equal(ours.states, theirs.states)


def test_ours_is_the_public_schema(dense_file: Path) -> None:
    with h5py.File(dense_file) as file:
        rows = int(file["ep_len"][:].sum())
        assert all(len(file[n]) == rows for n in ("pixels", "action", "state", "step_idx"))
        np.testing.assert_array_equal(
            file["ep_offset"][:], np.cumsum(file["ep_len"][:]) - file["ep_len"][:]
        )
        assert file["pixels"].dtype == np.uint8


def drop_column(file: h5py.File) -> None:
    del file["action"]


def drop_index(file: h5py.File) -> None:
    del file["ep_len"]


def nan_action(file: h5py.File) -> None:
    file["action"][file["ep_offset"][3] + 7] = np.nan


def nan_state(file: h5py.File) -> None:
    file["state"][file["ep_offset"][2] + 4] = np.inf


def empty_episode(file: h5py.File) -> None:
    file["ep_len"][5] = 0


def no_episodes(file: h5py.File) -> None:
    replace(file, "ep_len", np.zeros(0, np.int32))
    replace(file, "ep_offset", np.zeros(0, np.int64))


def beyond_the_end(file: h5py.File) -> None:
    file["ep_len"][19] += 1000


def overlap(file: h5py.File) -> None:
    file["ep_offset"][4] -= 3


def float_pixels(file: h5py.File) -> None:
    replace(file, PIXELS, file[PIXELS][:].astype(np.float32) / 255)


def channels_first(file: h5py.File) -> None:
    replace(file, PIXELS, file[PIXELS][:].transpose(0, 3, 1, 2))


def ragged(file: h5py.File) -> None:
    file[PIXELS].resize(len(file[PIXELS]) - 1, axis=0)


def integer_actions(file: h5py.File) -> None:
    replace(file, "action", np.nan_to_num(file["action"][:]).astype(np.int32))


def other_size(file: h5py.File) -> None:
    file.attrs["image_size"] = 48


def linked(file: h5py.File) -> None:
    file["pixels_of_another"] = h5py.ExternalLink("/etc/passwd", "pixels")


def linked_softly(file: h5py.File) -> None:
    del file["state"]
    file["state"] = h5py.SoftLink("/action")


def stored_elsewhere(file: h5py.File) -> None:
    rows = len(file["action"])
    del file["state"]
    file.create_dataset("state", (rows, 2), "f8", external=[("/etc/passwd", 0, 16 * rows)])


def virtual(file: h5py.File) -> None:
    rows = len(file["action"])
    layout = h5py.VirtualLayout((rows, 2), "f8")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "state", (rows, 2))
    del file["state"]
    file.create_virtual_dataset("state", layout)


def announced(file: h5py.File) -> None:
    for name in ("action", "state", "step_idx", "episode_idx"):
        file[name].resize(10**11, axis=0)


def never_written(file: h5py.File) -> None:
    del file["action"]
    file.create_dataset("action", (10**11, 2), "f4")


def far_away(file: h5py.File) -> None:
    file["ep_offset"][3] = 2**63 - 2


def stride_in_words(file: h5py.File) -> None:
    file.attrs["frame_stride"] = "five"


def size_in_words(file: h5py.File) -> None:
    file.attrs["image_size"] = [32, 32]


def of_another_task(file: h5py.File) -> None:
    file.attrs["task"] = "pusht"


def newer(file: h5py.File) -> None:
    file.attrs["format_version"] = 99


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_column, "column 'action': expected it to exist, found only"),
        (drop_index, "column 'ep_len': expected it to exist"),
        (nan_action, "column 'action', episode 3, step 7: expected finite"),
        (nan_state, "column 'state', episode 2, step 4: expected finite"),
        (empty_episode, "episode 5: expected at least 2 rows, found 0"),
        (no_episodes, "expected at least one episode, found none"),
        (beyond_the_end, "episode 19: expected rows within"),
        (overlap, "episode 4: expected its own rows, found an overlap"),
        (float_pixels, "column 'pixels': expected dtype uint8, found float32"),
        (channels_first, r"transpose to \(rows, H, W, 3\)"),
        (ragged, "the columns are ragged"),
        (integer_actions, "column 'action': expected floats"),
        (other_size, "expected 48 px"),
        (newer, "update the package"),
        (linked, "column 'pixels_of_another': expected data in the file, found a link"),
        (linked_softly, "column 'state': expected data in the file, found a link"),
        (stored_elsewhere, "column 'state': expected data in the file, found a reference"),
        (virtual, "column 'state': expected data in the file, found a reference"),
        (announced, "expected 100000000000 rows, found"),
        (never_written, r"expected 100000000000 rows, found 0\.0% of their storage"),
        (far_away, "episode 3: expected rows within"),
        (stride_in_words, "frame_stride: expected a whole number, found 'five'"),
        (size_in_words, "image_size: expected a whole number"),
        (of_another_task, "column 'state': expected the 7 numbers of pusht"),
    ],
)
def test_damage_is_named(
    tworoom_file: Path, tmp_path: Path, damage: Callable[[h5py.File], None], message: str
) -> None:
    path = damaged(tworoom_file, tmp_path / "bad.h5", damage)
    with pytest.raises(InputError, match=message) as caught:
        EpisodeFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(InputError, match="found a pipe or a device"):
        EpisodeFile(tmp_path / "pipe.h5")


def test_a_column_larger_than_memory_is_refused() -> None:
    with pytest.raises(InputError, match="half of the free memory"):
        guard.check_memory(Path("a.h5"), "action", (10**11, 2), "float32")


def test_flipped_bytes_are_refused_or_harmless(tworoom_file: Path, tmp_path: Path) -> None:
    content, path = tworoom_file.read_bytes(), tmp_path / "flipped.h5"
    whole, rng = EpisodeFile(tworoom_file), np.random.default_rng(0)
    pixels = np.concatenate([whole.read_frames(i) for i in range(whole.num_episodes)])
    for _ in range(80):
        changed = bytearray(content)
        changed[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            found = EpisodeFile(path)
            frames = [found.read_frames(i) for i in range(found.num_episodes)]
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
            continue
        np.testing.assert_array_equal(found.actions, whole.actions)
        np.testing.assert_array_equal(found.states, whole.states)
        np.testing.assert_array_equal(np.concatenate(frames), pixels)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_files_are_refused(tworoom_file: Path, tmp_path: Path, share: float) -> None:
    content = tworoom_file.read_bytes()
    path = tmp_path / "cut.h5"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match="truncated or of another format"):
        EpisodeFile(path)


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "picture.h5"
    foreign.write_bytes(b"\x89PNG" + bytes(1000))
    for path, message in [
        (foreign, "expected an HDF5 file"),
        (tmp_path / "nothing.h5", "no such file"),
        (tmp_path, "found a folder"),
    ]:
        with pytest.raises(InputError, match=message):
            EpisodeFile(path)
