"""What is a history worth, or a joint angle? The same eyes with more to observe, and new dynamics.

    python examples/more_senses.py --checkpoint pretrained/reacher --data reacher.h5 \
        --out runs/two --options '{"observed": 2, "observed_every": 1}'
    bwm train-residual --checkpoint runs/two --data reacher.h5 --out runs/two-residual

The encoder and its drawing are those of the checkpoint; A, B, C and R begin anew, for the second
stage to fit. So models differ in what they observe and in nothing else. Prints R^2 of every state
variable on held-out episodes, read off the latent by a small network: how fast a joint turns is no
linear function of how points move.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bilinear_wm.analysis.latents import encode_windows, episodes_for
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.models import load_model
from bilinear_wm.models.bilinear import BilinearConfig, BilinearWorldModel
from bilinear_wm.options import from_json
from bilinear_wm.tasks import task_class
from bilinear_wm.training.train import TrainConfig, observed_by

WINDOWS, HIDDEN = 3000, (128, 128)


def main(checkpoint: Path, data: Path, out: Path, options: dict[str, Any]) -> dict[str, float]:
    """Write the checkpoint, print and return the probes."""
    eyes = load_model(checkpoint)
    spec = observed_by(TrainConfig(data, out, options=options))
    found = EpisodeDataset(data, 2, spec=spec, in_memory=False)
    kept = {f.name: getattr(eyes.config, f.name) for f in fields(eyes.config)}
    changed = from_json(BilinearConfig, options) | {
        "action_mean": tuple(found.action_mean.tolist()),
        "action_std": tuple(found.action_std.tolist()),
        "proprioception_mean": tuple(found.proprioception_mean.tolist()),
        "proprioception_std": tuple(found.proprioception_std.tolist()),
        "residual_hidden": 0,
    }
    torch.manual_seed(0)
    model = BilinearWorldModel(BilinearConfig(**(kept | changed))).eval()
    own = {k: v for k, v in eyes.state_dict().items() if k.startswith(("encoder.", "drawing."))}
    model.load_state_dict(own, strict=False)
    out.mkdir(parents=True)
    model.save_pretrained(out)
    scores = probe(model, data)
    print(f"{spec}: a latent of {model.config.latent_size} numbers")
    print("  ".join(f"{name} {score:.3f}" for name, score in scores.items()))
    return scores


def probe(model: BilinearWorldModel, data: Path) -> dict[str, float]:
    """R^2 of a network that reads the state's numbers and what the task's probes look for."""
    task = task_class(model.config.task)
    seen = []
    for split in ("train", "validation"):
        z, _, states = encode_windows(model, episodes_for(model, data, split), WINDOWS)
        assert states is not None
        flat = states.reshape(-1, states.shape[-1])
        numbers = {name: flat[:, i] for i, name in enumerate(task.state_names)}
        seen.append((z.flatten(0, 1).double().numpy(), numbers | task.probe_targets(flat)))
    (z_fit, fit), (z_test, truth) = seen
    wanted = np.stack(list(fit.values()), axis=1)
    mean, std = wanted.mean(0), wanted.std(0)
    network = MLPRegressor(
        hidden_layer_sizes=HIDDEN, early_stopping=True, max_iter=1000, random_state=0
    )
    reader = make_pipeline(StandardScaler(), network).fit(z_fit, (wanted - mean) / std)
    read = reader.predict(z_test) * std + mean
    errors = [np.square(read[:, i] - true).mean() for i, true in enumerate(truth.values())]
    return {
        name: float(1 - error / true.var())
        for (name, true), error in zip(truth.items(), errors, strict=True)
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("checkpoint", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    main(**vars(parser.parse_args()))
