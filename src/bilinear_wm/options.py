"""Plain options, as JSON has them, to a configuration: checked field by field."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bilinear_wm.errors import InputError

C = TypeVar("C")


def make_config(
    config_class: type[C], options: Mapping[str, Any], argument: str, **given: Any
) -> C:
    """A configuration from what the user gave and what is given by the circumstances.

    Args:
        config_class: A dataclass.
        options: The user's; a field that is unknown or has another type is refused.
        argument: Where they come from, for the sentence that refuses them.
        given: Fields that are not the user's to choose.
    """
    free = [field for field in fields(config_class) if field.name not in given]  # type: ignore[arg-type]
    known = f"the fields of {config_class.__name__} are {', '.join(field.name for field in free)}"
    unknown = sorted(set(options) - {field.name for field in free})
    if unknown:
        raise InputError(f"{argument}: unknown {', '.join(unknown)}; {known}")
    required = [f for f in free if f.default is MISSING and f.default_factory is MISSING]
    missing = [field.name for field in required if field.name not in options]
    if missing:
        raise InputError(f"{argument}: missing {', '.join(missing)}; {known}")
    values = from_json(config_class, options)
    check_types(config_class, values, argument, f"; {known}")
    return config_class(**given, **values)


def check_types(
    config_class: type[Any], values: Mapping[str, Any], argument: str, known: str = ""
) -> None:
    """Refuse values of other types than the fields of a configuration have."""
    hints = get_type_hints(config_class)
    for name, value in values.items():
        if not _fits(value, hints[name]):
            found = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}..."
            raise InputError(
                f"{argument}: {name}: expected {_in_words(hints[name])}, found {found}{known}"
            )


def from_json(config_class: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows neither tuples nor that 3 may be meant as 3.0."""
    hints = get_type_hints(config_class)
    restored: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            value = tuple(value)
        elif hints.get(name) is float and type(value) is int:
            value = float(value)
        restored[name] = value
    return restored


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type that a field announces, for the types that JSON can hold."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint in (bool, Any)
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint) if hint in (int, str, types.NoneType) else True


def _in_words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
