"""Options by name, checked against a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from bilinear_wm.errors import InputError
from bilinear_wm.options import make_config


@dataclass(frozen=True)
class Config:
    task: str
    size: int = 3
    weight: float = 1.0
    on: bool = False
    way: Literal["up", "down"] = "up"
    limit: int | None = None
    sides: tuple[float, ...] = ()
    kept: ClassVar[int] = 1


def test_options() -> None:
    made = make_config(
        Config, {"size": 4, "weight": 2, "limit": None, "sides": [1, 2.5]}, "--o", task="t"
    )
    assert made == Config("t", 4, 2.0, limit=None, sides=(1, 2.5))
    assert type(made.weight) is float
    fields = "the fields of Config are size, weight, on, way, limit, sides"
    for options, complaint in (
        ({"speed": 1, "kept": 2}, "--o: unknown kept, speed"),
        ({"task": "u"}, "--o: unknown task"),
        ({"size": "4"}, "--o: size: expected int, found '4'"),
        ({"size": True}, "--o: size: expected int, found True"),
        ({"size": 4.0}, "--o: size: expected int, found 4.0"),
        ({"weight": None}, "--o: weight: expected float, found None"),
        ({"on": 1}, "--o: on: expected bool, found 1"),
        ({"way": "left"}, "--o: way: expected one of up, down, found 'left'"),
        ({"limit": "x"}, r"--o: limit: expected int \| None, found 'x'"),
        ({"sides": 1}, "--o: sides: expected tuple"),
        ({"sides": ["a"]}, "--o: sides: expected tuple"),
    ):
        with pytest.raises(InputError, match=f"^{complaint}.*; {fields}$"):
            make_config(Config, options, "--o", task="t")
    with pytest.raises(InputError, match="--o: missing task; the fields of Config are task, size"):
        make_config(Config, {}, "--o")
