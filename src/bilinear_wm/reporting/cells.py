"""What files say, put into other files in which some characters mean something."""

from __future__ import annotations

import contextlib
import html
import json
from typing import Any

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of one."""


def markdown(value: Any) -> str:
    """A cell of a Markdown table: one line, no markup."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    return text.replace("|", "\\|")


def csv(value: Any) -> Any:
    """A cell of a CSV file that no spreadsheet computes."""
    if not isinstance(value, str) or len(value) < 2 or not value.startswith(FORMULAS):
        return value
    with contextlib.suppress(ValueError):
        float(value.removeprefix("@"))  # numbers, and @25 as an offset is written
        return value
    return f"'{value}"


def script(value: Any) -> str:
    """JSON inside a script of a page, which it cannot end."""
    return json.dumps(value).replace("<", "\\u003c")
