"""LeWM's published weights: the same latents as by its definition, written out here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from bilinear_wm.errors import InputError
from bilinear_wm.import_lewm import ImportLewmConfig, import_lewm
from bilinear_wm.models import load_model
from bilinear_wm.models.reference_lewm import from_reference

FACTS = {"task": "tworoom", "frame_skip": 5, "action_mean": (0.0, 0.0), "action_std": (1.0, 1.0)}
OLD = ("encoder.encoder.layer", "attention.attention.query", "attention.attention.key",
       "attention.attention.value", "attention.output.dense", "intermediate.dense",
       "output.dense")  # fmt: skip
NEW = ("encoder.layers", "attention.q_proj", "attention.k_proj", "attention.v_proj",
       "attention.o_proj", "mlp.fc1", "mlp.fc2")  # fmt: skip
Weights = dict[str, Tensor]


def published(
    spelling: tuple[str, ...], width: int = 192, depth: int = 12, image: int = 224
) -> Weights:
    """Random weights, laid out as theirs are."""
    generator = torch.Generator().manual_seed(0)
    state: Weights = {}

    def tensor(name: str, *shape: int, spread: float | None = None) -> None:
        fan_in = math.prod(shape[1:]) or 1
        std = 1 / math.sqrt(fan_in) if spread is None else spread
        state[name] = std * torch.randn(*shape, generator=generator)

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        tensor(f"{name}.weight", out, into)
        if bias:
            tensor(f"{name}.bias", out, spread=0.1)

    def norm(name: str, size: int) -> None:
        state[f"{name}.weight"] = 1 + 0.1 * torch.randn(size, generator=generator)
        tensor(f"{name}.bias", size, spread=0.1)

    def projector(name: str, hidden: int = 2048) -> None:
        linear(f"{name}.net.0", hidden, width)
        norm(f"{name}.net.1", hidden)
        tensor(f"{name}.net.1.running_mean", hidden, spread=0.1)
        state[f"{name}.net.1.running_var"] = 0.5 + torch.rand(hidden, generator=generator)
        state[f"{name}.net.1.num_batches_tracked"] = torch.tensor(7)
        linear(f"{name}.net.3", width, hidden)

    layers, query, key, value, out, first, second = spelling
    tensor("encoder.embeddings.cls_token", 1, 1, width, spread=0.5)
    tensor("encoder.embeddings.position_embeddings", 1, (image // 14) ** 2 + 1, width, spread=0.5)
    tensor("encoder.embeddings.patch_embeddings.projection.weight", width, 3, 14, 14)
    tensor("encoder.embeddings.patch_embeddings.projection.bias", width, spread=0.1)
    for i in range(depth):
        for part in (query, key, value, out):
            linear(f"{layers}.{i}.{part}", width, width)
        linear(f"{layers}.{i}.{first}", 4 * width, width)
        linear(f"{layers}.{i}.{second}", width, 4 * width)
        norm(f"{layers}.{i}.layernorm_before", width)
        norm(f"{layers}.{i}.layernorm_after", width)
    norm("encoder.layernorm", width)
    projector("projector")
    projector("pred_proj")
    tensor("action_encoder.patch_embed.weight", 10, 10, 1)
    tensor("action_encoder.patch_embed.bias", 10, spread=0.1)
    linear("action_encoder.embed.0", 4 * width, 10)
    linear("action_encoder.embed.2", width, 4 * width)
    tensor("predictor.pos_embedding", 1, 3, width, spread=1.0)
    for i in range(6):
        at = f"predictor.transformer.layers.{i}"
        norm(f"{at}.attn.norm", width)
        linear(f"{at}.attn.to_qkv", 3 * 1024, width, bias=False)
        linear(f"{at}.attn.to_out.0", width, 1024)
        norm(f"{at}.mlp.net.0", width)
        linear(f"{at}.mlp.net.1", 2048, width)
        linear(f"{at}.mlp.net.4", width, 2048)
        linear(f"{at}.adaLN_modulation.1", 6 * width, width)
    norm("predictor.transformer.norm", width)
    return state


class Reference:
    """The model by its definition, from their tensors alone."""

    def __init__(self, state: Weights, spelling: tuple[str, ...], heads: int) -> None:
        self.state, self.spelling, self.heads = state, spelling, heads

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def project(self, name: str, x: Tensor) -> Tensor:
        s = self.state
        x = self.linear(f"{name}.net.0", x)
        x = (x - s[f"{name}.net.1.running_mean"]) / (s[f"{name}.net.1.running_var"] + 1e-5).sqrt()
        x = F.gelu(x * s[f"{name}.net.1.weight"] + s[f"{name}.net.1.bias"])
        return self.linear(f"{name}.net.3", x)

    def encode(self, pixels: Tensor) -> Tensor:
        layers, query, key, value, out, first, second = self.spelling
        mean = torch.tensor([0.485, 0.456, 0.406]).double()
        std = torch.tensor([0.229, 0.224, 0.225]).double()
        scaled = ((pixels.double() / 255 - mean) / std).permute(0, 3, 1, 2)
        place = "encoder.embeddings.patch_embeddings.projection"
        patches = F.conv2d(scaled, self.state[f"{place}.weight"], self.state[f"{place}.bias"], 14)
        x = patches.flatten(2).mT
        begin = self.state["encoder.embeddings.cls_token"].expand(len(x), -1, -1)
        x = torch.cat([begin, x], 1) + self.state["encoder.embeddings.position_embeddings"]
        i = 0
        while f"{layers}.{i}.{query}.weight" in self.state:
            at = f"{layers}.{i}."
            h = self.norm(f"{at}layernorm_before", x, 1e-12)
            q, k, v = (self.linear(at + part, h) for part in (query, key, value))
            x = x + self.linear(at + out, self.attention(q, k, v, self.heads, causal=False))
            h = self.norm(f"{at}layernorm_after", x, 1e-12)
            x = x + self.linear(at + second, F.gelu(self.linear(at + first, h)))
            i += 1
        return self.project("projector", self.norm("encoder.layernorm", x, 1e-12)[:, 0])

    def predict(self, z: Tensor, actions: Tensor) -> Tensor:
        s = self.state
        conv = s["action_encoder.patch_embed.weight"], s["action_encoder.patch_embed.bias"]
        c = F.conv1d(actions.mT, *conv).mT
        c = self.linear("action_encoder.embed.2", F.silu(self.linear("action_encoder.embed.0", c)))
        x = z + s["predictor.pos_embedding"][:, : z.shape[1]]
        for i in range(6):
            at = f"predictor.transformer.layers.{i}"
            shifts = self.linear(f"{at}.adaLN_modulation.1", F.silu(c)).chunk(6, -1)
            h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + shifts[1]) + shifts[0]
            h = self.linear(f"{at}.attn.to_qkv", self.norm(f"{at}.attn.norm", h, 1e-5))
            q, k, v = h.chunk(3, -1)
            h = self.attention(q, k, v, heads=16, causal=True)
            x = x + shifts[2] * self.linear(f"{at}.attn.to_out.0", h)
            h = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + shifts[4]) + shifts[3]
            h = self.linear(f"{at}.mlp.net.1", self.norm(f"{at}.mlp.net.0", h, 1e-5))
            x = x + shifts[5] * self.linear(f"{at}.mlp.net.4", F.gelu(h))
        return self.project("pred_proj", self.norm("predictor.transformer.norm", x, 1e-5))

    def rollout(self, z: Tensor, actions: Tensor) -> Tensor:
        latents = [z]
        for step in range(actions.shape[1]):
            low = max(step - 2, 0)
            seen = torch.stack(latents[low:], 1)
            latents.append(self.predict(seen, actions[:, low : step + 1])[:, -1])
        return torch.stack(latents, 1)


def test_the_layout_is_theirs() -> None:
    assert len(published(OLD)) == len(published(NEW)) == 303


@pytest.mark.slow
@pytest.mark.parametrize("spelling", [OLD, NEW])
@torch.no_grad()
def test_published_weights_give_the_same_rollout(spelling: tuple[str, ...]) -> None:
    state = {name: tensor.double() for name, tensor in published(spelling).items()}
    model = from_reference(state, "weights", **FACTS).double()
    config = model.config
    assert (config.image_size, config.depth, config.heads, config.history) == (224, 12, 3, 3)
    assert (config.predictor_depth, config.predictor_heads, config.latent_size) == (6, 16, 192)
    reference = Reference(state, spelling, heads=3)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (1, 224, 224, 3), generator=generator, dtype=torch.uint8)
    actions = torch.randn(1, 5, 10, generator=generator).double()
    wanted = reference.rollout(reference.encode(pixels), actions)
    found = model.dynamics.rollout(model.encode(pixels), actions)
    assert float((found - wanted).abs().max()) < 1e-6
    assert float(wanted.std()) > 0.1  # a rollout that moves
    single = model.float()
    found = single.dynamics.rollout(single.encode(pixels), actions.float())
    assert float((found - wanted).norm() / wanted.norm()) < 2e-6


def test_a_file_becomes_a_checkpoint(tmp_path: Path, dense_file: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in published(OLD, depth=1, image=28).items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "weights.pt")
    save_file(state, tmp_path / "weights.safetensors")
    for name in ("weights.pt", "weights.safetensors"):
        out = tmp_path / f"from {name}"
        made = import_lewm(ImportLewmConfig(tmp_path / name, out, "tworoom", data=dense_file))
        loaded = load_model(out)
        assert loaded.config == made.config
        assert loaded.config.task == "tworoom"
        assert min(loaded.config.action_std) > 0.01
        pixels = torch.zeros(28, 28, 3, dtype=torch.uint8)
        torch.testing.assert_close(loaded.encode(pixels), made.encode(pixels))


def test_other_files_are_refused(tmp_path: Path) -> None:
    state = published(NEW, depth=1, image=28)
    with pytest.raises(InputError, match=r"expected the weights of LeWM .* found a, b"):
        from_reference({"a": torch.ones(1), "b": torch.ones(1)}, "weights", **FACTS)
    with pytest.raises(InputError, match="unknown extra"):
        from_reference(state | {"extra": torch.ones(1)}, "weights", **FACTS)
    less = {name: t for name, t in state.items() if "to_out" not in name}
    with pytest.raises(InputError, match=r"expected the tensor .*to_out.*, found none"):
        from_reference(less, "weights", **FACTS)
    with pytest.raises(InputError, match="expected 10 numbers a block of actions"):
        from_reference(state, "weights", **FACTS | {"frame_skip": 4})
    torch.save({"object": Path("x")}, tmp_path / "object.pt")
    (tmp_path / "text.pt").write_text("hello")
    for name, message in (
        ("object.pt", "expected tensors"),
        ("text.pt", "expected tensors"),
        ("none.pt", "expected a file of weights, found none"),
    ):
        config = ImportLewmConfig(
            tmp_path / name, tmp_path / "out", "tworoom", action_mean=(0,), action_std=(1,)
        )
        with pytest.raises(InputError, match=message):
            import_lewm(config)
    with pytest.raises(InputError, match="found neither"):
        ImportLewmConfig(tmp_path / "w.pt", tmp_path / "out", "tworoom")
    assert not (tmp_path / "out").exists()
