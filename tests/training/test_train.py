"""Training: deterministic, resumable to the bit, safe to kill."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bilinear_wm.analysis.diagnose import latent_geometry
from bilinear_wm.analysis.latents import calibrate, encode_windows
from bilinear_wm.analysis.probes import probe
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.training.loop import TrainingInterrupted
from bilinear_wm.training.residual import ResidualConfig, coordinate_weights, train_residual
from bilinear_wm.training.train import TrainConfig, learning_rate, train

SMALL = {"num_points": 8, "grid": 8, "channels": 16, "drawing_weight": 5.0, "projector_hidden": 32}
PREDICTOR = {"predictor_depth": 1, "predictor_hidden": 32, "action_hidden": 32}
SCRIPT = """
import json, sys
from pathlib import Path
from bilinear_wm.cli import main
sys.exit(main(json.loads(sys.argv[1])))
"""


def small(data: Path, out: Path, model: str = "bilinear", **changes: Any) -> TrainConfig:
    options = SMALL | (PREDICTOR if model != "bilinear" else {})
    config = TrainConfig(
        data,
        out,
        model,
        options=options,
        steps=12,
        batch_size=8,
        num_frames=3,
        eval_every=6,
        save_every=5,
    )
    return replace(config, **changes)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.resolve(out) / checkpoint.WEIGHTS)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_same(first: Path, second: Path) -> None:
    one, two = weights(first), weights(second)
    assert set(one) == set(two)
    for name in one:
        assert torch.equal(one[name], two[name]), name


def command(data: Path, out: Path, steps: int, *more: str) -> list[str]:
    arguments = ["train", "--data", str(data), "--out", str(out), "--steps", str(steps)]
    arguments += ["--batch-size", "8", "--num-frames", "3", "--eval-every", "10"]
    arguments += ["--save-every", "1", "--options", json.dumps(SMALL), *more]
    return [sys.executable, "-c", SCRIPT, json.dumps(arguments)]


@pytest.mark.parametrize("model", ["bilinear", "lewm", "smwm"])
def test_same_seed_same_weights(model: str, tworoom_file: Path, tmp_path: Path) -> None:
    config = small(tworoom_file, tmp_path / "a", model)
    numbers = train(config, progress=False)
    train(replace(config, out=tmp_path / "b"), progress=False)
    assert_same(tmp_path / "a", tmp_path / "b")
    train(replace(config, out=tmp_path / "c", seed=1), progress=False)
    assert not torch.equal(
        weights(tmp_path / "a")["encoder.maps.0.weight"],
        weights(tmp_path / "c")["encoder.maps.0.weight"],
    )
    rows = metrics(tmp_path / "a")
    assert [row["step"] for row in rows] == [6, 12]
    wanted = {"val_forward", "latent_std", "effective_rank", "share_pc1", "probe_agent_x"}
    wanted |= {f"open_loop_{i}" for i in range(1, 6)}
    wanted |= {"val_inverse", "sigma_min", "sigma_max"} if model == "bilinear" else set()
    assert wanted <= set(numbers)
    assert all(np.isfinite(value) for value in numbers.values())


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


def test_ten_kills_at_random_moments(tworoom_file: Path, tmp_path: Path) -> None:
    """SIGKILL anywhere, saves included (one after every step): nothing is lost or changed."""
    steps, out, rng = 40, tmp_path / "killed", random.Random(0)
    whole = subprocess.run(command(tworoom_file, tmp_path / "whole", steps), check=False)
    assert whole.returncode == 0
    kills = 0
    while kills < 10:
        process = subprocess.Popen(
            command(tworoom_file, out, steps, "--resume"),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        before = _step(out)
        while _step(out) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.15))
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


def _step(out: Path) -> int:
    try:
        return int((out / checkpoint.LATEST).read_text().strip().removeprefix("checkpoint-"))
    except FileNotFoundError:
        return -1


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
    deadline = time.monotonic() + 60
    while _step(out) < 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == status
    assert "--resume continues" in printed
    assert "Traceback" not in printed
    load_model(out)  # the last whole one
    assert json.loads((out / "interrupted" / "training.json").read_text())["step"] > 0


def test_two_processes_compute_what_one_does(tworoom_file: Path, tmp_path: Path) -> None:
    """The same global batch; batch norms average over processes (see dynamics/layers.py)."""
    arguments = [
        *["--data", str(tworoom_file), "--steps", "6", "--batch-size", "8", "--num-frames", "3"],
        *["--eval-every", "1", "--options", json.dumps(SMALL)],
    ]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for count in (1, 2):
        result = subprocess.run(
            [
                *launch,
                *["--num_processes", str(count), "--main_process_port", "0"],
                *["-m", "bilinear_wm.cli", "train", "--out", str(tmp_path / str(count))],
                *arguments,
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
    one, two = (metrics(tmp_path / str(count)) for count in (1, 2))
    for first, second in zip(one, two, strict=True):
        for name in ("train_total", "train_forward", "train_inverse", "val_forward"):
            assert first[name] == pytest.approx(second[name], rel=2e-3), name


def test_nan_stops_with_the_batch(tworoom_file: Path, tmp_path: Path) -> None:
    from bilinear_wm.training import train as module

    config = small(tworoom_file, tmp_path / "run")
    batch = module._Run._batch

    def poisoned(self: Any, step: int) -> Any:
        found = batch(self, step)
        return replace(found, actions=found.actions * np.nan) if step == 7 else found

    module._Run._batch = poisoned  # type: ignore[method-assign]
    try:
        with pytest.raises(InputError, match=r"loss is nan at step 7.*\(episode, step\): \[\("):
            train(config, progress=False)
    finally:
        module._Run._batch = batch  # type: ignore[method-assign]
    assert _step(config.out) == 5
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
    assert _step(config.out) == 5
    load_model(config.out)
    train(replace(config, resume=True), progress=False)
    assert _step(config.out) == 12


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


def test_refusals(tworoom_file: Path, tmp_path: Path) -> None:
    config = small(tworoom_file, tmp_path / "run", steps=2)
    train(config, progress=False)
    for wrong, message in [
        (config, "holds a run already"),
        (replace(config, resume=True, seed=5), "give the options of the first run"),
        (replace(config, out=tmp_path / "x", model="nosuch"), "model: expected one of"),
        (replace(config, out=tmp_path / "y", batch_size=10**6), "batch_size: expected at most"),
        (replace(config, out=Path("/proc/run")), "cannot be written"),
        (replace(config, out=tmp_path / "z", options={"nosuch": 1}), "options: .*nosuch"),
        (replace(config, out=tmp_path / "w", task="cube"), "task: expected tworoom"),
    ]:
        with pytest.raises(InputError, match=message):
            train(wrong, progress=False)
    for name, value in {"steps": 0, "eval_every": 0, "learning_rate": -1.0, "seed": -1}.items():
        with pytest.raises(InputError, match=f"{name}: expected"):
            replace(config, **{name: value})  # type: ignore[arg-type]


def test_files_that_do_not_tell_their_task(tworoom_file: Path, tmp_path: Path) -> None:
    import shutil

    silent = tmp_path / "silent.h5"
    shutil.copyfile(tworoom_file, silent)
    with h5py.File(silent, "a") as file:
        del file.attrs["task"]
    numbers = train(small(silent, tmp_path / "run", steps=1, task="tworoom"), progress=False)
    assert "probe_agent_x" in numbers
    assert load_model(tmp_path / "run").config.task == "tworoom"
    with h5py.File(silent, "a") as file:
        file.attrs["task"] = "of-your-own"
    numbers = train(small(silent, tmp_path / "own", steps=1), progress=False)
    assert "open_loop_1" in numbers
    assert not any(name.startswith("probe_") for name in numbers)


def test_two_trainers_in_one_folder(tworoom_file: Path, tmp_path: Path) -> None:
    import fcntl

    out = tmp_path / "run"
    out.mkdir()
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another training is running there"):
            train(small(tworoom_file, out), progress=False)


def test_other_data_is_not_resumed_on(tworoom_file: Path, dense_file: Path, tmp_path: Path) -> None:
    config = small(tworoom_file, tmp_path / "run", steps=3)
    train(config, progress=False)
    import shutil

    other = tmp_path / "other.h5"
    shutil.copyfile(tworoom_file, other)
    with h5py.File(other, "a") as file:
        file["action"][0] = 0.123
    with pytest.raises(InputError, match="expected the run's data"):
        train(replace(config, data=other, resume=True), progress=False)
    shutil.copyfile(tworoom_file, other)
    with h5py.File(other, "a") as file:
        file["pixels"][:] = 255 - file["pixels"][:]
    with pytest.raises(InputError, match="expected the run's data"):
        train(replace(config, data=other, resume=True), progress=False)


def test_trackers_are_fed(tworoom_file: Path, tmp_path: Path) -> None:
    train(small(tworoom_file, tmp_path / "run", trackers=("tensorboard",)), progress=False)
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_schedule() -> None:
    config = TrainConfig(Path("x"), Path("y"), steps=1000, learning_rate=1.0)
    rates = [learning_rate(config, step) for step in range(1000)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert max(rates) == pytest.approx(1.0)
    assert rates[505] == pytest.approx(0.5, abs=0.01)
    assert rates[-1] < 1e-5


def test_calibration_depends_on_weights_and_data_alone(tworoom_file: Path, tmp_path: Path) -> None:
    train(small(tworoom_file, tmp_path / "run"), progress=False)
    data = EpisodeDataset(tworoom_file, 3)
    model = load_model(tmp_path / "run")
    before = model.encode(data.batch([0, 1]).pixels)
    for norm in model.batch_norms():
        norm.running_mean.add_(5.0)
        norm.num_batches_tracked.add_(100)
    calibrate(model, data, 8)
    torch.testing.assert_close(model.encode(data.batch([0, 1]).pixels), before)


def residual(run: Path, data: Path, out: Path, **changes: Any) -> ResidualConfig:
    settings = {"hidden": 32, "steps": 40, "weigh_steps": 10, "refit_steps": 10, "batch_size": 32,
                "eval_every": 20, "save_every": 7}  # fmt: skip
    return ResidualConfig(run, data, out, **(settings | changes))  # type: ignore[arg-type]


def test_the_residual_learns_and_leaves_the_encoder_alone(
    tworoom_file: Path, tmp_path: Path
) -> None:
    train(small(tworoom_file, tmp_path / "run"), progress=False)
    config = residual(
        tmp_path / "run", tworoom_file, tmp_path / "more", steps=400, weigh_steps=0, refit_steps=0
    )
    numbers = train_residual(config, progress=False)
    before, after = weights(tmp_path / "run"), weights(tmp_path / "more")
    changed = {n for n, t in before.items() if not torch.equal(after[n], t)}
    assert changed <= {"dynamics.B", "dynamics.C"}  # their gauge alone: no plan changes
    assert {name for name in after if name not in before} == {
        f"dynamics.residual.{layer}.{part}" for layer in (0, 2, 4) for part in ("weight", "bias")
    }
    assert numbers["open_loop_1"] < metrics(tmp_path / "run")[-1]["open_loop_1"]
    model = load_model(tmp_path / "more")
    z, actions, _ = encode_windows(model, EpisodeDataset(tworoom_file, 3), 10)
    assert torch.isfinite(model.dynamics.rollout(z[:, 0], actions)).all()
    with pytest.raises(InputError, match="has a residual already"):
        train_residual(replace(config, checkpoint=config.out, out=tmp_path / "third"))
    with pytest.raises(InputError, match="holds a run already"):
        train_residual(config)


def test_weights_go_into_the_scale_and_nowhere_else(tworoom_file: Path, tmp_path: Path) -> None:
    train(small(tworoom_file, tmp_path / "run"), progress=False)
    train_residual(residual(tmp_path / "run", tworoom_file, tmp_path / "more"), progress=False)
    plain, weighed = load_model(tmp_path / "run"), load_model(tmp_path / "more")
    pixels = EpisodeDataset(tworoom_file, 2).batch([0, 1, 2]).pixels
    z, scaled = plain.encode(pixels), weighed.encode(pixels)
    ratio = weighed.encoder.scale / plain.encoder.scale  # type: ignore[operator]
    assert ratio.std() > 1e-3
    torch.testing.assert_close(scaled, z * ratio)
    torch.testing.assert_close(weighed.points(scaled), plain.points(z))
    assert torch.equal(weighed.draw(scaled), plain.draw(z))


def test_coordinates_are_weighed_by_how_well_they_are_predicted() -> None:
    error = torch.tensor([0.1, 0.2, 0.4, 0.001, 0.01])
    std = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.01])
    weight = coordinate_weights(error, std)
    assert weight[0] == 1.0  # the median
    torch.testing.assert_close(weight[1:3], torch.tensor([0.5, 0.25]))
    assert weight[3] == 2.0  # bounded
    assert weight[4] == pytest.approx(0.1)  # stands still: says nothing


def test_residual_training_resumes_to_the_bit(tworoom_file: Path, tmp_path: Path) -> None:
    """Stopped after every step, phases' ends included, and continued."""
    from bilinear_wm.training import residual as module

    train(small(tworoom_file, tmp_path / "run"), progress=False)
    steps = {"steps": 9, "weigh_steps": 3, "refit_steps": 2, "eval_every": 9}
    whole = residual(tmp_path / "run", tworoom_file, tmp_path / "whole", **steps)
    module.train_residual(whole, progress=False)
    cut, original, stops = (
        replace(whole, out=tmp_path / "cut", resume=True),
        module._Run.one_step,
        0,
    )

    def interrupted(self: Any) -> dict[str, float]:
        numbers = original(self)
        self._signals.received.append(signal.SIGTERM)
        return numbers

    module._Run.one_step = interrupted  # type: ignore[method-assign]
    try:
        while True:
            try:
                module.train_residual(cut, progress=False)
                break
            except TrainingInterrupted as stop:
                assert stop.exit_status == 143  # noqa: PT017
                stops += 1
    finally:
        module._Run.one_step = original  # type: ignore[method-assign]
    assert stops == 8
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_residual_run_is_not_continued_for_another_model(
    tworoom_file: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        train(small(tworoom_file, tmp_path / f"run{seed}", seed=seed), progress=False)
    config = residual(tmp_path / "run0", tworoom_file, tmp_path / "more")
    train_residual(config, progress=False)
    with pytest.raises(InputError, match="expected the run's data"):
        train_residual(replace(config, checkpoint=tmp_path / "run1", resume=True), progress=False)
    with pytest.raises(InputError, match="expected the run's config"):
        train_residual(replace(config, hidden=16, resume=True), progress=False)
    with pytest.raises(InputError, match="steps: expected more than `weigh_steps` 10"):
        residual(tmp_path / "run0", tworoom_file, tmp_path / "x", steps=20)


def test_diagnostics_see_collapse_and_content() -> None:
    torch.manual_seed(0)
    states = torch.rand(200, 4, 2).double() * 200
    noise = 1e-3 * torch.randn(200, 4, 6)
    seen = torch.cat([states.float() / 100, noise], dim=-1)
    scores = probe("tworoom", seen[:100], states[:100].numpy(), seen[100:], states[100:].numpy())
    assert all(score > 0.99 for score in scores.values())
    blind = probe("tworoom", noise[:100], states[:100].numpy(), noise[100:], states[100:].numpy())
    assert all(score < 0.1 for score in blind.values())
    shape = latent_geometry(seen.flatten(0, 1), 2)
    assert shape["share_action_size"] > 0.99
    assert 1.5 < shape["effective_rank"] < 2.5
    assert latent_geometry(torch.randn(4000, 8), 2)["effective_rank"] == pytest.approx(8, rel=0.05)
