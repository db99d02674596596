"""The one exception that bad input raises, its warning, and checks that raise it."""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args, get_origin, get_type_hints


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the file or argument, what was expected, what was found, and the
    fix. The command line prints it as one line and exits with status 2.
    """


class InputWarning(UserWarning):
    """Something the user gave can be used, but hardly as it was meant; one line, like errors."""


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


def needed(module: str, extra: str, what: str) -> Any:
    """Import a module that an extra brings, or say which.

    Args:
        module: Its name.
        extra: Of `pip install 'bilinear-world-models[...]'`.
        what: The file or command that needs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{what}: needs the package {error.name!r}: "
            f"pip install 'bilinear-world-models[{extra}]'"
        ) from error
