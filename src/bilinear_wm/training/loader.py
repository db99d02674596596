"""Batches in a given order, read ahead by other processes where reading is slow.

Pictures in memory are indexed at once. Those that stay in the file are read, and decompressed, by
torch's `DataLoader`: its workers make whole batches and hand the pictures over in shared memory.
Whoever reads, the batches are the same.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from bilinear_wm.data.windows import Batch, EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.registry import load_plugin, loaded_plugins

MOST_WORKERS = 4
"""Unless told otherwise."""

Indices = NDArray[np.int64]


def default_workers(data: EpisodeDataset) -> int:
    """None for pictures in memory; else as many as there are further cores."""
    return 0 if data.in_memory else min(MOST_WORKERS, max((os.cpu_count() or 1) - 1, 1))


def read(data: EpisodeDataset, order: Iterable[Indices], workers: int) -> Iterator[Batch]:
    """A batch for each array of window indices, in that order.

    Args:
        data: The windows.
        order: Taken a few batches ahead where there are workers.
        workers: Processes that read.
    """
    if workers == 0:
        return (data.batch(indices) for indices in order)
    return iter(
        DataLoader(
            _Windows(data),
            sampler=order,
            batch_size=None,
            collate_fn=_shared,
            num_workers=workers,
            multiprocessing_context="spawn",  # HDF5, and threads, do not survive a fork
            worker_init_fn=_leave_signals,
            generator=torch.Generator(),  # of its own: a run's random numbers are its steps'
        )
    )


@contextlib.contextmanager
def watched(path: Path) -> Iterator[None]:
    """Say in one sentence that a worker died; torch raises that wherever the process is then."""
    try:
        yield
    except (RuntimeError, EOFError, ConnectionError) as error:  # or it was handing over a batch
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"workers: one that reads {path} died ({why}); try fewer") from error


class _Windows(Dataset[Batch]):
    """The windows of a file, a whole batch at a time; in a worker the plugins come first."""

    def __init__(self, data: EpisodeDataset) -> None:
        self._data = data

    def __getitem__(self, indices: Any) -> Batch:
        return self._data.batch(indices)

    def __getstate__(self) -> tuple[tuple[str, ...], bytes]:
        return loaded_plugins(), pickle.dumps(self._data)

    def __setstate__(self, state: tuple[tuple[str, ...], bytes]) -> None:
        plugins, data = state
        for plugin in plugins:
            load_plugin(plugin)
        self._data = pickle.loads(data)


def _shared(batch: Any) -> Batch:
    """Tensors travel in shared memory, arrays through a pipe."""
    return replace(batch, observation=batch.observation.map(torch.from_numpy))


def _leave_signals(_: int) -> None:
    """The run decides when to stop, and needs its batch until then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
