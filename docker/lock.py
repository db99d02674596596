"""Write requirements.lock: every package that `.[dev]` brings, with its version and its hash.

    make lock

pip resolves under constraints.txt and says what it would install; nothing is installed. Hashes are
those of the files that pip chose, so a lock holds for one Python and one kind of machine. There is
no address in it: any index that has the same files will do.

torch stands apart. Indexes offer different builds under one version (with CUDA, or for CPUs alone),
each with other dependencies and another hash: it is installed first, from wherever the right build
is, and the lock only says which file was tested.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

APART = "torch"
ROOT = Path(__file__).parents[1]
BACKEND = "hatchling"


def resolved() -> list[dict[str, Any]]:
    """What pip would install into an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        wanted = ["--constraint", "constraints.txt", BACKEND, "--editable", ".[dev]"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *wanted], cwd=ROOT, check=True
        )
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return found


def lines(install: list[dict[str, Any]]) -> list[str]:
    """The lock, one package after the other."""
    made = []
    for package in sorted(install, key=lambda package: package["metadata"]["name"].lower()):
        facts, source = package["metadata"], package["download_info"]
        if "archive_info" not in source:
            continue  # the project itself
        name, version = facts["name"], facts["version"]
        digest = source["archive_info"]["hashes"]["sha256"]
        if name == APART:
            made.append(f"# {name}=={version} --hash=sha256:{digest} (apart: see docker/lock.py)")
        else:
            made.append(f"{name}=={version} \\\n    --hash=sha256:{digest}")
    return made


def main() -> None:
    system = f"Python {sys.version_info.major}.{sys.version_info.minor}, {platform.system()} "
    head = [
        f"# Tested together, for {system}{platform.machine()}. Written by `make lock`.",
        "# Install torch first, from the index that has the build you want; then",
        "#   pip install --require-hashes --no-deps -r requirements.lock",
        "#   pip install --no-deps --no-build-isolation --editable .",
    ]
    (ROOT / "requirements.lock").write_text("\n".join([*head, *lines(resolved())]) + "\n")


if __name__ == "__main__":
    main()
