"""A stage of the work: a frozen configuration with `run`, from which the command line is made.

Fields are written once, in the configuration; `cli.py` makes flags of them. Errors name fields, and
other fields in `backticks`; the command line says flags instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import tyro

from bilinear_wm.errors import InputError


@dataclass(frozen=True)
class Outcome:
    """What a stage has to say when it is done."""

    text: str
    """For people."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """For programs: `--json` prints them as the last line."""


def _object(texts: list[str]) -> dict[str, Any]:
    try:
        values = json.loads(texts[0])
    except ValueError as error:
        raise ValueError(f"expected a JSON object, found {texts[0]!r} ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"expected a JSON object, found {texts[0]!r}")
    return values


JsonObject = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="JSON",
        instance_from_str=_object,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [json.dumps(value)],
    ),
]
"""Further options, given as JSON on the command line."""


def at_least(config: Any, least: float, *names: str) -> None:
    """Refuse a configuration in which one of these fields is smaller, or not a number."""
    for name in names:
        if not getattr(config, name) >= least:
            raise InputError(f"{name}: expected at least {least}, found {getattr(config, name)}")


def unless_usual(config: Any, *names: str) -> dict[str, Any]:
    """Of these fields those that differ from their defaults: files made before them stay valid."""
    usual = {each.name: each.default for each in fields(config)}
    return {name: getattr(config, name) for name in names if getattr(config, name) != usual[name]}


def with_flags(message: str, fields: Collection[str]) -> str:
    """A library's sentence in the words of the command line: `out` becomes --out.

    Fields stand at the beginning, before the first colon, or in backticks.
    """

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    head = re.match(r"(\w+)((?:, \w+)*)(?=[: ])", message)
    if head is not None:
        names = head.group(0).split(", ")
        if all(name in fields for name in names):
            message = ", ".join(map(flag, names)) + message[head.end() :]
    return re.sub(
        r"`(\w+)`", lambda found: flag(found[1]) if found[1] in fields else found[0], message
    )
