"""Evaluation: the tasks, the loop, the file, the numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pytest
import torch

from bilinear_wm import disk, recipes
from bilinear_wm.cli import main
from bilinear_wm.control.horizon import LoopConfig, Replan
from bilinear_wm.control.loop import Job
from bilinear_wm.control.memory import PlanMemory
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.episode import EVALUATION_STREAM, episode_seed
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.attempt import Attempt, run, side_by_side
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.evaluation.goals import StartGoal, goals_from_data, simulated_goals
from bilinear_wm.evaluation.load import make_planner_config
from bilinear_wm.models.base import WorldModel
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner
from bilinear_wm.reporting.results import compare, rate, read_results
from bilinear_wm.tasks import make_task, task_class
from bilinear_wm.tasks.base import Task
from bilinear_wm.tasks.tworoom import WALL_X
from tests.models.conftest import small_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TwoRoom model of 32 px that has learned nothing."""
    folder = tmp_path_factory.mktemp("model") / "tworoom"
    small_model("bilinear", action_mean=(0.0, 0.0), action_std=(0.5, 0.5)).save_pretrained(folder)
    return folder


class Oracle:
    """A model that reads the dot's position off the picture, with exact dynamics in free space."""

    def __init__(self) -> None:
        model = small_model("bilinear", action_mean=(0.0, 0.0), action_std=(1.0, 1.0))
        self.config, self._model = model.config, model
        dynamics = BilinearDynamics(12, 10, "none", env_action_size=2)
        with torch.no_grad():
            dynamics.C.zero_()
            dynamics.B.zero_()
            for i in range(10):
                dynamics.B[i % 2, i] = 5.0 / 100  # five pixels a step, in hundreds of pixels
        self.dynamics = dynamics

    def encode(self, observation: object) -> torch.Tensor:
        pixels = self.config.observes.of(observation).pictures["pixels"]
        red = pixels[..., 0].astype(float) - pixels[..., 1]
        scale = 224 / pixels.shape[-2]
        grid = (np.arange(pixels.shape[-2]) + 0.5) * scale - 0.5
        total = red.sum((-2, -1))
        x, y = (red.sum(-2) @ grid) / total, (red.sum(-1) @ grid) / total
        z = torch.zeros(*pixels.shape[:-3], 12)
        z[..., 0], z[..., 1] = torch.from_numpy(x / 100), torch.from_numpy(y / 100)
        return z

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


def oracle() -> Pilot:
    model: WorldModel = Oracle()  # type: ignore[assignment]
    return Pilot(model, GaussNewtonPlanner(model.dynamics, GaussNewtonConfig(effort=1e-4)))


def attempts(
    tasks: list[StartGoal], camera: Task, size: int, config: LoopConfig
) -> Iterator[Attempt]:
    """By a perfect model, so many side by side."""
    envs = [make_task("tworoom", 8) for _ in range(size)]
    groups = side_by_side(tasks, envs, lambda task, env: Attempt(task, env, camera, 50))
    return run(groups, oracle(), config)


def tworoom_tasks(same_room: bool, count: int = 12) -> list[StartGoal]:
    tasks = simulated_goals("tworoom", 25, 60, seed=1)
    fitting = [t for t in tasks if ((t.start[0] < WALL_X) == (t.goal[0] < WALL_X)) == same_room]
    return [replace(t, index=i) for i, t in enumerate(fitting[:count])]


@pytest.mark.parametrize("replan", ["exhausted", 1, 2])
def test_a_perfect_model_solves_what_no_wall_blocks(replan: Replan) -> None:
    tasks = tworoom_tasks(same_room=True)
    rows = []
    for attempt in attempts(tasks, make_task("tworoom", 64), 5, LoopConfig(5, replan)):
        rows.append(attempt.result())
        assert np.abs(attempt.actions).max(initial=0) <= 1
    assert sorted(row.index for row in rows) == list(range(len(tasks)))
    kept = attempt.result(trajectory=True).trajectory
    assert len(kept) == attempt.steps + 1
    np.testing.assert_allclose(kept[0], attempt.task.start, atol=1e-3)
    for row in rows:
        assert row.success
        assert row.trajectory == []
        assert row.steps <= 50
        assert row.distance < 1


def test_nothing_is_drawn_between_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    camera = make_task("tworoom", 64)
    drawn: list[np.ndarray] = []
    picture = camera.picture
    monkeypatch.setattr(camera, "picture", lambda s: drawn.append(s) or picture(s))
    tasks = tworoom_tasks(same_room=False, count=4)
    ended = list(attempts(tasks, camera, 4, LoopConfig(5, "exhausted")))
    assert len(drawn) == len(tasks) + sum(attempt.plans for attempt in ended)


def test_groups_and_single_episodes_agree(checkpoint: Path) -> None:
    config = EvaluateConfig("tworoom", checkpoint, episodes=6, floors=False)
    together = evaluate(config, progress=False)
    alone = evaluate(replace(config, one_by_one=True), progress=False)
    assert together.success == alone.success
    assert together.distance_median == pytest.approx(alone.distance_median, rel=0.05)


def test_tasks_are_fixed_by_the_seed_and_held_out(tworoom_file: Path) -> None:
    first = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=0)
    again = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=0)
    other = goals_from_data(tworoom_file, "tworoom", 10, 8, seed=1)
    facts = lambda tasks: [(t.episode, t.start_step) for t in tasks]  # noqa: E731
    assert facts(first) == facts(again) != facts(other)
    assert len(set(facts(first))) == 8
    from bilinear_wm.data.file import EpisodeFile
    from bilinear_wm.data.windows import split_episodes

    file = EpisodeFile(tworoom_file)
    _, held_out = split_episodes(file.num_episodes, 0.1, 0)
    for task in first:
        assert task.episode in held_out
        states = file.episode_states(task.episode)
        assert np.array_equal(task.start, states[task.start_step])
        assert np.array_equal(task.goal, states[task.start_step + 10])


@pytest.mark.parametrize("task", ["tworoom", "pusht", "reacher"])
def test_simulated_tasks_never_meet_training(task: str) -> None:
    tasks = simulated_goals(task, 10, 3, seed=0)
    assert len({(t.episode, t.start_step) for t in tasks}) == 3
    training = {episode_seed(0, i) for i in range(2000)}
    assert not training & {episode_seed(0, i, EVALUATION_STREAM) for i in range(2000)}


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


def test_intervals_are_wilsons() -> None:
    assert str(rate([True] * 94 + [False] * 6)) == "94.0 % [87.5, 97.2]"
    assert rate([]).count == 0


def test_distance_agrees_with_success(task_name: str) -> None:
    """Distances are in units of success, up to the tasks' treatment of the very edge."""
    cls = task_class(task_name)
    rng = np.random.default_rng(0)
    size = len(cls.state_names)
    goals = rng.normal(size=(500, size))
    scale = {"tworoom": 12, "pusht": 10, "reacher": 0.05, "cube": 0.03}[task_name]
    states = goals + scale * rng.normal(size=goals.shape)
    solved = cls.success(states, goals)
    assert solved.any()
    assert not solved.all()
    assert np.array_equal(solved, cls.distance(states, goals) < 1)


def test_the_monitor_sees_a_push_and_nothing_else() -> None:
    model = oracle().model
    assert isinstance(model.dynamics, BilinearDynamics)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(500, 12, generator=generator)
    actions = torch.randn(500, 10, generator=generator)
    noise = 0.01 * torch.randn(500, 12, generator=generator)
    with torch.no_grad():
        after = model.dynamics.step(z, actions) + noise
    monitor = ActionMonitor(model.dynamics, float("inf"))
    values = monitor.disagreement(z[:400], actions[:400], after[:400])
    armed = ActionMonitor(model.dynamics, float(torch.quantile(values, 0.99)))
    clean = armed.disagreement(z[400:], actions[400:], after[400:]) > armed.threshold
    push = torch.zeros(12)
    push[:2] = 0.15  # 15 pixels
    pushed = armed.disagreement(z[400:], actions[400:], after[400:] + push) > armed.threshold
    assert clean.float().mean() <= 0.05
    assert pushed.float().mean() >= 0.9


def test_videos_are_written(checkpoint: Path, tmp_path: Path) -> None:
    """Now and goal; between them, from a model that draws, what the plan expects."""
    scale = {"action_mean": (0.0, 0.0), "action_std": (0.5, 0.5)}
    small_model("bilinear", encoder="points", **scale).save_pretrained(tmp_path / "draws")
    for model, panels in ((checkpoint, 2), (tmp_path / "draws", 3)):
        folder = tmp_path / f"films-{panels}"
        config = EvaluateConfig("tworoom", model, episodes=2, floors=False, video=folder)
        evaluate(config, progress=False)
        films = sorted(folder.glob("*.mp4"))
        assert len(films) == 2
        for film in films:
            height, width = imageio.imread(film, index=0).shape[:2]
            assert width / height == pytest.approx(panels, abs=0.2)


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


def test_the_papers_settings() -> None:
    config = recipes.evaluation("reacher", "gauss-newton", paper_settings=True)
    assert config.horizon == 3
    made = make_planner_config(config.planner, config.planner_options)
    assert (made.candidates, made.spread, made.iterations, made.refreshed_blocks) == (
        64,
        2.0,
        20,
        3,
    )
    assert (made.effort, made.damping, made.tolerance, made.goal_weight) == (0.01, 1e-4, 1e-6, 1.0)


def test_memory_recalls_the_nearest_window(tworoom_file: Path, checkpoint: Path) -> None:
    z, actions = torch.randn(30, 4, 12), torch.randn(30, 3, 10)
    memory = PlanMemory(z, actions)
    found = memory.recall(z[[4, 9], 0] + 0.01, z[[4, 9], -1])
    torch.testing.assert_close(found, actions[[4, 9]])
    config = EvaluateConfig("tworoom", checkpoint, memory=True, horizon=2, floors=False)
    with pytest.raises(InputError, match="memory: expected `data`"):
        evaluate(config, progress=False)
    some = replace(config, data=tworoom_file, offset=10, episodes=3)
    assert evaluate(some, progress=False).episodes == 3


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
