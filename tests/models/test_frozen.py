"""Pretrained encoders of transformers, frozen and inside the checkpoint; small random ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bilinear_wm.errors import InputError
from bilinear_wm.models import load_model
from bilinear_wm.models.encoders.frozen import FrozenEncoder, pretrained
from bilinear_wm.training.train import TrainConfig, train

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
}
KINDS: dict[str, dict[str, Any]] = {
    "dinov2": {"patch_size": 14},
    "dinov3_vit": {"patch_size": 16, "intermediate_size": 32, "num_register_tokens": 4},
}
OPTIONS: dict[str, Any] = {
    "encoder": "frozen",
    "backbone_size": 28,
    "projector_size": 24,
    "projector_hidden": 16,
}


@pytest.fixture(params=sorted(KINDS))
def backbone(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder such as transformers writes."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(request.param, **SIZES, **KINDS[request.param])
    folder = tmp_path / "backbone"
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def test_nothing_but_the_projector_learns(
    backbone: Path, tworoom_file: Path, tmp_path: Path
) -> None:
    told, weights = pretrained(str(backbone))
    config = TrainConfig(
        tworoom_file,
        tmp_path / "run",
        steps=2,
        batch_size=4,
        num_frames=2,
        options=OPTIONS | {"backbone": str(backbone)},
    )
    train(config, progress=False)
    shutil.rmtree(backbone)  # one folder is enough
    model = load_model(tmp_path / "run")
    assert json.loads(model.config.backbone) == json.loads(told)
    encoder = model.encoder
    assert isinstance(encoder, FrozenEncoder)
    for name, tensor in encoder.backbone.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], atol=0, rtol=0)
    assert all(not p.requires_grad for p in encoder.backbone.parameters())
    pixels = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    z = model.encode(pixels)
    assert z.shape == (3, 24)
    assert float(z.std(0).max()) > 1e-4
    # Statistics and dropout of the backbone stay as they are while the rest trains.
    assert not encoder.train().backbone.training
    assert encoder.project.training


def test_what_is_no_backbone_is_said(tworoom_file: Path, tmp_path: Path) -> None:
    def made(backbone: str) -> None:
        options = OPTIONS | {"backbone": backbone}
        train(TrainConfig(tworoom_file, tmp_path / "run", options=options), progress=False)

    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="backbone: expected a folder that transformers can load"):
        made(str(tmp_path / "empty"))
    other = transformers.AutoConfig.for_model("vit", **SIZES, patch_size=14, intermediate_size=32)
    other.save_pretrained(tmp_path / "vit")
    with pytest.raises(InputError, match=r"model_type: expected one of dinov2, .* found 'vit'"):
        made(str(tmp_path / "vit"))
