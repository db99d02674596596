"""Work elsewhere: the same episodes from any executor, and from a cluster that loses a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from distributed import Client, LocalCluster

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.file import Episode
from bilinear_wm.data.workers import record_all
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.executors import Helpers, helpers, in_order

PRETRAINED = Path(__file__).parents[1] / "pretrained" / "tworoom"
CONFIG = CollectConfig("tworoom", Path("unused"), 12, image_size=16, workers=1)


@pytest.fixture(scope="module")
def alone() -> list[Episode]:
    """What one process records."""
    return list(record_all(CONFIG.provenance, range(12), None, lambda: None))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two processes and a scheduler."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as found:
        yield found


def same(found: list[Episode], wanted: list[Episode]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for name in ("pixels", "actions", "states"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.slow
def test_any_executor_will_do(alone: list[Episode]) -> None:
    """Threads of one process, each with a world of its own."""
    with ThreadPoolExecutor(3) as pool:
        same(list(record_all(CONFIG.provenance, range(12), Helpers(pool, 3), lambda: None)), alone)


def test_little_waits_at_a_time() -> None:
    given: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(50):
            given.append(number)
            yield number

    with ThreadPoolExecutor(2) as pool:
        results = in_order(abs, pieces(), Helpers(pool, 2), lambda: None)
        assert next(results) == 0
        assert len(given) <= 6
        assert list(results) == list(range(1, 50))


def test_a_check_stops_the_work() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool, pytest.raises(KeyboardInterrupt):
        list(in_order(abs, range(50), Helpers(pool, 2), stop))


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_loses_nothing(cluster: Any, alone: list[Episode]) -> None:
    found = []
    with helpers(1, cluster.scheduler_address) as by, Client(cluster) as client:
        assert by is not None
        victim = next(iter(client.run(os.getpid).values()))
        for episode in record_all(CONFIG.provenance, range(12), by, lambda: None):
            found.append(episode)
            if len(found) == 2:
                os.kill(victim, signal.SIGKILL)
    same(found, alone)


@pytest.mark.slow
def test_a_cluster_writes_the_same_file(cluster: Any, tmp_path: Path) -> None:
    config = replace(CONFIG, out=tmp_path / "here.h5")
    collect(config, progress=False)
    there = replace(config, out=tmp_path / "there.h5", cluster=cluster.scheduler_address)
    collect(there, progress=False)
    with h5py.File(config.out) as one, h5py.File(there.out) as other:
        for name in ("thinned/pixels", "action", "state", "ep_len", "ep_offset"):
            np.testing.assert_array_equal(one[name][:], other[name][:])


@pytest.mark.slow
def test_a_cluster_finds_the_same_results(cluster: Any) -> None:
    """All but the times, and in the same order."""
    config = EvaluateConfig(
        "tworoom",
        PRETRAINED,
        planner="cem",
        planner_options={"samples": 16, "elites": 4, "iterations": 2},
        offset=10,
        horizon=2,
        episodes=4,
        group=2,
        trajectories=True,
        floors=False,
    )
    numbers = []
    for address in (None, cluster.scheduler_address):
        found = evaluate(replace(config, cluster=address), progress=False).numbers()
        numbers.append({k: v for k, v in found.items() if "ms_" not in k and "seconds" not in k})
    assert numbers[0] == numbers[1]


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinear_wm.executors.CONNECT_S", 0.5)
    for address in ("tcp://127.0.0.1:9", "nowhere"):
        config = replace(CONFIG, out=tmp_path / "a.h5", cluster=address)
        with pytest.raises(InputError, match="expected the address of a dask scheduler"):
            collect(config, progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_cluster_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bilinear_wm.executors.WORKERS_S", 0.5)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        pytest.raises(InputError, match="expected a worker within"),
        helpers(1, empty.scheduler_address),
    ):
        pass
