"""What kernel is asked for, as text: everything that its code follows from, but for the sources.

Equal identities with equal sources (`traced`) mean equal code. The text is kept in the cache beside its hash, so that
`machete cache` can say what an entry is.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from machete.megakernel.abi.target import Target
from machete.megakernel.abi.version import ABI
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.shared import SharedLayout

from .description import describe

#: Distributions that trace, compile or are called meanwhile.
COMPILERS = (
    *("machete-runtime", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"),
    *("cuda-bindings", "torch", "numpy", "networkx", "packaging", "typing-extensions"),
)


@dataclass(frozen=True)
class Identity:
    """Facts by name, each as text, and the hash that stands for them."""

    facts: dict[str, Any]

    @classmethod
    def of(
        cls, kinds: Sequence[Kind], layout: SharedLayout, target: Target, flags: str, programmatic: bool
    ) -> Identity:
        """The identity of the kernel with these kinds, compiled with these flags of the DSL.

        Raises `UndescribableError` if what the kinds hold has no description: then no other kernel is known to be it.
        """
        return cls(
            {
                "target": asdict(target),
                "kinds": [[kind.name, _kind_digest(kind)] for kind in kinds],
                "layout": repr(layout),
                "flags": flags,
                "programmatic": programmatic,
                "abi": f"{ABI[0]}.{ABI[1]}",
                "versions": versions(),
                "driver": driver_version(),
                # Settings of the DSL change what it compiles.
                "environment": {
                    name: text for name, text in sorted(os.environ.items()) if name.startswith("CUTE_DSL_")
                },
            }
        )

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the facts."""
        return hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()


def _kind_digest(kind: Kind) -> str:
    """Hash of all that a kind's code follows from; config by value, since its texts may have addresses in them."""
    described = f"{describe(kind.op)} {describe(kind.config)}"  # first: the repr of what has one is harmless
    text = f"{replace(kind, config_texts={})!r} {described}"
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the distributions in `COMPILERS`."""
    found = {"python": platform.python_version()}
    for name in COMPILERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@functools.cache
def driver_version() -> str:
    """The CUDA version of the driver, such as "13000"; "none" without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "none"
    number = ctypes.c_int(0)
    return str(number.value) if driver.cuDriverGetVersion(ctypes.byref(number)) == 0 else "unknown"
