"""Everything that runs a model runs it where it is: no tensor of the CPU meets one of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm import recipes
from bilinear_wm.analysis.geometry import GeometryConfig, controllable, run_geometry
from bilinear_wm.cli import main
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.models import MODELS, load_model
from bilinear_wm.models.device import find_device
from bilinear_wm.planning import PlanProblem
from bilinear_wm.planning.terms import KeepOut, StateGoal
from bilinear_wm.play.shared import SharedModel
from bilinear_wm.reporting.results import read_results
from bilinear_wm.training.prior import PriorConfig, train_prior
from bilinear_wm.training.residual import ResidualConfig, train_residual
from tests.devices import elsewhere
from tests.models.conftest import small_model, windows
from tests.planning.conftest import DYNAMICS, PLANNERS, D, problem


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tworoom.h5"
    collect(CollectConfig("tworoom", path, 12, 32, workers=1), progress=False)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained, with a residual that does something."""
    folder = tmp_path_factory.mktemp("model") / "tworoom"
    scale: dict[str, Any] = {"action_mean": (0.0, 0.0), "action_std": (0.5, 0.5)}
    small_model("bilinear", encoder="points", **scale).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "mix",
    [
        lambda here, there: here + there,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: there[here.long()],
        lambda here, there: here[there.long()],
        lambda here, there: there.numpy(),
    ],
)
def test_the_second_device_refuses_to_be_mixed(mix: Callable[[Any, Any], Any]) -> None:
    with elsewhere() as device:
        there = torch.ones(2, device=device)
        assert (2 * there).tolist() == [2, 2]
        assert there.cpu().device.type == "cpu"
        with pytest.raises(RuntimeError):
            mix(torch.zeros(2), there)


@pytest.mark.parametrize("kind", sorted(MODELS))
@pytest.mark.parametrize("encoder", ["points", "vit"])
def test_models(kind: str, encoder: str) -> None:
    model = small_model(kind, encoder=encoder).eval()
    pixels, actions = windows()
    z = model.encode(pixels)
    expected = model.dynamics.rollout(z[:, 0], actions)
    torch.manual_seed(0)
    loss = model.latent_loss(z, actions).total
    with elsewhere() as device:
        model.to(device)
        assert model.device == device
        found = model.encode(pixels.numpy())
        rolled = model.dynamics.rollout(found[:, 0], actions.to(device))
        torch.manual_seed(0)
        same_loss = model.latent_loss(found, actions.to(device)).total
        torch.testing.assert_close(found.cpu(), z)
        torch.testing.assert_close(rolled.cpu(), expected)
        torch.testing.assert_close(same_loss.cpu(), loss)
        raw = model.to_env_actions(actions.to(device))
        torch.testing.assert_close(model.to_model_actions(raw).cpu(), actions)
        low, _ = model.action_bounds(-np.ones(2), 1.0)
        assert low.device == device
        if encoder == "points":
            assert model.draw(found[0]).device == device
        total = model.train().loss(pixels.to(device), actions.to(device)).total
        total.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert gradients
        assert all(g.device == device for g in gradients)


def moved(given: PlanProblem, device: torch.device) -> PlanProblem:
    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return replace(given, **{name: move(value) for name, value in vars(given).items()})


@pytest.mark.parametrize("dynamics", sorted(DYNAMICS))
@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_planners(name: str, dynamics: str) -> None:
    """The same plans as on the CPU, given problems that are still there or not."""
    made = DYNAMICS[dynamics]()
    planner = PLANNERS["gauss-newton-torch" if name == "gauss-newton" else name](made)
    expected = planner.plan(problem(3))
    with elsewhere() as device:
        planner = PLANNERS[name](made.to(device))
        for given in (problem(3), moved(problem(3), device)):
            plan = planner.plan(given)
            assert plan.actions.device == plan.latents.device == plan.cost.device == device
            torch.testing.assert_close(plan.cost.cpu(), expected.cost, atol=1e-4, rtol=1e-3)
            assert plan.status == expected.status
        broken = problem(3)
        broken.z0[1] = torch.nan
        statuses = planner.plan(broken, warm_start=torch.zeros(3, 3, 6)).status
        assert statuses[1] == "bad_input"


def test_costs_of_the_user() -> None:
    """Their numbers may be on the CPU; planners take them along."""
    generator = torch.Generator().manual_seed(0)
    matrix, offset = torch.randn(2, D, generator=generator), torch.zeros(2)
    goal = StateGoal(matrix, offset, torch.randn(3, 2, generator=generator), torch.ones(2))
    away = KeepOut(matrix, offset, torch.randn(3, 2, generator=generator), 0.5)
    given = replace(problem(3), z_goal=None, terms=(goal, away))
    made = DYNAMICS["bilinear"]()
    for name in ("cem", "adam"):
        expected = PLANNERS[name](made).plan(given)
        with elsewhere() as device:
            plan = PLANNERS[name](made.to(device)).plan(given)
            torch.testing.assert_close(plan.actions.cpu(), expected.actions, atol=1e-3, rtol=1e-3)
            rows = goal.rows(torch.tensor([2, 0], device=device))
            torch.testing.assert_close(rows.target, goal.target[[2, 0]])
        made = DYNAMICS["bilinear"]()


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"monitor": True}, {"video": True}])
def test_evaluation(more: dict[str, Any], checkpoint: Path, episodes: Path, tmp_path: Path) -> None:
    """The pilot, its monitor, and films: the same steps as on the CPU."""
    config = EvaluateConfig(
        "tworoom", checkpoint, horizon=2,
        planner_options={"compiled": False, "iterations": 3, "candidates": 4},
        replan_every=1, arrive="deadline", offset=10, episodes=3, data=episodes,
        floors=False, trajectories=True, out=tmp_path / "cpu.jsonl",
    )  # fmt: skip
    options = {**more, "video": tmp_path / "film"} if "video" in more else more
    config = replace(config, **options)
    evaluate(config, progress=False)
    with elsewhere() as device:
        there = replace(config, out=tmp_path / "there.jsonl", device=str(device))
        evaluate(there, progress=False)
    (header, rows), (_, expected) = (
        read_results(tmp_path / name) for name in ("there.jsonl", "cpu.jsonl")
    )
    assert header["device"] == str(device)
    for row, other in zip(rows, expected, strict=True):
        assert (row.steps, row.success) == (other.steps, other.success)
        np.testing.assert_allclose(row.trajectory, other.trajectory, atol=0.1)


@pytest.mark.slow
def test_goals_as_states(episodes: Path) -> None:
    recipe = recipes.evaluation("tworoom", "cem")
    pretrained = Path(__file__).parents[1] / "pretrained" / "tworoom"
    data = episodes.with_name("large.h5")
    collect(CollectConfig("tworoom", data, 30, workers=1), progress=False)
    config = replace(
        recipe, checkpoint=pretrained, goal="state", data=data, episodes=2, offset=10,
        planner_options={"samples": 20, "elites": 4, "iterations": 2}, floors=False,
    )  # fmt: skip
    with elsewhere() as device:
        assert evaluate(replace(config, device=str(device)), progress=False).episodes == 2


@pytest.mark.slow
def test_training_a_residual(checkpoint: Path, episodes: Path, tmp_path: Path) -> None:
    config = ResidualConfig(
        checkpoint, episodes, tmp_path / "cpu", hidden=8, steps=6, weigh_steps=2, refit_steps=2,
        batch_size=8, eval_every=3, save_every=3,
    )  # fmt: skip
    train_residual(config, progress=False)
    with elsewhere() as device:
        there = replace(config, out=tmp_path / "there", device=str(device))
        train_residual(there, progress=False)
    found, expected = (load_model(tmp_path / name).state_dict() for name in ("there", "cpu"))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name)


def test_training_a_prior(checkpoint: Path, episodes: Path, tmp_path: Path) -> None:
    config = PriorConfig(
        checkpoint, episodes, tmp_path / "cpu", hidden=8, steps=4, batch_size=8, eval_every=2,
        save_every=2,
    )  # fmt: skip
    train_prior(config, progress=False)
    with elsewhere() as device:
        there = replace(config, out=tmp_path / "there", device=str(device))
        train_prior(there, progress=False)
    found, expected = (load_model(tmp_path / name).state_dict() for name in ("there", "cpu"))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name)


def test_geometry(checkpoint: Path, episodes: Path, tmp_path: Path) -> None:
    model = load_model(checkpoint)
    z = torch.randn(4, model.config.latent_size)
    expected = controllable(model, z, 2)
    with elsewhere() as device:
        assert controllable(model.to(device), z, 2) == pytest.approx(expected, rel=1e-4)
        config = GeometryConfig(checkpoint, episodes, tmp_path / "g", 2, str(device))
        run_geometry(config)
    assert (tmp_path / "g" / "points.png").exists()


@pytest.mark.slow
def test_the_page(checkpoint: Path) -> None:
    with elsewhere() as device:
        shared = SharedModel("tworoom", checkpoint, {}, LoopConfig(2), str(device), 300)
        assert shared.monitor is not None
        z = torch.zeros(2, shared.model.config.latent_size, device=device)
        assert len(shared.trails(z)[0]) == len(shared.components(z)) == 2
        assert len(shared.points(z[0])) == shared.model.config.num_points


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize(
    "command",
    [
        ["train", "--data", "DATA", "--out", "OUT"],
        ["train-residual", "--data", "DATA", "--out", "OUT", "--checkpoint", "MODEL"],
        ["train-prior", "--data", "DATA", "--out", "OUT", "--checkpoint", "MODEL"],
        ["evaluate", "--task", "tworoom", "--checkpoint", "MODEL"],
        ["realtime", "--task", "tworoom", "--checkpoint", "MODEL"],
        ["geometry", "--data", "DATA", "--out", "OUT", "--checkpoint", "MODEL"],
        ["play", "--task", "tworoom", "--checkpoint", "MODEL"],
    ],
    ids=lambda command: command[0],
)
def test_without_a_gpu_there_is_one_line(
    command: list[str],
    checkpoint: Path,
    episodes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {"DATA": episodes, "OUT": tmp_path / "out", "MODEL": checkpoint}
    given = [str(paths.get(word, word)) for word in command]
    assert main([*given, "--device", "cuda"]) == 2
    said = capsys.readouterr()
    assert said.err == "bwm: --device: expected one that torch finds here (cpu), found 'cuda'\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["meta", "nonsense", "cpu:x", "cuda:99"])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device: expected one that torch finds here"):
        find_device(name)
