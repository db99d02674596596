"""The one exception that bad input raises, and a check that raises it."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the file or argument, what was expected, what was found, and the
    fix. The command line prints it as one line and exits with status 2.
    """


def check_choices(config: Any) -> None:
    """Refuse a configuration in which a field that names a choice names none of them."""
    for name, kind in get_type_hints(type(config)).items():
        found, options = getattr(config, name), (kind, *get_args(kind))
        choices = [
            c for option in options if get_origin(option) is Literal for c in get_args(option)
        ]
        others = tuple(option for option in options if isinstance(option, type))
        if choices and found not in choices and not isinstance(found, others):
            known = ", ".join(map(str, choices))
            raise InputError(f"{name}: expected one of {known}, found {found!r}")
