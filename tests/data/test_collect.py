"""Collection: exact, whatever the workers, interruptions and disks do."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest

from bilinear_wm import disk
from bilinear_wm.data import journal, workers
from bilinear_wm.data.collect import CollectConfig, CollectionInterrupted, collect
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.writer import EpisodeWriter
from bilinear_wm.errors import InputError
from bilinear_wm.tasks import make_task

BWM = [sys.executable, "-m", "bilinear_wm.cli"]


def columns(file: h5py.File) -> list[str]:
    return [n for n in (*file, "thinned/pixels") if isinstance(file.get(n), h5py.Dataset)]


def contents(path: Path) -> dict[str, object]:
    with h5py.File(path) as file:
        found: dict[str, object] = {name: file[name][:].tobytes() for name in columns(file)}
        found.update({f"attribute {name}": str(file.attrs[name]) for name in file.attrs})
    return found


def quiet(config: CollectConfig) -> Path:
    collect(config, progress=False)
    return config.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "episodes"), [("tworoom", 6), ("pusht", 5), ("reacher", 3), ("cube", 2)]
)
def test_workers_do_not_change_the_file(name: str, episodes: int, tmp_path: Path) -> None:
    config = CollectConfig(name, tmp_path / "one.h5", episodes, image_size=24, workers=1)
    one = quiet(config)
    two = quiet(replace(config, out=tmp_path / "two.h5", workers=2))
    assert contents(one) == contents(two)
    assert not list(tmp_path.glob("*.partial"))


def test_stride_keeps_every_nth_picture(tworoom_file: Path, dense_file: Path) -> None:
    thin, full = EpisodeFile(tworoom_file), EpisodeFile(dense_file)
    np.testing.assert_array_equal(thin.lengths, full.lengths)
    np.testing.assert_array_equal(thin.actions, full.actions)
    for episode in range(thin.num_episodes):
        np.testing.assert_array_equal(thin.read_frames(episode), full.read_frames(episode)[::5])


def test_pictures_show_the_stored_states(dense_file: Path) -> None:
    file = EpisodeFile(dense_file)
    env = make_task("tworoom", image_size=32)
    for frame, state in zip(file.read_frames(4), file.episode_states(4), strict=True):
        np.testing.assert_array_equal(frame, env.picture(state))


@pytest.mark.slow
def test_resume_reaches_the_identical_file(tmp_path: Path) -> None:
    config = CollectConfig("pusht", tmp_path / "whole.h5", 7, image_size=16, workers=1)
    whole = quiet(config)
    part = quiet(replace(config, out=tmp_path / "part.h5", episodes=3))
    quiet(replace(config, out=part, episodes=7, workers=2, resume=True))
    assert contents(whole) == contents(part)


def test_resume_refuses_other_settings(tworoom_file: Path) -> None:
    before = tworoom_file.read_bytes()
    config = CollectConfig("tworoom", tworoom_file, 30, image_size=32, workers=1, resume=True)
    for wrong, message in [
        (replace(config, seed=1), "expected seed 1, found 0"),
        (replace(config, image_size=64), "expected image_size 64, found 32"),
        (replace(config, render_quality="faithful"), "expected render_quality faithful"),
        (replace(config, disturbance=0.5), "expected disturbance 0.5, found 0.0"),
        (replace(config, episodes=10), "expected at most 10 episodes, found 20"),
    ]:
        with pytest.raises(InputError, match=message):
            collect(wrong, progress=False)
    assert tworoom_file.read_bytes() == before


def test_files_from_before_disturbances_are_continued(tmp_path: Path) -> None:
    config = CollectConfig("tworoom", tmp_path / "old.h5", 2, image_size=16, workers=1)
    with h5py.File(quiet(config), "a") as file:
        del file.attrs["disturbance"]
    quiet(replace(config, episodes=3, resume=True))
    assert EpisodeFile(config.out).num_episodes == 3


def test_interrupt_inside_a_write_leaves_a_valid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may come after some columns of an episode were appended and before others."""
    append, calls = EpisodeWriter._append, 0

    def interrupted(self: EpisodeWriter, name: str, *args: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 7 * 4 + 3:  # seven columns an episode: in the fifth, after two of them
            raise KeyboardInterrupt
        append(self, name, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(EpisodeWriter, "_append", interrupted)
    config = CollectConfig("tworoom", tmp_path / "a.h5", 9, image_size=16, workers=1)
    with pytest.raises(CollectionInterrupted, match="4 of 9 episodes are in"):
        collect(config, progress=False)
    monkeypatch.undo()
    assert EpisodeFile(config.out).num_episodes == 4
    quiet(replace(config, resume=True))
    assert contents(config.out) == contents(quiet(replace(config, out=tmp_path / "b.h5")))


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_keeps_what_is_finished(stop: signal.Signals, status: int, tmp_path: Path) -> None:
    out = tmp_path / "cut.h5"
    options = ["--episodes", "3000", "--image-size", "16", "--workers", "2", "--out", str(out)]
    process = subprocess.Popen(
        [*BWM, "collect", "pusht", *options],
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell that runs the tests in the background makes its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    printed = b""
    while not re.search(rb" ([5-9]|\d\d+)/3000", printed):
        assert process.poll() is None, printed
        time.sleep(0.05)
        printed += process.stderr.read() or b""
    os.killpg(process.pid, stop) if stop == signal.SIGINT else process.send_signal(stop)
    os.set_blocking(process.stderr.fileno(), True)
    printed += process.communicate()[1]
    assert process.returncode == status
    kept = EpisodeFile(out).num_episodes
    assert 5 <= kept < 3000
    assert f"{kept} of 3000 episodes are in {out}".encode() in printed
    assert b"Traceback" not in printed
    assert not list(tmp_path.glob("*.partial"))
    config = CollectConfig("pusht", out, kept + 2, image_size=16, workers=1, resume=True)
    quiet(config)
    whole = quiet(replace(config, out=tmp_path / "whole.h5", resume=False))
    assert contents(out) == contents(whole)


def test_a_full_disk_is_said_plainly(tmp_path: Path) -> None:
    """A file-size limit fails writes as a full disk does."""
    out = tmp_path / "big.h5"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    result = subprocess.run(
        [*BWM, "collect", "tworoom", "--episodes", "500", "--workers", "1", "--out", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        check=False,
    )
    last = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 2
    assert last.startswith(f"bwm: --out {out}: could not be written")
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == [out]
    kept = EpisodeFile(out).num_episodes
    assert f"{kept} of 500 episodes are in {out}" in last
    config = CollectConfig("tworoom", out, kept + 1, workers=1, resume=True)
    quiet(config)
    whole = quiet(replace(config, out=tmp_path / "whole.h5", resume=False))
    assert contents(out) == contents(whole)


def test_a_dying_worker_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures.process import BrokenProcessPool

    def dying(*given: object):  # type: ignore[no-untyped-def]
        for index, episode in enumerate(workers.record_all(*given)):  # type: ignore[arg-type]
            if index == 3:
                raise BrokenProcessPool("killed")
            yield episode

    monkeypatch.setattr("bilinear_wm.data.collect.record_all", dying)
    config = CollectConfig("tworoom", tmp_path / "a.h5", 9, image_size=16, workers=1)
    with pytest.raises(InputError, match="a worker died: 3 of 9 episodes"):
        collect(config, progress=False)
    assert EpisodeFile(config.out).num_episodes == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "tworooms"}, "expected one of tworoom"),
        ({"episodes": 0}, "episodes: expected at least 1"),
        ({"frame_stride": 0}, "frame_stride: expected at least 1"),
        ({"workers": -1}, "workers: expected at least 1"),
        ({"seed": -1}, "seed: expected"),
        ({"disturbance": -0.1}, "disturbance: expected a number >= 0"),
        ({"disturbance": float("nan")}, "disturbance: expected a number >= 0"),
        ({"image_size": 3}, "image_size: expected"),
        ({"out": Path("/no/such/folder/a.h5")}, "expected an existing folder"),
        ({"out": Path("/proc/a.h5")}, "could not be written"),
        ({"out": Path("/")}, "expected a file name, found a folder"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    config = CollectConfig("tworoom", tmp_path / "a.h5", 2, workers=1)
    with pytest.raises(InputError, match=message):
        collect(replace(config, **change), progress=False)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_overwritten(tworoom_file: Path) -> None:
    before = tworoom_file.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        collect(CollectConfig("tworoom", tworoom_file, 2), progress=False)
    assert tworoom_file.read_bytes() == before


def test_a_second_writer_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "tworoom.h5"
    config = CollectConfig("tworoom", out, 3, image_size=32, workers=1)
    with disk.owned(out, "busy"):
        (tmp_path / "tworoom.h5.partial").write_bytes(b"what the first has so far")
        with pytest.raises(InputError, match="another process is writing this file"):
            collect(config, progress=False)
        assert (tmp_path / "tworoom.h5.partial").read_bytes() == b"what the first has so far"
    assert collect(config, progress=False).episodes == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tworoom.h5"]


def test_of_two_overlapping_runs_one_wins(tmp_path: Path) -> None:
    command = [*BWM, "collect", "tworoom", "--episodes", "20", "--workers", "1", "--out", "t.h5"]
    runs = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    messages = [run.communicate()[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], messages
    assert EpisodeFile(tmp_path / "t.h5").num_episodes == 20


def begun(out: Path, episodes: int, *options: str) -> subprocess.Popen[bytes]:
    """A collection that has written some episodes."""
    command = [*BWM, "collect", "tworoom", "--episodes", "100000", "--image-size", "16"]
    process = subprocess.Popen([*command, "--out", str(out), *options], stderr=subprocess.PIPE)
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    printed = b""
    while not re.search(rb" (\d+)/100000", printed) or episodes > max(
        int(found) for found in re.findall(rb" (\d+)/100000", printed)
    ):
        assert process.poll() is None, printed
        time.sleep(0.02)
        printed += process.stderr.read() or b""
    return process


def test_finished_episodes_survive_a_kill_and_workers_do_not(tmp_path: Path) -> None:
    out = tmp_path / "killed.h5"
    process = begun(out, 3, "--workers", "2")
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(workers, timeout=300)[1]
    assert not out.exists()
    config = CollectConfig("tworoom", out, 3, image_size=16, workers=1)
    with pytest.raises(InputError, match="a run that was killed left killed"):
        collect(config, progress=False)
    journal.restore(tmp_path / "killed.h5.partial")
    kept = EpisodeFile(tmp_path / "killed.h5.partial").num_episodes
    assert kept >= 3
    result = collect(replace(config, episodes=kept + 1, resume=True), progress=False)
    assert (result.episodes, result.new_episodes) == (kept + 1, 1)
    whole = quiet(replace(config, out=tmp_path / "whole.h5", episodes=kept + 1))
    assert contents(out) == contents(whole)
    assert {path.name for path in tmp_path.glob("killed*")} == {"killed.h5"}


def test_every_column_has_a_checksum(tworoom_file: Path) -> None:
    with h5py.File(tworoom_file) as file:
        assert all(file[name].fletcher32 for name in columns(file))
