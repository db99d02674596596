"""SIGReg over several processes is SIGReg over all their samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from bilinear_wm.models.lewm import SIGReg

COUNT, SIZE, PROCESSES = 64, 6, 2


def samples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.5 + torch.randn(PROCESSES * COUNT, SIZE, generator=generator)


def value_and_gradient(z: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    z = z.clone().requires_grad_()
    torch.manual_seed(seed)
    value = SIGReg(num_projections=32)(z)
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


def one_process(rank: int, folder: str) -> None:
    place = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=PROCESSES)
    mine = samples()[rank * COUNT : (rank + 1) * COUNT]
    # Other seeds, as in training: the directions are those of the first process.
    torch.save(value_and_gradient(mine, seed=rank), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_share_their_samples(tmp_path: Path) -> None:
    spawn(one_process, (str(tmp_path),), nprocs=PROCESSES)
    value, gradient = value_and_gradient(samples(), seed=0)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    for theirs, _ in found:
        torch.testing.assert_close(theirs, value)
    # Distributed training averages gradients over processes, each of which has the whole loss.
    theirs = torch.cat([gradient for _, gradient in found]) / PROCESSES
    torch.testing.assert_close(theirs, gradient)
    alone = value_and_gradient(samples()[:COUNT], seed=0)[0]
    assert abs(float(alone - value)) > 0.1 * float(value)
