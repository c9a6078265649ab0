"""Waits that end: for what they wait for, or because it does not come.

A wait tries for a moment, then looks at the clock now and then. Whoever has waited longer than the launch's patience
raises the alarm, a word in global memory, and reports where it stands. Everybody who waits sees the alarm and gives up
as well: such a wait returns as if it had succeeded, so that no warp stays away from a barrier that others are in. From
then on the loader and the storer issue no copies, and every role stops at its next instruction. What the kernel writes
after that is worthless; the host finds the report and raises an error.

The head of the alarm in shared memory (`plan.shared`): where alarm and report are, whether this CTA has seen the alarm,
and for each warp the op and the tile that it works on.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from machete.megakernel.plan.shared import ALARM_STATUS

from . import ptx
from .tracing import CAUSES, Recorder

#: What the report's first word says: 1 + the position of the cause here.
REASONS = (*CAUSES, "counter")
#: Waits that may rightly take as long as the kernel, or that end when one of the others does: they raise no alarm.
PASSIVE = ("fetch", "slot", "dependency")


@dataclass(frozen=True, eq=False)
class Waits:
    """How one warp of a role waits."""

    head: Any  # Int32 shared address of the head of the alarm
    warp: Any  # Int32
    given_up: Any  # register array [not 0 once a wait of this warp was given up]
    recorder: Recorder | None

    @property
    def status(self):
        """Shared address of what this warp says of itself."""
        return self.head + (self.warp * 8 + ALARM_STATUS)

    def until(self, cause: str, barrier, parity) -> None:
        """Wait until the phase of parity `parity` of an mbarrier is complete, for one of `tracing.CAUSES`."""

        def wait() -> None:
            reason = 0 if cause in PASSIVE else 1 + REASONS.index(cause)
            failed = ptx.mbarrier_wait(barrier, parity, self.head, self.status, reason)
            self.given_up[0] = self.given_up[0] | failed

        if self.recorder is None:
            wait()
        else:
            self.recorder.wait(cause, lambda: ptx.mbarrier_test(barrier, parity), wait)

    def counter(self, address, least) -> None:
        """One lane: wait until a global counter has reached `least`, and acquire it. Then `meet`."""
        reason = 1 + REASONS.index("counter")
        self.given_up[0] = self.given_up[0] | ptx.counter_wait(address, least, self.head, self.status, reason)

    def meet(self) -> None:
        """The lanes of the warp, which have waited for different counters, go on together."""
        self.given_up[0] = ptx.any_lane(self.given_up[0])

    @cute.jit
    def say(self, op, tile):
        """What this warp works on, for the report of whoever gives up."""
        if ptx.lane_index() == 0:
            ptx.store_shared_word(Int32, self.status, op)
            ptx.store_shared_word(Int32, self.status + 4, tile)


@cute.jit
def prepare_alarm(head, alarm, report, patience, cta):
    """One thread, before anybody waits: fill in the head. `patience` is Int64, in ns; 0 waits for ever."""
    ptx.store_shared_word(Int64, head, alarm)
    ptx.store_shared_word(Int64, head + 8, report)
    ptx.store_shared_word(Int32, head + 16, Int32(0))
    ptx.store_shared_word(Int32, head + 20, cta)
    ptx.store_shared_word(Int64, head + 24, patience)
    for warp in cutlass.range_constexpr(12):
        ptx.store_shared_word(Int64, head + (ALARM_STATUS + warp * 8), Int64(-1))
