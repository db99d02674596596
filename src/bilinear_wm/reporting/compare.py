"""Two results files on the tasks that they share: a paired test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from scipy.stats import binomtest

from bilinear_wm.errors import InputError
from bilinear_wm.reporting.results import EpisodeResult, Rate, rate, read_results
from bilinear_wm.stage import Outcome


@dataclass(frozen=True)
class Compared:
    """One of the two files."""

    name: str
    success: Rate
    """On the shared tasks."""
    present: int
    announced: int
    """Episodes that its header tells of; more than `present` if it was interrupted."""


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same starts and goals."""

    first: Compared
    second: Compared
    episodes: int
    only_first: int
    only_second: int
    p_value: float
    """Of McNemar's exact test: chance of a split as uneven if the methods were equally good."""

    def __str__(self) -> str:
        sides = (self.first, self.second)
        width = max(len(side.name) for side in sides)
        lines = [f"{self.episodes} shared tasks"]
        for side, alone in zip(sides, (self.only_first, self.only_second), strict=True):
            lines.append(f"  {side.name:<{width}}  {side.success}, {alone} solved by it alone")
        lines.append(f"McNemar's exact p = {self.p_value:.3g}")
        lines += [
            f"warning: {side.name} has {side.present} of its {side.announced} episodes: it was "
            "interrupted or cut; --resume of the command that made it completes it"
            for side in sides
            if side.present < side.announced
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class CompareConfig:
    """A comparison.

    Attributes:
        first: A results file of `bwm evaluate`.
        second: Another, of the same task, offset and seed.
    """

    first: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FIRST.jsonl")]
    second: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SECOND.jsonl")]

    def run(self) -> Outcome:
        """`compare`, in words."""
        result = compare(self.first, self.second)
        return Outcome(str(result), asdict(result))


def compare(first: Path, second: Path) -> Comparison:
    """A paired test; refuses files whose tasks differ."""
    (head_a, rows_a), (head_b, rows_b) = read_results(first), read_results(second)
    for name in ("task", "offset", "seed", "tasks_from", "moving"):
        if head_a.get(name) != head_b.get(name):
            raise InputError(
                f"{second}: expected the {name} of {first}, {head_a.get(name)}, "
                f"found {head_b.get(name)}"
            )
    found = paired(rows_a, rows_b)
    if not found.outcomes:
        raise InputError(f"{second}: expected tasks that {first} has too, found none")

    def side(path: Path, header: dict[str, Any], outcomes: list[bool], rows: int) -> Compared:
        return Compared(str(path), rate(outcomes), rows, int(header.get("episodes", rows)))

    return Comparison(
        side(first, head_a, [a for a, _ in found.outcomes], len(rows_a)),
        side(second, head_b, [b for _, b in found.outcomes], len(rows_b)),
        len(found.outcomes),
        found.only_first,
        found.only_second,
        found.p_value,
    )


@dataclass(frozen=True)
class Paired:
    """Outcomes of two methods on the tasks that both met."""

    outcomes: tuple[tuple[bool, bool], ...]

    @property
    def only_first(self) -> int:
        return sum(a and not b for a, b in self.outcomes)

    @property
    def only_second(self) -> int:
        return sum(b and not a for a, b in self.outcomes)

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test."""
        alone = self.only_first + self.only_second
        return float(binomtest(self.only_first, alone).pvalue) if alone else 1.0


def paired(first: Sequence[EpisodeResult], second: Sequence[EpisodeResult]) -> Paired:
    """The tasks that both have, in the order of the first."""
    known = {(r.episode, r.start_step): r.success for r in second}
    places = ((r, (r.episode, r.start_step)) for r in first)
    return Paired(tuple((r.success, known[place]) for r, place in places if place in known))
