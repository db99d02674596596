"""Dataset and model to checkpoint.

    bwm train --data tworoom.h5 --out runs/tworoom

Everything random is a pure function of (seed, step), and a checkpoint holds the exact weights
and optimizer state, so that a run that is killed anywhere and resumed ends with the weights of a
run that was not. The same function runs under `accelerate launch` on several processes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from numpy.typing import NDArray

from bilinear_wm import view
from bilinear_wm.analysis.diagnose import describe, diagnose
from bilinear_wm.analysis.latents import calibrate, fingerprint
from bilinear_wm.data.guard import check_task
from bilinear_wm.data.windows import FRAME_SKIP, EpisodeDataset
from bilinear_wm.errors import InputError, InputWarning
from bilinear_wm.models import MODELS, checkpoint
from bilinear_wm.models.base import WorldModel
from bilinear_wm.models.config import ModelConfig
from bilinear_wm.models.device import find_device
from bilinear_wm.models.encoders.frozen import FrozenEncoder, pretrained
from bilinear_wm.observation import CAMERA, ObservationSpec
from bilinear_wm.options import from_json, make_config
from bilinear_wm.signals import Held, held
from bilinear_wm.training import loader, run_folder
from bilinear_wm.training.config import TrainConfig
from bilinear_wm.training.loop import TrainingInterrupted, TrainingLoop
from bilinear_wm.view import View

ADAM_BETAS = (0.9, 0.999)
__all__ = ["TrainConfig", "TrainingInterrupted", "train"]
SHOWN = 4
"""Held-out pictures in a view."""
PREPARATION = 2000
"""Pictures that a fresh model sees before training."""


def train(config: TrainConfig, progress: bool = True) -> dict[str, float]:
    """Train until `config.steps`; returns the last diagnosis.

    Raises:
        TrainingInterrupted: On SIGINT or SIGTERM, with everything saved.
    """
    torch.set_flush_denormal(True)  # denormal activations make CPU training 2.4 times slower
    accelerator = _accelerator(config)
    with contextlib.ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(run_folder.locked(config.out, config.resume))
        accelerator.wait_for_everyone()
        stack.enter_context(loader.watched(config.data))
        signals = stack.enter_context(held(twice_is_enough=True))
        alone = accelerator.num_processes == 1
        with signals.raising() if alone else contextlib.nullcontext():
            run = _Run(config, accelerator, signals, progress)
        kind = config.view if accelerator.is_main_process else None
        run.view = stack.enter_context(view.opened(kind, config.out))
        return run.run()


def _check_trackers(trackers: Sequence[str]) -> None:
    """Refuse unknown ones, and those whose package is missing, which accelerate leaves out."""
    known = {str(kind) for kind in LOGGER_TYPE_TO_CLASS}
    there = {str(kind) for kind in get_available_trackers()}
    for tracker in trackers:
        if tracker not in known:
            names = ", ".join(sorted(known))
            raise InputError(f"trackers: expected some of {names}, found {tracker!r}")
        if tracker not in there:
            raise InputError(
                f"trackers: {tracker} needs its package: pip install {tracker}, or leave it out"
            )


def _accelerator(config: TrainConfig) -> Accelerator:
    _check_trackers(config.trackers)
    wanted = None if config.device is None else find_device(config.device)
    on_cpu = not torch.cuda.is_available() if wanted is None else wanted.type == "cpu"
    if wanted is not None and wanted.index is not None and not on_cpu:
        torch.accelerator.set_device_index(wanted.index)
    accelerator = Accelerator(
        cpu=wanted is not None and on_cpu,
        mixed_precision="no" if on_cpu else "bf16",
        log_with=list(config.trackers) or None,
        project_dir=config.out,
    )
    if wanted is not None and accelerator.device.type != wanted.type:
        raise InputError(
            f"device: expected {accelerator.device.type}, which accelerate uses in this process, "
            f"found {config.device!r}"
        )
    return accelerator


class _Run(TrainingLoop):
    view: View | None = None

    def __init__(
        self, config: TrainConfig, accelerator: Accelerator, signals: Held, progress: bool
    ) -> None:
        super().__init__(config, signals, progress and accelerator.is_main_process)
        self.config, self.accelerator = config, accelerator
        self.is_alone = accelerator.num_processes == 1
        self.is_main, self.label = accelerator.is_main_process, f"train {config.model}"
        spec = observed_by(config)
        self.train_data = EpisodeDataset(config.data, config.num_frames, spec=spec)
        self.held_out = EpisodeDataset(
            config.data, config.num_frames, spec=spec, split="validation"
        )
        if len(self.train_data) < config.batch_size:
            raise InputError(
                f"batch_size: expected at most the {len(self.train_data)} training windows of "
                f"{config.data}, found {config.batch_size}"
            )
        if config.batch_size % accelerator.num_processes:
            raise InputError(
                f"batch_size: expected a multiple of {accelerator.num_processes} processes, "
                f"found {config.batch_size}"
            )
        still = self.train_data.still_actions
        if still and self.is_main:
            which = ", ".join(map(str, still))
            warnings.warn(
                f"data {config.data}: actions have no variance in column {which}: the model "
                "cannot learn what it does",
                InputWarning, stacklevel=2,
            )  # fmt: skip
        self._facts = fingerprint(self.train_data)
        torch.manual_seed(config.seed)
        self.model = make_model(config, self.train_data)
        self.optimizer: Any = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate,
            betas=ADAM_BETAS,
            weight_decay=config.weight_decay,
        )
        if run_folder.begun(config.out):
            self.restore()
        self.model.to(accelerator.device)
        self.wrapped, self.optimizer = accelerator.prepare(self.model, self.optimizer)
        workers = (
            loader.default_workers(self.train_data) if config.workers is None else config.workers
        )
        self._batches = loader.read(self.train_data, self._order(), workers)

    def run(self) -> dict[str, float]:
        if not self.config.trackers:
            return super().run()
        settings = self.config.identity() | {"options": str(self.config.options)}
        self.accelerator.init_trackers("bilinear-world-models", settings)
        found = super().run()
        self.accelerator.end_training()
        return found

    def one_step(self) -> dict[str, float]:
        config, accelerator = self.config, self.accelerator
        batch = next(self._batches)
        # Dropout, noise and random projections: a pure function of (seed, step, process).
        torch.manual_seed(config.seed + 1_000_003 * self.step + 7919 * accelerator.process_index)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.step)
        actions = torch.from_numpy(batch.actions).to(accelerator.device)
        self.model.train()
        with accelerator.autocast():
            loss = self.wrapped(batch.observation, actions)
        if not torch.isfinite(loss.total):
            windows = list(zip(batch.episodes.tolist(), batch.steps.tolist(), strict=True))
            raise InputError(
                f"{config.out}: the loss is {float(loss.total.detach())} at step {self.step}; the "
                f"last checkpoint is intact. The batch's (episode, step): {windows}. "
                "Look at that data, or lower the learning rate"
            )
        self.optimizer.zero_grad()
        accelerator.backward(loss.total)
        accelerator.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        self.optimizer.step()
        numbers = loss.numbers()
        if accelerator.num_processes > 1:
            values = torch.tensor(list(numbers.values()), device=accelerator.device)
            numbers = dict(zip(numbers, accelerator.reduce(values, "mean").tolist(), strict=True))
        if self.view is not None:
            self.view.numbers(self.step + 1, "train", numbers)
            self.view.numbers(self.step + 1, "timing", {"seconds": self.seconds})
        return numbers

    def _order(self) -> Iterator[NDArray[np.int64]]:
        """This process's share of the global batch of each step that is to come."""
        size, accelerator = self.config.batch_size, self.accelerator
        per_epoch, current = len(self.train_data) // size, -1
        for step in range(self.step, self.config.steps):
            epoch, index = divmod(step, per_epoch)
            if epoch != current:
                current, order = epoch, self.train_data.order(self.config.seed, epoch)
            chosen = order[index * size : (index + 1) * size]
            yield chosen[accelerator.process_index :: accelerator.num_processes]

    def pictures_a_step(self) -> int:
        return self.config.batch_size * self.config.num_frames

    def diagnose(self) -> dict[str, float] | None:
        model = self._calibrated_copy()
        if not self.is_main:
            return None
        rate = learning_rate(self.config, self.step - 1)
        if self.view is not None:
            self._show_pictures(self.view, model)
        return {"learning_rate": rate, **diagnose(model, self.train_data, self.held_out)}

    def _show_pictures(self, view: View, model: WorldModel) -> None:
        """Held-out pictures, where their points are, and what is drawn of them."""
        some = np.unique(np.linspace(0, len(self.held_out) - 1, SHOWN).astype(np.int64))
        observation = self.held_out.batch(some).observation[:, 0]
        pictures, z = model.present(observation).cpu().numpy(), model.encode(observation)
        drawn = model.draw(z).cpu().numpy() if model.draws else None
        for i, picture in enumerate(pictures):
            place = f"held_out/{i}"
            view.picture(self.step, f"{place}/camera", picture)
            if model.config.encoder == "points":
                points = model.points(z[i]).cpu().numpy()
                view.points(self.step, f"{place}/camera/points", points, picture.shape[:2])
            if drawn is not None:
                view.picture(self.step, f"{place}/drawn", drawn[i])

    def describe(self, row: dict[str, Any]) -> str:
        return describe(row)

    def log(self, row: dict[str, Any]) -> None:
        if self.config.trackers:
            self.accelerator.log(row, step=self.step)
        if self.view is not None:
            self.view.numbers(self.step, "diagnosis", row)

    def finished_model(self) -> WorldModel | None:
        model = self._calibrated_copy()
        if not self.is_main:
            return None
        model.finalize(self._latents)
        return model

    def _calibrated_copy(self) -> WorldModel:
        model = copy.deepcopy(self.accelerator.unwrap_model(self.model))
        self._latents = calibrate(model, self.train_data, self.config.batch_size)
        return model

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        return found | checkpoint.optimizer_tensors(self.optimizer)

    def load_tensors(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        weights = self.model.renamed(
            {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        )
        checkpoint.check_names(folder, self.model.state_dict(), weights)
        self.model.load_state_dict(weights)
        checkpoint.restore_optimizer(self.optimizer, tensors)

    def data_facts(self) -> dict[str, Any]:
        return self._facts

    def stop_requested(self) -> bool:
        if self.accelerator.num_processes == 1:
            return super().stop_requested()
        flag = torch.tensor([int(super().stop_requested())], device=self.accelerator.device)
        stopped = bool(self.accelerator.reduce(flag, "sum").item())
        if stopped:
            self.note_stop()
        return stopped


def observed_by(config: TrainConfig) -> ObservationSpec:
    """What the model that a run trains will see, from its options."""
    found = from_json(ModelConfig, config.options)
    every = found.get("observed_every")
    return ObservationSpec(
        found.get("cameras", (CAMERA,)),
        found.get("proprioception", ()),
        found.get("observed", 1),
        FRAME_SKIP if every is None else every,
    )


def make_model(config: TrainConfig, data: EpisodeDataset) -> WorldModel:
    """A fresh model for a dataset."""
    MODELS.check(config.model, "model")
    cls = MODELS[config.model]
    told = data.file.task
    if config.task is not None and told not in (None, config.task):
        raise InputError(f"task: expected {told}, as {config.data} says, found {config.task}")
    check_task(config.data, config.task, data.file.states, data.file.actions)
    height, width = data.picture_shape
    facts: dict[str, Any] = {
        "task": told or config.task or "unknown",
        "image_size": height,
        "image_width": None if width == height else width,
        "frame_skip": data.frame_skip,
        "action_mean": tuple(float(x) for x in data.action_mean),
        "action_std": tuple(float(x) for x in data.action_std),
        "render_quality": data.file.render_quality or "unknown",
        "proprioception_mean": tuple(float(x) for x in data.proprioception_mean),
        "proprioception_std": tuple(float(x) for x in data.proprioception_std),
    }
    options, eyes = dict(config.options), None
    if options.get("encoder") == "frozen":
        options["backbone"], eyes = pretrained(str(options.get("backbone", "")))
    model = cls(make_config(cls.config_class, options, "options", **facts))
    if eyes is not None:
        for part in model.modules():
            if isinstance(part, FrozenEncoder):
                part.backbone.load_state_dict(eyes)
    chosen = np.unique(np.linspace(0, len(data) - 1, PREPARATION).astype(np.int64))
    model.prepare(data.batch(chosen).observation[:, 0])
    return model


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warmup = max(round(config.warmup_share * config.steps), 1)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(config.steps - warmup, 1)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
