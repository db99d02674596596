"""Task and behaviour policy to episodes.h5.

    bwm collect pusht --episodes 1000 --out pusht.h5

Episode i is a pure function of (seed, i): the number of workers, an interruption and a
resumption leave no trace in the file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from tqdm import tqdm

from bilinear_wm import disk, signals
from bilinear_wm.data import journal
from bilinear_wm.data.file import EpisodeFile, Provenance
from bilinear_wm.data.workers import record_all
from bilinear_wm.data.writer import EpisodeWriter
from bilinear_wm.errors import InputError
from bilinear_wm.executors import helpers
from bilinear_wm.stage import Outcome
from bilinear_wm.tasks import make_task, task_class
from bilinear_wm.tasks.base import RenderQuality, Task


@dataclass(frozen=True)
class CollectConfig:
    """What to record, and how.

    Attributes:
        task: tworoom, pusht, reacher, cube or one of your own.
        out: The HDF5 file to write.
        episodes: How many episodes the finished file holds.
        image_size: Height and width of the pictures.
        frame_stride: Keep every n-th picture; states and actions are all kept.
        workers: Processes that simulate.
        cluster: A dask scheduler whose workers simulate instead, such as tcp://10.0.0.1:8786.
        seed: Episode i depends on (seed, i) alone.
        render_quality: `fast` pictures, or the benchmark's `faithful` ones.
        disturbance: Strength of what is done to the behaviour's actions now and then, see
            `Task.disturbed`.
        resume: Continue a file that an interrupted run left.
    """

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    out: Path
    episodes: int = 100
    image_size: int = 64
    frame_stride: int = 5
    workers: int = os.cpu_count() or 1
    seed: int = 0
    render_quality: RenderQuality = "fast"
    disturbance: float = 0.0
    resume: bool = False
    cluster: str | None = None

    @property
    def provenance(self) -> Provenance:
        return Provenance(
            self.task,
            self.image_size,
            self.frame_stride,
            self.render_quality,
            self.seed,
            self.disturbance,
        )

    def run(self) -> Outcome:
        """`collect`, in words."""
        result = collect(self)
        rate = result.env_steps / result.seconds
        return Outcome(
            f"{result.out}: {result.episodes} episodes ({result.new_episodes} new, "
            f"{result.env_steps:,} env steps in {result.seconds:.1f} s, {rate:,.0f}/s); "
            f"look at it with: bwm inspect {result.out}",
            asdict(result),
        )


@dataclass(frozen=True)
class CollectResult:
    """What a run wrote."""

    out: Path
    episodes: int
    new_episodes: int
    env_steps: int
    seconds: float


class CollectionInterrupted(KeyboardInterrupt):
    """Ctrl-C: says what was kept."""


def collect(config: CollectConfig, progress: bool = True) -> CollectResult:
    """Record episodes into `config.out`.

    It appears when they are all there, or with those that were finished when something stopped the
    run. After a kill they are in `OUT.partial`, which `resume` takes up.

    Raises:
        CollectionInterrupted: On Ctrl-C, after the finished episodes were put in place.
    """
    _check(config)
    busy = f"out {config.out}: another process is writing this file"
    with _reporting_disk_trouble(config.out), disk.owned(config.out, busy):
        _check_free(config)  # again, now that nobody else can make it
        return _collect(config, progress)


def _collect(config: CollectConfig, progress: bool) -> CollectResult:
    partial = _partial(config)
    begun, env_steps = time.perf_counter(), 0
    writer = _open(config, partial)
    done = writer.num_episodes
    try:
        bar = tqdm(
            total=config.episodes,
            initial=done,
            unit="episode",
            desc=f"collect {config.task}",
            disable=not progress,
        )
        left = range(done, config.episodes)
        everyone = helpers(min(config.workers, len(left)) or 1, config.cluster)
        with bar, signals.held() as interrupts, everyone as by:
            recording = record_all(config.provenance, left, by, interrupts.let_through)
            with contextlib.closing(recording) as episodes:
                for episode in episodes:
                    writer.write(episode)
                    env_steps += len(episode.actions)
                    rate = env_steps / (time.perf_counter() - begun)
                    bar.set_postfix_str(f"{rate:,.0f} env steps/s", refresh=False)
                    bar.update()
                    interrupts.let_through()
        writer.close()
    except BaseException as stop:
        writer.abandon()
        journal.restore(partial)
        kept = _put_in_place(partial, config.out)
        raise _told(stop, config, kept) from stop
    kept = _put_in_place(partial, config.out)
    return CollectResult(config.out, kept, kept - done, env_steps, time.perf_counter() - begun)


def _told(stop: BaseException, config: CollectConfig, kept: int) -> BaseException:
    """What ended a run, with what it kept."""
    found = (
        f"{kept} of {config.episodes} episodes are in {config.out}; "
        "the same command with `resume` continues"
        if kept
        else "no episode was finished, and nothing was written"
    )
    if isinstance(stop, KeyboardInterrupt):
        return CollectionInterrupted(f"interrupted: {found}")
    if isinstance(stop, BrokenProcessPool):
        return InputError(f"a worker died: {found}")
    if isinstance(stop, OSError):
        return InputError(f"{_disk_trouble(config.out, stop)}; {found}")
    return stop


def _check(config: CollectConfig) -> None:
    make_task(config.task, config.image_size, config.render_quality).close()
    for name in ("episodes", "frame_stride", "workers"):
        value = getattr(config, name)
        if value < 1:
            raise InputError(f"{name}: expected at least 1, found {value}")
    if (config.workers > 1 or config.cluster) and _only_here(task_class(config.task)):
        raise InputError(
            f"workers: expected 1 for {config.task}, which other processes cannot import, found "
            f"{config.workers}; or put it into a file and load that with load_plugin"
        )
    if config.seed < 0:
        raise InputError(f"seed: expected a whole number >= 0, found {config.seed}")
    if not (np.isfinite(config.disturbance) and config.disturbance >= 0):
        raise InputError(f"disturbance: expected a number >= 0, found {config.disturbance}")
    folder = config.out.resolve().parent
    if not folder.is_dir():
        raise InputError(f"out {config.out}: expected an existing folder, found no {folder}")
    if config.out.is_dir():
        raise InputError(f"out {config.out}: expected a file name, found a folder")
    if not os.access(folder, os.W_OK):
        raise InputError(f"out {config.out}: expected a writable folder, {folder} is read-only")
    _check_free(config)


def _check_free(config: CollectConfig) -> None:
    if config.resume:
        return
    if config.out.exists():
        raise InputError(
            f"out {config.out}: exists already; remove it, name another file, "
            "or continue it with `resume`"
        )
    partial = _partial(config)
    if journal.journal_of(partial).exists():
        raise InputError(
            f"out {config.out}: a run that was killed left {partial.name}; continue it with "
            "`resume`, or remove it"
        )


def _partial(config: CollectConfig) -> Path:
    return config.out.with_name(config.out.name + ".partial")


def _only_here(task: type[Task]) -> bool:
    """Whether a task was typed into a notebook or a prompt."""
    return task.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")


def _open(config: CollectConfig, partial: Path) -> EpisodeWriter:
    """A file to append to: a new one, or what earlier runs have made of it."""
    left = _left_by_a_kill(config, partial)
    found = _checked(config, config.out) if config.resume and config.out.exists() else 0
    if found > left:
        # Continue a copy: the file in place stays valid whatever happens meanwhile.
        journal.begin(partial)
        shutil.copyfile(config.out, partial)
    writer = EpisodeWriter(partial, config.provenance, append=max(found, left) > 0)
    packages = ("bilinear-world-models", "numpy", "gymnasium", "mujoco", "pymunk")
    writer.note(versions={name: _version(name) for name in packages})
    return writer


def _left_by_a_kill(config: CollectConfig, partial: Path) -> int:
    """How many episodes a run that was killed left beside the file."""
    if not (config.resume and journal.journal_of(partial).exists() and partial.exists()):
        return 0
    journal.restore(partial)
    return _checked(config, partial) if partial.stat().st_size else 0


def _checked(config: CollectConfig, path: Path) -> int:
    """The episodes of a file; refuses one that was made otherwise."""
    found = EpisodeFile(path)
    for name, expected in asdict(config.provenance).items():
        value = found.attributes.get(name, getattr(Provenance, name, None))
        if value != expected:
            raise InputError(
                f"resume {path}: expected {name} {expected}, found {value}; "
                "give the options of the first run"
            )
    if found.num_episodes > config.episodes:
        raise InputError(
            f"resume {path}: expected at most {config.episodes} episodes, "
            f"found {found.num_episodes}; ask for more with `episodes`"
        )
    return found.num_episodes


def _put_in_place(partial: Path, out: Path) -> int:
    """Give a finished file its name, if there is anything in it; returns its episodes."""
    kept = EpisodeFile(partial).num_episodes if partial.stat().st_size else 0
    if kept:
        disk.sync(partial)
        os.replace(partial, out)
        disk.sync(out.resolve().parent)
    partial.unlink(missing_ok=True)
    journal.journal_of(partial).unlink(missing_ok=True)
    return kept


def _version(package: str) -> str | None:
    with contextlib.suppress(Exception):
        return version(package)
    return None


@contextlib.contextmanager
def _reporting_disk_trouble(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        previous = "the file in place is untouched" if out.exists() else "nothing was left behind"
        raise InputError(f"{_disk_trouble(out, error)}; {previous}") from error


def _disk_trouble(out: Path, error: OSError) -> str:
    free = shutil.disk_usage(out.resolve().parent).free / 2**20
    reason = " ".join(str(error).split())
    return (
        f"out {out}: could not be written ({reason}; {free:,.0f} MiB free): free some space or "
        "choose another place"
    )
