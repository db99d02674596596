"""The loop of every training: resumable to the bit, safe to kill."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinear_wm.data.windows import Batch
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.training import loader
from bilinear_wm.training.train import train
from tests.training.conftest import (
    assert_same,
    command,
    last_step,
    metrics,
    small,
)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bilinear", "lewm"])
def test_resume_ends_with_the_same_bits(model: str, tworoom_file: Path, tmp_path: Path) -> None:
    """Stopped by a signal at every possible moment, and continued."""
    whole = small(tworoom_file, tmp_path / "whole", model)
    train(whole, progress=False)
    cut = replace(whole, out=tmp_path / "cut")
    from bilinear_wm.training import train as module

    original = module._Run.one_step
    stops = 0
    while True:

        def interrupted(self: Any) -> dict[str, float]:
            numbers = original(self)
            self._signals.received.append(signal.SIGINT)  # as if Ctrl-C came during the step
            return numbers

        module._Run.one_step = interrupted  # type: ignore[method-assign]
        try:
            train(replace(cut, resume=True), progress=False)
        except module.TrainingInterrupted as stop:
            assert stop.exit_status == 130  # noqa: PT017
            stops += 1
        else:
            break
        finally:
            module._Run.one_step = original  # type: ignore[method-assign]
    assert stops == 12  # after each step; what was due after the last is done when it goes on
    assert_same(tmp_path / "whole", tmp_path / "cut")
    one, two = (
        [row["val_forward"] for row in metrics(tmp_path / name)] for name in ("whole", "cut")
    )
    assert one == two


@pytest.mark.slow
def test_ten_kills_at_random_moments(tworoom_file: Path, tmp_path: Path) -> None:
    """SIGKILL anywhere, saves included (one after every step): nothing is lost or changed."""
    steps, out, rng = 80, tmp_path / "killed", random.Random(0)
    whole = subprocess.run(command(tworoom_file, tmp_path / "whole", steps), check=False)
    assert whole.returncode == 0
    kills = 0
    while kills < 10:
        process = subprocess.Popen(
            command(tworoom_file, out, steps, "--resume"),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        enough = last_step(out) + rng.randint(1, 3)
        while last_step(out) < enough and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.wait()
        if process.returncode == 0:
            break
        kills += 1
        load_model(out)  # there is always a whole checkpoint
    assert kills == 10
    final = subprocess.run(command(tworoom_file, out, steps, "--resume"), check=False)
    assert final.returncode == 0
    assert_same(tmp_path / "whole", out)
    assert not list(out.glob(".checkpoint-*"))
    assert len(list(out.glob("checkpoint-*"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save(
    number: signal.Signals, status: int, tworoom_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(tworoom_file, out, 100_000, "--save-every", "100000"),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    printed = ""
    while re.search(r" [1-9]\d*/100000 ", printed) is None:  # the first step is done
        more = process.stderr.read(1)
        assert more, printed
        printed += more
    process.send_signal(number)
    printed += process.communicate()[1]
    assert process.returncode == status
    assert "--resume continues" in printed
    assert "Traceback" not in printed
    load_model(out)  # the last whole one
    assert json.loads((out / "interrupted" / "training.json").read_text())["step"] > 0


def test_nan_stops_with_the_batch(
    tworoom_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, read = small(tworoom_file, tmp_path / "run"), loader.read

    def poisoned(*arguments: Any) -> Iterator[Batch]:
        for step, found in enumerate(read(*arguments)):
            yield replace(found, actions=found.actions * np.nan) if step == 7 else found

    monkeypatch.setattr(loader, "read", poisoned)
    with pytest.raises(InputError, match=r"loss is nan at step 7.*\(episode, step\): \[\("):
        train(config, progress=False)
    assert last_step(config.out) == 5
    load_model(config.out)


def test_a_full_disk_leaves_the_previous_checkpoint(
    tworoom_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tworoom_file, tmp_path / "run")
    write, calls = checkpoint.write_tensors, 0

    def full(path: Path, tensors: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:  # two files a checkpoint: in the third one
            path.write_bytes(b"half a file")
            raise OSError(28, "No space left on device")
        write(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(InputError, match=r"step 10 could not be written.*No space left"):
        train(config, progress=False)
    monkeypatch.undo()
    assert last_step(config.out) == 5
    load_model(config.out)
    train(replace(config, resume=True), progress=False)
    assert last_step(config.out) == 12


def test_a_full_disk_is_one_line(tworoom_file: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        command(tworoom_file, tmp_path / "other", 3),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "could not be written" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "other").glob("*checkpoint-*"))
