"""Can an encoder see the state at all? Train it with labels and watch held-out R².

    python examples/encoder_with_labels.py pusht.h5 --steps 300 --options '{"num_points": 24}'

If a variable stays at zero even with labels, the encoder is at fault, not the objective.
"""

from __future__ import annotations

import argparse
import json
import math

import numpy as np
import torch
from torch import Tensor, nn

from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models.config import ENCODER_SIZES, ModelConfig
from bilinear_wm.models.encoders import make_encoder
from bilinear_wm.tasks import task_class

BATCH, LEARNING_RATE, WARMUP, EVERY = 128, 1e-3, 30, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--options", default="{}", help="encoder fields, as JSON")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    train = EpisodeDataset(arguments.data, 2)
    held_out = EpisodeDataset(arguments.data, 2, split="validation")
    task = task_class(str(train.file.task))

    def labels(states: np.ndarray | None) -> tuple[list[str], Tensor]:
        assert states is not None, "the file has no states"
        targets = task.probe_targets(states.reshape(-1, states.shape[-1]))
        return list(targets), torch.tensor(np.stack(list(targets.values()), 1)).float()

    some = np.linspace(0, len(train) - 1, 2000).astype(int)
    names, known = labels(train.batch(some).states)
    mean, std = known.mean(0), known.std(0)
    size = train.image_size
    config = ModelConfig(
        str(train.file.task), size, 5, (0.0,), (1.0,),
        **(ENCODER_SIZES["compact"] | json.loads(arguments.options)),
    )  # fmt: skip
    model = nn.Sequential(make_encoder(config), nn.Linear(config.latent_size, len(names)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=1e-3)
    test = held_out.batch(np.linspace(0, len(held_out) - 1, 500).astype(int))
    print("step", *names, sep="\t")
    for step in range(arguments.steps):
        batch = train.batch(train.order(0, 0)[step * BATCH % (len(train) - BATCH) :][:BATCH])
        rate = LEARNING_RATE * min(1, (step + 1) / WARMUP)
        optimizer.param_groups[0]["lr"] = (
            rate * 0.5 * (1 + math.cos(math.pi * step / arguments.steps))
        )
        truth = (labels(batch.states)[1] - mean) / std
        loss = (model(torch.from_numpy(batch.pixels)).flatten(0, 1) - truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            with torch.no_grad():  # in training mode: batch statistics of the held-out batch
                told = model(torch.from_numpy(test.pixels)).flatten(0, 1)
            truth = (labels(test.states)[1] - mean) / std
            score = 1 - (told - truth).square().mean(0) / truth.var(0)
            print(step + 1, *(f"{value:.3f}" for value in score.tolist()), sep="\t", flush=True)


if __name__ == "__main__":
    main()
