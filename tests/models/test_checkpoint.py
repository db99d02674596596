"""Checkpoints: complete, strict, and never loaded when anything is wrong with them."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.models.bilinear import BilinearWorldModel

from .conftest import small_model, windows

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    small_model("bilinear").save_pretrained(path)
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.parametrize("kind", ["bilinear", "lewm", "smwm"])
def test_round_trip(kind: str, tmp_path: Path) -> None:
    model = small_model(kind).eval()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert not loaded.training
    pixels, actions = windows()
    torch.testing.assert_close(loaded.encode(pixels), model.encode(pixels), atol=0, rtol=0)
    z = model.encode(pixels[:, 0])
    torch.testing.assert_close(
        loaded.dynamics.rollout(z, actions), model.dynamics.rollout(z, actions), atol=0, rtol=0
    )
    assert f"{kind} world model for tworoom" in (tmp_path / "README.md").read_text()


def test_every_option_survives(tmp_path: Path) -> None:
    options: dict[str, Any] = {"normalization": "none", "min_singular": 0.1, "residual_hidden": 8}
    model = small_model("bilinear", **options)
    model.save_pretrained(tmp_path)
    loaded = BilinearWorldModel.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, atol=0, rtol=0)


def test_the_config_is_flat(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["kind"] == "bilinear"
    assert not any(isinstance(value, dict) for value in config.values())
    assert {"action_mean", "action_std", "frame_skip", "task", "image_size"} <= set(config)


def test_500_truncations_are_refused(folder: Path, tmp_path: Path) -> None:
    _refuse_all(folder, tmp_path, lambda data, rng: data[: rng.integers(len(data))])


def test_500_bit_flips_are_refused(folder: Path, tmp_path: Path) -> None:
    def flip(data: bytes, rng: np.random.Generator) -> bytes:
        changed = bytearray(data)
        changed[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        return bytes(changed)

    _refuse_all(folder, tmp_path, flip)


def _refuse_all(
    folder: Path, tmp_path: Path, damage: Callable[[bytes, np.random.Generator], bytes]
) -> None:
    rng = np.random.default_rng(0)
    target = Path(shutil.copytree(folder, tmp_path / "damaged"))
    names = ("model.safetensors", "config.json", "manifest.json")
    original = {name: (folder / name).read_bytes() for name in names}
    reference = load_model(folder).state_dict()
    for trial in range(500):
        name = names[trial % 3]
        (target / name).write_bytes(damage(original[name], rng))
        try:
            loaded = load_model(target).state_dict()
        except InputError as error:
            assert str(target) in str(error)  # noqa: PT017
        else:  # only a change of white space or of an unused fact may pass, and changes nothing
            assert name == "manifest.json"
            for key, tensor in reference.items():
                assert torch.equal(loaded[key], tensor)
        (target / name).write_bytes(original[name])


def rewrite(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a file and its entry in the manifest, as a careless tool would."""
    path = folder / name
    if name.endswith(".json"):
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))
    else:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
    if name != checkpoint.MANIFEST:
        checkpoint.write_manifest(folder, (checkpoint.WEIGHTS, checkpoint.CONFIG))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", lambda c: c.update(extra=1), "unknown extra"),
        ("config.json", lambda c: c.pop("width"), "missing width"),
        ("config.json", lambda c: c.update(kind="os.system"), "kind: expected one of bilinear"),
        ("config.json", lambda c: c.update(projector_size=25), "expected torch.float32"),
        ("config.json", lambda c: c.update(patch_size=12), "patch_size: expected a divisor"),
        ("config.json", lambda c: c.update(width="8"), "width: expected int, found '8'"),
        ("config.json", lambda c: c.update(width=True), "width: expected int, found True"),
        ("config.json", lambda c: c.update(depth=10**6), "depth: expected 0 to 256"),
        ("config.json", lambda c: c.update(heads=0), "expected a model that can be made"),
        ("config.json", lambda c: c.update(frame_skip=0), "frame_skip: expected at least 1"),
        ("config.json", lambda c: c.update(action_mean=[float("nan")] * 2), "action_mean: expec"),
        ("config.json", lambda c: c.update(action_std=[1.0, float("inf")]), "action_std: expec"),
        ("config.json", lambda c: c.update(action_std="11"), "action_std: expected tuple"),
        ("config.json", lambda c: c.update(task=[1]), "task: expected str"),
        (
            "model.safetensors",
            lambda t: t["dynamics.A"].fill_(float("nan")),
            r"dynamics\.A: expected finite numbers",
        ),
        (
            "model.safetensors",
            lambda t: t.update({"dynamics.D": t.pop("dynamics.A")}),
            r"missing dynamics\.A",
        ),
        ("model.safetensors", lambda t: t.update(more=torch.zeros(1)), "unknown more"),
        (
            "model.safetensors",
            lambda t: t.update({"dynamics.A": t["dynamics.A"].half()}),
            "expected torch.float32",
        ),
        ("manifest.json", lambda m: m.update(format_version=3), "update the package"),
        ("manifest.json", lambda m: m.update(format_version="2"), "expected at most 2"),
        ("manifest.json", lambda m: m.update(format_version=1), "train the model again"),
        ("manifest.json", lambda m: m["files"].pop("config.json"), "expected entries for"),
        (
            "manifest.json",
            lambda m: m["files"].update({"../other": {}}),
            "expected file names with facts",
        ),
    ],
)
def test_each_mistake_has_its_own_message(
    copy: Path, name: str, change: Callable[[Any], object], message: str
) -> None:
    rewrite(copy, name, change)
    with pytest.raises(InputError, match=message):
        load_model(copy)


def test_missing_pieces(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match="found no such file"):
        load_model(copy)
    with pytest.raises(InputError, match="expected a checkpoint folder"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected a checkpoint folder"):
        load_model(tmp_path / "empty")
    for elsewhere in ("../../etc", "..", ".", ""):
        (tmp_path / "empty" / "latest").write_text(elsewhere)
        with pytest.raises(InputError, match="the name of a folder beside it"):
            load_model(tmp_path / "empty")
    (tmp_path / "empty" / "latest").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        InputError, match="latest: expected the name of a checkpoint, found no text"
    ):
        load_model(tmp_path / "empty")


@pytest.mark.parametrize("hidden", [0, 8])
def test_earlier_names_are_understood(hidden: int, tmp_path: Path) -> None:
    model = small_model("bilinear", min_singular=0.1, residual_hidden=hidden)
    model.save_pretrained(tmp_path)

    def as_before(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            old = name.replace(".structured.", ".").replace(".gain.", ".scale.")
            tensors[old.replace(".scale.excess", ".scale.spread")] = tensors.pop(name)

    rewrite(tmp_path, checkpoint.WEIGHTS, as_before)
    assert "dynamics.scale.spread" in load_file(tmp_path / checkpoint.WEIGHTS)
    loaded = load_model(tmp_path).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_what_no_machine_can_make_takes_no_memory(copy: Path) -> None:
    rewrite(copy, "config.json", lambda c: c.update(projector_size=2**16, projector_hidden=2**16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"expected torch\.float32"):
        load_model(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_what_is_no_plain_file_does_not_hang(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    os.mkfifo(copy / "manifest.json")
    with pytest.raises(InputError, match="found no plain file"):
        load_model(copy)
    (copy / "manifest.json").unlink()
    (copy / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="expected JSON"):
        load_model(copy)


def test_another_kind_is_refused(folder: Path) -> None:
    from bilinear_wm.models.lewm import LeWorldModel

    with pytest.raises(InputError, match="expected a lewm model, found bilinear"):
        LeWorldModel.from_pretrained(folder)


def test_the_hub_is_asked_for_a_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bilinear_wm.models import base

    asked: list[tuple[str, str | None]] = []

    def download(name: str, revision: str | None = None) -> str:
        asked.append((name, revision))
        return str(folder)

    monkeypatch.setattr(base, "snapshot_download", download)
    BilinearWorldModel.from_pretrained("somebody/model", revision="0123abc")
    assert asked == [("somebody/model", "0123abc")]


def test_nothing_is_unpickled(copy: Path) -> None:
    import pickle

    (copy / "model.safetensors").write_bytes(pickle.dumps({"dynamics.A": 1}))
    checkpoint.write_manifest(copy, (checkpoint.WEIGHTS, checkpoint.CONFIG))
    with pytest.raises(InputError, match="expected a safetensors file"):
        load_model(copy)


@pytest.mark.parametrize("kind", ["bilinear", "lewm", "smwm"])
def test_golden_outputs(kind: str) -> None:
    """Each model's numerics, pinned; `python -m tests.models.test_checkpoint` rewrites them."""
    expected = load_file(GOLDEN / f"{kind}.safetensors")
    model = load_model(GOLDEN / kind)
    pixels, actions = windows(3, 3, seed=1)
    z = model.encode(pixels)
    torch.testing.assert_close(z, expected["latents"], atol=1e-5, rtol=1e-4)
    rolled = model.dynamics.rollout(z[:, 0], actions)
    torch.testing.assert_close(rolled, expected["rollout"], atol=1e-5, rtol=1e-4)
    torch.manual_seed(0)
    with torch.no_grad():
        loss = model.latent_loss(z, actions).total
    torch.testing.assert_close(loss, expected["loss"], atol=1e-5, rtol=1e-4)


def _write_golden() -> None:
    for kind in ("bilinear", "lewm", "smwm"):
        options: dict[str, Any] = {"num_points": 6, "projector_hidden": 16}
        if kind != "bilinear":
            options |= {"predictor_hidden": 16, "predictor_head_size": 4, "action_hidden": 16}
        model = small_model(kind, seed=3, encoder="points", **options).eval()
        with torch.no_grad():  # leave every gate open
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(GOLDEN / kind)
        pixels, actions = windows(3, 3, seed=1)
        z = model.encode(pixels)
        torch.manual_seed(0)
        with torch.no_grad():
            values = {
                "latents": z,
                "rollout": model.dynamics.rollout(z[:, 0], actions),
                "loss": model.latent_loss(z, actions).total,
            }
        save_file(values, GOLDEN / f"{kind}.safetensors")


if __name__ == "__main__":
    _write_golden()
