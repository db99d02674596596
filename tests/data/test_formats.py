"""Every format gives the same episodes: files that the neighbours wrote (tests/fixtures)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from bilinear_wm.data.convert import ConvertConfig, convert
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.formats import format_of
from bilinear_wm.data.formats.base import Format
from bilinear_wm.data.formats.source import Source
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.observation import ObservationSpec
from bilinear_wm.registry import FORMATS

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOP = f"{FIXTURES / 'lerobot'}?camera=observation.images.top"
LENGTHS = (9, 12, 7)
CODEC_ERROR = {"hdf5": 0, "lance": 3, "lerobot": 6}


def picture(episode: int, step: int) -> np.ndarray:
    """What was written, by the same rule (tests/interop/make_fixtures.py)."""
    image = np.full((32, 48, 3), 10 * step + episode, np.uint8)
    image[:, 24:] = 255 - image[:, :24]
    return image


@pytest.fixture(params=[str(FIXTURES / "swm.hdf5"), str(FIXTURES / "swm.lance"), TOP])
def foreign(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_neighbours_files_open(foreign: str) -> None:
    file = EpisodeFile(foreign)
    assert file.format == format_of(file.path).name
    assert file.lengths.tolist() == list(LENGTHS)
    assert file.picture_shape == (32, 48)
    assert file.task is None
    assert file.states is not None
    for episode, length in enumerate(LENGTHS):
        steps = np.arange(length)
        rows = file.offsets[episode] + steps
        wanted = np.stack([steps / 7, np.full(length, -episode / 3)], axis=1)
        np.testing.assert_array_equal(file.actions[rows], wanted.astype(np.float32))
        states = np.stack([np.full(length, episode), steps, episode * steps], axis=1)
        np.testing.assert_array_equal(file.episode_states(episode), states)
        frames = file.read_frames(episode).astype(int)
        pictures = np.stack([picture(episode, step) for step in range(length)]).astype(int)
        off = np.abs(frames - pictures)
        assert off.mean() <= CODEC_ERROR[file.format] / 4
        # Where two halves meet a codec may blur.
        assert off[:, 2:-2, 2:20].max() <= CODEC_ERROR[file.format]


@pytest.mark.parametrize("in_memory", [True, False])
def test_windows_are_the_right_pictures(foreign: str, in_memory: bool) -> None:
    data = EpisodeDataset(foreign, 3, frame_skip=2, split="all", in_memory=in_memory)
    assert len(data) == sum(length - 4 for length in LENGTHS)
    batch = data.batch(range(len(data)))
    assert batch.pixels.shape == (len(data), 3, 32, 48, 3)
    told = batch.pixels[:, :, 8:24, 4:20].mean(axis=(2, 3, 4))
    wanted = 10 * (batch.steps[:, None] + [0, 2, 4]) + batch.episodes[:, None]
    np.testing.assert_allclose(told, wanted, atol=2)


def test_pictures_are_fitted() -> None:
    whole = EpisodeFile(TOP).read_frames(1)
    half = EpisodeFile(f"{TOP}&size=16x24")
    assert half.picture_shape == (16, 24)
    averaged = whole.reshape(-1, 16, 2, 24, 2, 3).mean(axis=(2, 4))
    assert np.abs(half.read_frames(1) - averaged)[:, 2:-2, 2:10].mean() < 0.5
    square = EpisodeFile(f"{TOP}&fit=crop")
    np.testing.assert_array_equal(square.read_frames(1), whole[:, :, 8:40])
    small = EpisodeFile(f"{TOP}&fit=crop&size=16")
    assert small.read_frames(1, first=3, last=5).shape == (2, 16, 16, 3)
    # The middle of the crop is where the halves meet, as in the whole picture.
    assert abs(int(small.read_frames(1)[4, 8, 2, 0]) - 41) <= 2


def test_cameras_and_numbers_go_by_name() -> None:
    spec = ObservationSpec(("pixels", "observation.images.side"), ("when.pos",))
    data = EpisodeDataset(
        f"{TOP}&state=both.pos,which.pos", 2, frame_skip=3, spec=spec, split="all"
    )
    batch = data.batch([0])
    top, side = batch.observation.pictures.values()
    assert np.abs(top.astype(int) - side[..., ::-1, :]).mean() < 3
    np.testing.assert_array_equal(batch.observation.proprioception[0, :, 0], [0, 3])
    file = data.file
    np.testing.assert_array_equal(file.episode_states(2)[3], [6, 2])
    with pytest.raises(InputError, match=r"which\.pos, when\.pos, both\.pos"):
        EpisodeDataset(TOP, 2, spec=ObservationSpec(proprioception=("elbow",)))


def test_a_video_is_read_from_any_place() -> None:
    """Seeking gives the picture that was asked for, whichever was decoded before."""
    file = EpisodeFile(TOP)
    for episode, step in ((2, 6), (0, 0), (1, 11), (0, 8), (1, 0)):
        one = file.read_frames(episode, first=step, last=step + 1)
        assert abs(float(one[0, 8:24, 4:20].mean()) - (10 * step + episode)) < 2


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "camera: expected one of observation.images.top, observation.images.side"),
        ("?camera=front", "column 'front': expected it to exist, found only"),
        ("?camera=observation.state", "expected dtype uint8, found float32"),
        ("?camera=observation.images.top&size=7", "size: expected pixels from 8 to 4096"),
        ("?camera=observation.images.top&size=8x9x10", "size: expected pixels"),
        ("?camera=observation.images.top&fit=wide", "fit: expected one of stretch, crop"),
        ("?crop=yes", "expected options camera, action, state, size, fit"),
        ("?camera=observation.images.top&state=elbow", "column 'elbow': expected floats"),
    ],
)
def test_what_cannot_be_read_is_said(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EpisodeFile(f"{FIXTURES / 'lerobot'}{query}")


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    def copied(name: str, what: str = "lerobot") -> Path:
        return Path(shutil.copytree(FIXTURES / what, tmp_path / name))

    old = copied("old")
    info = json.loads((old / "meta/info.json").read_text())
    (old / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    bare = copied("bare")
    shutil.rmtree(bare / "data")
    cut = copied("cut")
    video = next((cut / "videos").rglob("*.mp4"))
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    torn = copied("torn")
    (torn / "meta/info.json").write_text("{")
    for path, message in (
        (old, "codebase_version: expected v3.0, found v2.1; convert it"),
        (bare, "data: expected parquet files, found none"),
        (torn, "expected codebase_version, fps and features"),
        (tmp_path, "found a folder without meta/info.json"),
    ):
        with pytest.raises(InputError, match=message):
            EpisodeFile(f"{path}?camera=observation.images.top")
    with pytest.raises(InputError, match=r"readable video|pictures from"):
        EpisodeFile(f"{cut}?camera=observation.images.top").read_frames(2)
    table = copied("t.lance", "swm.lance")
    for file in (table / "_versions").iterdir():
        file.write_bytes(b"nothing")
    with pytest.raises(InputError, match="readable lance table"):
        EpisodeFile(table)


def test_thinned_pictures_are_not_the_public_column(tworoom_file: Path, dense_file: Path) -> None:
    """A reader of the public schema would take row 5 of a thinned column for step 5."""
    with h5py.File(tworoom_file) as thin, h5py.File(dense_file) as dense:
        assert "pixels" in dense
        assert "pixels" not in thin
        with pytest.raises(TypeError):
            thin["thinned"][0:5]


def test_files_of_version_1_open(tworoom_file: Path, tmp_path: Path) -> None:
    """They had thinned pictures in `pixels`."""
    old = tmp_path / "old.h5"
    shutil.copyfile(tworoom_file, old)
    with h5py.File(old, "a") as file:
        file.move("thinned/pixels", "pixels")
        del file["thinned"]
        file.attrs["format_version"] = 1
    ours, theirs = EpisodeDataset(tworoom_file, 2), EpisodeDataset(old, 2)
    np.testing.assert_array_equal(ours.batch([0, 7]).pixels, theirs.batch([0, 7]).pixels)


def test_ours_comes_back_from_lerobot(dense_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "converted"
    result = convert(ConvertConfig(dense_file, out), progress=False)
    ours, theirs = EpisodeFile(dense_file), EpisodeFile(out)
    assert (theirs.format, theirs.num_episodes) == ("lerobot", ours.num_episodes)
    np.testing.assert_array_equal(theirs.lengths, ours.lengths - 1)
    assert result.rows == theirs.lengths.sum()
    assert ours.states is not None
    for episode in (0, 7, 19):
        mine = slice(
            int(ours.offsets[episode]), int(ours.offsets[episode] + theirs.lengths[episode])
        )
        first = int(theirs.offsets[episode])
        his = slice(first, first + int(theirs.lengths[episode]))
        np.testing.assert_array_equal(theirs.actions[his], ours.actions[mine])
        np.testing.assert_array_equal(theirs.read_frames(episode), ours.read_frames(episode)[:-1])
        np.testing.assert_allclose(theirs.episode_states(episode), ours.states[mine], rtol=1e-6)


def test_convert_refuses(tworoom_file: Path, dense_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found every 5th; collect with --frame-stride 1"):
        convert(ConvertConfig(tworoom_file, tmp_path / "out"))
    with pytest.raises(InputError, match="exists already"):
        convert(ConvertConfig(dense_file, tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("own_parts")
def test_your_own_format(tmp_path: Path) -> None:
    class Npz(Format):
        name = "npz"

        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self._arrays = dict(np.load(path))
            self.columns = {n: (a.shape, str(a.dtype)) for n, a in self._arrays.items()}

        @classmethod
        def recognises(cls, path: Path) -> bool:
            return path.suffix == ".npz"

        def index(self) -> tuple[np.ndarray, np.ndarray]:
            return self._arrays["lengths"], np.cumsum(self._arrays["lengths"]) - self._arrays[
                "lengths"
            ]

        def read(self, column: str, first: int, last: int) -> np.ndarray:
            return self._arrays[column][first:last]

    FORMATS.register("npz", Npz)
    path = tmp_path / "some.npz"
    pixels = np.arange(8, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    np.savez(path, pixels=pixels, action=np.ones((8, 1), np.float32), lengths=np.array([4, 4]))
    data = EpisodeDataset(path, 2, frame_skip=1, split="all")
    assert data.batch([3]).pixels[0, :, 0, 0, 0].tolist() == [4, 5]


def test_a_question_mark_in_a_name_is_a_name(dense_file: Path, tmp_path: Path) -> None:
    odd = tmp_path / "what?.h5"
    shutil.copyfile(dense_file, odd)
    assert EpisodeFile(odd).num_episodes == 20
    assert Source.of("here.h5?size=12x34").size == (12, 34)
