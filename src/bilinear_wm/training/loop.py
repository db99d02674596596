"""The loop that every training shares: step, diagnose, save, stop when asked, resume to the bit.

A run that is killed anywhere and resumed ends with the weights of a run that was not, provided
that a step is a pure function of (seed, step) and the state that `tensors` holds.
"""

from __future__ import annotations

import abc
import contextlib
import json
import math
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint
from bilinear_wm.models.base import WorldModel
from bilinear_wm.signals import Held
from bilinear_wm.training import run_folder

TRAINING, PROGRESS = "training.safetensors", "training.json"
INTERRUPTED = "interrupted"
KEPT_CHECKPOINTS = 2


class LoopConfig(Protocol):
    """What the loop needs to know of a run."""

    @property
    def out(self) -> Path: ...
    @property
    def steps(self) -> int: ...
    @property
    def eval_every(self) -> int: ...
    @property
    def save_every(self) -> int: ...
    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the run it continues."""
        ...


class TrainingInterrupted(KeyboardInterrupt):
    """A signal stopped the run after a checkpoint was saved."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class TrainingLoop(abc.ABC):
    """One run; a kind of training says what a step and a diagnosis are."""

    label = "train"
    is_main = is_alone = True
    """Whether this process writes, of several, and whether there are no others."""

    def __init__(self, config: LoopConfig, signals: Held, progress: bool) -> None:
        self._loop, self._signals, self._show = config, signals, progress
        self.step, self.seconds = 0, 0.0
        self.diagnosis: dict[str, float] = {}
        self._due: tuple[dict[str, float], str] | None = None
        """What the last step gave, and the random state after it, where a run was stopped before
        that was diagnosed and saved."""

    @abc.abstractmethod
    def one_step(self) -> dict[str, float]:
        """An optimizer step; returns numbers to show."""

    @abc.abstractmethod
    def diagnose(self) -> dict[str, float] | None:
        """Numbers of held-out episodes; None in processes that do not write."""

    @abc.abstractmethod
    def describe(self, row: dict[str, Any]) -> str:
        """A row of the metrics in one line."""

    @abc.abstractmethod
    def finished_model(self) -> WorldModel | None:
        """The model as it will be used; the one in training stays untouched."""

    @abc.abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The exact state of the run."""

    @abc.abstractmethod
    def load_tensors(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        """Take up a state that `tensors` gave."""

    @abc.abstractmethod
    def data_facts(self) -> dict[str, Any]:
        """Enough to tell one episode file from another."""

    def pictures_a_step(self) -> int:
        """For the rate that is shown."""
        return 0

    def log(self, row: dict[str, Any]) -> None:  # noqa: B027  (most have no trackers)
        """Pass a row of the metrics on to trackers."""

    def run(self) -> dict[str, float]:
        """Train to the last step; returns the last diagnosis."""
        config = self._loop
        if self.step == 0 and self._due is None:
            with self._interruptible():
                self._save()  # from now on there is always something to load
        elif self._due is not None:
            numbers, state = self._due
            _set_random_state(state)
            self._after_step(numbers)
        now = time.perf_counter()
        begun, first = now - self.seconds, self.step
        bar = tqdm(total=config.steps, initial=first, desc=self.label, unit="step",
                   disable=not self._show)  # fmt: skip
        with bar:
            while self.step < config.steps:
                numbers = self.one_step()
                self.step += 1
                self.seconds = time.perf_counter() - begun
                shown = {k: f"{v:.4f}" for k, v in numbers.items()}
                pictures = self.pictures_a_step() * (self.step - first)
                if pictures:
                    shown["pictures/s"] = f"{pictures / (time.perf_counter() - now):,.0f}"
                bar.set_postfix(shown, refresh=False)
                bar.update()
                self._after_step(numbers)
        return self.diagnosis

    def _after_step(self, numbers: dict[str, float]) -> None:
        """Diagnose and save if it is time; given up, and left to the resumed run, on a signal."""
        config, last, state = self._loop, self.step == self._loop.steps, _random_state()
        if not self.stop_requested():
            try:
                with self._interruptible():
                    if last or self.step % config.eval_every == 0:
                        self._diagnose(numbers)
                    if last or self.step % config.save_every == 0:
                        self._save()
                return
            except TrainingInterrupted:
                pass
        self._save_state((numbers, state))
        raise self._interrupted()

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Around what changes nothing before it is done; processes of several wait for another."""
        if not self.is_alone:
            yield
            return
        try:
            with self._signals.raising():
                yield
        except KeyboardInterrupt as stop:
            raise self._interrupted() from stop

    def _interrupted(self) -> TrainingInterrupted:
        return TrainingInterrupted(
            f"interrupted at step {self.step} of {self._loop.steps}; "
            f"the same command with `resume` continues {self._loop.out}",
            128 + (self._signals.received or [signal.SIGINT])[0],
        )

    def stop_requested(self) -> bool:
        """Whether a signal came."""
        return bool(self._signals.received)

    def note_stop(self) -> None:
        """Another process was asked to stop."""
        if not self._signals.received:
            self._signals.received.append(signal.SIGTERM)

    def restore(self) -> None:
        """Continue from the newest checkpoint in the folder."""
        out = self._loop.out
        folder = checkpoint.resolve(out)
        checkpoint.read_folder(folder)  # verifies every file, the training state included
        facts = _progress(folder)
        if (out / INTERRUPTED).is_dir():
            checkpoint.verify(out / INTERRUPTED, (TRAINING, PROGRESS))
            newer = _progress(out / INTERRUPTED)
            if newer["step"] > facts["step"]:
                folder, facts = out / INTERRUPTED, newer
        data = self.data_facts()
        # Runs from before something was noted lack it.
        data = {name: value for name, value in data.items() if name in facts["data"]}
        for name, value in {"config": self._loop.identity(), "data": data}.items():
            if facts[name] != json.loads(json.dumps(value)):
                raise InputError(
                    f"resume {out}: expected the run's {name}, {facts[name]}, "
                    f"found {value}; give the options of the first run"
                )
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        self._due = tuple(facts["due"]) if "due" in facts else None
        self.load_tensors(folder, checkpoint.read_tensors(folder / TRAINING))
        if self.is_main:
            done = self.step - (self._due is not None)
            run_folder.forget_metrics_after(out / run_folder.METRICS, done)

    def _diagnose(self, numbers: dict[str, float]) -> None:
        found = self.diagnose()
        if found is None:
            return
        self.diagnosis = found
        row = {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            **{f"train_{name}": value for name, value in numbers.items()},
            **found,
        }
        with (self._loop.out / run_folder.METRICS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.log(row)
        if self._show:
            tqdm.write(self.describe(row))

    def _save(self) -> None:
        model = self.finished_model()
        if model is None:
            return
        out = self._loop.out
        folder = out / f"checkpoint-{self.step:07d}"
        try:
            with disk.replacing(folder) as fresh:
                model.save_pretrained(fresh)
                self._write_state(fresh)
                checkpoint.write_manifest(
                    fresh, (checkpoint.WEIGHTS, checkpoint.CONFIG, TRAINING, PROGRESS)
                )
            checkpoint.point_latest_to(folder)
        except OSError as error:
            raise self._unwritten(error) from error
        shutil.rmtree(out / INTERRUPTED, ignore_errors=True)
        for old in sorted(out.glob("checkpoint-*"))[:-KEPT_CHECKPOINTS]:
            shutil.rmtree(old)

    def _save_state(self, due: tuple[dict[str, float], str]) -> None:
        """What a resumed run needs, at once: a model to use would take seconds to calibrate."""
        if not self.is_main:
            return
        try:
            with disk.replacing(self._loop.out / INTERRUPTED) as fresh:
                self._write_state(fresh, {"due": due})
                checkpoint.write_manifest(fresh, (TRAINING, PROGRESS))
        except OSError as error:
            raise self._unwritten(error) from error

    def _write_state(self, folder: Path, more: dict[str, Any] | None = None) -> None:
        checkpoint.write_tensors(folder / TRAINING, self.tensors())
        facts = {
            "step": self.step,
            "seconds": self.seconds,
            "data": self.data_facts(),
            "config": self._loop.identity(),
            **(more or {}),
        }
        (folder / PROGRESS).write_text(json.dumps(facts, indent=2) + "\n")

    def _unwritten(self, error: OSError) -> InputError:
        return InputError(
            f"out {self._loop.out}: the checkpoint of step {self.step} could not be written "
            f"({' '.join(str(error).split())}); the previous one is intact; free some space "
            "and continue with `resume`"
        )


def _random_state() -> str:
    """Of the generators that calibration draws from; steps seed them anew."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return " ".join(state.numpy().tobytes().hex() for state in states)


def _set_random_state(text: str) -> None:
    states = [torch.tensor(list(bytes.fromhex(part)), dtype=torch.uint8) for part in text.split()]
    torch.set_rng_state(states[0])
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1])


def _progress(folder: Path) -> dict[str, Any]:
    facts = checkpoint.read_json(folder / PROGRESS)
    missing = {"step", "seconds", "data", "config"} - set(facts)
    if missing:
        raise InputError(f"{folder / PROGRESS}: missing {', '.join(sorted(missing))}")
    return facts


def warm_cosine(share: float, warmup: float) -> float:
    """The learning rate at a share of the run: a linear warm-up, then a cosine to zero."""
    if share < warmup:
        return (share + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))


def run_facts(folder: Path) -> dict[str, Any] | None:
    """What a training folder says of the run that made its newest checkpoint; None elsewhere."""
    path = checkpoint.resolve(folder) / PROGRESS
    facts: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return facts
