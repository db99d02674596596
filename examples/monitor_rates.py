"""How often does the action-recovery monitor fire: on clean blocks, and when somebody pushes?

    python examples/monitor_rates.py pretrained/tworoom tworoom.h5

The threshold is set on training episodes (one false alarm in a hundred blocks). Held-out blocks are
then played again from their recorded states, as they were and with a push from outside in the
middle (the push of `bwm play`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from bilinear_wm.analysis.latents import encode_windows, episodes_for
from bilinear_wm.control.monitor import ActionMonitor
from bilinear_wm.evaluation.load import checked_camera
from bilinear_wm.models import load_model
from bilinear_wm.play.canvas import make_canvas
from bilinear_wm.reporting.results import rate
from bilinear_wm.tasks import make_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--blocks", type=int, default=300)
    parser.add_argument("--false-alarms", type=float, default=0.01)
    options = parser.parse_args()
    model = load_model(options.checkpoint).eval()
    task, skip = model.config.task, model.config.frame_skip
    train = episodes_for(model, options.data)
    held_out = episodes_for(model, options.data, "validation")
    z, actions, _ = encode_windows(model, train, 2000)
    monitor = ActionMonitor.calibrated(model, z, actions, options.false_alarms)

    camera, env = checked_camera(model, task, options.checkpoint), make_task(task, image_size=8)
    canvas, rng = make_canvas(task), np.random.default_rng(0)
    fired: dict[bool, list[bool]] = {False: [], True: []}
    for index in np.linspace(0, len(held_out) - 1, options.blocks).astype(int):
        batch = held_out.batch(np.array([index]))
        assert batch.states is not None
        block = torch.from_numpy(batch.actions[0])
        raw = model.to_env_actions(block).numpy()
        before = model.encode(camera.picture(batch.states[0, 0]))
        for pushed in fired:
            env.set_state(batch.states[0, 0])
            for step, action in enumerate(raw):
                if pushed and step == skip // 2:
                    canvas.push(env, rng)
                env.advance(action)
            after = model.encode(camera.picture(env.state))
            fired[pushed].append(monitor.fires(before, block[0], after))
    print(f"{task}: fires on {rate(fired[False])} of {options.blocks} clean blocks, "
          f"on {rate(fired[True])} of those with a push")  # fmt: skip


if __name__ == "__main__":
    main()
