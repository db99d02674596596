"""Attack the package: kills, overlapping writers, flips, forged files, fuzz, hostile clients.

    python -m attack [--seed 0] [--scale 1] [--only kills writers flips ...]

At scale 1 it takes about ten minutes on two idle cores. Ends with one table of counts, and with
status 1 if anything failed. The same seed poses the same cases; when a kill strikes is up to the
machine.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from attack.clients import attack_play
from attack.common import Attack, Tally
from attack.files import attack_flips, attack_forgeries
from attack.interrupts import attack_interrupts
from attack.kills import attack_kills, attack_writers
from attack.planners import attack_planners

SECTIONS: dict[str, Callable[[Attack], Iterator[Tally]]] = {
    "kills": attack_kills,
    "writers": attack_writers,
    "interrupts": attack_interrupts,
    "flips": attack_flips,
    "forgeries": attack_forgeries,
    "planners": attack_planners,
    "play": attack_play,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="attack", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="by default another each time")
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options = parser.parse_args()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}, scale {options.scale:g}", flush=True)
    torch.set_num_threads(1)  # processes are forked
    tallies: list[Tally] = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        for name in options.only:
            folder = Path(place) / name
            folder.mkdir()
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            for tally in SECTIONS[name](Attack(folder, rng, options.scale)):
                print(_line(tally), flush=True)
                tallies.append(tally)
    print(f"\n{'attack':<38}{'cases':>8}{'failed':>8}")
    for tally in tallies:
        print(f"{tally.name:<38}{tally.cases:>8}{tally.failed.total():>8}")
    cases, failed = (sum(t.cases for t in tallies), sum(t.failed.total() for t in tallies))
    print(f"{'all':<38}{cases:>8}{failed:>8}")
    print(f"seed {seed}, {time.perf_counter() - begun:.0f} s")
    return 1 if failed else 0


def _line(tally: Tally) -> str:
    said = (
        f"{tally.name}: {tally.cases} cases, {tally.failed.total()} failed, {tally.seconds:.0f} s"
    )
    return "\n".join(
        [said, *(f"  {count} x {what}" for what, count in tally.failed.most_common(9))]
    )


if __name__ == "__main__":
    sys.exit(main())
