"""Where a tracer may add code of its own to the persistent kernel.

Without a tracer every function here adds nothing: the kernel is the same as if this module did not exist.
"""

from collections.abc import Callable
from typing import Any, Protocol

#: The warps that record: "watcher" is the half of the controller that polls dependencies.
ROLES = ("controller", "watcher", "loader", "compute", "storer", "multiplier")

#: What lasts for a while, and what `value` is then.
SPANS = {
    "instruction": "op; for the controller the number of the row that it copies",
    "load": "tile, -1 for a whole range",
    "compute": "tile, -1 for a whole range",
    "store": "tile, -1 for a whole range",
    "multiply": "tile, -1 for a whole range",
    "polling": "op whose dependencies the watcher polls",
    "barrier": "0: compute threads wait for one another",
    "drain": "0: stores on their way are waited for",
}

#: Why a role waits.
CAUSES = {
    "fetch": "for its next instruction",
    "slot": "controller: for a free instruction slot",
    "dependency": "for what other instructions write",
    "page": "loader: for a free page of the ring",
    "throttle": "loader: few enough bytes in flight",
    "data": "compute or multiplier: for copies to land",
    "output": "compute: for a free place on the way to the store phase",
    "results": "storer: for compute",
    "position": "compute or multiplier: for the loader, which says where an instruction's stages are",
    "accumulator": "multiplier: for an accumulator that compute has read",
    "products": "compute: for products to be complete",
}

#: Cycles that `Recorder.wait_for_stage` hears of at most.
LONGEST = (1 << 26) - 1


class Recorder(Protocol):
    """One role's view of a tracer. All threads of the role call every method: 256 for "compute", else one warp.

    Methods are called while the kernel is traced; what they emit runs there. It may diverge, if the threads meet again.
    A recorder is carried through the control flow of kernels: a frozen dataclass, whose fields are values of the DSL
    or numbers.
    """

    def begin(self, span: str, value: Any) -> None:
        """One of `SPANS` begins; `value` is an Int32."""

    def end(self, span: str, after: Any = None) -> None:
        """It ends; asynchronous copies that it started may still be on their way.

        `after`, where given, is an Int32 that is not negative: the span ends once it is known, not before.
        """

    def wait(self, cause: str, ready: Callable[[], Any], wait: Callable[[], None]) -> None:
        """Call `wait`, for one of `CAUSES`. `ready` gives an Int32, not 0 if there is nothing to wait for any more."""

    @property
    def timing(self) -> Any:
        """Int32, not negative in threads that have a use for the times of `wait_for_stage`."""

    def wait_for_stage(self, cause: str, begin: Any, cycles: Any) -> None:
        """There was a wait, for "throttle" or "page" by the loader, for "data" by whoever uses the stages.

        `begin` (Int32) is the SM's clock, and `cycles` how long the wait was, up to `LONGEST`: 0 if it was none, and
        where `timing` is negative; then `begin` is anything. There may be several waits; then `stage` follows.
        """

    def stage(self) -> None:
        """The loader has asked for all that goes into a stage; or compute, or the multiplier, has got one."""

    def finish(self) -> None:
        """The role has nothing to do any more."""


class Hooks(Protocol):
    """What a tracer adds to a kernel."""

    def start(self, buffer: Any, role: str) -> Recorder:
        """A role begins. `buffer` is the address of the trace buffer in global memory, an Int64."""


def begin(recorder: Recorder | None, span: str, value: Any = 0) -> None:
    """Tell the recorder, if there is one, that a span begins."""
    if recorder is not None:
        recorder.begin(span, value)


def end(recorder: Recorder | None, span: str) -> None:
    """Tell the recorder, if there is one, that a span ends."""
    if recorder is not None:
        recorder.end(span)
