"""Results, metrics and geometry files -> tables, figures and one page. Reads files, no torch.

    bwm report results runs geometry --out report

Finds every results file (`*.jsonl` of `bwm evaluate` and `bwm realtime`), every `metrics.jsonl` of
`bwm train` and every `geometry.json` below the given folders. What is not there is left out.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jinja2
import tyro

from bilinear_wm.reporting import cells, figures
from bilinear_wm.reporting.charts import FIGURES
from bilinear_wm.reporting.findings import Findings, gather, over_seeds
from bilinear_wm.stage import Outcome


@dataclass(frozen=True)
class ReportConfig:
    """A report.

    Attributes:
        folders: Where to look for results, metrics and geometry files.
        out: The folder for what is made.
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    out: Path = Path("report")

    def run(self) -> Outcome:
        """`make_report`, in words."""
        made = make_report(self.folders, self.out)
        return Outcome("\n  ".join(["written:", *map(str, made)]), {"files": made})


def make_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write tables, figures and the page; returns the files."""
    found = gather(folders)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    if found.runs:
        rows = [run.cells() for run in found.runs]
        made += _tables(rows, out / "results")
        made += _tables([summary.cells() for summary in over_seeds(found.runs)], out / "seeds")
    drawn: list[tuple[str, Path]] = []
    for name, caption, draw in FIGURES:
        figure = draw(found)
        if figure is not None:
            drawn.append((caption, figures.save(figure, out / f"{name}.png")))
    for geometry in found.geometries:
        path = out / f"projections-{geometry['task']}-{geometry['model']}.png"
        caption = "The latent space seen along its principal components (paper, Figure 8)."
        drawn.append((caption, figures.save(figures.draw_projections(geometry), path)))
    page = out / "report.html"
    page.write_text(_page(found, drawn))
    return [*made, *(path for _, path in drawn), page]


def _tables(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """The same rows as CSV and Markdown; nothing for none."""
    if not rows:
        return []
    made = [stem.with_suffix(".csv"), stem.with_suffix(".md")]
    with made[0].open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: cells.csv(v) for k, v in row.items()} for row in rows)
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(map(cells.markdown, row.values())) + " |" for row in rows]
    made[1].write_text("\n".join(lines) + "\n")
    return made


def _page(found: Findings, drawn: Sequence[tuple[str, Path]]) -> str:
    """Everything in one file; what runs and files are called is escaped."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    machines = {
        json.dumps({**(run.header.get("machine") or {}), **(run.header.get("versions") or {})})
        for run in found.runs
    }
    return pages.get_template("report.html").render(
        figures=[(text, base64.b64encode(path.read_bytes()).decode()) for text, path in drawn],
        runs=[run.cells() for run in found.runs],
        seeds=[summary.cells() for summary in over_seeds(found.runs)],
        machines=[json.loads(facts) for facts in sorted(machines)],
    )
