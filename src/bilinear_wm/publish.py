"""A finished training run to a checkpoint folder that can be given away.

    bwm publish --run runs/tworoom --out pretrained/tworoom --command "bwm train ..." \\
        --results results/tworoom-*.jsonl

Keeps what planning needs, leaves the optimizer's state behind, and writes a model card with the
command, the diagnosis on held-out episodes and the results of evaluations.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from bilinear_wm import disk
from bilinear_wm.errors import InputError
from bilinear_wm.models import checkpoint, load_model
from bilinear_wm.reporting.results import rate, read_results
from bilinear_wm.stage import Outcome
from bilinear_wm.training.loop import PROGRESS, run_facts
from bilinear_wm.training.run_folder import METRICS

SHEET = "points.png"


@dataclass(frozen=True)
class PublishConfig:
    """A checkpoint folder to give away.

    Attributes:
        run_folder: The training folder.
        out: The folder to write.
        command: What was run to make it, commands separated by `;`, for the card.
        results: Results files of `bwm evaluate` for the card's table.
        sheet: The points.png of `bwm geometry`, for the card.
        force: Replace the checkpoint that is in `out`.
    """

    run_folder: Annotated[Path, tyro.conf.arg(name="run")]
    out: Path
    command: str
    results: tuple[Path, ...] = ()
    sheet: Path | None = None
    force: bool = False

    def run(self) -> Outcome:
        """`publish`, in words."""
        made = publish(
            self.run_folder, self.out, self.results, self.command, self.sheet, self.force
        )
        return Outcome(f"{made}: written; load it with bwm.load_model({str(made)!r})")


def publish(
    run: Path,
    out: Path,
    results: Sequence[Path],
    command: str,
    sheet: Path | None = None,
    force: bool = False,
) -> Path:
    """Write `out` from the last checkpoint of `run`, with a contact sheet of its points."""
    if out.exists() and not (out / checkpoint.CONFIG).is_file():
        raise InputError(f"out {out}: expected no folder, or a checkpoint to replace")
    if out.exists() and not force:
        raise InputError(
            f"out {out}: holds a checkpoint already; name another folder, or replace it with "
            "`force`"
        )
    if sheet is not None and not sheet.is_file():
        raise InputError(f"sheet {sheet}: expected a picture, such as bwm geometry makes")
    folder = checkpoint.resolve(run)
    model = load_model(folder)
    facts = run_facts(run)
    if facts is None:
        raise InputError(f"run {run}: expected a training folder, found no {PROGRESS} in {folder}")
    with disk.replacing(out) as fresh:
        model.save_pretrained(fresh)
        card = checkpoint.model_card(
            model.kind, model.config.to_dict(), _facts(facts, run, command)
        )
        if sheet is not None:
            shutil.copyfile(sheet, fresh / SHEET)
            card += f"\n![Its points on held-out pictures, and what it draws from them]({SHEET})\n"
        (fresh / "README.md").write_text(card + _table(results))
    return out


def _facts(facts: dict[str, Any], run: Path, command: str) -> dict[str, str]:
    """What a card tells: the run that made the model, and the stages that were added to it."""
    stages, first = [], facts
    while "trained" in first["data"]:
        stages.append(first)
        if first["data"]["trained"] is None:
            raise InputError(
                f"run {run}: expected the facts of the run that it continues, found none: "
                "its checkpoint was no training folder"
            )
        first = first["data"]["trained"]
    config, data = first["config"], first["data"]
    last = json.loads((run / METRICS).read_text().splitlines()[-1])
    found = {
        "commands": "`" + "`, `".join(line.strip() for line in command.split(";")) + "`",
        "data": f"{data['episodes']} episodes, {data['rows']:,} rows",
        "training": f"{first['step']} steps of {config['batch_size']} windows of "
        f"{config['num_frames']} pictures, seed {config['seed']}, "
        f"{first['seconds'] / 60:.1f} minutes",
    }
    probes = ", ".join(f"{k[6:]} {v:.3f}" for k, v in last.items() if k.startswith("probe_"))
    if probes:
        found["linear probes (R², held-out)"] = probes
    if "open_loop_1" in last:
        found["open-loop error, 1 and 5 blocks"] = (
            f"{last['open_loop_1']:.3f}, {last.get('open_loop_5', float('nan')):.3f} (1: no better "
            "than predicting that nothing moves)"
        )
    for stage in reversed(stages):
        config, minutes = stage["config"], stage["seconds"] / 60
        what, each = (
            ("residual", f"rollouts of {config['num_blocks']} blocks")
            if "num_blocks" in config
            else ("prior", "windows")
        )
        found[what] = (
            f"{stage['step']} steps of {config['batch_size']} {each}, {config['hidden']} wide, "
            f"{minutes:.1f} minutes"
        )
    if "prior_error_5" in last:
        found["what the prior leaves"] = (
            f"{last['prior_error_5']:.3f} of the actions' variance over five blocks (held-out)"
        )
    if "sigma_min" in last:
        found["singular values of R"] = f"{last['sigma_min']:.3f} to {last['sigma_max']:.3f}"
    return found


def _table(results: Sequence[Path]) -> str:
    if not results:
        return ""
    lines = [
        "",
        "| offset | planner | horizon | success (95 % interval) | solved at the start | file |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for path in results:
        header, rows = read_results(path)
        solved = sum(row.solved_at_start for row in rows)
        lines.append(
            f"| {header['offset']} | {header['planner']} | {header['horizon']} | "
            f"{rate([row.success for row in rows])} of {len(rows)} | {solved} | {path.name} |"
        )
    return "\n".join(lines) + "\n"
