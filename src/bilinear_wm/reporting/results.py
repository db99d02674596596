"""results.jsonl: one header row, then one row an episode; summaries of them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.options import check_types, from_json

UNCOMPARED = ("versions", "machine", "measured")
"""What a file may be completed without."""
LATER = ("weights", "residual")
"""What files from before it was noted lack."""
HEADER: dict[str, type] = {
    "task": str, "planner": str, "offset": int, "horizon": int, "seed": int,
}  # fmt: skip
"""What every header has."""
STATES = {"trajectory": (2, "equally long lists of numbers"), "goal": (1, "numbers")}
"""Fields of an episode that hold states."""
PACKAGES = ("bilinear-world-models", "torch", "numpy", "mujoco", "pymunk", "numba")


@dataclass(frozen=True)
class EpisodeResult:
    """One start and goal, and how it went."""

    index: int
    episode: int
    start_step: int
    solved_at_start: bool
    success: bool
    steps: int
    """Environment steps taken: until the goal, or the whole budget."""
    distance: float
    """At the end, in units of what counts as success."""
    jerk: float
    """Mean length of the change between consecutive actions."""
    plans: int
    plan_seconds: float
    """Of this episode's share in every planning call."""
    encode_seconds: float
    statuses: tuple[str, ...] = ()
    alarms: int = 0
    """How often the action-recovery monitor fired."""
    idle: int = 0
    """Steps without a plan, where planning takes time."""
    trajectory: list[list[float]] = field(default_factory=list)
    """The state at the start and after every step, where it was asked for."""
    goal: list[float] = field(default_factory=list)
    """The state to be reached, beside a trajectory."""


@dataclass(frozen=True)
class Rate:
    """A share with its 95 % Wilson interval."""

    value: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def rate(outcomes: Sequence[bool]) -> Rate:
    """The share of successes."""
    if len(outcomes) == 0:
        return Rate(float("nan"), float("nan"), float("nan"), 0)
    interval = binomtest(sum(outcomes), len(outcomes)).proportion_ci(method="wilson")
    low, high = float(interval.low), float(interval.high)
    return Rate(sum(outcomes) / len(outcomes), low, high, len(outcomes))


class ResultFile:
    """Rows are appended as episodes end, so that an interruption loses none.

    `opened` makes one that no other process writes to.
    """

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, header: dict[str, Any], resume: bool) -> Iterator[Self]:
        """A file to write to, held for this process alone."""
        folder = path.resolve().parent
        if not folder.is_dir():
            raise InputError(f"out {path}: expected an existing folder, found no {folder}")
        disk.check_writable(path, "out")
        with disk.owned(path, f"out {path}: another process is writing this file"):
            yield cls(path, header, resume)

    def __init__(self, path: Path, header: dict[str, Any], resume: bool) -> None:
        self.path = path
        self.rows: list[EpisodeResult] = []
        if path.exists():
            if not resume:
                raise InputError(
                    f"out {path}: exists already; remove it, name another file, "
                    "or complete it with `resume`"
                )
            found, self.rows = read_results(path)
            for name in header:
                known = name in found or name not in LATER
                if name not in UNCOMPARED and known and found.get(name) != header[name]:
                    raise InputError(
                        f"resume {path}: expected {name} {header[name]}, found "
                        f"{found.get(name)}; give the options of the first run"
                    )
            self.header = found
            self._rewrite()  # a last line that an interruption cut is dropped
        else:
            self.header = header
            self._rewrite()

    def _rewrite(self) -> None:
        lines = [json.dumps({"header": self.header})] + [json.dumps(asdict(r)) for r in self.rows]
        disk.write_text(self.path, "\n".join(lines) + "\n")

    def note(self, name: str, fact: Any) -> None:
        """Add to a list in the header, of what is known only at the end."""
        self.say(name, [*self.header.get(name, []), fact])

    def say(self, name: str, fact: Any) -> None:
        """Add to the header."""
        self.header = self.header | {name: fact}
        self._rewrite()

    def add(self, row: EpisodeResult) -> None:
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def read_results(path: Path) -> tuple[dict[str, Any], list[EpisodeResult]]:
    """The header and the rows of a results file."""
    lines = disk.read_text(path, "a results file").splitlines()
    names = {f.name for f in fields(EpisodeResult)}
    required = {
        f.name
        for f in fields(EpisodeResult)
        if f.default is MISSING and f.default_factory is MISSING
    }
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and number > 1:
                break  # cut off by an interruption
            raise InputError(f"{path}: line {number}: expected JSON ({error})") from error
        if number == 1:
            if not isinstance(values, dict) or "header" not in values:
                raise InputError(f"{path}: line 1: expected the header of a results file")
            header = values["header"]
            _check_header(path, header)
            continue
        if not isinstance(values, dict) or not required <= set(values) <= names:
            raise InputError(
                f"{path}: line {number}: expected the fields of an episode, found {line[:80]}"
            )
        rows.append(_row(values, f"{path}: line {number}"))
    if not lines:
        raise InputError(f"{path}: expected a results file, found an empty one")
    return header, rows


def _check_header(path: Path, header: Any) -> None:
    """Refuse a header without what tells runs apart."""
    for name, kind in HEADER.items():
        found = header.get(name) if isinstance(header, dict) else None
        if not isinstance(found, kind) or isinstance(found, bool):
            raise InputError(
                f"{path}: line 1: {name}: expected {kind.__name__}, found {found!r}"[:300]
            )


def _row(values: dict[str, Any], where: str) -> EpisodeResult:
    """An episode's line; refuses other types than the fields have."""
    plain = {name: value for name, value in values.items() if name not in STATES}
    plain = from_json(EpisodeResult, plain)
    check_types(EpisodeResult, plain, where)
    states = {name: values.get(name, []) for name in STATES}
    for (name, found), (dimensions, wanted) in zip(states.items(), STATES.values(), strict=True):
        try:
            sound = isinstance(found, list) and (
                not found or np.asarray(found, np.float64).ndim == dimensions
            )
        except (ValueError, TypeError):
            sound = False
        if not sound:
            raise InputError(f"{where}: {name}: expected a list of {wanted}")
    return EpisodeResult(**plain, **states)


def machine_facts() -> dict[str, Any]:
    """What results depend on beside the settings."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    return {
        "versions": versions,
        "machine": {
            "system": platform.system(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
    }


def mean_change(actions: Sequence[NDArray[np.float32]]) -> float:
    """Mean length of the change between consecutive actions."""
    if len(actions) < 2:
        return 0.0
    return float(np.linalg.norm(np.diff(np.array(actions), axis=0), axis=-1).mean())


def mean_jerk(rows: Sequence[EpisodeResult]) -> float:
    """Of the episodes that had to act more than once; NaN where none had to."""
    values = [row.jerk for row in rows if not row.solved_at_start and row.steps > 1]
    return float(np.mean(values)) if values else float("nan")


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile, NaN of nothing."""
    return float(np.percentile(values, share)) if len(values) else float("nan")
