"""The command line, as a user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import imageio.v3 as imageio
import pytest

import bilinear_wm as bwm
from bilinear_wm.cli import COMMANDS, _load, main
from bilinear_wm.reporting.media import FONT, GAP, PAPER


def test_collect_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.h5"
    command = ["collect", "tworoom", "--episodes", "12", "--image-size", "32", "--out", str(out)]
    assert main([*command, "--workers", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert result["episodes"] == result["new_episodes"] == 12

    assert main(["inspect", str(out), "--json"]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    summary = json.loads(printed[-1])
    assert summary["episodes"] == 12
    assert 0 <= summary["solved_share"]["25"] < 0.3
    assert any("solved before the start" in line for line in printed)
    sheet = imageio.imread(out.with_suffix(".png"))
    line, picture = 64 + 2 * GAP + FONT, 64 + GAP
    assert sheet.shape[0] == 8 * line
    left = sheet.shape[1] - 12 * picture
    assert (sheet[:, left + 64 : left + picture] == PAPER).all(), "pictures have no gaps"
    assert (sheet[:, :left] < 128).any(), "episodes have no labels"
    under = sheet[GAP + 64 : line, left : left + 64]
    assert (under < 160).any(), "pictures have no captions"


def test_errors_are_one_line(tmp_path: Path) -> None:
    for arguments in (
        ["inspect", str(tmp_path / "none.h5")],
        ["collect", "nosuch", "--out", str(tmp_path / "a.h5")],
    ):
        result = subprocess.run(
            [sys.executable, "-m", "bilinear_wm.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert result.stderr.startswith("bwm: ")


def test_what_there_is_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"bwm {bwm.__version__}"
    assert bwm.__version__[0].isdigit()
    assert {"load_model", "make_task", "make_task_for", "GaussNewtonPlanner"} <= set(dir(bwm))
    for name in dir(bwm):
        assert getattr(bwm, name) is not None
    assert not {"Any", "importlib", "TYPE_CHECKING", "annotations"} & set(dir(bwm))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report"], "expected at least one folder"),
        (["report", "README.md"], "found a file; name its folder"),
        (
            ["train-residual", "--checkpoint", "a", "--data", "b", "--out", "c", "--hidden", "8",
             "--steps", "100"],
            "--steps: expected more than --weigh-steps 1500 and --refit-steps 1500 together",
        ),
        (["train-residual", "--checkpoint", "a", "--data", "b", "--out", "/dev/null/c"],
         "--out /dev/null/c: expected a folder, found a file: /dev/null"),
        (["evaluate", "--task", "tworoom", "--planner", "none", "--video", "/dev/null/c"],
         "--video /dev/null/c: expected a folder"),
        (["evaluate", "--task", "tworoom", "--checkpoint", "pretrained/tworoom",
          "--planner-options", '{"efort": 1}'], "unknown efort; the fields of GaussNewtonConfig"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(Path(__file__).parents[1])
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_says_how_to_go_on(
    number: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from bilinear_wm.evaluation import evaluate as module

    def stopped(*_: object) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr(module, "choose_goals", stopped)
    out = tmp_path / "r.jsonl"
    command = ["evaluate", "--task", "tworoom", "--planner", "none"]
    # A shell's background processes begin with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main([*command, "--out", str(out)]) == status
        said = capsys.readouterr().err.strip()
        assert said == f"bwm: interrupted; the same command with --resume continues {out}"
        assert main(command) == status  # nothing was kept that could be continued
        assert capsys.readouterr().err.strip() == "bwm: interrupted"
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_flag_says_what_it_is(name: str) -> None:
    config = _load(COMMANDS[name].config)
    told = re.findall(r"^ +(\w+): \S", config.__doc__, flags=re.MULTILINE)
    assert {field.name for field in fields(config)} <= set(told)
