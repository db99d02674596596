"""Draw the four tasks while their behaviour policies act: the picture in the README.

python examples/gallery.py docs/images/gallery.png
"""

import sys
from pathlib import Path

import bilinear_wm as bwm
from bilinear_wm.collect import episode_seed, record_episode
from bilinear_wm.media import contact_sheet, write_picture

FRAMES, STRIDE, SIZE = 9, 8, 128


def main(path: Path) -> None:
    rows = []
    for name in bwm.TASK_NAMES:
        env = bwm.make_task(name, image_size=SIZE)
        rows.append(record_episode(env, episode_seed(1, 0), STRIDE).pixels[:FRAMES])
        env.close()
    write_picture(path, contact_sheet(rows, FRAMES))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery.png"))
