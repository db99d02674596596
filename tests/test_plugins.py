"""A package of somebody else's, from recording to the report, without a line changed here."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from tests.models.conftest import small_model

PACKAGE = Path(__file__).parent / "plugin_package"
SMALL = {
    "encoder": "columns",
    "projector_size": 8,
    "drawing_weight": 0,
    "shift_weight": 0,
}


def bwm(arguments: list[str], environment: dict[str, str]) -> str:
    """What a command prints in a process of its own; it must succeed."""
    result = subprocess.run(
        [sys.executable, "-m", "bilinear_wm.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def installed(place: Path) -> dict[str, str]:
    """The environment in which the package is installed, as pip would leave it."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    facts = place / "rail_world-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (place / "rail_world").symlink_to(PACKAGE / "rail_world")
    return {"PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["installed", "plugin"])
def test_every_stage_knows_it(way: str, tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    plugin: list[str] = []
    if way == "installed":
        (tmp_path / "site").mkdir()
        environment = installed(tmp_path / "site")
    else:
        plugin = ["--plugin", str(PACKAGE / "register.py")]
    data, run, results = tmp_path / "rail.h5", tmp_path / "run", tmp_path / "rail.jsonl"

    size = ["--episodes", "20", "--image-size", "16", "--workers", "2"]
    bwm(["collect", "rail", "--out", str(data), *size, *plugin], environment)
    printed = bwm(["inspect", str(data), "--json", *plugin], environment)
    assert json.loads(printed.splitlines()[-1])["episodes"] == 20

    train = ["train", "--data", str(data), "--out", str(run), "--steps", "2", "--batch-size", "8"]
    train += ["--eval-every", "2", "--options", json.dumps(SMALL), "--json", *plugin]
    numbers = json.loads(bwm(train, environment).splitlines()[-1])
    assert "probe_position" in numbers  # its states are known too

    evaluate = ["evaluate", "--task", "rail", "--checkpoint", str(run), "--planner", "lattice"]
    evaluate += ["--planner-options", '{"values": 3}', "--episodes", "3", "--out", str(results)]
    assert "rail @25, lattice: success" in bwm([*evaluate, *plugin], environment)

    if way == "plugin":
        moving = ["realtime", "--task", "rail", "--checkpoint", str(run), "--planner", "lattice"]
        moving += ["--episodes", "2", "--latency-ms", "10", *plugin]
        assert "lattice" in bwm(moving, environment)
        look = ["geometry", "--checkpoint", str(run), "--data", str(data), *plugin]
        assert "position" in bwm([*look, "--out", str(tmp_path / "geometry")], environment)

    # The report reads files alone: it needs neither the package nor the plugin.
    bwm(["report", str(tmp_path), "--out", str(tmp_path / "report")], {})
    with (tmp_path / "report" / "results.csv").open() as file:
        (row,) = csv.DictReader(file)
    found = row["task"], row["model"], row["planner"], row["replans after"]
    assert found == ("rail", "bilinear", "lattice", "2")
    assert (tmp_path / "report" / "success.png").exists()


@pytest.mark.parametrize("field", ["kind", "encoder"])
@pytest.mark.parametrize("name", ["columns", "rail_world.encoder:ColumnsEncoder"])
def test_a_checkpoint_brings_no_code(
    field: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the package could be imported, what nobody registered is only a name."""
    monkeypatch.syspath_prepend(PACKAGE)
    model = small_model("bilinear")
    config = {"kind": model.kind, **model.config.to_dict()} | {field: name}
    checkpoint.write_folder(tmp_path, config, model.state_dict())
    with pytest.raises(
        InputError, match=f"{field}: expected one of .*, found {name!r}; .*--plugin"
    ):
        load_model(tmp_path)
    assert "rail_world" not in sys.modules


def test_a_task_typed_into_a_prompt_has_no_second_worker(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from bilinear_wm.data.collect import CollectConfig, collect\n"
        "from bilinear_wm.registry import TASKS\n"
        "from bilinear_wm.tasks.tworoom import TwoRoom\n"
        "class Mine(TwoRoom): name = 'mine'\n"
        "TASKS.register('mine', Mine)\n"
        f"collect(CollectConfig('mine', Path({str(tmp_path)!r}) / 'a.h5', 2, 32, workers=2))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "workers: expected 1 for mine" in result.stderr
