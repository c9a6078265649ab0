"""Waits that end: for what they wait for, or because it does not come.

Every warp that waits for longer than a moment says so in shared memory. The controller waits for everybody, so it is
the one that looks: whoever has said the same for longer than the launch's patience is stuck. Then the controller raises
the alarm, a word in global memory, and reports what the warp says. Everybody who waits is told by the controller of its
CTA, and gives up as well: such a wait returns as if it had succeeded. From then on the loader and the storer issue no
copies, and the controller publishes no instruction but the end. Those that it has published, a few, are run by every
warp, so that no warp stays away from a barrier that others are in. What the kernel writes after that is worthless; the
host finds the report and raises an error.

The head of the alarm in shared memory (`plan.shared`) has the addresses of alarm and report (8 bytes each), the CTA,
the patience in 2^20 ns, and whether to give up (4 bytes each). Then for each warp what it says of itself, words of 4
bytes: a number that no other wait has, 0 for none; the barrier or counter; what is expected of it; why the warp waits
(`REASONS`); its op and tile; what the counter was when it last looked.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from machete.megakernel.plan.shared import ALARM_STATUS, STATUS_BYTES, WARPS

from . import ptx
from .tracing import CAUSES, LONGEST, Recorder

#: What the report's first word says: 1 + the position of the cause here.
REASONS = (*CAUSES, "counter", "tag")
#: Waits that may rightly take as long as the kernel, or that end when one of the others does: they raise no alarm.
PASSIVE = ("fetch", "slot", "dependency", "position")


@dataclass(frozen=True, eq=False)
class Waits:
    """How one warp of a role waits."""

    head: Any  # Int32 shared address of the head of the alarm
    warp: Any  # its number: an int, or Int32 in a uniform register
    given_up: Any  # register array [not 0 once a wait of this warp was given up]
    recorder: Recorder | None

    @property
    def status(self):
        """Shared address of what this warp says of itself."""
        return self.head + (self.warp * STATUS_BYTES + ALARM_STATUS)

    def until(self, cause: str, barrier, parity, for_stage: bool = False) -> None:
        """Wait until the phase of parity `parity` of an mbarrier is complete, for one of `tracing.CAUSES`.

        `for_stage`: what a stage of the ring needs, of which there are many; the tracer takes them otherwise.
        """

        def wait() -> None:
            if cause == "fetch":  # the controller publishes until the end, also after an alarm
                ptx.mbarrier_wait_surely(barrier, parity)
                return
            if cause == "slot":
                failed = ptx.mbarrier_guard(barrier, parity, self.head, _reason("counter"))
            else:
                reason = 0 if cause in PASSIVE else _reason(cause)
                failed = ptx.mbarrier_wait(barrier, parity, self.head, self.status, reason)
            self.given_up[0] = self.given_up[0] | failed

        if self.recorder is None:
            wait()
        elif for_stage:
            failed, begin, cycles = ptx.mbarrier_wait_timed(
                barrier, parity, self.head, self.status, _reason(cause), self.recorder.timing, LONGEST
            )
            self.given_up[0] = self.given_up[0] | failed
            self.recorder.wait_for_stage(cause, begin, cycles)
        else:
            self.recorder.wait(cause, lambda: ptx.mbarrier_test(barrier, parity), wait)

    def counter(self, address, least) -> None:
        """One lane: wait until a global counter has reached `least`, and acquire it. Then `meet`."""
        self.given_up[0] = self.given_up[0] | ptx.counter_wait(
            address, least, self.head, self.status, _reason("counter")
        )

    def take_tagged(self, address):
        """One lane: the two float32 values that another SM hands over by `store_tagged`. Then `meet`."""
        first, second, failed = ptx.take_tagged(address, self.head, self.status, _reason("tag"))
        self.given_up[0] = self.given_up[0] | failed
        return first, second

    def words(self, address) -> None:
        """One lane: wait until none of the four words at a global address is zero. Then `meet`."""
        self.given_up[0] = self.given_up[0] | ptx.words_wait(address, self.head, self.status, _reason("tag"))

    def meet(self) -> None:
        """The lanes of the warp, which have waited for different things, go on together."""
        self.given_up[0] = ptx.any_lane(self.given_up[0])
        ptx.forget(self.status)

    def cta(self):
        """The number of the CTA, as shared memory has it: known once all that comes before in the code is done."""
        return ptx.alarm_cta(self.head)

    @cute.jit
    def say(self, op, tile):
        """What this warp works on, for the report if it does not go on."""
        if ptx.lane_index() == 0:
            ptx.say(self.status, op, tile)


def _reason(name: str) -> int:
    return 1 + REASONS.index(name)


@cute.jit
def prepare_alarm(head, alarm, report, patience, cta):
    """One thread, before anybody waits: fill in the head. `patience` is Int64, in ns; 0 waits for ever."""
    ptx.store_shared_word(Int64, head, alarm)
    ptx.store_shared_word(Int64, head + 8, report)
    ptx.store_shared_word(Int32, head + 16, cta)
    ptx.store_shared_word(Int32, head + 20, Int32((patience + ((1 << 20) - 1)) >> 20))
    ptx.store_shared_word(Int64, head + 24, Int64(0))
    for warp in cutlass.range_constexpr(WARPS):
        for word in cutlass.range_constexpr(0, STATUS_BYTES, 8):
            nothing = -1 if word == 16 else 0  # no op, no tile
            ptx.store_shared_word(Int64, head + (ALARM_STATUS + warp * STATUS_BYTES + word), Int64(nothing))
