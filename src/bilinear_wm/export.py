"""A checkpoint to a bundle that plans without torch: `bwm export --checkpoint DIR --out BUNDLE`."""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from bilinear_wm import disk, recipes
from bilinear_wm.deploy import files, native
from bilinear_wm.deploy.files import Arrays, Facts
from bilinear_wm.dynamics.layers import BatchNorm
from bilinear_wm.errors import InputError, needed
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.models.bilinear import BilinearWorldModel
from bilinear_wm.options import make_config
from bilinear_wm.planning.compiled import kernel_applies, matrices, settings
from bilinear_wm.planning.gauss_newton import GaussNewtonConfig
from bilinear_wm.planning.kernel import Kernel
from bilinear_wm.planning.layout import Matrices
from bilinear_wm.planning.offsets import random_offsets
from bilinear_wm.planning.sensitivity import coherent_lift
from bilinear_wm.planning.trials import num_aligned
from bilinear_wm.stage import JsonObject, Outcome, at_least

EXTRA = "export"
OPSET = 20
"""The first with a GELU of its own."""


@dataclass(frozen=True)
class ExportConfig:
    """A bundle for a robot: the encoder as ONNX, plain arrays, and a planner without torch.

    Attributes:
        checkpoint: The bilinear model, its folder or a training folder.
        out: The folder to write.
        horizon: Blocks a plan looks ahead; by default those of the task's recipe.
        max_horizon: Blocks that plans of the bundle can look ahead.
        planner_options: Of the Gauss-Newton planner, over the task's recipe.
        portable: Leave the compiled kernel out: numba then compiles it where the bundle is used.
    """

    checkpoint: Path
    out: Path
    horizon: int | None = None
    max_horizon: int = 10
    planner_options: JsonObject = field(default_factory=dict)
    portable: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "max_horizon", *(["horizon"] if self.horizon is not None else []))

    def run(self) -> Outcome:
        """`export`, in words."""
        facts = export(self)
        size = sum(path.stat().st_size for path in self.out.iterdir())
        kernel = f"compiled for {facts.native}" if facts.native else "compiled by numba on arrival"
        return Outcome(
            f"{self.out}: {facts.task}, pictures of {facts.height} x {facts.width} px, plans of "
            f"{facts.horizon} blocks, kernel {kernel}, {size / 1e6:.1f} MB; "
            f"load it with bilinear_wm.deploy.load({str(self.out)!r})",
            {"out": str(self.out), "bytes": size, "horizon": facts.horizon, "native": facts.native},
        )


def export(config: ExportConfig) -> Facts:
    """Write `config.out`, whole or not at all."""
    if config.out.exists() and not (config.out / files.ENCODER).is_file():
        raise InputError(f"out {config.out}: expected no such folder, or a bundle to replace")
    for module in ("onnx", "onnxscript", "onnxruntime"):
        needed(module, EXTRA, "bwm export")
    folder = checkpoint.resolve(config.checkpoint)
    model = load_model(folder)
    where = f"checkpoint {folder}"
    if not isinstance(model, BilinearWorldModel) or not kernel_applies(model.dynamics):
        raise InputError(
            f"{where}: expected a bilinear model with normalization cholqr, found kind "
            f"{model.kind}, normalization {getattr(model.config, 'normalization', 'none')}"
        )
    model.config.observes.must_be_picture(where)
    plan, horizon = _plan(config, model)
    lift = coherent_lift(
        model.config.block_size,
        model.config.action_size if plan.coherent else model.config.block_size,
        model.action_mean,
    )
    with torch.no_grad():
        found = matrices(model.dynamics, lift)
        arrays = _arrays(model, found) | _noise(plan, lift, config.max_horizon)
    facts = _facts(model, plan, horizon, config.max_horizon, checkpoint.weights_hash(folder))
    with disk.replacing(config.out) as fresh:
        write_encoder(model, fresh / files.ENCODER)
        if not config.portable and native.can_build():
            made = native.build(fresh / files.NATIVE, _call(found, plan))
            facts = replace(facts, native=made)
        files.write(fresh, facts, arrays)
    return facts


def _plan(config: ExportConfig, model: BilinearWorldModel) -> tuple[GaussNewtonConfig, int]:
    """The planner's settings and the horizon: the recipe's, and what was given over it."""
    recipe = recipes.evaluation(model.config.task, "gauss-newton")
    options = recipe.planner_options | config.planner_options
    plan: GaussNewtonConfig = make_config(GaussNewtonConfig, options, "planner_options")
    horizon = recipe.horizon if config.horizon is None else config.horizon
    if horizon > config.max_horizon:
        raise InputError(
            f"max_horizon: expected at least {horizon}, the horizon, found {config.max_horizon}"
        )
    return plan, horizon


def _facts(
    model: BilinearWorldModel, plan: GaussNewtonConfig, horizon: int, longest: int, weights: str
) -> Facts:
    config = model.config
    height, width = config.picture_shape
    names = {each.name for each in fields(Facts)}
    settings = {name: value for name, value in vars(plan).items() if name in names}
    return Facts(
        task=config.task,
        height=height,
        width=width,
        frame_skip=config.frame_skip,
        env_action_size=config.action_size,
        horizon=horizon,
        max_horizon=longest,
        weights=weights,
        **settings,
    )


def _arrays(model: BilinearWorldModel, found: Matrices) -> Arrays:
    """The dynamics, the prior and the units of actions, by name."""
    arrays: Arrays = {name: getattr(found, name) for name in ("A", "B", "C", "R", "lift")}
    arrays |= {f"residual.{i}": layer for i, layer in enumerate(found.layers)}
    if found.held is not None:
        arrays["held"] = found.held
    if model.config.prior_hidden:
        arrays |= {"prior.mean": model.prior.mean.numpy(), "prior.std": model.prior.std.numpy()}
        layers = [layer for layer in model.prior.layers if isinstance(layer, nn.Linear)]
        for i, layer in enumerate(layers):
            arrays[f"prior.weight.{i}"] = layer.weight.numpy()
            arrays[f"prior.bias.{i}"] = layer.bias.numpy()
    arrays |= {"action_mean": model.action_mean.numpy(), "action_std": model.action_std.numpy()}
    return arrays


def _noise(plan: GaussNewtonConfig, lift: torch.Tensor, longest: int) -> Arrays:
    """Offsets of the random candidates for every horizon: numpy would draw others."""
    count = plan.candidates - num_aligned(plan.candidates)
    if count == 0:
        return {}
    return {
        f"noise.{horizon}": random_offsets(plan, lift, count, horizon).numpy()
        for horizon in range(1, longest + 1)
    }


def _call(found: Matrices, plan: GaussNewtonConfig) -> tuple[Any, ...]:
    """The arguments of a call of the kernel, which is not made."""
    calls: list[tuple[Any, ...]] = []

    def noise(count: int, horizon: int) -> Any:
        return random_offsets(plan, torch.from_numpy(found.lift), count, horizon).double().numpy()

    kernel = Kernel(lambda *arguments: calls.append(arguments), found, settings(plan), noise)
    kernel.warm_up()
    return calls[0]


def write_encoder(model: BilinearWorldModel, path: Path) -> None:
    """The encoder as ONNX: one uint8 picture (1, H, W, 3) to a latent (1, d)."""
    encoder = without_batch_norms(model.encoder)
    picture = torch.zeros(1, *model.config.picture_shape, 3, dtype=torch.uint8)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # it names the packages that it could also serve
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of libraries that the exporter uses
            torch.onnx.export(
                encoder, (picture,), str(path), dynamo=True, opset_version=OPSET, verbose=False,
                input_names=["picture"], output_names=["latent"], external_data=False,
            )  # fmt: skip
    finally:
        quiet.setLevel(level)


def without_batch_norms(encoder: nn.Module) -> nn.Module:
    """A copy in which batch norms are part of the layers before them."""
    copied = copy.deepcopy(encoder).eval()
    for part in copied.modules():
        if isinstance(part, nn.Sequential):
            for i in range(1, len(part)):
                layer, norm = part[i - 1], part[i]
                if isinstance(norm, BatchNorm) and isinstance(layer, nn.Conv2d | nn.Linear):
                    _fold(layer, norm)
                    part[i] = nn.Identity()
    return copied


def _fold(layer: nn.Conv2d | nn.Linear, norm: BatchNorm) -> None:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    fuse = fuse_conv_bn_weights if isinstance(layer, nn.Conv2d) else fuse_linear_bn_weights
    layer.weight, layer.bias = fuse(
        layer.weight, layer.bias, mean, variance, norm.eps, norm.weight, norm.bias
    )
