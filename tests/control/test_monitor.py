"""The monitor: alarmed by a push and by nothing else."""

from __future__ import annotations

import torch

from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.dynamics.bilinear import BilinearDynamics
from tests.evaluation.conftest import oracle_pilot


def test_the_monitor_sees_a_push_and_nothing_else() -> None:
    model = oracle_pilot().model
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
