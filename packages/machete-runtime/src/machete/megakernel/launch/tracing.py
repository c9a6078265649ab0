"""Find a tracer: a package that records what a kernel does while it runs.

Tracers announce themselves in the entry-point group `machete.tracers`; the runtime knows none by name. The interface
is one callable, `tracer(plan)`, that returns a `Tracing` for one kernel. Without `trace=True` nothing of it is called,
and the kernel is the same as if no tracer existed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from machete.megakernel.abi.errors import TracerMissingError
from machete.megakernel.plan.plan import Plan

if TYPE_CHECKING:
    from machete.megakernel.device.tracing import Hooks  # imports the DSL

    from .megakernel import Megakernel

GROUP = "machete.tracers"


class Tracing(Protocol):
    """What a tracer wants for one kernel.

    Attributes:
        buffer_bytes: size of the buffer in global memory that the hooks write to. It is zero when the kernel is bound,
            256-byte aligned, and shared by all launches of the kernel.
        hooks: emit the code that writes to it.
    """

    buffer_bytes: int
    hooks: "Hooks"


#: Lists of kernels that were made while `traced_kernels` was in force.
_made: list[list["Megakernel"]] = []


@contextmanager
def traced_kernels() -> Iterator[list["Megakernel"]]:
    """Kernels that are made inside, anywhere in the process, are traced as if with `trace=True`, and listed."""
    find_tracer()
    made: list[Megakernel] = []
    _made.append(made)
    try:
        yield made
    finally:
        _made.remove(made)


def is_traced(kernel: "Megakernel", asked: bool) -> bool:
    """Whether a new kernel is traced: it was asked for, or `traced_kernels` is in force."""
    for made in _made:
        made.append(kernel)
    return asked or bool(_made)


def find_tracer() -> Callable[[Plan], Tracing]:
    """The installed tracer, the one named "default" if there are several; or a TracerMissingError."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name != "default", entry.name))
    if not found:
        raise TracerMissingError(
            what="no tracer is installed",
            where="Megakernel(ops, trace=True)",
            why=f"a tracer announces itself in the entry-point group {GROUP!r}, as machete-trace does",
            fix=f"leave trace out, or install a package with an entry point in {GROUP!r}",
        )
    tracer: Callable[[Plan], Tracing] = found[0].load()
    return tracer
