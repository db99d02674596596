"""What is in an episode file: `bwm inspect FILE`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray

from bilinear_wm.data.file import EpisodeFile, in_pixels
from bilinear_wm.reporting.media import Pixels, Strip, contact_sheet, write_picture
from bilinear_wm.stage import Outcome
from bilinear_wm.tasks import task_class

OFFSETS = (25, 50, 75)
SHEET_ROWS, SHEET_COLUMNS = 8, 12


@dataclass(frozen=True)
class InspectConfig:
    """A look into an episode file.

    Attributes:
        file: Episodes of `bwm collect`, stable-worldmodel or LeRobot.
        sheet: Where to write the contact sheet (PNG); beside the file by default.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    sheet: Path | None = None

    def run(self) -> Outcome:
        """Facts, and the contact sheet."""
        episodes = EpisodeFile(self.file)
        summary = summarize(episodes)
        target = self.sheet or episodes.path.with_suffix(".png")
        write_picture(target, sheet(episodes))
        text = f"{describe(summary)}\ncontact sheet: {target}"
        return Outcome(text, {**asdict(summary), "sheet": target})


@dataclass(frozen=True)
class Summary:
    """Facts about an episode file."""

    path: str
    format: str
    task: str | None
    columns: dict[str, tuple[tuple[int, ...], str]]
    episodes: int
    rows: int
    length_min: int
    length_mean: float
    length_max: int
    frame_stride: int
    image_size: int
    image_width: int
    render_quality: str | None
    action_mean: list[float]
    action_std: list[float]
    action_min: list[float]
    action_max: list[float]
    solved_share: dict[int, float]
    """Per offset: the share of tasks (t, t + offset) that are solved before they begin."""
    window_shares: dict[str, float]
    """Further shares of windows of 25 steps that the task finds telling."""


def summarize(file: EpisodeFile) -> Summary:
    """Count, measure and judge an episode file."""
    acted = np.ones(len(file.actions), bool)
    acted[file.offsets + file.lengths - 1] = False
    actions = file.actions[acted].astype(np.float64)
    task = task_class(file.task) if file.task is not None and file.states is not None else None
    solved, shares = {}, {}
    if task is not None:
        for offset in OFFSETS:
            before, after = _pairs(file, offset)
            if len(before):
                solved[offset] = float(task.success(before, after).mean())
        before, after = _pairs(file, OFFSETS[0])
        if len(before):
            found = task.window_shares(before, after)
            shares = {name: float(share.mean()) for name, share in found.items()}
    return Summary(
        path=str(file.path),
        format=file.format,
        task=file.task,
        columns=file.columns,
        episodes=file.num_episodes,
        rows=int(file.lengths.sum()),
        length_min=int(file.lengths.min()),
        length_mean=float(file.lengths.mean()),
        length_max=int(file.lengths.max()),
        frame_stride=file.frame_stride,
        image_size=file.picture_shape[0],
        image_width=file.picture_shape[1],
        render_quality=file.render_quality,
        action_mean=actions.mean(axis=0).tolist(),
        action_std=actions.std(axis=0).tolist(),
        action_min=actions.min(axis=0).tolist(),
        action_max=actions.max(axis=0).tolist(),
        solved_share=solved,
        window_shares=shares,
    )


def sheet(file: EpisodeFile) -> Pixels:
    """A contact sheet: some episodes, a line each."""
    chosen = np.linspace(0, file.num_episodes - 1, min(SHEET_ROWS, file.num_episodes))
    strips = []
    for episode in chosen.round().astype(int).tolist():
        frames = file.read_frames(episode)
        shown = np.linspace(0, len(frames) - 1, SHEET_COLUMNS).round().astype(int)
        steps = [f"step {step}" for step in file.frame_stride * shown]
        strips.append(Strip(f"episode {episode}", frames[shown], steps))
    file.close()
    return contact_sheet(strips)


def describe(summary: Summary) -> str:
    """The summary as lines for a person."""
    s = summary
    quality, size = s.render_quality or "unknown", in_pixels((s.image_size, s.image_width))
    lines = [
        f"{s.path}: {s.task or 'unknown task'} ({s.format})",
        f"  episodes   {s.episodes:,}, {s.rows:,} rows, "
        f"length {s.length_min} to {s.length_max} (mean {s.length_mean:.1f})",
        f"  pictures   {size}, {quality}, every {_ordinal(s.frame_stride)} step",
        "  columns    " + ", ".join(f"{n} {t} {list(d)}" for n, (d, t) in s.columns.items()),
        "  actions    mean " + _numbers(s.action_mean) + "  std " + _numbers(s.action_std),
        "             min  " + _numbers(s.action_min) + "  max " + _numbers(s.action_max),
    ]
    if s.solved_share:
        shares = ", ".join(f"@{k} {v:.1%}" for k, v in s.solved_share.items())
        lines.append(f"  solved before the start   {shares}")
    lines += [f"  in 25 steps   {name}: {share:.1%}" for name, share in s.window_shares.items()]
    return "\n".join(lines)


def _pairs(file: EpisodeFile, offset: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All (state at t, state at t + offset) within episodes."""
    assert file.states is not None
    starts = [
        np.arange(first, first + length - offset)
        for first, length in zip(file.offsets, file.lengths, strict=True)
    ]
    rows = np.concatenate(starts).astype(np.int64)
    return file.states[rows], file.states[rows + offset]


def _numbers(values: list[float]) -> str:
    return "[" + " ".join(f"{v:+.3f}" for v in values) + "]"


def _ordinal(number: int) -> str:
    return "single" if number == 1 else f"{number}th"
