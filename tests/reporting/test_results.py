"""Success rates and their intervals."""

from __future__ import annotations

from bilinear_wm.reporting.results import rate


def test_intervals_are_wilsons() -> None:
    assert str(rate([True] * 94 + [False] * 6)) == "94.0 % [87.5, 97.2]"
    assert rate([]).count == 0
