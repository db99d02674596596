"""The examples do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@torch.no_grad()
def test_koopman_embedding_is_exact_and_recovers_actions() -> None:
    koopman = load("koopman")
    dynamics = koopman.embedding()
    x, u = torch.randn(2, 500, 2).double()
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
