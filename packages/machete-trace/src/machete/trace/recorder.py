"""Device code that records: what `Megakernel(trace=True)` adds to every role of the persistent kernel.

One thread of each role writes; the others pass over. An event is one read of the SM's clock and one store of eight
bytes, which nobody waits for. A wait is recorded only if there was something to wait for: else it costs one test.

Waits for a stage of the ring are the many. Where a kernel is as fast as memory, its speed is how soon the loader
answers the landing of a stage by asking for another: so the loader keeps what there is to write in registers until it
has asked. And compute, when it has fallen behind, must not be held up by events: a wait for data is none, the stage's
says how long it was (`events.expanded`).
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .buffer import COUNT_WORD, ROLES, SAMPLE_WORD, SAMPLE_WORDS, SM_WORD, BufferLayout
from .events import EVENT_BYTES, TYPE_BITS, tag

_WARP_SIZE = 32
_SILENT = -(1 << 30)  # where threads begin to count that write nothing


class RecordingHooks:
    """What the runtime calls while it traces a kernel (`machete.megakernel.device.tracing.Hooks`)."""

    def __init__(self, layout: BufferLayout) -> None:
        self._layout = layout

    def start(self, buffer, role: str) -> "RoleRecorder":
        """The recorder of a role, which has begun."""
        layout = self._layout
        sm = buffer + Int64(cute.arch.block_idx()[0]) * layout.sm_bytes
        recorder = RoleRecorder(
            role=ROLES.index(role),
            sm=sm,
            events=sm + layout.offset(role),
            capacity=layout.capacity[ROLES.index(role)],
            count=_first_count(role == "compute"),
            held=_register(0, 0, 0, 0),
        )
        if role == "watcher":
            recorder.sample(0)
        recorder.begin("role", 0)
        return recorder


@dataclass(frozen=True, eq=False)
class RoleRecorder:
    """One role's events. `count` says how many there were, those beyond `capacity` are not written.

    It differs among the threads of a warp, being negative for those that do not write: so the compiler keeps it, and
    the clocks that are read where it is not, in plain registers. With uniform ones everything takes longer.
    """

    role: int  # index in `ROLES`
    sm: Any  # Int64, address of this SM's part of the buffer
    events: Any  # Int64, address of this role's events
    capacity: int
    count: Any  # register array of one Int32
    #: Register array: waits that are written with the next stage. Loader: clock at the begin of that for a throttle,
    #: and its cycles, 0 for none, then the same for pages. Compute, multiplier: cycles of that for data.
    held: Any

    @cute.jit
    def begin(self, span: cutlass.Constexpr, value):
        """A span begins."""
        self._write(tag(span), value)

    def end(self, span: str, after: Any = None) -> None:
        """A span ends."""
        if after is None:
            self._write(tag(span, ends=True), 0)
        else:
            self._write_after(tag(span, ends=True), after)

    @cute.jit
    def wait(self, cause: cutlass.Constexpr, ready: cutlass.Constexpr, wait: cutlass.Constexpr):
        """A wait, if it is one."""
        if ready() == 0:
            self._write(tag(cause), 0)
            wait()
            self._write(tag(cause, ends=True), 0)

    @property
    def timing(self):
        """Not negative in the thread that writes."""
        return self.count[0]

    @cute.jit
    def wait_for_stage(self, cause: cutlass.Constexpr, begin, cycles):
        """A wait that is written with the stage."""
        if cutlass.const_expr(cause == "page"):
            # There may be several, one after the other: from the first one's begin to the last one's end.
            first = cutlass.select_(self.held[3] == 0, begin, self.held[2])
            self.held[3] = cutlass.select_(cycles == 0, self.held[3], begin - first + cycles)
            self.held[2] = first
        elif cutlass.const_expr(cause == "throttle"):
            self.held[0], self.held[1] = begin, cycles
        else:
            self.held[0] = cycles

    @cute.jit
    def stage(self):
        """A stage of the ring was asked for, or taken."""
        if cutlass.const_expr(self.role == ROLES.index("loader")):
            self._write_wait("throttle", self.held[0], self.held[1])
            self._write_wait("page", self.held[2], self.held[3])
            self._write(tag("stage"), 0)
            self.held[1] = self.held[3] = Int32(0)
        else:
            self._write(tag("stage"), self.held[0])

    @cute.jit
    def finish(self):
        """The role is done: say how many events it had."""
        self._write(tag("role", ends=True), 0)
        if self.count[0] >= 0:
            _store(self.sm + 8 * (COUNT_WORD + self.role), self.count[0], Int32(0))
        if cutlass.const_expr(self.role == ROLES.index("watcher")):
            self.sample(1)

    @cute.jit
    def _write_wait(self, cause: cutlass.Constexpr, begin, cycles):
        """A wait that is over, if it was one."""
        if cycles != 0:
            self._write_at(lambda: begin, Int32(tag(cause)))
            self._write_at(lambda: begin + cycles, Int32(tag(cause, ends=True)))

    @cute.jit
    def _write(self, low: cutlass.Constexpr, value):
        self._write_at(cute.arch.clock, (Int32(value) << TYPE_BITS) | low)

    @cute.jit
    def _write_after(self, low: cutlass.Constexpr, after):
        """The same, but the clock is not read before `after` is known; negative it never is."""
        if after >= 0:
            self._write(low, 0)

    @cute.jit
    def _write_at(self, clock: cutlass.Constexpr, word):
        """An event at the time that `clock()` gives."""
        if cutlass.Uint32(self.count[0]) < self.capacity:
            _store(self.events + Int64(self.count[0]) * EVENT_BYTES, Int32(clock()), word)
        self.count[0] = self.count[0] + 1

    @cute.jit
    def sample(self, number: cutlass.Constexpr):
        """The global timer and the SM's clock side by side, at a moment when the timer changes."""
        if self.count[0] >= 0:
            before = cute.arch.globaltimer()
            now = before
            reads = Int32(0)
            clock = Int32(0)
            while now == before:
                clock = Int32(cute.arch.clock())
                now = cute.arch.globaltimer()
                reads = reads + 1
            after = Int32(cute.arch.clock())
            where = self.sm + 8 * (SAMPLE_WORD + number * SAMPLE_WORDS)
            _store(where, Int32(now), Int32(now >> 32))
            _store(where + 8, clock, after)
            _store(where + 16, reads, Int32(now - before))
            if cutlass.const_expr(number == 0):
                _store(self.sm + 8 * SM_WORD, cute.arch.smid(), Int32(1))


@cute.jit
def _first_count(compute: cutlass.Constexpr):
    """Where a thread begins to count: only one thread of the role writes anything."""
    count = _register(_SILENT)
    thread = cute.arch.thread_idx()[0]
    if cutlass.const_expr(compute):
        if thread == 0:
            count[0] = Int32(0)
    elif thread % _WARP_SIZE == 0:
        count[0] = Int32(0)
    return count


def _register(*initial: int):
    array = cute.make_rmem_tensor((len(initial),), Int32)
    for index, value in enumerate(initial):
        array[index] = Int32(value)
    return array


def _store(address, low, high) -> None:
    """Two words, eight bytes. They stay in the L2 until the events around them fill its sectors."""
    cute.arch.inline_ptx("st.global.v2.u32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, low, high])
