"""Every shape that a signature says is checked whenever it is used, in the tests only.

In the maths all other annotations are checked too. Elsewhere they are left to mypy: a wrong type
must be refused by the package itself, in a sentence that says what was expected.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

MATHS = (
    "dynamics", "models.bilinear", "models.drawing", "models.encoders", "models.lewm",
    "models.senses", "models.smwm",
)  # fmt: skip
REFUSING = ("planning.terms",)
"""What users make themselves, with shapes that the package refuses in its own words."""


def install() -> None:
    """Before anything of the package is imported."""
    elsewhere = [name for name in _with_shapes() if not name.startswith((*MATHS, *REFUSING))]
    install_import_hook([f"bilinear_wm.{name}" for name in elsewhere], "tests.shapes.checked")
    install_import_hook([f"bilinear_wm.{name}" for name in MATHS], "beartype.beartype")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check those arguments and results alone that have a shape."""
    hints = function.__annotations__
    function.__annotations__ = {name: hint for name, hint in hints.items() if _has_shape(hint)}
    return beartype(function)


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))


def _with_shapes() -> list[str]:
    """The modules of the package whose annotations say shapes, without importing them."""
    spec = importlib.util.find_spec("bilinear_wm")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    files = (path for path in sorted(root.rglob("*.py")) if "jaxtyping" in path.read_text())
    return [".".join(path.relative_to(root).with_suffix("").parts) for path in files]
