"""Python values as text that is the same in every process: what code that is traced may depend on.

Plain values are their repr. Functions are their bytecode, defaults and closures, classes their attributes, instances
their type and attributes. What belongs to the standard library, the DSL, torch or NumPy goes by its name: their
versions are part of a kernel's identity. Nothing is called on the values but `repr` of plain ones.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

#: Deep enough for a fusion's class inside an op's attributes, and a function in that one's closure.
MAX_DEPTH = 6
#: Top-level packages whose version stands for their code.
VERSIONED = frozenset(
    {"cutlass", "torch", "numpy", "cuda", "networkx", "packaging", "typing_extensions", *sys.stdlib_module_names}
) - {"__main__"}

#: Where the DSL keeps the code of a function when it puts its rewritten one in its place.
_ORIGINAL = "_original_code"

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_IGNORED = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"}
    # What the framework derives from the class's other attributes.
    | {"declaration", "_fused"}
)


def describe(value: Any) -> str:
    """The value as text."""
    return _Description().of(value, MAX_DEPTH)


def code_digest(code: types.CodeType) -> str:
    """A hash of the bytecode with its constants, names, file and line: of what the code is, not of where it lies."""
    total = hashlib.sha256(code.co_code)
    parts = [code.co_filename, code.co_firstlineno, code.co_names, code.co_varnames, code.co_freevars]
    parts += [_constant(constant) for constant in code.co_consts]
    total.update(repr(parts).encode())
    return total.hexdigest()


def _constant(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return code_digest(constant)
    if isinstance(constant, frozenset):
        return repr(sorted(map(repr, constant)))
    return repr(constant)


class _Description:
    """One walk over a value. A class or function that is met again goes by its name."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def of(self, value: Any, depth: int) -> str:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        if depth == 0:
            return name
        if isinstance(value, (tuple, list)):
            return f"{name}({', '.join(self.of(item, depth - 1) for item in value)})"
        if isinstance(value, (set, frozenset)):
            return f"{name}({', '.join(sorted(self.of(item, depth - 1) for item in value))})"
        if isinstance(value, Mapping):
            return f"{name}({self._items(value.items(), depth)})"
        if isinstance(value, (staticmethod, classmethod, types.MethodType)):
            return f"{name}({self.of(value.__func__, depth)})"
        if isinstance(value, property):
            return f"{name}({self.of(value.fget, depth)})"
        if isinstance(value, functools.partial):
            return f"{name}({self.of((value.func, value.args, value.keywords), depth - 1)})"
        if callable(value) and hasattr(value, "__wrapped__"):
            value = inspect.unwrap(value)
        if isinstance(value, (types.FunctionType, type)):
            return self._definition(value, depth)
        if _is_versioned(type(value)):
            text = repr(value) if isinstance(value, (types.GenericAlias, range, slice)) else ""
            return f"{name}{text}"
        attributes = dict(getattr(value, "__dict__", {}))
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        attributes |= {slot: getattr(value, slot) for slot in slots if isinstance(slot, str) and hasattr(value, slot)}
        return f"{name}({self._items(attributes.items(), depth)})"

    def _definition(self, value: Any, depth: int) -> str:
        name = f"{value.__module__}.{value.__qualname__}"
        if _is_versioned(value) or id(value) in self._seen:
            return name
        self._seen.add(id(value))
        if isinstance(value, type):
            # With what it inherits: an op's attributes may be those of a base.
            own = ((key, item) for key, item in vars(value).items() if key not in _IGNORED)
            bases = ", ".join(self.of(base, depth - 1) for base in value.__bases__)
            return f"{name}({self._items(own, depth)})({bases})"
        code = vars(value).get(_ORIGINAL, value.__code__)
        closure = {}
        for variable, cell in zip(code.co_freevars, value.__closure__ or (), strict=False):
            try:
                closure[variable] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        rest = self.of((value.__defaults__, value.__kwdefaults__, closure), depth - 1)
        return f"{name}#{code_digest(code)}{rest}"

    def _items(self, items: Iterable[tuple[Any, Any]], depth: int) -> str:
        return ", ".join(sorted(f"{key!s}={self.of(value, depth - 1)}" for key, value in items))


def _is_versioned(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "builtins").partition(".")[0] in VERSIONED
