"""Values as text: the same in every process, different for different values."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from machete.megakernel.launch.cache.description import describe


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


def make_adder(amount: float) -> Callable[[float], float]:
    def add(value: float) -> float:
        return value + amount

    return add


def make_class(**attributes: Any) -> type:
    return type("Made", (), {"__module__": __name__, **attributes})


def make_default(amount: int) -> Callable[..., int]:
    def function(value: int = amount) -> int:
        return value

    return function


DIFFERENT = {
    "types": (1, True),
    "floats": (1, 1.0),
    "zeros": (0.0, -0.0),
    "dtypes": (torch.float16, torch.bfloat16),
    "enums": (Color.RED, Color.BLUE),
    "order": ((1, 2), (2, 1)),
    "sequences": ((1, 2), [1, 2]),
    "mappings": ({"a": 1}, {"a": 2}),
    "dataclasses": (Tile(1, 2), Tile(1, 3)),
    "slots": (Slotted(1), Slotted(2)),
    "closures": (make_adder(1.0), make_adder(2.0)),
    "defaults": (make_default(1), make_default(2)),
    "class attributes": (make_class(stages=1), make_class(stages=2)),
    "methods": (make_class(run=make_adder(1.0)), make_class(run=make_adder(2.0))),
    "lambdas": ((lambda x: x + 1), (lambda x: x + 2)),
    "partials": (functools.partial(pow, 2), functools.partial(pow, 3)),
    "nested": ({"a": (Tile(1, 2), [make_adder(1.0)])}, {"a": (Tile(1, 2), [make_adder(2.0)])}),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values(name: str) -> None:
    one, other = DIFFERENT[name]
    assert describe(one) != describe(other)
    assert describe(one) == describe(one)


def test_equal_values() -> None:
    assert describe({"a": 1, "b": 2}) == describe({"b": 2, "a": 1})
    assert describe(make_adder(1.0)) == describe(make_adder(1.0))


def test_cycles_end() -> None:
    first = make_class()
    second = make_class(other=first)
    first.other = second  # type: ignore[attr-defined]
    assert describe(first)
    items: list[Any] = []
    items.append(items)
    assert describe(items)


def test_processes_agree() -> None:
    """Hash seeds and addresses differ from process to process."""
    program = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("values", {__file__!r})
values = importlib.util.module_from_spec(spec)
import sys
sys.modules["values"] = values
spec.loader.exec_module(values)
for name in values.DIFFERENT:
    print(name, values.describe(values.DIFFERENT[name]))
print(values.describe(frozenset({{"a", "b", "c", ("d", 1)}})))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
