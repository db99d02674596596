"""How fast the compact model trains here, against what the cores can multiply.

    python benchmarks/training.py

Prints images a second for a whole training step and for the encoder alone, and the share of the
measured matrix-multiplication peak that the encoder's arithmetic reaches. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bilinear_wm import recipes
from bilinear_wm.models import MODELS
from bilinear_wm.models.base import WorldModel

FACTS: dict[str, Any] = {
    "task": "pusht",
    "image_size": 64,
    "frame_skip": 5,
    "action_mean": (0.0, 0.0),
    "action_std": (1.0, 1.0),
}


def seconds(work: Callable[[], object], repeats: int = 8) -> float:
    """The median time of a piece of work, after warming up."""
    times = []
    for repeat in range(repeats + 2):
        begun = time.perf_counter()
        work()
        if repeat >= 2:
            times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2]


VIT: dict[str, Any] = {
    "encoder": "vit", "drawing_weight": 0.0, "shift_weight": 0.0, "width": 128, "depth": 4,
    "heads": 4,
}  # fmt: skip


def gemm_peak(size: int = 1536) -> float:
    """GFLOP/s of a large single-precision product on all cores."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2e-9 * size**3 / seconds(lambda: a @ b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    peak = gemm_peak()
    print(f"{torch.get_num_threads()} threads, peak {peak:.0f} GFLOP/s (float32 product)")
    figures: dict[str, Any] = {"gemm_peak_gflops": peak}
    stems: dict[str, dict[str, Any]] = {
        "compact": {},
        "points, without anchor and shifts": {"drawing_weight": 0.0, "shift_weight": 0.0},
        "patches of 16, 4 layers": VIT | {"patch_size": 16},
        "patches of 8, 4 layers": VIT | {"patch_size": 8},
    }
    for name, changes in stems.items():
        recipe = recipes.compact(Path("x"), Path("y"), "bilinear", "pusht")
        cls = MODELS["bilinear"]
        model = cls(cls.config_class(**FACTS, **(recipe.options | changes)))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        shape = (recipe.batch_size, recipe.num_frames, 64, 64, 3)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
        actions = torch.randn(recipe.batch_size, recipe.num_frames - 1, 10)
        images = recipe.batch_size * recipe.num_frames

        def encode(model: WorldModel = model, pixels: torch.Tensor = pixels) -> None:
            model.encoder(pixels).sum().backward()

        def step(
            model: WorldModel = model,
            optimizer: torch.optim.Optimizer = optimizer,
            batch: tuple[torch.Tensor, torch.Tensor] = (pixels, actions),
        ) -> None:
            optimizer.zero_grad()
            model.loss(*batch).total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        with FlopCounterMode(display=False) as counter:
            encode()
        flops = counter.get_total_flops()
        encoder_s, step_s = seconds(encode), seconds(step)
        row = {
            "parameters": sum(p.numel() for p in model.encoder.parameters()),
            "step_ms": 1e3 * step_s,
            "images_per_s": images / step_s,
            "encoder_images_per_s": images / encoder_s,
            "encoder_share_of_peak": 1e-9 * flops / encoder_s / peak,
        }
        figures[name] = row
        print(
            f"{name:32} {row['parameters'] / 1e6:5.2f} M parameters, step of {images} images "
            f"{row['step_ms']:6.0f} ms, {row['images_per_s']:6,.0f} images/s, "
            f"encoder at {row['encoder_share_of_peak']:.0%} of peak"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
