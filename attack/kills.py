"""Kills at random moments, and several writers at once: nothing is lost, not a bit differs."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py

from attack.common import OK, REFUSED, Attack, Tally, completed, ended, fork, killed
from bilinear_wm.data import journal
from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.writer import EpisodeWriter
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.models import checkpoint
from bilinear_wm.reporting.results import read_results
from bilinear_wm.reproduce import ReproduceConfig, plan_steps, reproduce
from bilinear_wm.training.loop import TRAINING
from bilinear_wm.training.train import TrainConfig, train

SMALL = {"num_points": 6, "grid": 8, "channels": 8, "projector_hidden": 16}
MOST_KILLS = 4
"""Of one run, before it may end."""


def small_data(folder: Path, episodes: int = 8) -> CollectConfig:
    return CollectConfig("tworoom", folder / "data.h5", episodes, image_size=16, workers=1)


def small_training(data: Path, out: Path) -> TrainConfig:
    return TrainConfig(
        data, out, options=SMALL, steps=12, batch_size=4, eval_every=6, save_every=3
    )  # fmt: skip


def small_evaluation(model: Path, out: Path) -> EvaluateConfig:
    options = {"iterations": 2}
    return EvaluateConfig(
        "tworoom", model, planner_options=options, episodes=6, out=out, one_by_one=True,
        floors=False, offset=10,
    )  # fmt: skip


def columns(path: Path) -> dict[str, bytes]:
    with h5py.File(path) as file:
        return {name: file[name][:].tobytes() for name in file}


def weights(run: Path) -> list[str]:
    folder = checkpoint.resolve(run)
    names = (checkpoint.WEIGHTS, TRAINING)
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]


def outcomes(path: Path) -> dict[int, tuple[Any, ...]]:
    _, rows = read_results(path)
    assert len({row.index for row in rows}) == len(rows), "a task has two rows"
    return {row.index: (row.success, row.steps, row.distance, row.jerk) for row in rows}


def seconds_of(work: Callable[[], Any], log: Path) -> float:
    begun = time.perf_counter()
    completed(work, log)
    return time.perf_counter() - begun


def attack_kills(attack: Attack) -> Iterator[Tally]:
    folder, log = attack.folder, attack.folder / "log"
    data = small_data(folder)
    lasted = seconds_of(lambda: collect(data), log)
    yield _collections(attack, data, lasted)
    model = small_training(data.out, folder / "whole")
    lasted = seconds_of(lambda: train(model), log)
    yield _trainings(attack, model, lasted)
    results = small_evaluation(model.out, folder / "whole.jsonl")
    completed(lambda: evaluate(results), log)
    lasted = seconds_of(lambda: evaluate(replace(results, out=folder / "again.jsonl")), log)
    yield _evaluations(attack, results, lasted)
    yield _reproductions(attack)


def _collections(attack: Attack, whole: CollectConfig, lasted: float) -> Tally:
    """Every episode that was written is there afterwards, and the file becomes the same."""
    tally, expected = Tally("collections killed"), columns(whole.out)
    for index in attack.times(40):
        with tally.case():
            config = replace(whole, out=attack.folder / f"collect{index}.h5", resume=True)
            partial = config.out.with_name(config.out.name + ".partial")
            for _ in range(attack.rng.integers(1, MOST_KILLS)):
                written = multiprocessing.Value("i", 0)
                moment = attack.rng.uniform(0, lasted)
                killed(lambda: _counted(config, written), moment, attack.folder / "log")  # noqa: B023
                if written.value and not config.out.exists():
                    journal.restore(partial)
                    found = EpisodeFile(partial).num_episodes
                    assert found >= written.value, f"{written.value} written, {found} found"
            completed(lambda: collect(config), attack.folder / "log")  # noqa: B023
            assert columns(config.out) == expected, "another file than without a kill"
            left = {path.name for path in attack.folder.glob(f"collect{index}.h5*")}
            assert left == {config.out.name}, f"left behind: {left}"
            config.out.unlink()
    return tally


def _counted(config: CollectConfig, written: Any) -> None:
    """Collect, counting the episodes whose `write` has returned."""
    write = EpisodeWriter.write

    def counting(self: EpisodeWriter, episode: Any) -> None:
        write(self, episode)
        written.value = self.num_episodes

    EpisodeWriter.write = counting  # type: ignore[method-assign]
    collect(config)


def _trainings(attack: Attack, whole: TrainConfig, lasted: float) -> Tally:
    """The weights and the training state are the same bits."""
    tally, expected = Tally("trainings killed"), weights(whole.out)
    for index in attack.times(20):
        with tally.case():
            config = replace(whole, out=attack.folder / f"run{index}", resume=True)
            for _ in range(attack.rng.integers(1, MOST_KILLS)):
                moment = attack.rng.uniform(0, lasted)
                killed(lambda: train(config), moment, attack.folder / "log")  # noqa: B023
            completed(lambda: train(config), attack.folder / "log")  # noqa: B023
            assert weights(config.out) == expected, "other bits than without a kill"
            shutil.rmtree(config.out)
    return tally


def _evaluations(attack: Attack, whole: EvaluateConfig, lasted: float) -> Tally:
    """Every task has one row, with the outcome that it has without a kill."""
    tally = Tally("evaluations killed")
    assert whole.out is not None
    expected = outcomes(whole.out)
    for index in attack.times(20):
        with tally.case():
            out = attack.folder / f"results{index}.jsonl"
            config = replace(whole, out=out, resume=True)
            for _ in range(attack.rng.integers(1, MOST_KILLS)):
                moment = attack.rng.uniform(0, lasted)
                killed(lambda: evaluate(config), moment, attack.folder / "log")  # noqa: B023
            completed(lambda: evaluate(config), attack.folder / "log")  # noqa: B023
            assert outcomes(out) == expected, "other outcomes than without a kill"
    return tally


def _reproductions(attack: Attack) -> Tally:
    """The whole chain, killed again and again, completes."""
    tally = Tally("reproductions killed")
    stages = ("collect", "train", "evaluate")
    for index in attack.times(2):
        with tally.case():
            config = ReproduceConfig(attack.folder / f"all{index}", "tiny", ("tworoom",), stages)
            for _ in range(5):
                moment = attack.rng.uniform(0, 15)
                if not killed(lambda: reproduce(config), moment, attack.folder / "log"):  # noqa: B023
                    break
            completed(lambda: reproduce(config), attack.folder / "log")  # noqa: B023
            missing = [step.name for step in plan_steps(config) if not step.product.exists()]
            assert not missing, f"missing: {missing}"
    return tally


def attack_writers(attack: Attack) -> Iterator[Tally]:
    """Two at a time write the same thing: one wins, the other is refused, nothing is lost."""
    folder, log = attack.folder, attack.folder / "log"
    data = small_data(folder)
    completed(lambda: collect(data), log)
    model = small_training(data.out, folder / "whole")
    completed(lambda: train(model), log)
    results = small_evaluation(model.out, folder / "whole.jsonl")
    completed(lambda: evaluate(results), log)
    expected = columns(data.out), weights(model.out), outcomes(results.out or folder)
    tallies = [Tally(f"two {name} at once") for name in ("collections", "trainings", "evaluations")]
    for index in attack.times(20):
        out = folder / f"{index}"
        works: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
            (lambda: collect(replace(data, out=Path(f"{out}.h5"))),  # noqa: B023
             lambda: columns(Path(f"{out}.h5"))),  # noqa: B023
            (lambda: train(replace(model, out=Path(f"{out}-run"))),  # noqa: B023
             lambda: weights(Path(f"{out}-run"))),  # noqa: B023
            (lambda: evaluate(replace(results, out=Path(f"{out}.jsonl"), resume=True)),  # noqa: B023
             lambda: outcomes(Path(f"{out}.jsonl"))),  # noqa: B023
        ]  # fmt: skip
        for tally, (work, made), wanted in zip(tallies, works, expected, strict=True):
            with tally.case():
                first = fork(work, log)
                time.sleep(attack.rng.uniform(0, 0.2))
                statuses = sorted((ended(fork(work, log)), ended(first)))
                # Completing what is complete is no conflict, if the second came late.
                allowed = ([OK, REFUSED], [OK, OK]) if "eval" in tally.name else ([OK, REFUSED],)
                assert statuses in allowed, f"ended with {statuses}"
                assert made() == wanted, "something is lost or changed"
    yield from tallies
