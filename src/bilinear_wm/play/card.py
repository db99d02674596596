"""What a model's card says of its success: no figure on the page is written by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bilinear_wm.models.checkpoint import resolve

CARD = "README.md"
LONGEST = 2**16
"""Bytes of a card that are read: it may come from anywhere."""
SUCCESS = re.compile(r"([\d.]+ %) \[([\d.]+), ([\d.]+)\] of (\d+)")


@dataclass(frozen=True)
class Measured:
    """A row of a card's table."""

    rate: str
    interval: tuple[str, str]
    tasks: int
    solved: int
    """Of the tasks, before anything was done."""
    offset: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate} [{low}, {high}] of {self.tasks} goals {self.offset} steps away" + (
            f", {self.solved} of them solved from the start" if self.solved else ""
        )


def measured(checkpoint: Path, planner: str, offset: int) -> Measured | None:
    """What the card in a checkpoint folder says of a planner, if it has a row for it."""
    card = resolve(checkpoint) / CARD
    if not card.is_file():
        return None
    with card.open("rb") as file:
        text = file.read(LONGEST).decode(errors="replace")
    names: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if {"offset", "planner"} <= set(cells):
            names = cells
        row = dict(zip(names, cells, strict=False))
        if row.get("planner") != planner or row.get("offset") != str(offset):
            continue
        success = next((v for k, v in row.items() if k.startswith("success")), "")
        solved = row.get("solved at the start", "")
        found = SUCCESS.fullmatch(success)
        if found and solved.isdecimal():
            rate, low, high, tasks = found.groups()
            return Measured(rate, (low, high), int(tasks), int(solved), offset)
    return None
