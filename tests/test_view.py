"""What `--view rerun` writes, read back with rerun's own reader."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bilinear_wm import view
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.evaluation.moving import RealtimeConfig, run_realtime
from bilinear_wm.reporting.results import read_results
from bilinear_wm.training.train import TrainConfig, train
from tests.deploy.test_bundle import Without

PRETRAINED = Path(__file__).parents[1] / "pretrained"


def rows_of(path: Path) -> Counter[str]:
    """How many rows each entity of a recording has on the timeline."""
    from rerun.chunk import RrdReader

    counts: Counter[str] = Counter()
    for chunk in RrdReader(path).stream():
        if "step" in chunk.timeline_names:
            counts[str(chunk.entity_path).strip("/")] += chunk.num_rows
    return counts


def test_everything_is_written_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    with view.opened("rerun", out) as shown:
        assert shown is not None
        for step in range(3):
            shown.picture(step, "camera", np.zeros((8, 12, 3), np.uint8))
            shown.numbers(step, "timing", {"plan_ms": step, "encode_ms": 1.0})
        shown.picture(0, "predicted", np.zeros((4, 8, 12, 3), np.uint8))
        shown.points(0, "camera/points", np.zeros((5, 2)), (8, 12))
        shown.table(1, "plan", np.zeros((5, 2)))
    assert rows_of(tmp_path / "results.rrd") == {
        "camera": 3, "timing/plan_ms": 3, "timing/encode_ms": 3,
        "predicted": 1, "camera/points": 1, "plan": 1,
    }  # fmt: skip
    assert f"rerun {tmp_path / 'results.rrd'}" in capsys.readouterr().out
    with view.opened("rerun", out):
        pass
    assert (tmp_path / "results-2.rrd").exists()  # nothing is replaced


@pytest.mark.slow
@pytest.mark.parametrize("moving", [False, True])
def test_episodes_are_shown(moving: bool, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "results.jsonl", PRETRAINED / "tworoom"
    if moving:
        run_realtime(
            RealtimeConfig("tworoom", checkpoint, out=out, episodes=2, latency_ms=1, view="rerun"),
            progress=False,
        )
    else:
        evaluate(
            EvaluateConfig("tworoom", checkpoint, out=out, episodes=2, floors=False, view="rerun"),
            progress=False,
        )
    found = rows_of(tmp_path / "results.rrd")
    _, rows = read_results(out)
    assert len(rows) == 2
    for row in rows:
        place = f"episode/{row.index:03d}"
        for name in ("camera", "goal", "distance"):
            assert found[f"{place}/{name}"] == row.steps + 1
        assert found[f"{place}/action/dx"] == row.steps
        for name in ("camera/points", "predicted", "plan", "cost", "timing/plan_ms"):
            assert found[f"{place}/{name}"] == row.plans


@pytest.mark.slow
def test_training_is_shown_and_not_changed(tworoom_file: Path, tmp_path: Path) -> None:
    options = {"drawing_weight": 1.0, "num_points": 8, "channels": 8, "grid": 8}
    ends = []
    kinds: tuple[view.Kind | None, ...] = (None, "rerun")
    for kind in kinds:
        config = TrainConfig(
            tworoom_file, tmp_path / str(kind), options=options, steps=4, batch_size=8,
            num_frames=3, eval_every=2, save_every=4, view=kind,
        )  # fmt: skip
        ends.append(train(config, progress=False))
    assert ends[0] == ends[1]
    found = rows_of(tmp_path / "rerun" / "view.rrd")
    assert found["train/total"] == found["timing/seconds"] == 4
    assert found["held_out/0/camera"] == found["held_out/3/camera/points"] == 2
    assert found["held_out/0/drawn"] == found["diagnosis/sigma_min"] == 2
    assert not list((tmp_path / "None").glob("*.rrd"))


def test_what_cannot_be_shown_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = PRETRAINED / "tworoom"
    with pytest.raises(InputError, match="view: expected `out`"):
        evaluate(EvaluateConfig("tworoom", checkpoint, episodes=1, view="rerun"), progress=False)
    with pytest.raises(InputError, match="view: expected a planner in this process alone"):
        evaluate(EvaluateConfig("tworoom", checkpoint, workers=2, view="rerun"), progress=False)
    with pytest.raises(InputError, match="view: expected a planner"):
        RealtimeConfig("tworoom", planner="random", view="rerun")
    monkeypatch.setattr(sys, "meta_path", [Without("rerun"), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "rerun"]:
        monkeypatch.delitem(sys.modules, name)
    with (
        pytest.raises(InputError, match=r"view: needs.*bilinear-world-models\[view\]"),
        view.opened("rerun", tmp_path / "results.jsonl"),
    ):
        pass


def test_without_a_view_nothing_is_imported() -> None:
    code = (
        "import sys, bilinear_wm.evaluation.moving, bilinear_wm.training.train\n"
        "from bilinear_wm import view\n"
        "with view.opened(None, None) as shown: assert shown is None\n"
        "assert not any(name.partition('.')[0] == 'rerun' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
