"""Plans of a bundle in a process where torch cannot be imported: BUNDLE PROBLEMS.npz OUT.npz."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np


class Refuse(MetaPathFinder):
    """Nothing of torch can be found."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is refused here", name=name)


def main(folder: Path, problems: Path, out: Path) -> None:
    sys.meta_path.insert(0, Refuse())
    from bilinear_wm import deploy

    bundle, given = deploy.load(folder), np.load(problems)
    found: dict[str, list[Any]] = {name: [] for name in ("z", "same", "seen", "cost", "status")}
    rows = zip(given["pictures"], given["goals"], given["z"], given["z_goal"], strict=True)
    for picture, goal, z, z_goal in rows:
        found["z"].append(bundle.encode(picture))
        same = bundle.plan(z, z_goal)
        found["same"].append(same.actions)
        found["seen"].append(bundle.plan(picture, goal).actions)
        found["cost"].append(same.cost)
        found["status"].append(same.status)
    assert not any(name.partition(".")[0] == "torch" for name in sys.modules)
    np.savez(out, **{name: np.array(values) for name, values in found.items()})  # type: ignore[arg-type]
    print("numba" in sys.modules)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
