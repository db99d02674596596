"""Moving goals under latency: when plans arrive, which tasks count, what is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from bilinear_wm.cli import main
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Delivery, Job
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.attempt import Attempt, run
from bilinear_wm.evaluation.goals import StartGoal
from bilinear_wm.evaluation.moving import begin, run_realtime
from bilinear_wm.planning import GaussNewtonPlanner
from bilinear_wm.planning.base import Plan
from bilinear_wm.reporting.results import read_results
from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.moving import GoalWalk
from bilinear_wm.tasks.tworoom import TwoRoom
from tests.evaluation.conftest import Oracle, moving_config, oracle_pilot, tworoom_tasks

FAR = StartGoal(0, 0, 0, np.array([40.0, 180.0]), np.array([190.0, 180.0]))


class Scripted(Pilot):
    """Plans of so many actions, in the order in which they are begun: 11, 12, ..., 21, 22, ..."""

    def __init__(self, lengths: Sequence[int]) -> None:
        model = Oracle()
        super().__init__(model, GaussNewtonPlanner(model.dynamics))  # type: ignore[arg-type]
        self._lengths = list(lengths)
        self._number = 0

    def plan(self, jobs: Sequence[Job], deadline_s: float | None = None) -> list[Delivery]:
        (job,) = jobs
        self._number += 1
        actions = np.zeros((self._lengths.pop(0), 2), np.float32)
        actions[:, 1] = (10 * self._number + 1 + np.arange(len(actions))) / 100
        plan = Plan(torch.zeros(1, 10), torch.zeros(2, 12), torch.zeros(()), "converged", 1, 0.0)
        return [Delivery(actions, plan, job.course)]


def executed(
    lengths: Sequence[int], delay: int, steps: int, **changes: str
) -> tuple[list[int], Attempt]:
    """Which actions are executed, in hundredths."""
    settings = moving_config(horizon=1, **changes).loop
    env = make_task("tworoom", image_size=8)
    attempt = replace_budget(
        begin(moving_config(), FAR, env, make_task("tworoom", image_size=32)), steps
    )
    (ended,) = run([[attempt]], Scripted(lengths), settings, delay)
    return [round(100 * float(action[1])) for action in ended.actions], ended


def replace_budget(attempt: Attempt, budget: int) -> Attempt:
    attempt.budget = budget
    return attempt


def test_a_plan_arrives_after_its_delay() -> None:
    found, attempt = executed([3, 3], 2, 10)
    assert found == [0, 0, 11, 12, 13, 0, 0, 21, 22, 23]
    assert (attempt.idle, attempt.plans) == (4, 2)


def test_the_rest_of_the_last_plan_bridges_the_delay() -> None:
    found, attempt = executed([4, 4, 4, 1], 2, 8, replan="always")
    assert found == [0, 0, 11, 12, 21, 22, 31, 32]
    assert attempt.idle == 2
    ours, _ = executed([4, 4, 4, 1], 2, 8, replan="always", protocol="controller")
    assert ours == [0, 0, 11, 12, 23, 24, 33, 34]


def test_without_latency_there_is_no_delay() -> None:
    assert executed([2, 2], 0, 4)[0] == [11, 12, 21, 22]


def test_protocols_are_settings_of_the_loop() -> None:
    assert moving_config().loop == LoopConfig(
        1, "exhausted", late="keep", warm_start=False, limited=True
    )
    ours = moving_config(protocol="controller", replan="always", horizon=5)
    assert ours.loop == LoopConfig(limited=True)


def test_a_goal_that_stays_and_one_that_moves_are_met_alike() -> None:
    """Fixed and moving goals with equal settings: the same actions from the same observations."""

    class Standing(GoalWalk):
        """A walk that goes nowhere."""

        def __getitem__(self, step: int) -> np.ndarray:
            return task.goal.copy()

    (task,) = tworoom_tasks(same_room=True, count=1)
    camera = make_task("tworoom", image_size=64)
    settings = LoopConfig(5, 1)
    ended = [
        next(run([[Attempt(task, make_task("tworoom", 8), camera, 50, walk)]], oracle_pilot(),
                 settings))
        for walk in (None, Standing(TwoRoom, task.goal, [0]))
    ]  # fmt: skip
    np.testing.assert_array_equal(ended[0].actions, ended[1].actions)
    assert ended[0].solved


@pytest.mark.slow
@pytest.mark.usefixtures("oracle")
def test_latency_costs_success_and_replanning_gains_it(tmp_path: Path) -> None:
    fast = run_realtime(moving_config(out=tmp_path / "fast.jsonl"), progress=False)
    slow = run_realtime(
        moving_config(latency_ms=1000.0, out=tmp_path / "slow.jsonl"), progress=False
    )
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
    found = run_realtime(moving_config(latency_ms=1e6, episodes=10), progress=False)
    assert found.success.value == 0  # the plan comes too late
    assert found.idle_share == 1
    assert 0.2 < found.solved_by_nothing < 0.9  # a goal of 21 px a step wanders over the agent


@pytest.mark.usefixtures("oracle")
def test_an_interrupted_run_is_completed(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    whole = run_realtime(moving_config(episodes=6, out=out), progress=False)
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
    again = run_realtime(moving_config(episodes=6, out=out, resume=True), progress=False)
    assert again.success == whole.success
    assert sorted(json.loads(line)["index"] for line in out.read_text().splitlines()[1:]) == sorted(
        json.loads(line)["index"] for line in lines[1:]
    )


@pytest.mark.usefixtures("oracle")
def test_latency_is_measured_on_request() -> None:
    found = run_realtime(moving_config(episodes=2, latency_ms=None), progress=False)
    assert 0 < found.latency_ms_p50 <= found.latency_ms_p99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": "none"}, "planner: expected one of gauss-newton"),
        ({"control_hz": 0.0}, "control_hz: expected more than 0, found 0.0"),
        ({"control_hz": float("inf")}, "control_hz: expected more than 0, found inf"),
        ({"latency_ms": -1.0}, "latency_ms: expected 0 or more, found -1.0"),
        ({"latency_ms": float("inf")}, "latency_ms: expected 0 or more, found inf"),
        ({"replan": "sometimes"}, "replan: expected one of exhausted, always"),
        ({"protocol": "none"}, "protocol: expected one of paper, controller"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        moving_config(**changes)


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


@pytest.mark.usefixtures("oracle")
@pytest.mark.parametrize("latency_ms", [0.0, 150.0])
def test_the_monitor_watches_moving_goals(alarmed: Path, tmp_path: Path, latency_ms: float) -> None:
    out = tmp_path / "rows.jsonl"
    some = moving_config(
        data=alarmed, offset=10, episodes=3, monitor=True, out=out, replan="always", horizon=2,
        latency_ms=latency_ms,
    )  # fmt: skip
    run_realtime(some, progress=False)
    header, rows = read_results(out)
    assert header["monitor"] is True
    for row in rows:  # all blocks but those that end with the attempt, or after its last plan
        assert row.steps // 5 - 2 <= row.alarms <= row.steps // 5
    assert sum(row.alarms for row in rows) > 0
