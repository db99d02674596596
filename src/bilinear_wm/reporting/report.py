"""Results, metrics and geometry files -> tables, figures and one page. Reads files, no torch.

    bwm report results runs geometry --out report

Finds every results file (`*.jsonl` of `bwm evaluate` and `bwm realtime`), every `metrics.jsonl` of
`bwm train` and every `geometry.json` below the given folders. What is not there is named, with the
command that makes it.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jinja2
import tyro

from bilinear_wm.reporting import cells, figures, summary
from bilinear_wm.reporting.charts import FIGURES
from bilinear_wm.reporting.findings import Findings, gather, over_seeds
from bilinear_wm.reporting.verdict import verdict
from bilinear_wm.stage import Outcome


class Drawn(NamedTuple):
    """A figure of the page."""

    name: str
    caption: str
    path: Path
    turning: str = ""
    """A page of its own, for what has three dimensions."""


@dataclass(frozen=True)
class ReportConfig:
    """A report.

    Attributes:
        folders: Where to look for results, metrics and geometry files.
        out: The folder for what is made.
        readme: A Markdown file whose table of results, between its markers, is made anew.
        full: Another, for the table of everything that ran.
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    out: Path = Path("report")
    readme: Path | None = None
    full: Path | None = None

    def run(self) -> Outcome:
        """`make_report`, in words."""
        made = make_report(self.folders, self.out)
        tables = ((self.readme, summary.readme_table), (self.full, summary.full_table))
        for path, table in tables:
            if path is not None:
                summary.write_between_markers(path, table(gather(self.folders).runs))
                made.append(path)
        return Outcome("\n  ".join(["written:", *map(str, made)]), {"files": made})


def make_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Write tables, figures and the page; returns the files."""
    found = gather(folders)
    out.mkdir(parents=True, exist_ok=True)
    made = []
    if found.runs:
        rows = [run.cells() for run in found.runs]
        made += _tables(rows, out / "results")
        made += _tables([group.cells() for group in over_seeds(found.runs)], out / "seeds")
        made.append(_csv([cell.row() for cell in summary.cells(found.runs)], out / "summary.csv"))
    drawn: list[Drawn] = []
    missing: list[tuple[str, str]] = []
    for name, caption, draw, only in FIGURES:
        figure = draw(found)
        if figure is None:
            missing.append((caption, f"bwm reproduce --only {only}"))
        else:
            drawn.append(Drawn(name, caption, figures.save(figure, out / f"{name}.png")))
    for geometry in found.geometries:
        name = f"projections-{geometry['task']}-{geometry['model']}"
        caption = f"{figures.title(geometry)}: the latent space seen along its principal components"
        path = figures.save(figures.draw_projections(geometry), out / f"{name}.png")
        turning = figures.turning_page(geometry)
        drawn.append(Drawn(name, f"{caption} (paper, Figure 8).", path, turning))
    page = out / "report.html"
    page.write_text(_page(found, drawn, missing))
    return [*made, *(each.path for each in drawn), page]


def _tables(rows: Sequence[dict[str, Any]], stem: Path) -> list[Path]:
    """The same rows as CSV and Markdown; nothing for none."""
    if not rows:
        return []
    made = [_csv(rows, stem.with_suffix(".csv")), stem.with_suffix(".md")]
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    lines += ["| " + " | ".join(map(cells.markdown, row.values())) + " |" for row in rows]
    made[1].write_text("\n".join(lines) + "\n")
    return made


def _csv(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: cells.csv(v) for k, v in row.items()} for row in rows)
    return path


def _page(found: Findings, drawn: Sequence[Drawn], missing: Sequence[tuple[str, str]]) -> str:
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
        verdict=verdict(found.runs),
        figures=[(each, base64.b64encode(each.path.read_bytes()).decode()) for each in drawn],
        missing=missing,
        runs=[run.cells() for run in found.runs],
        seeds=[group.cells() for group in over_seeds(found.runs)],
        machines=[json.loads(facts) for facts in sorted(machines)],
    )
