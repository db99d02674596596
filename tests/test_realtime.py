"""Moving goals under latency: when plans arrive, which tasks count, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bilinear_wm import evaluate as evaluation, live, realtime
from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.goals import GoalTask
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner
from bilinear_wm.realtime import Pursuit, RealtimeConfig, run_realtime
from bilinear_wm.results import read_results
from bilinear_wm.tasks import make_task
from tests.test_evaluate import Oracle

FAR = GoalTask(0, 0, 0, np.array([40.0, 180.0]), np.array([190.0, 180.0]))


def pursuit(budget: int = 30) -> Pursuit:
    return Pursuit(FAR, make_task("tworoom", image_size=8), budget, seed=0)


def actions(*values: float) -> np.ndarray:
    return np.array([[0.0, value] for value in values], np.float32)


def run(
    chase: Pursuit, plans: list[np.ndarray], delay: int, replan: str, steps: int
) -> list[float]:
    """Which numbers are executed, given the plans in the order in which they are begun."""
    for _ in range(steps):
        if chase.wants_plan(replan):  # type: ignore[arg-type]
            chase.begin_plan(plans.pop(0), delay)
        chase.step()
    return [float(a[1]) for a in chase.actions]


def test_a_plan_arrives_after_its_delay() -> None:
    plans = [actions(1, 2, 3), actions(4, 5, 6)]
    chase = pursuit()
    assert run(chase, plans, 2, "exhausted", 10) == [0, 0, 1, 2, 3, 0, 0, 4, 5, 6]
    assert (chase.idle, chase.plans) == (4, 2)


def test_the_rest_of_the_last_plan_bridges_the_delay() -> None:
    plans = [actions(1, 2, 3, 4), actions(5, 6, 7, 8), actions(9, 9, 9, 9), actions(0)]
    chase = pursuit()
    assert run(chase, plans, 2, "always", 8) == [0, 0, 1, 2, 5, 6, 9, 9]
    assert chase.idle == 2


def test_without_latency_there_is_no_delay() -> None:
    assert run(pursuit(), [actions(1, 2), actions(3, 4)], 0, "exhausted", 4) == [1, 2, 3, 4]


def test_no_plan_looks_beyond_the_time_that_is_left() -> None:
    chase = pursuit(budget=50)
    looked = []
    while chase.running:
        if chase.wants_plan("exhausted"):
            looked.append(chase.blocks_left(5, frame_skip=5))
            chase.begin_plan(np.zeros((5 * looked[-1], 2), np.float32), delay=1)
        chase.step()
    assert looked == [5, 4, 1]  # from steps 0, 26 and 47


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that knows the position and, in free space, the dynamics."""

    def load_planner(*_: object) -> evaluation.LoadedPlanner:
        model = Oracle()
        planner = GaussNewtonPlanner(model.dynamics, GaussNewtonConfig(effort=1e-4))
        camera = make_task("tworoom", image_size=32)
        bounds = model.action_bounds(-1, 1)  # type: ignore[operator]
        return evaluation.LoadedPlanner(model, planner, camera, bounds)  # type: ignore[arg-type]

    monkeypatch.setattr(realtime, "load_planner", load_planner)


def config(**changes: object) -> RealtimeConfig:
    settings = {"checkpoint": Path("oracle"), "horizon": 1, "episodes": 30, "latency_ms": 20.0}
    return RealtimeConfig("tworoom", **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.usefixtures("oracle")
def test_latency_costs_success_and_replanning_gains_it(tmp_path: Path) -> None:
    fast = run_realtime(config(out=tmp_path / "fast.jsonl"), progress=False)
    slow = run_realtime(config(latency_ms=1000.0, out=tmp_path / "slow.jsonl"), progress=False)
    assert (fast.delay_steps, slow.delay_steps) == (1, 20)
    assert fast.success.value > slow.success.value + 0.3
    assert fast.success.value > fast.floor_random.value + 0.3
    assert slow.idle_share > 0.5 > fast.idle_share
    assert fast.floor_random == slow.floor_random  # identical goals
    tasks = [[(r.index, r.episode) for r in read_results(tmp_path / f"{name}.jsonl")[1]]
             for name in ("fast", "slow")]  # fmt: skip
    assert sorted(tasks[0]) == sorted(tasks[1])


@pytest.mark.usefixtures("oracle")
def test_standing_still_solves_none_of_the_tasks() -> None:
    found = run_realtime(config(latency_ms=1e6, episodes=10), progress=False)
    assert found.success.value == 0  # the plan comes too late
    assert found.idle_share == 1
    assert 0.2 < found.solved_by_nothing < 0.9  # a goal of 21 px a step wanders over the agent


@pytest.mark.usefixtures("oracle")
def test_an_interrupted_run_is_completed(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    whole = run_realtime(config(episodes=6, out=out), progress=False)
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
    again = run_realtime(config(episodes=6, out=out, resume=True), progress=False)
    assert again.success == whole.success
    assert sorted(json.loads(line)["index"] for line in out.read_text().splitlines()[1:]) == sorted(
        json.loads(line)["index"] for line in lines[1:]
    )


@pytest.mark.usefixtures("oracle")
def test_latency_is_measured_on_request() -> None:
    found = run_realtime(config(episodes=2, latency_ms=None), progress=False)
    assert 0 < found.latency_ms_p50 <= found.latency_ms_p99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": "none"}, "--planner: expected one of gauss-newton"),
        ({"control_hz": 0.0}, "--control-hz: expected more than 0, found 0.0"),
        ({"latency_ms": -1.0}, "--latency-ms: expected 0 or more, found -1.0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["realtime", "--task", "tworoom", "--planner", "random", "--episodes", "5", "--json"]
    assert main(command) == 0
    numbers = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert numbers["episodes"] == 5
    assert numbers["success"] == numbers["floor_random"]
    assert numbers["delay_steps"] == 0
    assert main([*command, "--replan", "always"]) == 0  # drawn for all steps at once all the same
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["success"] == numbers["success"]
    assert main(["realtime", "--task", "tworoom"]) == 2
    assert "--checkpoint: expected a trained model" in capsys.readouterr().err


def test_live_ticks_by_the_clock(
    oracle: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "load_planner", realtime.load_planner)
    found = live.run_live(config(episodes=3, control_hz=20.0, replan="always"), progress=False)
    assert found.success.value > 0.5
    assert 10 < found.rate_hz < 21  # a busy machine leaves ticks out, none makes up for them
    assert sum(found.sources.values()) == pytest.approx(1)
    assert found.sources["plan"] > 0.5
    assert found.failures == 0
    base = ["realtime", "--task", "tworoom", "--live"]
    assert main([*base, "--planner", "random"]) == 2
    assert main([*base, "--latency-ms", "3"]) == 2
    assert "--live: expected neither --out nor --latency-ms" in capsys.readouterr().err
