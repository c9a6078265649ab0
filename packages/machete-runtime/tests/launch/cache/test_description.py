"""Values as text: the same in every process, different for different values."""

from __future__ import annotations

import collections
import decimal
import enum
import functools
import logging
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch

from machete.megakernel.launch.cache.description import UndescribableError, describe


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

    def get(self) -> int:
        return self.value


def nested(depth: int, value: Any) -> Any:
    return [nested(depth - 1, value)] if depth else value


class RaisingFunction:
    def __call__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


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
    "arrays": (np.zeros(3), np.array([0.0, 0.0, 1e-9])),
    "large arrays": (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000))),
    "array dtypes": (np.zeros(2, np.int32), np.zeros(2, np.float32)),
    "scalars": (np.float32(1.0), np.float32(2.0)),
    "tensors": (torch.zeros(3), torch.tensor([0.0, 0.0, 1e-9])),
    "bfloat16 tensors": (torch.zeros(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
    "tensor shapes": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "tensors without dims": (torch.tensor(1), torch.tensor(2)),
    "namespaces": (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    "fractions": (Fraction(1, 3), Fraction(2, 3)),
    "slices": (slice(Fraction(1, 3)), slice(Fraction(2, 3))),
    "keys": ({1: 0}, {"1": 0}),
    "bound methods": (Slotted(1).get, Slotted(2).get),
    "bound builtins": ([1].index, [2].index),
    "patterns": (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
    "deep": (nested(12, 1), nested(12, 2)),
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


def endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    "value",
    [
        decimal.Decimal(1),
        collections.deque([1]),
        np.array([object()], dtype=object),
        torch.zeros(2, device="meta"),
        torch.Generator(),
        RaisingFunction(),
        endless(),
        nested(100, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_description_is_no_equal_of_another(value: Any) -> None:
    for outer in (value, (value,), make_class(value=value)):
        with pytest.raises(UndescribableError):
            describe(outer)


def test_ordinary_class_attributes_have_a_description() -> None:
    attributes = {
        "lock": threading.Lock(),
        "logger": logging.getLogger(__name__),
        "cached": functools.cached_property(make_adder(1.0)),
        "static": staticmethod(make_adder(1.0)),
        "kind": type[int] | None,
        "tile": Tile,
        "color": Color,
        "missing": object(),
        "path": Path("a"),
        "add": np.add,
        "dtype": np.dtype("int32"),
        "device": cutlass.Float32,
        "layout": cute.make_layout,
    }
    assert describe(make_class(**attributes))


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
