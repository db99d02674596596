"""The bilinear dynamics: its inverse, its tangents, its gauge, its constraint."""

from __future__ import annotations

import pytest
import torch

from bilinear_wm.dynamics.bilinear import BilinearDynamics
from bilinear_wm.dynamics.gain import BoundedMatrix
from bilinear_wm.dynamics.residual import ResidualDynamics
from tests.models.conftest import small_model, windows

D, M, K = 12, 4, 5


def dynamics(normalization: str = "cholqr", min_singular: float = 0.0) -> BilinearDynamics:
    torch.manual_seed(0)
    made = BilinearDynamics(D, M, normalization, min_singular, env_action_size=2).double()  # type: ignore[arg-type]
    with torch.no_grad():
        made.A.add_(0.1 * torch.randn(D, D))
        made.C.mul_(20)
        if min_singular == 0:
            made.R.add_(0.3 * torch.randn(M, M))
    return made


def loosen(made: ResidualDynamics, std: float) -> None:
    """A residual that says something."""
    last = made.residual[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.normal_(last.weight, std=std)


def residual_dynamics() -> ResidualDynamics:
    made = ResidualDynamics(dynamics(), hidden=16).double()
    loosen(made, std=0.3)
    return made


def test_parameter_counts() -> None:
    for m, expected in ((10, 408_000), (25, 964_000)):
        count = sum(p.numel() for p in BilinearDynamics(192, m).parameters())
        assert count == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("normalization", ["cholqr", "none"])
@pytest.mark.parametrize("min_singular", [0.0, 0.25])
def test_actions_are_recovered(normalization: str, min_singular: float) -> None:
    model = dynamics(normalization, min_singular)
    z, a = torch.randn(20, D).double(), torch.randn(20, M).double()
    torch.testing.assert_close(model.inverse(z, model.step(z, a)), a)


def test_recovery_is_least_squares() -> None:
    model = dynamics()
    z, z_next = torch.randn(7, D).double(), torch.randn(7, D).double()
    m_z = model.action_map(z)
    moved = (z_next - z @ model.A.T).unsqueeze(-1)
    expected = torch.linalg.lstsq(m_z, moved).solution.squeeze(-1)
    torch.testing.assert_close(model.inverse(z, z_next), expected)


def test_the_gain_does_not_depend_on_the_latent() -> None:
    model = dynamics()
    m_z = model.action_map(torch.randn(10, D).double())
    expected = (model.R.mT @ model.R).expand(10, -1, -1)
    torch.testing.assert_close(m_z.mT @ m_z, expected)


@pytest.mark.parametrize(
    "model",
    [dynamics(), dynamics("none"), dynamics(min_singular=0.1), residual_dynamics()],
    ids=["cholqr", "none", "bounded", "residual"],
)
def test_tangents_match_autograd(model: BilinearDynamics | ResidualDynamics) -> None:
    torch.manual_seed(5)
    z, a = torch.randn(1 + K, D).double(), torch.randn(1 + K, M).double()
    by_z, by_a = torch.autograd.functional.jacobian(model.step, (z[0], a[0]))
    carried = model.step_jet(z, a)
    torch.testing.assert_close(carried[0], model.step(z[0], a[0]))
    expected = z[1:] @ by_z.T + a[1:] @ by_a.T
    assert ((carried[1:] - expected).norm() / expected.norm()) < 1e-10
    begun = model.step_jet(z[:2], a)[2:]  # tangents that only the action has
    torch.testing.assert_close(begun, a[2:] @ by_a.T)


def test_tangents_are_batched_and_hold_in_single_precision() -> None:
    model = dynamics()
    z, a = torch.randn(3, 2, 1 + K, D).double(), torch.randn(3, 2, 1 + K, M).double()
    together = model.step_jet(z, a)
    torch.testing.assert_close(together[1, 0], model.step_jet(z[1, 0], a[1, 0]))
    single = model.float().step_jet(z.float(), a.float())
    assert ((single - together).norm() / together.norm()) < 1e-5


def test_the_gauge_changes_no_step() -> None:
    model = dynamics()
    with torch.no_grad():  # a badly conditioned map
        model.B.mul_(torch.logspace(0, -4, M))
        model.C.mul_(torch.logspace(0, -4, M)[:, None])
    z, a = torch.randn(50, D).double(), torch.randn(50, M).double()
    before, kappa = model.step(z, a), torch.linalg.cond(model.directions(z)).median()
    model.fold_gauge(z)
    torch.testing.assert_close(model.step(z, a), before)
    assert torch.linalg.cond(model.directions(z)).median() < 0.01 * kappa


def test_collapse_is_impossible_with_min_singular() -> None:
    """An optimizer that does nothing but shrink R cannot get below the bound."""
    torch.manual_seed(0)
    bounded = BilinearDynamics(D, M, min_singular=0.25)
    torch.testing.assert_close(bounded.R, torch.eye(M), atol=1e-5, rtol=0)
    optimizer = torch.optim.Adam(bounded.gain.parameters(), lr=0.3)
    for _ in range(200):
        optimizer.zero_grad()
        bounded.R.square().sum().backward()
        optimizer.step()
    gram = bounded.R.mT @ bounded.R
    assert torch.linalg.eigvalsh(gram).min() >= 0.25 - 1e-5
    free = BilinearDynamics(D, M)
    optimizer = torch.optim.Adam(free.gain.parameters(), lr=0.3)
    for _ in range(200):
        optimizer.zero_grad()
        free.R.square().sum().backward()
        optimizer.step()
    assert torch.linalg.svdvals(free.R).min() < 0.01


def test_singular_r_is_survived() -> None:
    model = BilinearDynamics(D, M)
    with torch.no_grad():
        model.R.zero_()
    z = torch.randn(3, D)
    assert torch.isfinite(model.inverse(z, torch.randn(3, D))).all()


def test_the_objective_is_the_papers() -> None:
    model = small_model("bilinear").double()
    assert isinstance(model.dynamics, BilinearDynamics)
    pixels, actions = windows()
    z, actions = model.encoder(pixels).double(), actions.double()
    found = model.latent_loss(z, actions)
    forward, inverse = [], []
    for before, after, a in zip(
        z[:, :-1].flatten(0, 1), z[:, 1:].flatten(0, 1), actions.flatten(0, 1), strict=True
    ):
        m_z = model.dynamics.action_map(before)
        moved = after - model.dynamics.A @ before
        forward.append((moved - m_z @ a).square().mean())
        inverse.append((a - torch.linalg.pinv(m_z) @ moved).square().mean())
    torch.testing.assert_close(found.forward, torch.stack(forward).mean())
    torch.testing.assert_close(found.inverse, torch.stack(inverse).mean())
    assert found.inverse is not None
    torch.testing.assert_close(found.total, found.forward + 30 * found.inverse)


def test_motion_units_do_not_care_about_the_latents_scale() -> None:
    """Scaling latents and R together changes the paper's forward term, but not this one."""
    z, actions = torch.randn(6, 4, 24).double(), torch.randn(6, 3, 10).double()
    for unit, factor in (("latent", 9.0), ("motion", 1.0)):
        model = small_model("bilinear", forward_unit=unit).double()
        assert isinstance(model.dynamics, BilinearDynamics)
        before = model.latent_loss(z, actions)
        with torch.no_grad():
            model.dynamics.R.mul_(3)
            model.dynamics.C.div_(3)  # C z stays what it was
        after = model.latent_loss(3 * z, actions)
        torch.testing.assert_close(after.forward, factor * before.forward)
        torch.testing.assert_close(after.inverse, before.inverse)


def test_the_residual_begins_as_nothing_and_never_takes_control() -> None:
    base = dynamics()
    made = ResidualDynamics(base, hidden=16).double()
    z, a = torch.randn(9, D).double(), torch.randn(9, M).double()
    torch.testing.assert_close(made.step(z, a), base.step(z, a))
    loosen(made, std=1.0)
    added = made.step(z, a) - base.step(z, a)
    assert added.norm() > 0.1
    coherent = base.action_map(z) @ made.coherent
    along = torch.einsum("bij,bi->bj", coherent, added)
    assert along.abs().max() < 1e-10
    assert not any(p.requires_grad for p in base.parameters())


def test_the_gain_follows_its_parameters() -> None:
    model = dynamics(min_singular=0.1)
    gain = model.gain
    assert isinstance(gain, BoundedMatrix)
    with torch.no_grad():
        before = model.R.clone()
        gain.excess.add_(1.0)
        after = model.R
    torch.testing.assert_close(after, gain._product())
    assert (after - before).abs().max() > 0.1
