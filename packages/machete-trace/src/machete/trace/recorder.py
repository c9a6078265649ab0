"""Device code that records: what `Megakernel(trace=True)` adds to every role of the persistent kernel.

One thread of each role writes; the others pass over. An event is one read of the SM's clock and one store of eight
bytes, which nobody waits for. A wait is recorded only if there was something to wait for: else it costs one test.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .buffer import COUNT_WORD, ROLES, SAMPLE_WORD, SAMPLE_WORDS, SM_WORD, BufferLayout
from .events import EVENT_BYTES, TYPE_BITS, tag

_WARP_SIZE = 32


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
            limit=_limit(role == "compute", layout.capacity[ROLES.index(role)]),
            count=_register(0),
        )
        if role == "watcher":
            recorder.sample(0)
        recorder.begin("role", 0)
        return recorder


@dataclass(frozen=True, eq=False)
class RoleRecorder:
    """One role's events. `count` says how many there were, those beyond `limit` are not written.

    `limit` is -1 for threads that do not write.
    """

    role: int  # index in `ROLES`
    sm: Any  # Int64, address of this SM's part of the buffer
    events: Any  # Int64, address of this role's events
    limit: Any  # Int32
    count: Any  # register array of one Int32

    @cute.jit
    def begin(self, span: cutlass.Constexpr, value):
        """A span begins."""
        self._write(tag(span), value)

    @cute.jit
    def end(self, span: cutlass.Constexpr):
        """A span ends."""
        self._write(tag(span, ends=True), 0)

    @cute.jit
    def wait(self, cause: cutlass.Constexpr, ready: cutlass.Constexpr, wait: cutlass.Constexpr):
        """A wait, if it is one."""
        if ready() == 0:
            self._write(tag(cause), 0)
            wait()
            self._write(tag(cause, ends=True), 0)

    @cute.jit
    def stage(self):
        """A stage of the ring was taken."""
        self._write(tag("stage"), 0)

    @cute.jit
    def finish(self):
        """The role is done: say how many events it had."""
        self._write(tag("role", ends=True), 0)
        if self.limit >= 0:
            _store(self.sm + 8 * (COUNT_WORD + self.role), self.count[0], Int32(0))
        if cutlass.const_expr(self.role == ROLES.index("watcher")):
            self.sample(1)

    @cute.jit
    def _write(self, low: cutlass.Constexpr, value):
        if self.count[0] < self.limit:
            word = (Int32(value) << TYPE_BITS) | low
            _store(self.events + Int64(self.count[0]) * EVENT_BYTES, Int32(cute.arch.clock()), word)
        if self.limit >= 0:
            self.count[0] = self.count[0] + 1

    @cute.jit
    def sample(self, number: cutlass.Constexpr):
        """The global timer and the SM's clock side by side, at a moment when the timer changes."""
        if self.limit >= 0:
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
def _limit(compute: cutlass.Constexpr, capacity: cutlass.Constexpr):
    """How many events this thread may write: only one thread of the role writes any."""
    thread = cute.arch.thread_idx()[0]
    limit = Int32(-1)
    if cutlass.const_expr(compute):
        if thread == 0:
            limit = Int32(capacity)
    elif thread % _WARP_SIZE == 0:
        limit = Int32(capacity)
    return limit


def _register(initial: int):
    array = cute.make_rmem_tensor((1,), Int32)
    array[0] = Int32(initial)
    return array


def _store(address, low, high) -> None:
    """Two words, eight bytes. They stay in the L2 until the events around them fill its sectors."""
    cute.arch.inline_ptx("st.global.v2.u32 [{$r0}], {{$r1}, {$r2}};", read_only_args=[address, low, high])
