"""One mechanism for the parts: names, duplicates, plugins, entry points."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bilinear_wm as bwm
from bilinear_wm import registry as registries
from bilinear_wm.cli import COMMANDS, main
from bilinear_wm.errors import InputError
from bilinear_wm.registry import ENCODERS, MODELS, PLANNERS, TASKS, Registry, load_plugin


class Shape:
    name = "square"


class Other:
    name = "square"


def make_registry(**options: Any) -> Registry[type]:
    return Registry("shape", {"round": "errors:InputError"}, **options)


@pytest.mark.parametrize("registry", [TASKS, MODELS, ENCODERS, PLANNERS], ids=lambda r: r.kind)
def test_what_is_built_in_can_be_loaded(registry: Registry[Any]) -> None:
    for name in registry.built_in:
        assert registry.address(name).endswith(f":{registry[name].__qualname__}")


def test_names_and_duplicates() -> None:
    registry = make_registry(needs=("name",), named_by="name", reserved=("none",))
    assert list(registry) == ["round"]
    with pytest.raises(
        InputError, match=r"shape: expected one of round, found 'square'; .*--plugin"
    ):
        registry["square"]
    with pytest.raises(InputError, match="--shape: expected one of round, none, found 3"):
        registry.check(3, "--shape", also=("none",))
    assert registry.register("square", Shape) is Shape
    assert list(registry) == ["round", "square"]
    assert registry["square"] is Shape
    with pytest.raises(InputError, match=r"shape 'square': expected a new name for .*:Other"):
        registry.register("square", Other)
    # A cell of a notebook that is run again defines the same class again.
    again = type("Shape", (), {"name": "square", "__module__": Shape.__module__})
    registry.register("square", again)
    assert registry["square"] is again


def test_what_cannot_serve_is_refused() -> None:
    registry = make_registry(needs=("name", "plan"), named_by="name", reserved=("none",))
    with pytest.raises(InputError, match=r"shape 'square': expected a class with name, plan, found "
                       r".*:Shape without plan"):  # fmt: skip
        registry.register("square", Shape)
    registry = make_registry(named_by="name", reserved=("none",))
    with pytest.raises(InputError, match=r"shape 'oval': .* same name, found 'square'"):
        registry.register("oval", Shape)
    for name in ("none", "a/b", ""):
        with pytest.raises(InputError, match="expected a name of letters"):
            make_registry(reserved=("none",)).register(name, Shape)


def entry(registry: Registry[Any], name: str, value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, registry.group)


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = make_registry()
    here = f"{__name__}:Shape"
    found = [
        entry(registry, "square", here),
        entry(registry, "gone", f"{__name__}:Gone"),
        entry(registry, "far", "no_such_package.shapes:Far"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    assert list(registry) == ["round", "square", "gone", "far"]  # nothing was imported for it
    assert registry["square"] is Shape
    registry.register("square", Shape)  # the package may register it as well
    with pytest.raises(InputError, match=r"shape 'gone': expected .*:Gone.*found none"):
        registry["gone"]
    with pytest.raises(InputError, match=r"shape 'far' needs the package 'no_such_package'$"):
        registry["far"]


def test_a_package_cannot_replace_what_is_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = make_registry()
    found = [entry(registry, "round", f"{__name__}:Shape")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    assert registry["round"] is InputError
    with pytest.raises(InputError, match=r"shape 'round': expected a new name for .*:Shape, found"):
        list(registry)


def test_a_missing_simulator_is_named() -> None:
    registry: Registry[type] = Registry("shape", {"round": "no_such"}, extra="envs")
    with pytest.raises(InputError, match=r"shape 'round' needs the package 'bilinear_wm.no_such': "
                       r"pip install 'bilinear-world-models\[envs\]'"):  # fmt: skip
        registry["round"]


PLUGIN = """
from bilinear_wm.registry import TASKS
from bilinear_wm.tasks.tworoom import TwoRoom
class Mine(TwoRoom):
    name = "mine"
TASKS.register("mine", Mine)
"""


@pytest.fixture
def no_plugins(own_parts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "_plugins", [])


@pytest.mark.usefixtures("no_plugins")
def test_plugins(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PLUGIN)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.py").write_text(PLUGIN)
    load_plugin(tmp_path / "a.py")
    load_plugin(str(tmp_path / "b" / ".." / "a.py"))  # the same file: not run again
    assert registries.loaded_plugins() == (str(tmp_path / "a.py"),)
    assert bwm.make_task("mine", 32).name == "mine"
    with pytest.raises(InputError, match="task 'mine': expected a new name"):
        load_plugin(tmp_path / "b" / "a.py")
    assert registries.loaded_plugins() == (str(tmp_path / "a.py"),)
    (tmp_path / "c.py").write_text("import no_such_package")
    with pytest.raises(InputError, match=r"c.py: needs the package 'no_such_package'"):
        load_plugin(tmp_path / "c.py")
    for source in (str(tmp_path / "none.py"), "no_such_module", "bilinear_wm.no_such"):
        with pytest.raises(InputError, match=f"--plugin {re.escape(source)}: expected"):
            load_plugin(source)


@pytest.mark.usefixtures("no_plugins")
def test_every_command_takes_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "--plugin MODULE|FILE.py" in capsys.readouterr().out
    (tmp_path / "a.py").write_text(PLUGIN)
    (tmp_path / "b.py").write_text("print('b was here')")
    plugins = ["--plugin", str(tmp_path / "a.py"), "--plugin", str(tmp_path / "b.py")]
    out = str(tmp_path / "a.h5")
    assert main(["collect", "mine", "--out", out, "--episodes", "2", "--workers", "1",
                 "--image-size", "16", *plugins]) == 0  # fmt: skip
    assert "b was here" in capsys.readouterr().out
    assert main(["inspect", out, "--plugin", str(tmp_path / "none.py")]) == 2
    assert "none.py: expected a file, found none" in capsys.readouterr().err


def test_importing_and_asking_for_help_is_light() -> None:
    """Names and versions are known without torch, and without loading what they stand for."""
    code = """
import sys, bilinear_wm as bwm
assert {"load_model", "TASKS", "PlanProblem", "__version__", "tasks"} <= set(dir(bwm))
assert list(bwm.MODELS)[:3] == ["bilinear", "lewm", "smwm"] and "cem" in bwm.PLANNERS
from bilinear_wm.cli import main
main(["--version"])
main(["--help"])
sys.exit(bool({"torch", "matplotlib", "mujoco"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"bwm {bwm.__version__}\n")
    assert bwm.__version__ == importlib.metadata.version("bilinear-world-models")
