"""Weights of LeWM as its authors publish them, under the names that they have here.

Theirs are 303 tensors at the paper's size. The encoder is transformers' ViT, whose layers are
spelled in one of two ways (before and since its version 5); queries, keys and values are three
matrices there and one here, and a patch is a convolution there and a product here. All sizes but
the heads follow from the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.models.checkpoint import one_line
from bilinear_wm.models.lewm import LeWorldModel, LeWorldModelConfig

HEAD_SIZE = 64
"""Of the encoder and the predictor of all published ones."""
EMBEDDINGS = {
    "encoder.embeddings.cls_token": "encoder.class_token",
    "encoder.embeddings.position_embeddings": "encoder.position",
    "encoder.embeddings.patch_embeddings.projection.bias": "encoder.stem.1.bias",
    "encoder.layernorm.weight": "encoder.norm.weight",
    "encoder.layernorm.bias": "encoder.norm.bias",
    "predictor.pos_embedding": "dynamics.position",
}
PATCHES = "encoder.embeddings.patch_embeddings.projection.weight"
CONVOLUTION = "action_encoder.patch_embed.weight"
SPELLINGS = (
    {
        "query": "encoder.encoder.layer.{}.attention.attention.query",
        "key": "encoder.encoder.layer.{}.attention.attention.key",
        "value": "encoder.encoder.layer.{}.attention.attention.value",
        "out": "encoder.encoder.layer.{}.attention.output.dense",
        "mlp.0": "encoder.encoder.layer.{}.intermediate.dense",
        "mlp.2": "encoder.encoder.layer.{}.output.dense",
        "norm_attention": "encoder.encoder.layer.{}.layernorm_before",
        "norm_mlp": "encoder.encoder.layer.{}.layernorm_after",
    },
    {
        "query": "encoder.layers.{}.attention.q_proj",
        "key": "encoder.layers.{}.attention.k_proj",
        "value": "encoder.layers.{}.attention.v_proj",
        "out": "encoder.layers.{}.attention.o_proj",
        "mlp.0": "encoder.layers.{}.mlp.fc1",
        "mlp.2": "encoder.layers.{}.mlp.fc2",
        "norm_attention": "encoder.layers.{}.layernorm_before",
        "norm_mlp": "encoder.layers.{}.layernorm_after",
    },
)
STEERED = {
    "attn.norm": "renorm_attention",
    "attn.to_qkv": "qkv",
    "attn.to_out.0": "out",
    "mlp.net.0": "renorm_mlp",
    "mlp.net.1": "mlp.0",
    "mlp.net.4": "mlp.3",
    "adaLN_modulation.1": "steer.1",
}
PREFIXES = {
    "projector.net.": "encoder.project.",
    "pred_proj.net.": "dynamics.project.",
    "action_encoder.patch_embed.": "dynamics.embed_action.0.",
    "action_encoder.embed.0.": "dynamics.embed_action.1.",
    "action_encoder.embed.2.": "dynamics.embed_action.3.",
    "predictor.transformer.norm.": "dynamics.norm.",
}


def from_reference(found: Mapping[str, Tensor], where: str, **facts: Any) -> LeWorldModel:
    """A LeWM of ours with their weights.

    Args:
        found: Their tensors by name.
        where: The file, for errors.
        facts: Fields of the configuration that the weights do not tell: `task`, `frame_skip`,
            `action_mean`, `action_std`; `heads` where they are not of 64 numbers.
    """
    theirs = _unwrapped(found)
    spelling = next((s for s in SPELLINGS if f"{s['query'].format(0)}.weight" in theirs), None)
    if spelling is None:
        known = " or ".join(s["query"].format(0) for s in SPELLINGS)
        raise InputError(
            f"{where}: expected the weights of LeWM ({known}), found "
            f"{', '.join(sorted(theirs)[:3]) or 'no tensors'}"
        )
    try:
        config = _configuration(theirs, spelling, facts)
        model = LeWorldModel(config)
        ours = _renamed(theirs, spelling, config)
    except (KeyError, IndexError) as error:
        raise InputError(f"{where}: expected the tensor {one_line(error)}, found none") from error
    expected = model.state_dict()
    for what, names in (("missing", expected.keys() - ours.keys()), ("unknown", theirs.keys())):
        if names:
            raise InputError(
                f"{where}: {what} {', '.join(sorted(names)[:4])}; expected LeWM's weights and "
                "nothing else"
            )
    for name, tensor in expected.items():
        if ours[name].shape != tensor.shape:
            raise InputError(
                f"{where}: {name}: expected shape {tuple(tensor.shape)}, found "
                f"{tuple(ours[name].shape)}"
            )
    model.load_state_dict(ours)
    return model.eval()


def _unwrapped(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what a trainer puts before every name."""
    anchor = next((name for name in found if name.endswith(PATCHES)), PATCHES)
    prefix = anchor.removesuffix(PATCHES)
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def _depth(theirs: Mapping[str, Tensor], name: str) -> int:
    depth = 0
    while name.format(depth) in theirs:
        depth += 1
    return depth


def _configuration(
    theirs: Mapping[str, Tensor], spelling: Mapping[str, str], facts: dict[str, Any]
) -> LeWorldModelConfig:
    width, _, patch, _ = theirs[PATCHES].shape
    tokens = theirs["encoder.embeddings.position_embeddings"].shape[1] - 1
    qkv = theirs["predictor.transformer.layers.0.attn.to_qkv.weight"]
    sizes: dict[str, Any] = {
        "encoder": "vit",
        "image_size": math.isqrt(tokens) * patch,
        "patch_size": patch,
        "width": width,
        "depth": _depth(theirs, f"{spelling['query']}.weight"),
        "heads": max(width // HEAD_SIZE, 1),
        "mlp_ratio": theirs[f"{spelling['mlp.0'].format(0)}.weight"].shape[0] // width,
        "projector_hidden": theirs["projector.net.0.weight"].shape[0],
        "projector_size": theirs["projector.net.3.weight"].shape[0],
        "history": theirs["predictor.pos_embedding"].shape[1],
        "predictor_depth": _depth(theirs, "predictor.transformer.layers.{}.attn.to_qkv.weight"),
        "predictor_heads": max(qkv.shape[0] // 3 // HEAD_SIZE, 1),
        "predictor_hidden": theirs["predictor.transformer.layers.0.mlp.net.1.weight"].shape[0],
        "action_channels": theirs[CONVOLUTION].shape[0],
        "action_hidden": theirs["action_encoder.embed.0.weight"].shape[0],
    }
    sizes |= facts
    sizes["predictor_head_size"] = qkv.shape[0] // 3 // sizes["predictor_heads"]
    config = LeWorldModelConfig(**sizes)
    block = theirs[CONVOLUTION].shape[1]
    if config.block_size != block:
        raise InputError(
            f"action_mean, frame_skip: expected {block} numbers a block of actions, as the weights "
            f"have, found {config.frame_skip} x {config.action_size}"
        )
    return config


def _renamed(
    theirs: dict[str, Tensor], spelling: Mapping[str, str], config: LeWorldModelConfig
) -> dict[str, Tensor]:
    """Their tensors under our names; those that have none are left in `theirs`."""
    ours = {mine: theirs.pop(name) for name, mine in EMBEDDINGS.items()}
    patches = theirs.pop(PATCHES)
    ours["encoder.stem.1.weight"] = patches.permute(0, 2, 3, 1).flatten(1)
    theirs[CONVOLUTION] = theirs[CONVOLUTION].squeeze(-1)
    for layer in range(config.depth):
        for kind in ("weight", "bias"):
            parts = [
                theirs.pop(f"{spelling[p].format(layer)}.{kind}") for p in ("query", "key", "value")
            ]
            ours[f"encoder.blocks.{layer}.qkv.{kind}"] = torch.cat(parts)
            for mine, name in list(spelling.items())[3:]:
                ours[f"encoder.blocks.{layer}.{mine}.{kind}"] = theirs.pop(
                    f"{name.format(layer)}.{kind}"
                )
    for layer in range(config.predictor_depth):
        for name, mine in STEERED.items():
            for kind in ("weight",) if mine == "qkv" else ("weight", "bias"):
                ours[f"dynamics.blocks.{layer}.{mine}.{kind}"] = theirs.pop(
                    f"predictor.transformer.layers.{layer}.{name}.{kind}"
                )
    for before, after in PREFIXES.items():
        for name in [name for name in theirs if name.startswith(before)]:
            ours[after + name.removeprefix(before)] = theirs.pop(name)
    return {name: tensor.contiguous() for name, tensor in ours.items()}
