"""Flipped bytes and forged files: refused in one line, or read as they were."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import torch

from attack.common import Attack, Tally, refused_or
from attack.kills import SMALL, small_data
from bilinear_wm.data.collect import collect
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.models.bilinear import BilinearConfig, BilinearWorldModel
from bilinear_wm.reporting.findings import gather
from bilinear_wm.reporting.results import EpisodeResult, read_results

HOSTILE: tuple[Any, ...] = (
    -1, 0, 2, 7, 10**6, 2**31, 2**63, 10**30, 1e308, -1e-308, float("nan"), float("inf"), True,
    None, "", "five", "../../etc/passwd", "x" * 10_000, "\x00", "$\\frac{", [], [[]], [1, 2, 3],
    [float("nan")] * 2, {}, {"a": {"b": []}},
)  # fmt: skip
SLOWEST_S = 5.0
LARGEST_GROWTH = 300 * 2**20


def attack_flips(attack: Attack) -> Iterator[Tally]:
    """One bit of a file is another."""
    data = small_data(attack.folder)
    collect(data, progress=False)
    whole = _contents(data.out)
    tally = Tally("bits flipped in episodes")
    content, path = data.out.read_bytes(), attack.folder / "flipped.h5"
    for _ in attack.times(1000):
        with tally.case():
            path.write_bytes(_flipped(content, attack.rng))
            found = refused_or(lambda: _contents(path))
            assert found is None or found == whole, "read as something else"
    yield tally

    folder = _model(attack.folder / "model")
    reference = load_model(folder).state_dict()
    tally = Tally("bits flipped in checkpoints")
    for index in attack.times(600):
        name = (checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.MANIFEST)[index % 3]
        before = (folder / name).read_bytes()
        with tally.case():
            (folder / name).write_bytes(_flipped(before, attack.rng))
            model = refused_or(lambda: load_model(folder))
            same = model is None or all(
                torch.equal(tensor, reference[key]) for key, tensor in model.state_dict().items()
            )
            assert same, f"{name} read as something else"
        (folder / name).write_bytes(before)
    yield tally


def attack_forgeries(attack: Attack) -> Iterator[Tally]:
    """Files that somebody made to be read wrongly."""
    yield _configurations(attack)
    yield _episodes(attack)
    yield _results(attack)


def _configurations(attack: Attack) -> Tally:
    """One field of config.json is something else, and the manifest agrees."""
    tally, folder = Tally("forged configurations"), _model(attack.folder / "model")
    config = json.loads((folder / checkpoint.CONFIG).read_text())
    for _ in attack.times(600):
        name = str(attack.rng.choice(sorted(config)))
        value = HOSTILE[attack.rng.integers(len(HOSTILE))]
        with tally.case():
            (folder / checkpoint.CONFIG).write_text(json.dumps(config | {name: value}))
            checkpoint.write_manifest(folder, (checkpoint.WEIGHTS, checkpoint.CONFIG))
            begun, held = time.process_time(), psutil.Process().memory_info().rss
            refused_or(lambda: load_model(folder))
            took = time.process_time() - begun
            grown = psutil.Process().memory_info().rss - held
            assert took < SLOWEST_S, f"{name}={str(value)[:20]!r} took {took:.1f} s"
            assert grown < LARGEST_GROWTH, f"{name}={str(value)[:20]!r} took {grown >> 20} MiB"
    return tally


def _episodes(attack: Attack) -> Tally:
    """An attribute or a column of an episode file is something else."""
    tally, data = Tally("forged episode files"), small_data(attack.folder)
    collect(data, progress=False)
    path = attack.folder / "forged.h5"
    secret = attack.folder / "secret"
    secret.write_bytes(b"\x07" * 10**6)
    for _ in attack.times(400):
        with tally.case():
            shutil.copyfile(data.out, path)
            with h5py.File(path, "a") as file:
                told = FORGERIES[attack.rng.integers(len(FORGERIES))](file, attack.rng, secret)
            if refused_or(lambda: _contents(path)) is not None:
                assert told != "outside", "what lies outside the file was read"
    with tally.case():
        os.mkfifo(attack.folder / "pipe.h5")
        assert refused_or(lambda: EpisodeFile(attack.folder / "pipe.h5")) is None
    return tally


def _attribute(file: h5py.File, rng: np.random.Generator, _: Path) -> str:
    value = HOSTILE[rng.integers(len(HOSTILE))]
    try:
        file.attrs[str(rng.choice(sorted(file.attrs)))] = value
    except (TypeError, ValueError, OverflowError):
        file.attrs["task"] = "nowhere"  # HDF5 itself has no place for it
    return ""


def _column(file: h5py.File, rng: np.random.Generator, _: Path) -> str:
    name = str(rng.choice(sorted(file)))
    kind = str(rng.choice(["f4", "f8", "i1", "u8", "S4", "c8", "bool"]))
    shape = tuple(int(side) for side in rng.integers(0, 9, rng.integers(0, 5)))
    del file[name]
    file[name] = rng.integers(0, 255, shape).astype(kind)
    return ""


def _values(file: h5py.File, rng: np.random.Generator, _: Path) -> str:
    name = str(rng.choice(["ep_len", "ep_offset", "action", "state"]))
    column = file[name]
    row = int(rng.integers(len(column)))
    integers = (-1, 0, 1, 2**31 - 1, -(2**31))
    floats = (np.nan, np.inf, -np.inf, 1e38)
    column[row] = rng.choice(floats if column.dtype.kind == "f" else integers)
    return ""


def _announced(file: h5py.File, rng: np.random.Generator, _: Path) -> str:
    for name in ("action", "state", "episode_idx", "step_idx"):
        file[name].resize(int(10 ** rng.uniform(5, 15)), axis=0)
    return "outside"


def _elsewhere(file: h5py.File, rng: np.random.Generator, secret: Path) -> str:
    name = str(rng.choice(["pixels", "state", "action"]))
    shape, kind = file[name].shape, file[name].dtype
    del file[name]
    size = int(np.prod(shape)) * kind.itemsize
    match rng.integers(4):
        case 0:
            file.create_dataset(name, shape, kind, external=[(str(secret), 0, size)])
        case 1:
            file[name] = h5py.ExternalLink(str(secret), name)
        case 2:
            layout = h5py.VirtualLayout(shape, kind)
            layout[:] = h5py.VirtualSource(str(secret), name, shape)
            file.create_virtual_dataset(name, layout)
        case _:
            file[name] = h5py.SoftLink("/nowhere")
    return "outside"


FORGERIES: tuple[Callable[[h5py.File, np.random.Generator, Path], str], ...] = (
    _attribute, _column, _values, _announced, _elsewhere,
)  # fmt: skip


def _results(attack: Attack) -> Tally:
    """A field of a results file is something else, or a line is cut."""
    tally, folder = Tally("forged results"), attack.folder / "results"
    folder.mkdir()
    row = asdict(EpisodeResult(0, 0, 0, False, True, 9, 0.5, 0.1, 2, 0.01, 0.01))
    header = {"task": "tworoom", "planner": "cem", "horizon": 5, "offset": 25, "seed": 0}
    for _ in attack.times(1000):
        lines = [{"header": dict(header)}, dict(row), dict(row)]
        forged = lines[attack.rng.integers(3)]
        place = forged.get("header", forged)
        place[str(attack.rng.choice(sorted(place)))] = HOSTILE[attack.rng.integers(len(HOSTILE))]
        text = "\n".join(map(json.dumps, lines)).encode()
        if attack.rng.random() < 0.3:
            text = _flipped(text, attack.rng)[: attack.rng.integers(len(text))]
        with tally.case():
            (folder / "a.jsonl").write_bytes(text)
            refused_or(lambda: read_results(folder / "a.jsonl"))
            refused_or(lambda: [run.cells() for run in gather([folder]).runs])
    return tally


def _model(folder: Path) -> Path:
    torch.manual_seed(0)
    facts: dict[str, Any] = {
        "task": "tworoom", "image_size": 16, "frame_skip": 5,
        "action_mean": (0.0, 0.0), "action_std": (1.0, 1.0), **SMALL,
    }  # fmt: skip
    BilinearWorldModel(BilinearConfig(**facts)).save_pretrained(folder)
    return folder


def _contents(path: Path) -> tuple[bytes, ...]:
    """All that is ever read of an episode file."""
    data = EpisodeDataset(path, 2, split="all")
    batch = data.batch(np.arange(len(data)))
    states = np.zeros(0) if data.file.states is None else data.file.states
    return batch.pixels.tobytes(), batch.actions.tobytes(), states.tobytes()


def _flipped(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)
