"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gymnasium.utils.env_checker import check_env

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


@torch.no_grad()
def test_koopman_embedding_is_exact_and_recovers_actions() -> None:
    koopman = load("koopman")
    dynamics = koopman.embedding()
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, 500, 2, generator=generator).double()
    moving = koopman.observed_velocity(x, u)
    torch.testing.assert_close(dynamics.step(koopman.observe(x), u), moving, atol=1e-12, rtol=0)
    apart = (1 + koopman.COUPLING * x[:, 0]).abs() > 0.1
    found = dynamics.inverse(koopman.observe(x[apart]), moving[apart])
    torch.testing.assert_close(found, u[apart], atol=1e-6, rtol=1e-6)
    # The chain rule agrees with simulating for a moment.
    moment = (koopman.observe(koopman.after(x, u, 1e-6, 1)) - koopman.observe(x)) / 1e-6
    torch.testing.assert_close(moment, moving, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_koopman_stops_being_exact() -> None:
    koopman = load("koopman")
    z = koopman.observe(torch.tensor([-1 / koopman.COUPLING, 0.0]).double())
    assert torch.linalg.svdvals(koopman.embedding().action_map(z))[-1] < 1e-12
    errors = [koopman.discrete_error(h) for h in (0.2, 0.1)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


def test_koopman_prints(capsys: pytest.CaptureFixture[str]) -> None:
    load("koopman").main()
    assert "smallest singular value of M(z) 0.0e+00" in capsys.readouterr().out


@pytest.mark.slow
def test_own_episodes_become_a_plan(tmp_path: Path) -> None:
    assert load("own_episodes").main(tmp_path, episodes=40, steps=4) > 0  # runs from end to end


@pytest.mark.usefixtures("own_parts")
def test_a_new_planner_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    module = load("new_planner")
    module.main()
    costs = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines()]
    assert costs[-1] < costs[0]
    dynamics = module.BilinearDynamics(latent_size=16, action_size=4, env_action_size=2)
    bound = torch.full((4,), 0.1)
    problem = module.PlanProblem(*torch.randn(2, 5, 16), 3, -bound, bound)
    plan = module.ShootingPlanner(dynamics).plan(problem)
    assert plan.actions.abs().max() <= 0.1
    assert module.PLANNERS["shooting"] is module.ShootingPlanner


@pytest.mark.slow
@pytest.mark.usefixtures("own_parts")
def test_a_new_model_trains_and_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("new_model")
    module.main(tmp_path, episodes=20, steps=2)
    assert "LinearWorldModel" in capsys.readouterr().out


@pytest.mark.usefixtures("own_parts")
def test_a_new_task_is_a_gymnasium_environment(capsys: pytest.CaptureFixture[str]) -> None:
    module = load("new_task")
    module.main()
    printed = capsys.readouterr().out
    assert "there after" in printed
    assert "random actions reach goals" in printed
    check_env(module.Cart(image_size=32), skip_render_check=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latent", "network", "affine"])
def test_the_true_state_can_stand_in_for_the_picture(
    kind: str,
    tworoom_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = load("true_state")
    options = ["--steps", "3", "--tasks", "2", "--horizons", "2", "--dynamics", kind]
    monkeypatch.setattr("sys.argv", ["true_state.py", str(tworoom_file), *options])
    module.main()
    printed = capsys.readouterr().out
    assert "change over 3 blocks, R^2: agent_x" in printed
    assert "H = 2: success" in printed
    if kind == "network":
        monkeypatch.setattr("sys.argv", [*sys.argv, "--prior", "3"])
        module.main()
        printed = capsys.readouterr().out
        assert "H = 2, near the prior: success" in printed
        assert "H = 2, the prior alone: success" in printed


@pytest.mark.slow
def test_moving_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("moving_pictures")
    options = ["tworoom", "--episodes", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["moving_pictures.py", *options])
    module.main()
    assert (tmp_path / "tworoom.gif").stat().st_size > 1000


@pytest.mark.slow
def test_more_senses_keeps_the_eyes(
    dense_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bilinear_wm.models import load_model
    from tests.models.conftest import small_model

    small_model("bilinear", encoder="points").save_pretrained(tmp_path / "eyes")
    module = load("more_senses")
    monkeypatch.setattr(module, "WINDOWS", 60)
    monkeypatch.setattr(module, "HIDDEN", (16,))
    options = {"observed": 2, "observed_every": 1, "proprioception": ["agent_x"]}
    scores = module.main(tmp_path / "eyes", dense_file, tmp_path / "more", options)
    eyes, more = load_model(tmp_path / "eyes"), load_model(tmp_path / "more")
    for name, tensor in eyes.encoder.state_dict().items():
        assert torch.equal(more.encoder.state_dict()[name], tensor)
    assert more.config.latent_size == 2 * (24 + 1)
    assert set(scores) == {"agent_x", "agent_y"}


def test_goals_are_numbers_and_costs_ones_own() -> None:
    module = load("goals_and_costs")
    found = module.tworoom()
    assert found["two numbers"] < 16
    assert found["two numbers: obstacle"] < module.RADIUS / 2  # the straight way leads through it
    assert found["round an obstacle"] < 16
    assert found["round an obstacle: obstacle"] > 0.7 * module.RADIUS
    assert found["keep left: x"] < found["two numbers: x"] - 5
    before, after = module.pusht()
    assert after < before / 2
