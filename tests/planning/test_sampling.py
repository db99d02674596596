"""What distinguishes the sampling planners."""

from __future__ import annotations

import torch

from bilinear_wm.planning import (
    CEMConfig,
    CEMPlanner,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    ICEMConfig,
    ICEMPlanner,
    MPPIConfig,
    MPPIPlanner,
)
from bilinear_wm.planning.icem import coloured
from tests.planning.conftest import bilinear, goal_of, problem


def test_coloured_noise_has_unit_variance_and_the_right_spectrum() -> None:
    white = torch.randn(20_000, 25, 2, generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(coloured(white, 0.0), white)
    red = coloured(white, 2.0)
    torch.testing.assert_close(red.std((0, 2)), torch.ones(25).double(), rtol=0.02, atol=0)
    power = torch.fft.rfft(red, dim=1).abs().square().mean((0, 2))[1:]
    slope = torch.log(power[1] / power[7]) / torch.log(torch.tensor(8 / 2))
    assert abs(float(slope) - 2.0) < 0.05


def test_icem_without_colour_and_survivors_is_cem() -> None:
    p, dynamics = problem(batch=2), bilinear()
    plain = CEMPlanner(dynamics, CEMConfig(samples=32, elites=8, iterations=5)).plan(p)
    config = ICEMConfig(samples=32, elites=8, iterations=5, colour=0.0, survivors=0)
    assert torch.equal(ICEMPlanner(dynamics, config).plan(p).actions, plain.actions)


def test_icem_keeps_the_population_and_never_loses_its_best() -> None:
    planner = ICEMPlanner(bilinear(), ICEMConfig(samples=16, elites=8))
    mean, elites = torch.zeros(2, 3, 6), torch.randn(2, 8, 3, 6)
    assert planner._kept(mean, None).shape[1] == 0
    kept = planner._kept(mean, elites)
    assert torch.equal(kept[:, :5], elites[:, :5])
    assert torch.equal(kept[:, 5], mean)


def test_more_iterations_only_help_and_approach_gauss_newton() -> None:
    p, dynamics = problem(batch=3, box=False), bilinear()
    config = GaussNewtonConfig(effort=0, coherent=False, iterations=60)
    exact = GaussNewtonPlanner(dynamics, config).plan(p).cost
    costs = [
        CEMPlanner(dynamics, CEMConfig(samples=200, elites=20, iterations=n)).plan(p).cost
        for n in (1, 10, 40)
    ]
    assert (costs[1] <= costs[0]).all()
    assert (costs[2] <= costs[1]).all()
    start = 0.5 * (dynamics.rollout(p.z0, torch.zeros(3, 3, 6))[:, -1] - goal_of(p)).square().sum(
        -1
    )
    assert (costs[2] - exact < 0.25 * (start - exact)).all()


def test_chunks_do_not_change_the_plan() -> None:
    p, dynamics = problem(batch=3), bilinear()
    plans = [
        CEMPlanner(dynamics, CEMConfig(samples=50, elites=5, iterations=3, max_rows=rows)).plan(p)
        for rows in (7, 60, 10_000)
    ]
    for plan in plans[1:]:
        torch.testing.assert_close(plan.cost, plans[0].cost, rtol=1e-4, atol=1e-6)


def test_a_cold_mppi_takes_its_best_sample() -> None:
    p, dynamics = problem(), bilinear()
    cold = MPPIPlanner(dynamics, MPPIConfig(samples=64, iterations=1, temperature=1e-4)).plan(p)
    warm = MPPIPlanner(dynamics, MPPIConfig(samples=64, iterations=1, temperature=1e4)).plan(p)
    assert cold.cost < warm.cost
