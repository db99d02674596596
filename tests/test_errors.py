"""The check of configurations that name a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from bilinear_wm.errors import InputError, check_choices


@dataclass
class Chosen:
    unit: Literal["latent", "motion"]
    way: Literal["analytic"] | None = None


def test_choices_are_checked() -> None:
    check_choices(Chosen("motion"))
    with pytest.raises(InputError, match="unit: expected one of latent, motion, found 'motions'"):
        check_choices(Chosen("motions"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="way: expected one of analytic, found 'numeric'"):
        check_choices(Chosen("latent", "numeric"))  # type: ignore[arg-type]
