"""Names that a package exports, imported when they are first used.

`machete --help` and the pytest plugin import this package in programs that never run an op: they must not pay for
torch, which the classes of the ABI need. Type checkers read the imports under `TYPE_CHECKING` instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` (PEP 562) of `package`, which exports names of its modules.

    Arguments:
        package: `__name__` of the package.
        exports: module, relative to the package (".abi.op"), to the names that come from it.
    """
    home = {name: module for module, names in exports.items() for name in names}

    def resolve(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name], package), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return resolve, names
