"""What is in a bundle, verified before it is used.

manifest.json        format version, facts and settings, and of each file its size and sha256
encoder.onnx         one uint8 picture to a latent
arrays.safetensors   A, B, C, R, the residual, the prior, the units of actions, random offsets
kernel.so            the planner for one kind of processor, where there is one
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.options import make_config

FORMAT_VERSION = 1
MANIFEST, ENCODER, ARRAYS, NATIVE = (
    "manifest.json", "encoder.onnx", "arrays.safetensors", "kernel.so",
)  # fmt: skip
FIX = "copy the bundle again, or export it again"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Facts:
    """What a manifest tells of the model, and how it plans.

    Attributes:
        task: The task whose pictures it knows.
        height: Of the pictures.
        width: Of the pictures.
        frame_skip: Environment steps a block.
        horizon: Blocks a plan looks ahead, unless asked for others.
        max_horizon: Blocks that it can look ahead.
        goal_weight: The weights of the objective ...
        path_weight: ... of the way ...
        effort: ... of effort ...
        smoothness: ... and of changes.
        damping: The settings of the search, see `GaussNewtonConfig`.
        env_action_size: Numbers an action.
        weights: The sha256 of the checkpoint's weights.
        native: What processor the compiled kernel is for; empty where there is none.
    """

    task: str
    height: int
    width: int
    frame_skip: int
    env_action_size: int
    horizon: int
    max_horizon: int
    goal_weight: float
    path_weight: float
    effort: float
    smoothness: float
    damping: float
    iterations: int
    tolerance: float
    refreshed_blocks: int | None
    candidates: int
    spread: float
    starts: int
    screening: int
    weights: str
    native: str = ""


def write(folder: Path, facts: Facts, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays and manifest into a folder that has the other files already."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    (folder / ARRAYS).write_bytes(save(whole))
    names = [ENCODER, ARRAYS, *([NATIVE] if facts.native else [])]
    files = {name: _facts(folder / name) for name in names}
    manifest = {"format_version": FORMAT_VERSION, **asdict(facts), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def read(folder: Path) -> tuple[Facts, Arrays]:
    """Facts and arrays of a bundle, once all its files are known to be sound."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a bundle of `bwm export`, found no such folder")
    try:
        manifest = json.loads(disk.read_text(path, "a bundle of `bwm export`"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, found {_one_line(error)}; {FIX}") from error
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(manifest).__name__}; {FIX}")
    version = manifest.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path}: format_version: expected {FORMAT_VERSION}, found {version!r}; "
            "update the package, or export the bundle again"
        )
    files = manifest.pop("files", None)
    facts = make_config(Facts, manifest, str(path))
    wanted = {ENCODER, ARRAYS} | ({NATIVE} if facts.native else set())
    if not isinstance(files, dict) or set(files) != wanted:
        raise InputError(f"{path}: expected entries for {' and '.join(sorted(wanted))}; {FIX}")
    for name, expected in files.items():
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: expected by {MANIFEST}, found no such file; {FIX}")
        if _facts(folder / name) != expected:
            raise InputError(
                f"{folder / name}: expected the size and sha256 in {MANIFEST}, found others: the "
                f"file is damaged; {FIX}"
            )
    try:
        arrays = load((folder / ARRAYS).read_bytes())
    except (SafetensorError, ValueError) as error:
        raise InputError(
            f"{folder / ARRAYS}: expected a safetensors file, found {_one_line(error)}; {FIX}"
        ) from error
    return facts, {name: np.array(array) for name, array in arrays.items()}  # writable


def _facts(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
