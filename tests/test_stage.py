"""Configurations as commands: flags come from fields, errors name fields."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from bilinear_wm import cli
from bilinear_wm.stage import with_flags

FIELDS = {"out", "resume", "weigh_steps", "episodes", "offset"}


@pytest.mark.parametrize(
    ("sentence", "printed"),
    [
        ("out a.h5: exists; try `resume`", "--out a.h5: exists; try --resume"),
        ("episodes, offset: expected at least 1", "--episodes, --offset: expected at least 1"),
        ("weigh_steps: expected 0", "--weigh-steps: expected 0"),
        ("a.h5: column 'out': expected it", "a.h5: column 'out': expected it"),
        ("other: expected one; see `bwm collect`", "other: expected one; see `bwm collect`"),
        ("episodes, others: expected", "episodes, others: expected"),
    ],
)  # fmt: skip
def test_sentences_say_flags_on_the_command_line(sentence: str, printed: str) -> None:
    assert with_flags(sentence, FIELDS) == printed


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_a_configuration_with_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    config = cli._load(cli.COMMANDS[name].config)
    assert callable(config.run)
    for field in fields(config):
        if field.name not in cli._positional(config) | {"run_folder"}:
            flag = field.name.replace("_", "-")  # what is on by default has a flag to turn it off
            assert f"--{flag}" in printed or f"--no-{flag}" in printed
    undocumented = [f.name for f in fields(config) if f"{f.name}:" not in (config.__doc__ or "")]
    assert set(undocumented) <= {"batch_size", "learning_rate", "weight_decay", "seed", "clip_norm",
                                 "warmup_share"}, undocumented  # fmt: skip


def test_help_and_version_are_quick_and_need_no_torch() -> None:
    code = (
        "import sys\nfrom bilinear_wm.cli import main\n"
        "assert main(['--help']) == main(['--version']) == 0\n"
        "assert 'torch' not in sys.modules and 'mujoco' not in sys.modules\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(name in ran.stdout for name in cli.COMMANDS)


def test_unknown_commands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fly"]) == 2
    assert "expected one of collect, inspect" in capsys.readouterr().err


def test_what_is_given_goes_over_the_recipe(tworoom_file: Path) -> None:
    command = cli.COMMANDS["evaluate"]
    config_class = cli._load(command.config)
    given = ["--task", "reacher", "--planner-options", json.dumps({"starts": 2})]
    config = cli._parse("evaluate", command, config_class, given)
    assert config.horizon == 2  # Reacher's
    assert config.planner_options["starts"] == 2
    assert "effort" in config.planner_options  # the recipe's others stay
    longer = cli._parse("evaluate", command, config_class, [*given, "--horizon", "4"])
    assert longer.horizon == 4
    paper = cli._parse("evaluate", command, config_class, [*given[:2], "--paper-settings"])
    assert paper.paper_settings
    assert paper.horizon == 3  # the paper's
    moving = cli.COMMANDS["realtime"]
    live = cli._parse("realtime", moving, cli._load(moving.config), [*given[:2], "--live"])
    assert live.live
    training = cli.COMMANDS["train"]
    arguments = ["--data", str(tworoom_file), "--out", "x", "--steps", "7"]
    trained = cli._parse("train", training, cli._load(training.config), arguments)
    assert trained.steps == 7
    assert trained.options["forward_unit"] == "motion"  # the compact recipe's


def test_a_configuration_that_refuses_itself_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["train-residual", "--checkpoint", "a", "--data", "b", "--out", "c",
                     "--learning-rate", "-1"]) == 2  # fmt: skip
    assert capsys.readouterr().err == "bwm: --learning-rate: expected more than 0, found -1.0\n"
