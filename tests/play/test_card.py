"""What the page says of measured success comes from the card."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilinear_wm.play.card import Measured, measured
from bilinear_wm.play.shared import OFFSET
from bilinear_wm.publish import _table
from bilinear_wm.reporting.results import rate, read_results
from tests.play.conftest import FOLDERS

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("task", FOLDERS)
def test_every_shipped_card_is_understood(task: str) -> None:
    found = measured(FOLDERS[task], "gauss-newton", OFFSET)
    assert found is not None
    assert found.rate in (FOLDERS[task] / "README.md").read_text()
    assert measured(FOLDERS[task], "icem", OFFSET) is None


def test_it_says_what_the_results_say(tmp_path: Path) -> None:
    file = RESULTS / "pusht-bilinear-gauss-newton-25.jsonl"
    (tmp_path / "README.md").write_text("# A model\n" + _table([file]))
    header, rows = read_results(file)
    found = measured(tmp_path, header["planner"], header["offset"])
    assert found is not None
    assert str(rate([row.success for row in rows])) in str(found)
    assert found.tasks == len(rows)
    assert found.solved == sum(row.solved_at_start for row in rows)


def test_other_cards_say_nothing(tmp_path: Path) -> None:
    assert measured(tmp_path, "gauss-newton", 25) is None
    for text in (
        "| offset | planner | success |\n| 25 | gauss-newton | <b>all</b> of 3 |",
        "| 25 | gauss-newton | 5 | 91.0 % [83.8, 95.2] of 100 | 27 | x |",
        "\xff" * 10,
    ):
        (tmp_path / "README.md").write_text(text)
        assert measured(tmp_path, "gauss-newton", 25) is None


def test_its_sentence() -> None:
    said = str(Measured("91.0 %", ("83.8", "95.2"), 100, 27, 25))
    assert said == (
        "91.0 % [83.8, 95.2] of 100 goals 25 steps away, 27 of them solved from the start"
    )
