"""Ctrl-C in every command, at random moments: it ends within a second, and says so in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from attack.common import Attack, Tally

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "pretrained" / "tworoom"
SOONEST_S, LATEST_S = 1.0, 8.0
"""Processor time after which Ctrl-C comes: imports, preparation, work."""
SLOWEST_S = 1.0
"""Processor time that may pass until the end: it does not depend on who else uses the machine."""


def commands(folder: Path) -> dict[str, list[str]]:
    """Each would go on for longer than it is left."""
    data, out = str(folder / "data.h5"), str(folder / "out")
    plan = ["--task", "tworoom", "--checkpoint", str(MODEL), "--episodes", "10000"]
    return {
        "collect": ["tworoom", "--episodes", "1000000", "--workers", "2", "--out", f"{out}.h5"],
        "train": ["--data", data, "--out", out],
        "train-residual": ["--checkpoint", str(MODEL), "--data", data, "--out", f"{out}-residual"],
        "evaluate": [*plan, "--out", f"{out}.jsonl"],
        "realtime": [*plan, "--out", f"{out}-moving.jsonl"],
        "play": ["--checkpoint", str(MODEL), "--port", "18765"],
        "geometry": ["--checkpoint", str(MODEL), "--data", data, "--out", f"{out}-geometry"],
        "report": [str(ROOT / "results"), "--out", f"{out}-report"],
        "reproduce": ["--scale", "compact", "--tasks", "tworoom", "--out", f"{out}-all"],
        "demo": ["--out", f"{out}-demo"],
    }


def attack_interrupts(attack: Attack) -> Iterator[Tally]:
    bwm = [sys.executable, "-m", "bilinear_wm.cli"]
    collected = ["collect", "tworoom", "--episodes", "40", "--out", str(attack.folder / "data.h5")]
    subprocess.run([*bwm, *collected], check=True, capture_output=True)
    for name, arguments in commands(attack.folder).items():
        tally = Tally(f"Ctrl-C in {name}")
        for _ in attack.times(3):
            with tally.case():
                moment = attack.rng.uniform(SOONEST_S, LATEST_S)
                _interrupt([*bwm, name, *arguments], moment, attack.folder / "log")
        yield tally


def _interrupt(command: list[str], moment: float, log: Path) -> None:
    for old in log.parent.glob("out*"):
        subprocess.run(["rm", "-rf", str(old)], check=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output,
            # A shell that runs this in the background makes its children ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        running = psutil.Process(process.pid)
        used = 0.0
        while used < moment and running.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
            used = _seconds(running) or used
            if command[3] in ("play", "collect") and running.cpu_times().user > SOONEST_S:
                time.sleep(0.5)
                break  # these wait more than they work
        before = sum(running.cpu_times()[:2]) if running.is_running() else 0.0
        process.send_signal(signal.SIGINT)
        if process.returncode is not None:
            assert process.returncode == 0, f"ended by itself with {process.returncode}"
            return
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    after = usage.ru_utime + usage.ru_stime - before
    said = log.read_text()
    # A signal that strikes inside an import of some libraries ends Python by the signal itself.
    good = process.returncode in (130, -signal.SIGINT, 0)
    assert good, f"ended with {process.returncode}: {said[-100:]}"
    assert "Traceback" not in said, f"a traceback: {said[-100:]}"
    workers = command[3] == "collect"  # whose processor time is counted when they end
    assert workers or process.returncode == 0 or after < SLOWEST_S, f"took {after:.1f} s"


def _seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0
