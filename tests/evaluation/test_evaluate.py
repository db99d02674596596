"""Evaluation: the tasks, the loop, the file, the numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bilinear_wm import disk
from bilinear_wm.cli import main
from bilinear_wm.control.loop import Job
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.reporting.compare import compare
from bilinear_wm.reporting.results import read_results
from tests.models.conftest import small_model


def test_groups_and_single_episodes_agree(checkpoint: Path) -> None:
    config = EvaluateConfig("tworoom", checkpoint, episodes=6, floors=False)
    together = evaluate(config, progress=False)
    alone = evaluate(replace(config, one_by_one=True), progress=False)
    assert together.success == alone.success
    assert together.distance_median == pytest.approx(alone.distance_median, rel=0.05)


def test_results_hold_a_row_an_episode_and_complete_on_resume(
    checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    config = EvaluateConfig("tworoom", checkpoint, episodes=6, out=out, floors=False)
    whole = evaluate(config, progress=False)
    header, rows = read_results(out)
    assert header["planner"] == "gauss-newton"
    assert header["versions"]["torch"]
    assert len(rows) == 6
    # Interrupted: two rows and a half.
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
    with pytest.raises(InputError, match="exists already"):
        evaluate(config, progress=False)
    resumed = evaluate(replace(config, resume=True), progress=False)
    assert resumed.success == whole.success
    assert sorted(r.index for r in read_results(out)[1]) == list(range(6))
    with pytest.raises(InputError, match="give the options of the first run"):
        evaluate(replace(config, resume=True, horizon=3), progress=False)


def test_a_complete_file_is_completed_at_once(checkpoint: Path, tmp_path: Path) -> None:
    """As after a kill between the last row and whatever wanted the result."""
    config = EvaluateConfig("tworoom", checkpoint, episodes=3, out=tmp_path / "r.jsonl")
    whole = evaluate(config, progress=False)
    before = config.out.read_bytes() if config.out else b""
    again = evaluate(replace(config, resume=True), progress=False)
    assert (again.success, again.floor_random) == (whole.success, whole.floor_random)
    assert config.out is not None
    assert config.out.read_bytes() == before


def test_two_do_not_complete_one_file(checkpoint: Path, tmp_path: Path) -> None:
    config = EvaluateConfig("tworoom", checkpoint, episodes=2, out=tmp_path / "r.jsonl")
    assert config.out is not None
    evaluate(config, progress=False)
    before = config.out.read_bytes()
    with (
        disk.owned(config.out, "busy"),
        pytest.raises(InputError, match="another process is writing this file"),
    ):
        evaluate(replace(config, episodes=4, resume=True), progress=False)
    assert config.out.read_bytes() == before


def test_another_model_under_the_same_path_is_noticed(checkpoint: Path, tmp_path: Path) -> None:
    here = tmp_path / "model"
    shutil.copytree(checkpoint, here)
    out = tmp_path / "r.jsonl"
    config = EvaluateConfig("tworoom", here, episodes=2, out=out, floors=False)
    evaluate(config, progress=False)
    shutil.rmtree(here)
    another = small_model("bilinear", seed=5, action_mean=(0.0, 0.0), action_std=(0.5, 0.5))
    another.save_pretrained(here)
    with pytest.raises(InputError, match="expected weights"):
        evaluate(replace(config, resume=True), progress=False)


def test_an_interruption_keeps_what_is_finished(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.jsonl"
    config = EvaluateConfig(
        "tworoom", checkpoint, episodes=6, out=out, floors=False, one_by_one=True
    )
    plan, calls = Pilot.plan, [0]

    def interrupting(self: Pilot, jobs: list[Job]) -> object:
        calls[0] += 1
        if calls[0] > 5:
            raise KeyboardInterrupt
        return plan(self, jobs)

    monkeypatch.setattr(Pilot, "plan", interrupting)
    monkeypatch.setattr("bilinear_wm.evaluation.evaluate.time_plans", lambda *_: [])
    with pytest.raises(KeyboardInterrupt):
        evaluate(config, progress=False)
    kept = len(read_results(out)[1])
    assert 1 <= kept < 6
    monkeypatch.setattr(Pilot, "plan", plan)
    assert evaluate(replace(config, resume=True), progress=False).episodes == 6


def test_floors_and_pairs(tmp_path: Path) -> None:
    files = []
    for kind in ("random", "none"):
        files.append(tmp_path / f"{kind}.jsonl")
        config = EvaluateConfig("tworoom", planner=kind, episodes=40, out=files[-1])
        result = evaluate(config, progress=False)
        if kind == "none":
            assert result.success.value == result.solved_at_start
        else:
            assert result.success.value >= result.solved_at_start
    paired = compare(*files)
    assert paired.episodes == 40
    assert 0 <= paired.p_value <= 1
    assert paired.only_second == 0, "doing nothing solved what random actions did not"
    lines = files[1].read_text().replace('"seed": 0', '"seed": 5')
    files[1].write_text(lines)
    with pytest.raises(InputError, match="expected the seed"):
        compare(*files)


def test_the_command_ends_with_json(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--task", "tworoom", "--checkpoint", str(checkpoint)]
    out = tmp_path / "r.jsonl"
    assert main([*arguments, "--episodes", "4", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    numbers = json.loads(printed[-1])
    assert set(numbers) >= {
        "success", "interval", "success_unsolved", "floor_random", "floor_none",
        "ms_per_plan_p50", "ms_per_plan_p99", "ms_encode_p50", "episodes",
    }  # fmt: skip
    assert numbers["episodes"] == 4
    assert "success" in printed[0]
    assert main(["compare", str(out), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["p_value"] == 1.0


Change = Callable[[EvaluateConfig, Path], EvaluateConfig]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, d: replace(c, task="pusht"), "expected a model of pusht, found one of tworoom"),
        (lambda c, d: replace(c, planner="magic"), "planner: expected one of"),
        (lambda c, d: replace(c, checkpoint=None), "expected a trained model"),
        (lambda c, d: replace(c, offset=500, data=d), "expected episodes of more than 500 steps"),
        (lambda c, d: replace(c, episodes=0), "expected at least 1"),
        (lambda c, d: replace(c, episodes=100_000, data=d), "starts"),
        (lambda c, d: replace(c, out=Path("/nowhere/r.jsonl")), "expected an existing folder"),
        (lambda c, d: replace(c, planner_options={"speed": 1}), "planner_options: unknown speed"),
        (lambda c, d: replace(c, replan_every=9), "replan_every: expected 1 to 5"),
        (lambda c, d: replace(c, monitor=True), "monitor: expected `data`"),
    ],
)
def test_bad_input_is_refused(
    checkpoint: Path, tworoom_file: Path, change: Change, message: str
) -> None:
    config = EvaluateConfig("tworoom", checkpoint, episodes=2, floors=False)
    with pytest.raises(InputError, match=message):
        evaluate(change(config, tworoom_file), progress=False)


def test_episodes_of_another_task_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    data = tmp_path / "p.h5"
    collect(CollectConfig("pusht", data, 2, image_size=32, workers=1), progress=False)
    with pytest.raises(InputError, match="expected episodes of tworoom, found pusht"):
        evaluate(EvaluateConfig("tworoom", checkpoint, data=data), progress=False)


def test_the_monitor_watches_whole_plans_too(
    tworoom_file: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is never content fires for every block before a later plan."""
    monkeypatch.setattr(
        ActionMonitor, "calibrated", lambda model, *_: ActionMonitor(model.dynamics, -1.0)
    )
    config = EvaluateConfig("tworoom", checkpoint, data=tworoom_file, offset=10, episodes=3,
                            horizon=2, monitor=True, floors=False,
                            out=tmp_path / "r.jsonl")  # fmt: skip
    assert evaluate(config, progress=False).alarms > 0
    for row in read_results(tmp_path / "r.jsonl")[1]:
        assert row.alarms == 2 * max(row.plans - 1, 0)
