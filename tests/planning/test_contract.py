"""What every planner promises, whatever comes in."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.errors import InputError
from bilinear_wm.planning import (
    AdamConfig,
    CEMConfig,
    GaussNewtonConfig,
    GaussNewtonPlanner,
    ICEMConfig,
    MPPIConfig,
    Plan,
    Planner,
    PlanProblem,
)
from bilinear_wm.planning.base import STATUSES
from bilinear_wm.planning.sensitivity import analytic, coherent_lift
from tests.planning.conftest import (
    DYNAMICS,
    ENV,
    PLANNERS,
    D,
    M,
    bilinear,
    dynamics_of,
    goal_of,
    problem,
)

SLACK = 1e-5


def start_cost(planner: Planner, p: PlanProblem, start: torch.Tensor) -> torch.Tensor:
    """The objective of a plan, computed apart from the planner."""
    config = planner.config
    z0, goal = p.z0.view(-1, D), goal_of(p).view(-1, D)
    actions = start.view(-1, p.horizon, M)
    with torch.no_grad():
        latents = planner.dynamics.rollout(z0, actions)
    cost = 0.5 * config.goal_weight * (latents[:, -1] - goal).square().sum(-1)
    return cost + 0.5 * config.effort * actions.square().sum((1, 2))


def check(planner: Planner, p: PlanProblem, plan: Plan, start: torch.Tensor | None = None) -> None:
    """Finite, in the box, of the right shape and type, no worse than the start."""
    batch = p.z0.shape[:-1]
    assert plan.actions.shape == (*batch, p.horizon, M)
    assert plan.latents.shape == (*batch, p.horizon + 1, D)
    assert plan.cost.shape == batch
    assert plan.actions.dtype == plan.latents.dtype == torch.float32
    assert torch.isfinite(plan.actions).all()
    if p.action_low is not None and p.action_high is not None:
        assert (plan.actions >= p.action_low).all()
        assert (plan.actions <= p.action_high).all()
    statuses = (plan.status,) if isinstance(plan.status, str) else plan.status
    assert len(statuses) == max(p.z0[..., 0].numel(), 1)
    assert set(statuses) <= set(STATUSES)
    assert plan.seconds > 0
    if "bad_input" in statuses or "diverged" in statuses:
        return
    begin = torch.zeros_like(plan.actions) if start is None else start
    before = start_cost(planner, p, begin)
    after = start_cost(planner, p, plan.actions)
    assert (after <= before * (1 + SLACK) + SLACK).all()
    torch.testing.assert_close(plan.cost.view(-1), after, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dynamics", DYNAMICS)
@pytest.mark.parametrize("kind", PLANNERS)
def test_plans_with_every_dynamics(kind: str, dynamics: str) -> None:
    planner = PLANNERS[kind](DYNAMICS[dynamics]())
    for p in (problem(), problem(batch=3), problem(box=False)):
        plan = planner.plan(p)
        check(planner, p, plan)
        start = start_cost(planner, p, torch.zeros_like(plan.actions))
        assert plan.cost.sum() < start.sum(), "no progress at all"


@pytest.mark.parametrize("kind", PLANNERS)
def test_plans_can_be_learned_from(kind: str) -> None:
    """Planning without gradients leaves nothing behind that a later gradient stumbles over."""
    torch.manual_seed(0)
    dynamics = BilinearDynamics(D, M, min_singular=1e-4, env_action_size=ENV)
    p = problem()
    plan = PLANNERS[kind](dynamics).plan(p)
    tensors = (plan.actions, plan.latents, plan.cost)
    assert not any(x.is_inference() or x.requires_grad for x in tensors)
    lift = coherent_lift(M, ENV, p.z0)
    latents, tangents = analytic(dynamics, p.z0[None], plan.actions[None], lift, [0, 1])
    (latents.sum() + tangents.latents[-1].sum()).backward()
    assert all(x.grad is not None for x in dynamics.parameters())


def test_no_problems_give_no_plans(planner: Planner) -> None:
    p = PlanProblem(torch.zeros(0, D), torch.zeros(0, D), 3)
    plan = planner.plan(p)
    assert plan.actions.shape == (0, 3, M)
    assert plan.latents.shape == (0, 4, D)
    assert plan.cost.shape == (0,)
    assert plan.status == ()
    assert plan.iterations == ()


@pytest.mark.parametrize("horizon", [1, 30])
def test_short_and_long_horizons(planner: Planner, horizon: int) -> None:
    p = problem(batch=2, horizon=horizon)
    check(planner, p, planner.plan(p))


def test_one_call_is_a_function_of_its_arguments(planner: Planner) -> None:
    p = problem(batch=3)
    first, second = planner.plan(p), planner.plan(p)
    assert torch.equal(first.actions, second.actions)
    assert first.status == second.status


def test_a_plan_does_not_depend_on_its_neighbours(planner: Planner) -> None:
    p = problem(batch=4)
    together = planner.plan(p)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = planner.plan(
        PlanProblem(p.z0[order], goal_of(p)[order], p.horizon, p.action_low, p.action_high)
    )
    torch.testing.assert_close(shuffled.cost, together.cost[order], rtol=1e-4, atol=1e-5)
    for i in range(4):
        alone = planner.plan(
            PlanProblem(p.z0[i], goal_of(p)[i], p.horizon, p.action_low, p.action_high)
        )
        torch.testing.assert_close(alone.cost, together.cost[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("where", ["z0", "z_goal", "warm_start"])
def test_bad_input_gives_the_fallback_and_leaves_no_trace(
    planner: Planner, where: str, poison: float
) -> None:
    p = problem(batch=3)
    warm = 0.1 * torch.ones(3, p.horizon, M)
    inputs = {"z0": p.z0.clone(), "z_goal": goal_of(p).clone(), "warm_start": warm.clone()}
    inputs[where][1].view(-1)[2] = poison
    dirty = PlanProblem(inputs["z0"], inputs["z_goal"], p.horizon, p.action_low, p.action_high)
    plan = planner.plan(dirty, warm_start=inputs["warm_start"])
    check(planner, dirty, plan)
    assert plan.status[1] == "bad_input"
    assert "bad_input" not in (plan.status[0], plan.status[2])
    fallback = torch.zeros(p.horizon, M) if where == "warm_start" else warm[1]
    assert torch.equal(plan.actions[1], fallback)
    clean = planner.plan(p, warm_start=warm)
    torch.testing.assert_close(plan.cost[[0, 2]], clean.cost[[0, 2]], rtol=1e-4, atol=1e-5)
    fresh = type(planner)(planner.dynamics, planner.config).plan(p, warm_start=warm)
    assert torch.equal(clean.actions, fresh.actions)
    single = PlanProblem(
        inputs["z0"][1], inputs["z_goal"][1], p.horizon, p.action_low, p.action_high
    )
    alone = planner.plan(single, warm_start=inputs["warm_start"][1])
    assert alone.status == "bad_input"
    assert torch.equal(alone.actions, fallback)


def test_a_warm_start_is_a_start_to_beat(planner: Planner) -> None:
    p = problem()
    warm = 0.3 * torch.ones(p.horizon, M)
    check(planner, p, planner.plan(p, warm_start=warm), warm)


def test_a_warm_start_outside_the_box_is_pulled_in(planner: Planner) -> None:
    p = problem()
    assert p.action_high is not None
    check(planner, p, planner.plan(p, warm_start=torch.full((p.horizon, M), 7.0)),
          torch.ones(p.horizon, 1) * p.action_high)  # fmt: skip


def test_at_the_goal_already(planner: Planner) -> None:
    z = problem().z0
    with torch.no_grad():
        dynamics_of(planner).A.copy_(torch.eye(D))
    p = PlanProblem(z, z, 3)
    plan = planner.plan(p)
    check(planner, p, plan)
    assert plan.cost < 1e-3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.R.zero_(),  # zero Jacobian, singular R
        lambda d: d.R[:, 1:].zero_(),  # singular R
        lambda d: d.A.mul_(50),  # expansive, but finite
        lambda d: (d.B.zero_(), d.C.zero_()),  # nothing to normalise
    ],
    ids=["zero R", "singular R", "expansive A", "zero B and C"],
)
def test_awkward_dynamics(planner: Planner, spoil: Callable[[BilinearDynamics], object]) -> None:
    with torch.no_grad():
        spoil(dynamics_of(planner))
    p = problem(batch=2)
    check(planner, p, planner.plan(p))


@pytest.mark.parametrize("seed", range(20))
def test_more_actions_than_latents(seed: int) -> None:
    torch.manual_seed(seed)
    dynamics = BilinearDynamics(3, M, env_action_size=ENV)
    planner = GaussNewtonPlanner(dynamics, GaussNewtonConfig(candidates=4, starts=2))
    z0, goal = torch.randn(2, 3)
    p = PlanProblem(z0, goal, 4, -torch.ones(M), torch.ones(M))
    plan, still = planner.plan(p), torch.zeros(4, M)
    assert torch.isfinite(plan.actions).all()
    assert plan.actions.abs().max() <= 1
    with torch.no_grad():
        before, after = (
            0.5 * (dynamics.rollout(z0, a)[-1] - goal).square().sum() + 0.005 * a.square().sum()
            for a in (still, plan.actions)
        )
    assert after <= before * (1 + SLACK) + SLACK


@pytest.mark.parametrize("compiled", [True, False])
def test_nothing_has_converged_at_an_infinite_cost(compiled: bool) -> None:
    """Whatever overflows, and wherever on the way."""
    config = GaussNewtonConfig(iterations=15, candidates=6, starts=3, compiled=compiled)
    for power in range(4, 13):
        dynamics = bilinear()
        with torch.no_grad():
            dynamics.A.mul_(10.0**power)
        plan = GaussNewtonPlanner(dynamics, config).plan(problem(horizon=6))
        assert torch.isfinite(plan.actions).all()
        assert (plan.status == "diverged") == (not torch.isfinite(plan.cost))


def test_a_model_that_overflows_is_reported(planner: Planner) -> None:
    with torch.no_grad():
        dynamics_of(planner).A.mul_(1e12)
    p = problem(batch=2, horizon=5)
    plan = planner.plan(p)
    check(planner, p, plan)
    assert set(plan.status) == {"diverged"}


def test_unreachable_goals_are_approached(planner: Planner) -> None:
    p = problem()
    far = PlanProblem(p.z0, 1e4 * goal_of(p), p.horizon, p.action_low, p.action_high)
    check(planner, far, planner.plan(far))


def test_a_deadline_is_kept_with_the_best_so_far(planner: Planner) -> None:
    p = problem(batch=2)
    plan = planner.plan(p, deadline_s=0.0)
    check(planner, p, plan)
    assert set(plan.status) == {"deadline"}
    single = planner.plan(problem(), deadline_s=0.0)
    assert single.status == "deadline"
    assert set(planner.plan(p, deadline_s=1e3).status) <= {"converged", "max_iterations"}


def test_the_first_plan_of_adam_loads_nothing() -> None:
    """In a process of its own, where nobody else has loaded what torch loads lazily."""
    script = (
        "import sys, torch\n"
        "from bilinear_wm.dynamics.bilinear import BilinearDynamics\n"
        "from bilinear_wm.planning import AdamConfig, AdamPlanner, PlanProblem\n"
        "planner = AdamPlanner(BilinearDynamics(4, 2), AdamConfig(iterations=2))\n"
        "before = set(sys.modules)\n"
        "planner.plan(PlanProblem(torch.ones(4), torch.zeros(4)), deadline_s=60.0)\n"
        "print(sum(name.startswith('torch') for name in set(sys.modules) - before))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0"


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANNERS)
def test_eight_threads_share_a_model(kind: str) -> None:
    planner = PLANNERS[kind](bilinear())
    planner = type(planner)(planner.dynamics, replace(planner.config, **{"iterations": 2}))
    p = problem(batch=8)
    problems = [
        PlanProblem(z0, goal, 2, p.action_low, p.action_high)
        for z0, goal in zip(p.z0, goal_of(p), strict=True)
    ]
    serial = [planner.plan(p).actions for p in problems]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(20):
            if not torch.allclose(planner.plan(problems[i]).actions, serial[i], atol=1e-5):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # they take turns many times within every plan
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_what_does_not_fit_is_refused(planner: Planner) -> None:
    z = torch.zeros(D)
    with pytest.raises(InputError, match="latents of 12 numbers, found 7"):
        planner.plan(PlanProblem(z[:7], z[:7]))
    with pytest.raises(InputError, match=r"warm_start: expected shape \(5, 6\), found \(4, 6\)"):
        planner.plan(PlanProblem(z, z), warm_start=torch.zeros(4, M))
    with pytest.raises(InputError, match="expected 6 numbers, found 2"):
        planner.plan(PlanProblem(z, z, 5, -torch.ones(2), torch.ones(2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda z: PlanProblem(z, z[:3]), "z0, z_goal"),
        (lambda z: PlanProblem(z, z, 0), "horizon"),
        (lambda z: PlanProblem(z, z, 5, torch.ones(M)), "both or neither"),
        (lambda z: PlanProblem(z, z, 5, torch.ones(M), torch.zeros(M)), "at most action_high"),
        (lambda z: PlanProblem(z, z, 5, path=z), "path"),
        (lambda z: GaussNewtonConfig(damping=0), "damping"),
        (lambda z: GaussNewtonConfig(starts=3), "starts"),
        (lambda z: CEMConfig(elites=500), "elites"),
        (lambda z: ICEMConfig(survivors=40), "survivors"),
        (lambda z: MPPIConfig(temperature=0), "temperature"),
        (lambda z: AdamConfig(learning_rate=0), "learning_rate"),
        (lambda z: GaussNewtonConfig(effort=-1), "effort"),
    ],
)
def test_bad_settings_are_named(make: Callable[[torch.Tensor], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(torch.zeros(D))


def test_a_dynamics_that_does_not_fit_is_refused_at_construction() -> None:
    with pytest.raises(InputError, match="7 numbers a block and 2 an action"):
        GaussNewtonPlanner(BilinearDynamics(D, 7, env_action_size=2))
    with pytest.raises(InputError, match=r"pass model\.dynamics"):
        GaussNewtonPlanner(object())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="finite-difference"):
        GaussNewtonPlanner(DYNAMICS["predictor"](), GaussNewtonConfig(sensitivities="analytic"))
    assert ENV == 2
