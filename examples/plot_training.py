"""Draw what a training run learned: its metrics, and the latents of held-out pictures.

python examples/plot_training.py runs/tworoom tworoom.h5 docs/images/tworoom-training.png
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from sklearn.decomposition import PCA

import bilinear_wm as bwm
from bilinear_wm.analysis.latents import encode_windows
from bilinear_wm.tasks import task_class


def main(run: Path, data: Path, picture: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    figure, axes = plt.subplots(2, 3, figsize=(13, 7.2), layout="constrained")

    def curves(axis: Axes, names: list[str], title: str, log: bool = False) -> None:
        for name in names:
            if name in rows[0]:
                axis.plot(steps, [row[name] for row in rows], marker=".", label=name)
        axis.set(title=title, xlabel="step", yscale="log" if log else "linear")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)

    curves(axes[0, 0], ["val_forward", "val_inverse"], "Held-out losses", log=True)
    curves(axes[0, 1], ["sigma_min", "sigma_max", "latent_std"], "Singular values of R", log=True)
    probes = [name for name in rows[0] if name.startswith("probe_")]
    curves(axes[0, 2], probes, "Linear probes of the state (R²)")
    axes[0, 2].set_ylim(min(0.9, *(row[name] for row in rows for name in probes)), 1.005)
    curves(
        axes[1, 0],
        [f"open_loop_{i}" for i in (1, 3, 5)],
        "Open-loop error / error of 'nothing moves'",
        log=True,
    )
    axes[1, 0].axhline(1 / 3, color="grey", linestyle="--", linewidth=1)

    held_out = bwm.EpisodeDataset(data, num_frames=2, split="validation")
    model = bwm.load_model(run)
    z, _, states = encode_windows(model, held_out, 2000)
    latents = z.flatten(0, 1).numpy()
    pca = PCA(n_components=min(12, latents.shape[1])).fit(latents)
    share = pca.explained_variance_ratio_
    axes[1, 1].bar(np.arange(1, len(share) + 1), share, color="tab:blue")
    axes[1, 1].axvline(model.config.action_size + 0.5, color="tab:red", linestyle="--")
    axes[1, 1].set(title="Variance per principal component", xlabel="component")
    axes[1, 1].text(model.config.action_size + 0.7, 0.9 * share[0], "action size", color="tab:red")

    assert states is not None
    targets = task_class(model.config.task).probe_targets(states.reshape(-1, states.shape[-1]))
    name, colour = next(iter(targets.items()))
    projected = pca.transform(latents)
    points = axes[1, 2].scatter(*projected[:, :2].T, c=colour, s=4, cmap="viridis")
    axes[1, 2].set(title="Held-out latents", xlabel="PC1", ylabel="PC2")
    figure.colorbar(points, ax=axes[1, 2], label=name)
    figure.suptitle(f"{model.kind} model, {model.config.task}, step {steps[-1]}")
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
