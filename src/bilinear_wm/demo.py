"""`bwm demo`: the main job, small, from start to end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bilinear_wm.collect import CollectConfig, collect
from bilinear_wm.episodes import EpisodeFile
from bilinear_wm.inspection import Summary, describe, sheet, summarize
from bilinear_wm.media import write_picture, write_video

TASK = "tworoom"
EPISODES = 200
VIDEO_EPISODES = 4


def run_demo(out: Path, progress: bool = True) -> tuple[Summary, list[Path]]:
    """Collect TwoRoom episodes into `out`, look at them, and return what was made."""
    out.mkdir(parents=True, exist_ok=True)
    data, picture, video = out / "tworoom.h5", out / "tworoom.png", out / "tworoom.mp4"
    with tempfile.TemporaryDirectory(dir=out) as scratch:  # replaces an earlier demo's file
        fresh = Path(scratch) / data.name
        collect(CollectConfig(TASK, fresh, EPISODES, frame_stride=1), progress)
        fresh.replace(data)
    file = EpisodeFile(data)
    summary = summarize(file)
    print(describe(summary))
    write_picture(picture, sheet(file))
    with file.open() as handle:
        frames = [f for e in range(VIDEO_EPISODES) for f in file.read_frames(handle, e)]
    write_video(video, frames, fps=30)
    return summary, [data, picture, video]
