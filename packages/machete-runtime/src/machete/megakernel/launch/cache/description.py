"""Python values as text that is the same in every process: what code that is traced may depend on.

Plain values are their repr. Functions are their bytecode, defaults and closures, classes their attributes, instances
their type and attributes, arrays and tensors a hash of their content. Code of the standard library, the DSL, torch and
NumPy goes by its name: their versions are part of a kernel's identity. Their objects have state that need not be in
attributes, so only kinds that are known here have a description. Nothing is called on the values but `repr` of plain
ones.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import logging
import re
import sys
import threading
import types
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

#: Deeper than any op's class with its bases, attributes and closures; it ends the walk before Python's stack does.
MAX_DEPTH = 40
#: Top-level packages whose version stands for their code.
VERSIONED = frozenset(
    {"cutlass", "torch", "numpy", "cuda", "networkx", "packaging", "typing_extensions", *sys.stdlib_module_names}
) - {"__main__"}

#: Where the DSL keeps the code of a function when it puts its rewritten one in its place.
_ORIGINAL = "_original_code"

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
#: Kinds of versioned packages whose repr says all of a value.
_BY_REPR = (
    *(np.generic, np.dtype, np.ufunc, torch.layout, torch.memory_format, PurePath, bytearray, range),
    *(types.GenericAlias, types.UnionType, types.EllipsisType, types.NotImplementedType),
)
#: Kinds of versioned packages that are code, not data: two of one name are the same.
_BY_NAME = (
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
)
#: Kinds of versioned packages that decide nothing: locks, sentinels, and fields of named tuples, whose order is said.
_EMPTY = (type(threading.Lock()), type(threading.RLock()), type(vars(inspect.ArgInfo)["args"]))
#: Functions with something of their own beside what they wrap.
_HOLDERS = (staticmethod, classmethod, types.MethodType, functools.partial)
#: Kinds of versioned packages whose attributes are all their state; so are those of the packages below, in Python.
_BY_ATTRIBUTES = (Fraction, types.SimpleNamespace, dataclasses.Field)
_PYTHON = frozenset({"cutlass", "dataclasses", "enum", "__future__"})
_IGNORED = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"}
    # What Python writes down of the class's source.
    | {"__dataclass_params__", "__annotations_cache__", "__annotate_func__", "__annotate__"}
    | {"__static_attributes__", "__firstlineno__"}
    # What the framework derives from the class's other attributes.
    | {"declaration", "_fused"}
)


class UndescribableError(Exception):
    """Two different values might have the same text."""


def describe(value: Any) -> str:
    """The value as text. Raises `UndescribableError`, and nothing else, whatever the value is."""
    try:
        return _Description().of(value, MAX_DEPTH)
    except UndescribableError:
        raise
    except Exception as error:  # attributes are code of anybody
        raise UndescribableError(f"{type(value).__qualname__}: {type(error).__name__}") from error


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
        self._active: set[int] = set()
        self._known: dict[int, tuple[Any, str]] = {}  # with the values, whose ids are theirs as long as they live

    def of(self, value: Any, depth: int) -> str:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if callable(value) and not isinstance(value, _HOLDERS) and hasattr(value, "__wrapped__"):
            value = inspect.unwrap(value)
        if isinstance(value, (types.FunctionType, type)):
            return self._definition(value, depth)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if depth == 0 or id(value) in self._active:
            raise UndescribableError(f"{type(value).__qualname__}: nested too deep, or in itself")
        self._active.add(id(value))
        text = f"{type(value).__module__}.{type(value).__qualname__}{self._content(value, depth)}"
        self._active.discard(id(value))
        self._known[id(value)] = value, text
        return text

    def _content(self, value: Any, depth: int) -> str:
        """What an object holds."""
        if isinstance(value, (tuple, list)):
            return f"({', '.join(self.of(item, depth - 1) for item in value)})"
        if isinstance(value, (set, frozenset)):
            return f"({', '.join(sorted(self.of(item, depth - 1) for item in value))})"
        if isinstance(value, Mapping):
            return f"({self._items(value.items(), depth)})"
        if isinstance(value, types.MethodType):
            return f"({self.of(value.__func__, depth - 1)}, {self.of(value.__self__, depth - 1)})"
        if isinstance(value, (staticmethod, classmethod)):
            return f"({self.of(value.__func__, depth - 1)})"
        if isinstance(value, property):
            return f"({self.of(value.fget, depth - 1)})"
        if isinstance(value, functools.cached_property):
            return f"({self.of(value.func, depth - 1)})"
        if isinstance(value, functools.partial):
            return f"({self.of((value.func, value.args, value.keywords), depth - 1)})"
        if isinstance(value, slice):
            return f"({self.of((value.start, value.stop, value.step), depth - 1)})"
        if isinstance(value, (np.ndarray, torch.Tensor)):
            return _array(value)
        if _is_versioned(type(value)) and not isinstance(value, _BY_ATTRIBUTES):
            return self._foreign(value, depth)
        return self._attributes(value, depth)

    def _foreign(self, value: Any, depth: int) -> str:
        """What an object of a versioned package holds, if it is of a kind that is known."""
        package = type(value).__module__.partition(".")[0]
        if isinstance(value, _BY_REPR) or package == "typing":
            return repr(value)
        if isinstance(value, _BY_NAME):
            return f"({value.__objclass__.__module__}.{value.__objclass__.__qualname__}.{value.__name__})"
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            owner = value.__self__
            of = "" if owner is None or isinstance(owner, types.ModuleType) else self.of(owner, depth - 1)
            return f"({getattr(value, '__module__', None)}.{value.__qualname__} {of})"
        if isinstance(value, re.Pattern):
            return f"({value.pattern!r}, {value.flags})"
        if isinstance(value, logging.Logger):
            return f"({value.name})"  # decides nothing but what is logged
        if type(value) is object or isinstance(value, _EMPTY):
            return ""
        if package in _PYTHON:
            return self._attributes(value, depth)
        raise UndescribableError(f"{type(value).__module__}.{type(value).__qualname__}")

    def _attributes(self, value: Any, depth: int) -> str:
        attributes = dict(getattr(value, "__dict__", {}))
        slots = [slot for kind in type(value).__mro__ for slot in _slots(kind)]
        attributes |= {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
        return f"({self._items(attributes.items(), depth)})"

    def _definition(self, value: Any, depth: int) -> str:
        name = f"{value.__module__}.{value.__qualname__}"
        if _is_versioned(value) or id(value) in self._seen:
            return name
        if depth == 0:
            raise UndescribableError(f"{name}: nested too deep")
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
        return ", ".join(sorted(f"{self.of(key, depth - 1)}={self.of(value, depth - 1)}" for key, value in items))


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = kind.__name__.lstrip("_")
    return tuple(f"_{private}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names)


def _array(value: np.ndarray | torch.Tensor) -> str:
    """Dtype, layout and a hash of the elements."""
    if isinstance(value, torch.Tensor):
        kind, strides = f"{value.dtype} {value.device}", value.stride()
        elements = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        data = elements.view(torch.uint8).numpy().tobytes()
    else:
        if value.dtype.hasobject:
            raise UndescribableError("an array of objects")
        kind, strides = repr(value.dtype), value.strides
        data = value.tobytes()
    return f"({kind} {tuple(value.shape)} {strides} {hashlib.sha256(data).hexdigest()})"


def _is_versioned(thing: Any) -> bool:
    return (getattr(thing, "__module__", None) or "builtins").partition(".")[0] in VERSIONED
