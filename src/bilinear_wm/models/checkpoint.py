"""A checkpoint folder: everything needed to plan, verified before it is used.

    model.safetensors   the weights
    config.json         flat: the model's kind and configuration
    manifest.json       format version, and of each file its size and sha256
    README.md           a model card

A training folder holds several (`checkpoint-STEP/`) and a file `latest` that names one. Nothing
is ever unpickled, and no file names code to import.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from bilinear_wm import disk
from bilinear_wm.errors import InputError

FORMAT_VERSION = 2
WEIGHTS, CONFIG, MANIFEST = "model.safetensors", "config.json", "manifest.json"
LATEST = "latest"
FIX = "restore the folder from a copy, or train again"


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write weights, configuration and manifest into an existing folder."""
    write_tensors(folder / WEIGHTS, tensors)
    (folder / CONFIG).write_text(json.dumps(dict(config), indent=2) + "\n")
    write_manifest(folder, (WEIGHTS, CONFIG))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file; trouble with the disk is an OSError, as anywhere else."""
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}))


def write_manifest(folder: Path, names: tuple[str, ...]) -> None:
    """Record format version, size and hash of the named files."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
        for name in names
    }
    manifest = {"format_version": FORMAT_VERSION, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights of a checkpoint folder, once they are known to be sound."""
    verify(folder, (WEIGHTS, CONFIG))
    return read_json(folder / CONFIG), read_tensors(folder / WEIGHTS)


def verify(folder: Path, names: tuple[str, ...]) -> None:
    """Refuse a folder in which the named files, or any that its manifest lists, are not sound."""
    manifest = read_json(folder / MANIFEST)
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{folder / MANIFEST}: format_version: expected at most {FORMAT_VERSION}, "
            f"found {version!r}; update the package"
        )
    if version < FORMAT_VERSION:
        raise InputError(
            f"{folder / MANIFEST}: format_version: expected {FORMAT_VERSION}, found {version}: the "
            "encoder of that time is gone; train the model again, or take the one in pretrained/"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not set(names) <= set(files):
        raise InputError(f"{folder / MANIFEST}: expected entries for {' and '.join(names)}; {FIX}")
    for name, facts in files.items():
        _check_file(folder, name, facts)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(
            f"{path}: expected a safetensors file, found {one_line(error)}; {FIX}"
        ) from error
    return tensors


def weights_hash(folder: Path) -> str:
    """What tells the weights of a checkpoint from others."""
    path = resolve(folder) / WEIGHTS
    if not path.is_file():
        raise InputError(f"{path}: expected a checkpoint folder, found no such file")
    return _sha256(path)


def check_names(folder: Path, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse weights whose names, shapes or types are not the model's."""
    for what, names in (
        ("missing", set(expected) - set(found)),
        ("unknown", set(found) - set(expected)),
    ):
        if names:
            raise InputError(
                f"{folder / WEIGHTS}: {what} {', '.join(sorted(names)[:5])}; the weights are not "
                f"those of the model in {CONFIG}"
            )
    for name, tensor in expected.items():
        if tensor.shape != found[name].shape or tensor.dtype != found[name].dtype:
            raise InputError(
                f"{folder / WEIGHTS}: {name}: expected {tensor.dtype} {tuple(tensor.shape)}, "
                f"found {found[name].dtype} {tuple(found[name].shape)}"
            )
        if not torch.isfinite(found[name]).all():
            raise InputError(
                f"{folder / WEIGHTS}: {name}: expected finite numbers, found NaN or infinity; {FIX}"
            )


def wrong_kind(folder: Path, expected: str, found: str) -> InputError:
    """The error for a checkpoint of another model."""
    return InputError(f"{folder}: expected a {expected} model, found {found}")


def resolve(folder: Path) -> Path:
    """The checkpoint folder meant by `folder`: itself, or the newest of a training folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a checkpoint folder, found none")
    pointer = folder / LATEST
    if pointer.exists():
        name = disk.read_text(pointer, "the name of a checkpoint").strip()
        if Path(name).name != name or name in ("", ".", ".."):
            raise InputError(f"{pointer}: expected the name of a folder beside it, found {name!r}")
        return folder / name
    return folder


def point_latest_to(folder: Path) -> None:
    """Make `folder` the newest checkpoint of the training folder it is in, atomically.

    `checkpoint-STEP` folders are new each time, so that `latest` always names a whole one.
    """
    disk.write_text(folder.parent / LATEST, folder.name + "\n")


def model_card(kind: str, config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The text of a checkpoint's README.md."""
    lines = [
        "---",
        "library_name: bilinear-world-models",
        "license: mit",
        "tags: [world-model, planning]",
        "---",
        "",
        f"# {kind} world model for {config['task']}",
        "",
        f"Pictures of {config['image_size']} px ({config['render_quality']}), one model step is "
        f"{config['frame_skip']} environment steps, encoder: {config['encoder']}.",
        "",
        "```python",
        "import bilinear_wm as bwm",
        'model = bwm.load_model("path/to/this/folder")',
        "```",
    ]
    if facts:
        lines += ["", "| | |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _check_file(folder: Path, name: str, facts: Any) -> None:
    path = folder / name
    if Path(name).name != name or not isinstance(facts, dict):
        raise InputError(f"{folder / MANIFEST}: expected file names with facts, found {name!r}")
    if not path.is_file():
        raise InputError(f"{path}: expected by {MANIFEST}, found no such file; {FIX}")
    size = path.stat().st_size
    if size != facts.get("bytes"):
        raise InputError(f"{path}: expected {facts.get('bytes')} bytes, found {size}; {FIX}")
    if _sha256(path) != facts.get("sha256"):
        raise InputError(f"{path}: expected the sha256 in {MANIFEST}, found another; {FIX}")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint folder."""
    try:
        values = json.loads(disk.read_text(path, "a checkpoint folder"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON, found {one_line(error)}; {FIX}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(values).__name__}; {FIX}")
    return values


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one_line(error: BaseException) -> str:
    """An error of another library as part of a sentence."""
    return " ".join(str(error).split())[:300]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{name}": value
        for index, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        head, _, rest = key.partition(".")
        if head == "optimizer":
            index, _, name = rest.partition(".")
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
