"""A kernel's code: what this process has, else what the disk has, else compiled. Only compiling imports the DSL."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from machete.megakernel.abi.target import Target
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.shared import SharedLayout

from .artefact import Artefact
from .cache.identity import Identity
from .cache.lookup import cached
from .cache.traced import Recorder

if TYPE_CHECKING:
    from machete.megakernel.device.tracing import Hooks  # imports the DSL

#: What the DSL is told beside the target; part of a kernel's identity.
FLAGS = "--keep-ptx --keep-cubin --generate-line-info"

_known: dict[tuple, Artefact] = {}
_lock = threading.Lock()  # the DSL keeps trace state in module globals


def artefact_of(
    kinds: tuple[Kind, ...],
    layout: SharedLayout,
    target: Target,
    hooks: Hooks | None = None,
    programmatic: bool = False,
) -> Artefact:
    """The code for these kinds. Code with a tracer's hooks is compiled each time, and kept nowhere.

    A `programmatic` kernel is launched without all its CTAs resident together.
    """
    if hooks is not None:
        with _lock:
            from .compiler import compile_kernel

            return compile_kernel(kinds, layout, target, FLAGS, hooks, programmatic)
    key = (tuple(kind.key for kind in kinds), layout, target, programmatic)
    known = _known.get(key)  # without the lock: another thread may be waiting for a process that compiles
    if known is not None:
        return known
    with _lock:
        if key not in _known:

            def compile_now(recorder: Recorder | None) -> Artefact:
                from .compiler import compile_kernel

                return compile_kernel(kinds, layout, target, FLAGS, None, programmatic, recorder)

            _known[key] = cached(
                functools.partial(Identity.of, kinds, layout, target, FLAGS, programmatic), compile_now
            )
        return _known[key]


def forget() -> None:
    """Forget what this process has compiled or found; the disk keeps it."""
    with _lock:
        _known.clear()
