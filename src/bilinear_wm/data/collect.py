"""Task and behaviour policy to episodes.h5.

    bwm collect pusht --episodes 1000 --out pusht.h5

Episode i is a pure function of (seed, i): the number of workers, an interruption and a
resumption leave no trace in the file.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from tqdm import tqdm

from bilinear_wm import disk, signals
from bilinear_wm.data.file import Episode, EpisodeFile, Provenance
from bilinear_wm.data.writer import EpisodeWriter
from bilinear_wm.errors import InputError
from bilinear_wm.registry import load_plugin, loaded_plugins
from bilinear_wm.stage import Outcome
from bilinear_wm.tasks import make_task, task_class
from bilinear_wm.tasks.base import RenderQuality, Task

TRAINING_STREAM, EVALUATION_STREAM = 0, 1
"""Seeds of recorded data and of freshly simulated evaluation episodes never meet."""


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
    """Record episodes into `config.out`, which appears complete or not at all.

    Raises:
        CollectionInterrupted: On Ctrl-C, after the finished episodes were put in place.
    """
    _check(config)
    busy = f"out {config.out}: another process is writing this file"
    with _reporting_disk_trouble(config.out), disk.owned(config.out, busy):
        _check_free(config)  # again, now that nobody else can make it
        return _collect(config, progress)


def _collect(config: CollectConfig, progress: bool) -> CollectResult:
    partial = config.out.with_name(config.out.name + ".partial")
    begun, env_steps = time.perf_counter(), 0
    try:
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
            recording = contextlib.closing(_record_all(config, done))
            with bar, signals.held() as interrupts, recording as episodes:
                for episode in episodes:
                    writer.write(episode)
                    env_steps += len(episode.actions)
                    rate = env_steps / (time.perf_counter() - begun)
                    bar.set_postfix_str(f"{rate:,.0f} env steps/s", refresh=False)
                    bar.update()
                    interrupts.let_through()
        except (KeyboardInterrupt, BrokenProcessPool) as stop:
            kept = _finish(writer, partial, config.out)
            what = "interrupted" if isinstance(stop, KeyboardInterrupt) else "a worker died"
            message = (
                f"{what}: {kept} of {config.episodes} episodes are in {config.out}; "
                "the same command with `resume` continues"
                if kept
                else f"{what} before the first episode was finished; nothing was written"
            )
            if isinstance(stop, KeyboardInterrupt):
                raise CollectionInterrupted(message) from None
            raise InputError(message) from stop
        except BaseException:
            with contextlib.suppress(Exception):
                writer.close()
            raise
        kept = _finish(writer, partial, config.out)
    finally:
        partial.unlink(missing_ok=True)
    return CollectResult(config.out, kept, kept - done, env_steps, time.perf_counter() - begun)


def episode_seed(seed: int, index: int, stream: int = TRAINING_STREAM) -> int:
    """The seed of episode `index` in a stream of episodes."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(stream, index))
    return int(sequence.generate_state(1, np.uint64)[0])


def record_episode(
    env: Task, seed: int, frame_stride: int = 1, disturbance: float = 0.0
) -> Episode:
    """Let the behaviour policy act for one episode; keep every n-th picture."""
    return _run_episode(env, seed, frame_stride, disturbance)


def simulate_episode(env: Task, seed: int) -> Episode:
    """The same episode without a single picture, undisturbed."""
    return _run_episode(env, seed, None, 0.0)


def _run_episode(env: Task, seed: int, frame_stride: int | None, disturbance: float) -> Episode:
    env.begin(seed=seed)
    act = env.behaviour()
    if disturbance > 0:
        rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(1,)))
        act = env.disturbed(act, disturbance, rng)
    if not env.behaviour_ends_at_goal:
        env.clear_goal()
    states, actions = [env.state], []
    frames = [] if frame_stride is None else [env.render()]
    for step in range(1, env.episode_steps + 1):
        actions.append(act())
        reached = env.advance(actions[-1])
        states.append(env.state)
        if frame_stride is not None and step % frame_stride == 0:
            frames.append(env.render())
        if reached:
            break
    side = env.image_size
    pixels = np.array(frames, np.uint8).reshape(-1, side, side, 3)
    return Episode(pixels, np.stack(actions), np.stack(states))


def _check(config: CollectConfig) -> None:
    make_task(config.task, config.image_size, config.render_quality).close()
    for name in ("episodes", "frame_stride", "workers"):
        value = getattr(config, name)
        if value < 1:
            raise InputError(f"{name}: expected at least 1, found {value}")
    if config.workers > 1 and _only_here(task_class(config.task)):
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
    if config.out.exists() and not config.resume:
        raise InputError(
            f"out {config.out}: exists already; remove it, name another file, "
            "or continue it with `resume`"
        )


def _only_here(task: type[Task]) -> bool:
    """Whether a task was typed into a notebook or a prompt."""
    return task.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")


def _open(config: CollectConfig, partial: Path) -> EpisodeWriter:
    if not (config.resume and config.out.exists()):
        return EpisodeWriter(partial, config.provenance)
    found = EpisodeFile(config.out)
    for name, expected in asdict(config.provenance).items():
        value = found.attributes.get(name, getattr(Provenance, name, None))
        if value != expected:
            raise InputError(
                f"resume {config.out}: expected {name} {expected}, found {value}; "
                "give the options of the first run"
            )
    if found.num_episodes > config.episodes:
        raise InputError(
            f"resume {config.out}: expected at most {config.episodes} episodes, "
            f"found {found.num_episodes}; ask for more with `episodes`"
        )
    # Continue a copy: the file in place stays valid whatever happens meanwhile.
    shutil.copyfile(config.out, partial)
    return EpisodeWriter(partial, config.provenance, append=True)


def _finish(writer: EpisodeWriter, partial: Path, out: Path) -> int:
    kept = writer.num_episodes
    packages = ("bilinear-world-models", "numpy", "gymnasium", "mujoco", "pymunk")
    writer.note(versions={name: _version(name) for name in packages})
    writer.close()
    if kept:
        os.replace(partial, out)
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
        free = shutil.disk_usage(out.resolve().parent).free / 2**20
        previous = "the file in place is untouched" if out.exists() else "nothing was left behind"
        reason = " ".join(str(error).split())
        raise InputError(
            f"out {out}: could not be written ({reason}; {free:,.0f} MiB free); {previous}; "
            "free some space or choose another place"
        ) from error


def _record_all(config: CollectConfig, first: int) -> Generator[Episode]:
    """Episodes first, first + 1, ... in order, simulated by `config.workers` processes."""
    indices = range(first, config.episodes)
    if config.workers == 1:
        _start_worker(config)
        yield from map(_record, indices)
        return
    pool = ProcessPoolExecutor(
        min(config.workers, len(indices)) or 1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(config, loaded_plugins(), True),
    )
    waiting: deque[Future[Episode]] = deque()
    try:
        for index in indices:
            waiting.append(pool.submit(_record, index))
            if len(waiting) > 2 * config.workers:  # bounds what waits in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_worker: tuple[Task, CollectConfig] | None = None


def _start_worker(
    config: CollectConfig, plugins: tuple[str, ...] = (), ignore_interrupts: bool = False
) -> None:
    global _worker
    if ignore_interrupts:  # the parent decides what Ctrl-C means
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for plugin in plugins:
        load_plugin(plugin)
    _worker = make_task(config.task, config.image_size, config.render_quality), config


def _record(index: int) -> Episode:
    assert _worker is not None
    env, config = _worker
    seed = episode_seed(config.seed, index)
    return record_episode(env, seed, config.frame_stride, config.disturbance)
