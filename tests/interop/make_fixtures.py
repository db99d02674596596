"""The files in tests/fixtures, written by the neighbours' own writers.

    make test-interop && PYTHONPATH=src .venv-interop/bin/python tests/interop/make_fixtures.py

Every picture says where it is from: its left half has the value 10 t + e, its right half 255 minus
it, for step t of episode e. They are 32 high and 48 wide.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from stable_worldmodel.data.formats.hdf5 import HDF5Writer
from stable_worldmodel.data.formats.lance import LanceWriter

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = (9, 12, 7)
HEIGHT, WIDTH = 32, 48


def picture(episode: int, step: int) -> np.ndarray:
    image = np.full((HEIGHT, WIDTH, 3), 10 * step + episode, np.uint8)
    image[:, WIDTH // 2 :] = 255 - image[:, : WIDTH // 2]
    return image


def numbers(episode: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The action and the state of a step."""
    action = np.array([step / 7, -episode / 3], np.float32)
    return action, np.array([episode, step, episode * step], np.float32)


def columns(episode: int) -> dict[str, list[np.ndarray]]:
    steps = range(LENGTHS[episode])
    found = [numbers(episode, step) for step in steps]
    return {
        "pixels": [picture(episode, step) for step in steps],
        "action": [action for action, _ in found],
        "proprio": [state for _, state in found],
    }


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    for name in ("swm.lance", "lerobot"):
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
    (FIXTURES / "swm.hdf5").unlink(missing_ok=True)
    with HDF5Writer(FIXTURES / "swm.hdf5") as writer:
        writer.write_episodes(columns(episode) for episode in range(len(LENGTHS)))
    with LanceWriter(FIXTURES / "swm.lance") as writer:
        writer.write_episodes(columns(episode) for episode in range(len(LENGTHS)))
    names = ["height", "width", "channels"]
    video = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": names}
    still = {"dtype": "image", "shape": (HEIGHT, WIDTH, 3), "names": names}
    dataset = LeRobotDataset.create(
        "local/fixture",
        fps=10,
        root=FIXTURES / "lerobot",
        features={
            "observation.images.top": video,
            "observation.images.side": still,
            "observation.state": {
                "dtype": "float32",
                "shape": (3,),
                "names": ["which.pos", "when.pos", "both.pos"],
            },
            "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        },
    )
    for episode, length in enumerate(LENGTHS):
        for step in range(length):
            action, state = numbers(episode, step)
            dataset.add_frame(
                {
                    "observation.images.top": picture(episode, step),
                    "observation.images.side": picture(episode, step)[:, ::-1],
                    "observation.state": state,
                    "action": action,
                    "task": "count",
                }
            )
        dataset.save_episode()
    dataset.finalize()


if __name__ == "__main__":
    main()
