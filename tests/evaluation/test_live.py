"""Moving goals by the clock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bilinear_wm.cli import main
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation import live
from bilinear_wm.evaluation.moving import run_realtime
from bilinear_wm.reporting.results import read_results
from tests.evaluation.conftest import moving_config


@pytest.mark.usefixtures("oracle")
def test_live_ticks_by_the_clock_and_is_watched(alarmed: Path, tmp_path: Path) -> None:
    out = tmp_path / "live.jsonl"
    settings = moving_config(episodes=2, replan="always", latency_ms=None, out=out, data=alarmed,
                      offset=10, monitor=True)  # fmt: skip
    found = live.run_live(settings, progress=False)
    assert (
        0 < found.rate_hz < 25
    )  # of a few ticks; a busy machine leaves ticks out, none makes up for them
    assert sum(found.sources.values()) == pytest.approx(1)
    assert found.failures == 0
    header, rows = read_results(out)
    assert header["live"] is True
    assert header["protocol"] == "controller"
    (sitting,) = header["sittings"]
    assert sitting["rate_hz"] == found.rate_hz
    assert sitting["ticks"] == found.ticks == sum(row.steps for row in rows)
    assert set(sitting) >= {"late_ms_p50", "late_ms_p99", "late_ms_max", "missed", "failures"}
    assert sum(row.plans for row in rows) > 0
    assert sum(row.alarms for row in rows) > 0
    assert "written" in live.describe(settings, found)

    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    with pytest.raises(InputError, match="exists already"):
        live.run_live(settings, progress=False)
    again = live.run_live(replace(settings, resume=True), progress=False)
    assert again.episodes == 2
    header, rows = read_results(out)
    assert sorted(row.index for row in rows) == sorted(
        json.loads(line)["index"] for line in lines[1:]
    )
    assert [sitting["ticks"] for sitting in header["sittings"]] == [found.ticks, again.ticks]
    with pytest.raises(InputError, match="expected live False, found True"):
        run_realtime(replace(settings, resume=True, protocol="controller"), progress=False)


def test_live_refuses_what_it_does_not_assume(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["realtime", "--task", "tworoom", "--live"]
    assert main([*base, "--planner", "random"]) == 2
    assert main([*base, "--latency-ms", "3"]) == 2
    assert "--live: expected a planner and no --latency-ms" in capsys.readouterr().err
