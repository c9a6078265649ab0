"""The persistent kernel: one CTA per SM, every warp in one role, one stream of instructions.

Warps 0..7 compute (threads 0..255, two warpgroups). Warp 8, the controller, copies instruction rows and op records from
global memory into slots in shared memory, ahead of everybody else. Warp 9, the loader, keeps copies in flight; it waits
for dependencies only where its own operands have a producer, so weights stream in across op boundaries. Warp 10, the
storer, drains results. Warp 11, the watcher, polls the counters of an instruction's dependencies and clears the slot:
polling latency overlaps with the compute of the instruction before. Warp 12 is there if some op has a `multiply` phase:
the multiplier issues products of tensor cores that work by themselves, into tensor memory, and compute takes the sums.

Slot barriers: `slot_full` (row and record are there), `slot_clear` (dependencies are satisfied), `slot_free` (every
role is done with the slot); with a multiplier `slot_begun`, too (the loader has written where in the ring it begins the
instruction: both the multiplier and compute pass over stages that are the other's). The kernel's parameters are
addresses of tables in global memory (`plan.program`).
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from machete.megakernel.abi.target import Throttle
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.program import END, MAX_WAITS
from machete.megakernel.plan.shared import INLINE_WAITS, RECORD_OFFSET, ROW_BYTES, WAIT_BYTES, SharedLayout

from . import ptx, tensor_memory, tracing
from .instruction import BoundOp, Dependencies, Instruction, TileRange
from .ring import ComputeRing, LoadRing, MultiplyRing, StoreRing, advance
from .tensor_memory import ComputeAccumulators, MultiplyAccumulators
from .tracing import Hooks, Recorder
from .waiting import Waits, prepare_alarm

COMPUTE_WARPS = 8
COMPUTE_THREADS = 32 * COMPUTE_WARPS
CONTROLLER, LOADER, STORER, WATCHER, MULTIPLIER = (COMPUTE_WARPS + i for i in range(5))
ROLE_WARPS = {
    "controller": CONTROLLER,
    "loader": LOADER,
    "storer": STORER,
    "watcher": WATCHER,
    "multiplier": MULTIPLIER,
}
WARPGROUP = 128
COMPUTE_BARRIER = 1  # named barrier of the compute threads; 0 is the whole CTA, ops may use 2..15

# Registers per thread after the roles split: those of one thread of each warpgroup fit 64K / 128 = 512. There are two
# warpgroups that compute; and one for the other roles, or two.
OTHER_REGISTERS = 40
COMPUTE_REGISTERS = {1: 232, 2: 216}


def sync_compute_threads() -> None:
    """Barrier among the compute threads of the CTA; for use in `compute`, by all of them."""
    cute.arch.barrier(barrier_id=COMPUTE_BARRIER, number_of_threads=COMPUTE_THREADS)


def _call(method, arguments):
    return method(**arguments)


class PersistentKernel:
    """Traceable kernel for a set of kinds and a shared-memory layout; everything else is data."""

    waits: Waits  # of the role whose code is being traced

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        layout: SharedLayout,
        throttle: Throttle,
        hooks: Hooks | None = None,
    ) -> None:
        self.hooks = hooks
        self.kinds, self.layout, self.throttle = kinds, layout, throttle
        self.loads = any("load" in kind.declaration.phases for kind in kinds)
        self.stores = any("store" in kind.declaration.phases for kind in kinds)
        self.multiplies = layout.accumulators > 0
        stages = {kind.stage_pages for kind in kinds if kind.stage_pages}
        self.mixed_stages = len(stages) > 1
        self.unit = math.gcd(*stages) or 1

    @property
    def _other_warpgroups(self) -> int:
        return 2 if self.multiplies else 1

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return COMPUTE_THREADS + WARPGROUP * self._other_warpgroups

    # ------------------------------------------------------------------ small pieces every role uses

    def _at(self, base, offset: int, index):
        return base + (index * 8 + offset)

    def _slot(self, base, index):
        return base + (index * self.layout.slot_bytes + self.layout.slot_offset)

    def _next_slot(self, position):
        """position = [slot, parity] register array."""
        advance(position, 1, self.layout.slots)

    @cute.jit
    def _retire(self, base, slot):
        """This warp is done with the slot: what its lanes have read of it may be overwritten."""
        cute.arch.sync_warp()
        self._leave(base, slot)

    @cute.jit
    def _leave(self, base, slot):
        """The same for a warp that has met since its lanes read the slot, or for a slot that nobody uses again."""
        if ptx.lane_index() == 0:
            ptx.mbarrier_arrive(self._at(base, self.layout.slot_free_offset, slot))

    @property
    def _slot_users(self) -> int:
        return COMPUTE_WARPS + 1 + int(self.loads) + int(self.stores) + int(self.multiplies)

    def _has_descriptors(self, phase: str) -> bool:
        """Whether some op's phase copies by descriptor."""
        return any(kind.descriptors.keys() & set(kind.declaration.named_by(phase)) for kind in self.kinds)

    def _in_flight(self, kind: Kind) -> tuple[int, int, int] | None:
        """How many pages of this kind may be on their way (`LoadRing.in_flight`); None for as many as there are."""
        if not kind.op.throttled:
            return None
        assert kind.pipeline is not None  # an op without a ring has no load phase
        return self.throttle.pages(kind.pipeline.copied_per_page, kind.stage_pages, self.layout.ring_pages)

    # ------------------------------------------------------------------ roles

    @cute.jit
    def _controller(self, base, begin, end, rows, waits, records, tickets, trace):
        self._start("controller", base, trace)
        position = ptx.registers(Int32, 0, 0)
        self._await_slot(base, position)
        index = self._next_row(begin, tickets)
        while index < end and self.waits.given_up[0] == 0:
            self._publish(base, position, rows, waits, records, index)
            self._await_slot(base, position)
            index = self._next_row(index + 1, tickets)
        self._publish_end(base, position)
        self._await_slot(base, position)

    @cute.jit
    def _await_slot(self, base, position):
        free = self._at(base, self.layout.slot_free_offset, position[0])
        self.waits.until("slot", free, position[1] ^ 1)

    @cute.jit
    def _next_row(self, index, tickets):
        """`index`; or, in a queue for all SMs, a ticket: there is room for it, since what an SM takes it finishes."""
        if const_expr(self.layout.one_queue):
            index = self._ticket(tickets)
        return index

    @cute.jit
    def _publish_end(self, base, position):
        """The row at which every role stops; each leaves its slot as the last thing that it does."""
        slot = position[0]
        if ptx.lane_index() == 0:
            ptx.store_shared_word(Int32, self._slot(base, slot), Int32(END))
            ptx.mbarrier_arrive(self._at(base, self.layout.slot_full_offset, slot))
        position[1] = position[1] ^ 1  # the slot is the next one, too

    @cute.jit
    def _ticket(self, tickets):
        """The next row of the queue that all SMs share: one atomic add."""
        number = Int32(0)
        if ptx.lane_index() == 0:
            number = Int32(ptx.counter_fetch_add(tickets))
        return cute.arch.shuffle_sync(number, 0)

    @cute.jit
    def _publish(self, base, position, rows, waits, records, index):
        """Copy a row, its first waits, and the record of its op into a free slot."""
        tracing.begin(self.recorder, "instruction", index)
        slot = position[0]
        lane = ptx.lane_index()
        row = rows + Int64(index) * ROW_BYTES
        target = self._slot(base, slot)
        if lane < 8:
            ptx.store_shared_word(Int32, target + lane * 4, ptx.global_word(Int32, row + Int64(lane * 4)))
        op = ptx.global_word(Int32, row + Int64(4))
        # Polling a counter begins at once when its turn comes: what to poll is in the slot by then.
        if lane < INLINE_WAITS:
            wait = waits + Int64(ptx.global_word(Int32, row + Int64(20)) + lane) * WAIT_BYTES
            if lane < (ptx.global_word(Int32, row + Int64(24)) & MAX_WAITS):
                ptx.store_shared_word(Int64, target + (ROW_BYTES + lane * WAIT_BYTES), ptx.global_word(Int64, wait))
        record = records + Int64(op) * self.layout.record_bytes
        for word in cutlass.range_constexpr(0, self.layout.record_bytes // 4, 32):
            if lane + word < self.layout.record_bytes // 4:
                offset = (lane + word) * 4
                value = ptx.global_word(Int32, record + Int64(offset))
                ptx.store_shared_word(Int32, target + (offset + RECORD_OFFSET), value)
        cute.arch.sync_warp()
        if lane == 0:
            ptx.mbarrier_arrive(self._at(base, self.layout.slot_full_offset, slot))
        self._next_slot(position)
        tracing.end(self.recorder, "instruction")

    @cute.jit
    def _kind(self, base, position):
        """Wait for the next row; its kind, or `END`."""
        slot = position[0]
        self.waits.until("fetch", self._at(base, self.layout.slot_full_offset, slot), position[1])
        return ptx.shared_word(Int32, self._slot(base, slot))

    @cute.jit
    def _watcher(self, base, waits, counters, trace):
        self._start("watcher", base, trace)
        position = ptx.registers(Int32, 0, 0)
        lane = ptx.lane_index()
        while self._kind(base, position) != END:
            slot = position[0]
            instruction = Instruction.read(self._slot(base, slot))
            self.waits.say(instruction.op, instruction.first)
            tracing.begin(self.recorder, "polling", instruction.op)
            for index in cutlass.range(lane, instruction.waits, 32, unroll=1):
                counter, least = self._wait_entry(self._slot(base, slot), waits, instruction, index)
                self.waits.counter(counters + Int64(counter) * self.layout.counter_bytes, least)
            cute.arch.sync_warp()
            self.waits.meet()
            if lane == 0:
                ptx.mbarrier_arrive(self._at(base, self.layout.slot_clear_offset, slot))
            tracing.end(self.recorder, "polling")  # after the arrival, for which others wait
            self._leave(base, slot)  # the lanes have met since they read it
            self._next_slot(position)
        self._leave(base, position[0])
        self._stop()

    @cute.jit
    def _wait_entry(self, slot, waits, instruction, index):
        """Counter and value of an instruction's wait: the first few are in its slot."""
        entry = Int64(0)
        if index < INLINE_WAITS:
            entry = ptx.shared_word(Int64, slot + (ROW_BYTES + index * WAIT_BYTES))
        else:
            entry = ptx.global_word(Int64, waits + Int64(instruction.wait_begin + index) * WAIT_BYTES)
        return Int32(entry), Int32(entry >> 32)

    @cute.jit
    def _loader(self, base, trace):
        self._start("loader", base, trace)
        position = ptx.registers(Int32, 0, 0)
        # A fresh `empty` barrier has parity 1 behind it: the first trip is free.
        pages = ptx.registers(Int32, 0, 1, 0, 0)
        while self._kind(base, position) != END:
            slot = position[0]
            instruction = Instruction.read(self._slot(base, slot))
            tracing.begin(self.recorder, "instruction", instruction.op)
            self.waits.say(instruction.op, instruction.first)
            if const_expr(self.multiplies):
                self._say_position(base, slot, pages)
            if instruction.loader_waits:
                clear = self._at(base, self.layout.slot_clear_offset, slot)
                self.waits.until("dependency", clear, position[1])
                ptx.fence_async()  # what the producers wrote through the generic proxy is read by copies
            for k in cutlass.range_constexpr(len(self.kinds)):
                if const_expr("load" in self.kinds[k].declaration.phases):
                    if instruction.kind == k:
                        self._load_range(k, base, slot, instruction, pages)
            self._retire(base, slot)
            tracing.end(self.recorder, "instruction")
            self._next_slot(position)
        self._leave(base, position[0])
        LoadRing(self.layout, base, pages, self.unit, self.unit, self.waits).settle()
        self._stop()

    @cute.jit
    def _load_range(self, k: cutlass.Constexpr, base, slot, instruction, pages):
        kind = self.kinds[k]
        pages[2] = Int32(0)
        in_flight = self._in_flight(kind)
        ring = LoadRing(self.layout, base, pages, kind.stage_pages, self.unit, self.waits, in_flight, kind.multiplies)
        if const_expr(self.mixed_stages):
            ring.align()
        self._run_tiles(k, "load", base, slot, instruction, {"ring": ring})

    @cute.jit
    def _say_position(self, base, slot, pages):
        """The loader: where in the ring the instruction begins."""
        if ptx.lane_index() == 0:
            address = self._at(base, self.layout.position_offset, slot)
            ptx.store_shared_word(Int32, address, pages[0])
            ptx.store_shared_word(Int32, address + 4, pages[1])
            ptx.mbarrier_arrive(self._at(base, self.layout.slot_begun_offset, slot))

    def _position(self, base, slot, parity):
        """Where the loader begins the instruction: page, and parity of its `empty` barrier, a phase before `full`."""
        self.waits.until("position", self._at(base, self.layout.slot_begun_offset, slot), parity)
        address = self._at(base, self.layout.position_offset, slot)
        return ptx.shared_word(Int32, address), ptx.shared_word(Int32, address + 4)

    @cute.jit
    def _multiplier(self, base, trace):
        self._start("multiplier", base, trace)
        position = ptx.registers(Int32, 0, 0)
        pages = ptx.registers(Int32, 0, 0)
        accumulators = MultiplyAccumulators(self.layout, base, ptx.registers(Int32, 0, 1), self.waits)
        while self._kind(base, position) != END:
            slot = position[0]
            instruction = Instruction.read(self._slot(base, slot))
            tracing.begin(self.recorder, "instruction", instruction.op)
            self.waits.say(instruction.op, instruction.first)
            pages[0], _parity = self._position(base, slot, position[1])
            for k in cutlass.range_constexpr(len(self.kinds)):
                if const_expr(self.kinds[k].multiplies):
                    if instruction.kind == k:
                        self._multiply_range(k, base, slot, instruction, pages, accumulators)
            self._retire(base, slot)
            tracing.end(self.recorder, "instruction")
            self._next_slot(position)
        accumulators.finish()
        self._leave(base, position[0])
        self._stop()

    @cute.jit
    def _multiply_range(self, k: cutlass.Constexpr, base, slot, instruction, pages, accumulators):
        kind = self.kinds[k]
        ring = MultiplyRing(self.layout, base, pages, kind.stage_pages, self.unit, self.waits, COMPUTE_WARPS)
        if const_expr(self.mixed_stages):
            ring.align()
        self._run_tiles(k, "multiply", base, slot, instruction, {"ring": ring, "accumulators": accumulators})

    @cute.jit
    def _run_tiles(
        self, k: cutlass.Constexpr, phase: cutlass.Constexpr, base, slot, instruction, available: cutlass.Constexpr
    ):
        """Run a phase once for each tile of the range, or once for the range where it asks for `tiles`."""
        kind = self.kinds[k]
        bound = BoundOp(kind, self._slot(base, slot), COMPUTE_THREADS)
        parameters = kind.declaration.phases[phase]
        shares_page = "page_ptr" in parameters and kind.resident_bytes > 0
        if const_expr("tiles" in parameters):
            if const_expr(shares_page):
                self._sync()  # the op before may still be reading the page
            tiles = TileRange(bound, instruction.first, instruction.count, instruction.step)
            self._run_phase(k, phase, bound, instruction, None, {**available, "tiles": tiles})
        else:
            for index in cutlass.range(instruction.count, unroll=1):
                if const_expr(shares_page):
                    self._sync()  # the tile before may still be reading the page
                tile = instruction.first + index * instruction.step
                if const_expr(set(kind.tile) & set(kind.op.resizable)):
                    self._run_tile_inside(k, phase, bound, instruction, tile, available)
                else:
                    self._run_phase(k, phase, bound, instruction, tile, available)

    @cute.jit
    def _run_tile_inside(
        self,
        k: cutlass.Constexpr,
        phase: cutlass.Constexpr,
        bound: cutlass.Constexpr,
        instruction,
        tile,
        available: cutlass.Constexpr,
    ):
        """Run a phase for one tile, unless it lies outside of extents that are smaller than planned."""
        has_work = bound.has_work(tile)
        if has_work:
            self._run_phase(k, phase, bound, instruction, tile, available)

    @cute.jit
    def _run_phase(
        self,
        k: cutlass.Constexpr,
        phase: cutlass.Constexpr,
        bound: cutlass.Constexpr,
        instruction,
        tile,
        available: cutlass.Constexpr,
    ):
        name = self.kinds[k].op.__name__
        if const_expr(tile is None):
            text = f"{phase} of op {{0}} ({name}) tiles {{1}} + {{3}} i, i < {{2}}"
            ptx.mark(text, instruction.op, instruction.first, instruction.count, instruction.step)
        else:
            ptx.mark(f"{phase} of op {{0}} ({name}) tile {{1}}", instruction.op, tile)
            self.waits.say(instruction.op, tile)
        method = getattr(bound.instance(), phase)
        tracing.begin(self.recorder, phase, Int32(-1) if tile is None else tile)
        _call(method, bound.arguments(phase, tile, available))
        tracing.end(self.recorder, phase)

    def _start(self, role: str, base, trace: Int64 | None) -> None:
        """From here on the code is that of `role`: the tracer's, too, if there is one."""
        recorder = None if self.hooks is None else self.hooks.start(trace, role)
        warp = ROLE_WARPS.get(role, cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32))
        self.waits = Waits(base + self.layout.alarm_offset, warp, ptx.registers(Int32, 0), recorder)

    @property
    def recorder(self) -> Recorder | None:
        """What the role's code tells a tracer."""
        return self.waits.recorder

    def _stop(self) -> None:
        if self.recorder is not None:
            self.recorder.finish()

    def _sync(self) -> None:
        tracing.begin(self.recorder, "barrier")
        sync_compute_threads()
        if self.recorder is not None:
            # The warp goes on past the barrier, up to what needs shared memory: read something there.
            self.recorder.end("barrier", after=self.waits.cta())

    @cute.jit
    def _compute(self, base, counters, trace):
        self._start("compute", base, trace)
        position = ptx.registers(Int32, 0, 0)
        pages = ptx.registers(Int32, 0, 0)
        outputs = ptx.registers(Int32, 0, 0)
        sums = ptx.registers(Int32, 0, 0)
        while self._kind(base, position) != END:
            slot = position[0]
            instruction = Instruction.read(self._slot(base, slot))
            tracing.begin(self.recorder, "instruction", instruction.op)
            self.waits.say(instruction.op, instruction.first)
            if const_expr(self.multiplies):
                page, parity = self._position(base, slot, position[1])
                pages[0], pages[1] = page, parity ^ 1
            for k in cutlass.range_constexpr(len(self.kinds)):
                if instruction.kind == k:
                    self._compute_range(k, base, slot, position[1], instruction, pages, outputs, sums, counters)
            self._retire(base, slot)
            tracing.end(self.recorder, "instruction")
            self._next_slot(position)
        if const_expr(self.multiplies):
            ComputeAccumulators(self.layout, base, sums, self.waits).finish()
        self._leave(base, position[0])
        self._stop()

    @cute.jit
    def _compute_range(self, k: cutlass.Constexpr, base, slot, parity, instruction, pages, outputs, sums, counters):
        kind = self.kinds[k]
        dependencies = Dependencies(self._at(base, self.layout.slot_clear_offset, slot), parity, self.waits)
        if const_expr("dependencies" not in kind.declaration.phases["compute"]):
            dependencies.wait()
        elif const_expr(len(kind.declaration.early) > 0):
            if instruction.loader_waits:  # something that is read ahead has a producer this time
                dependencies.wait()
        ring = None
        if const_expr(kind.stage_pages > 0):
            ring = ComputeRing(self.layout, base, pages, kind.stage_pages, self.unit, self.waits, outputs)
            if const_expr(self.mixed_stages):
                ring.align()
        # An op that declares no pages gets an address outside shared memory: using it is an error, not an overlap.
        address = base + self.layout.resident_offset if const_expr(kind.resident_bytes > 0) else Int32(1 << 24)
        page_ptr = ptx.shared_pointer(cutlass.Uint8, address, 1024)
        available = {"ring": ring, "page_ptr": page_ptr, "dependencies": dependencies}
        if const_expr(kind.multiplies):
            available["accumulators"] = ComputeAccumulators(self.layout, base, sums, self.waits)
        self._run_tiles(k, "compute", base, slot, instruction, available)
        if const_expr("dependencies" in kind.declaration.phases["compute"]):
            dependencies.wait_at_last()  # what this instruction signals vouches for what it depends on
        if instruction.signal >= 0:
            self._signal_compute(kind, instruction, counters)

    @cute.jit
    def _signal_compute(self, kind: cutlass.Constexpr, instruction, counters):
        """Everything that the compute threads have written is there for whoever waits for this instruction."""
        if instruction.fences:
            ptx.fence_async()
        if const_expr(kind.op.first_warp_writes):
            cute.arch.sync_warp()
        else:
            self._sync()
        if cute.arch.thread_idx()[0] == 0:
            self._signal(instruction, counters)

    @cute.jit
    def _signal(self, instruction, counters):
        """One thread: the counter of the instruction's group, and that of the whole op where somebody waits for it."""
        ptx.counter_signal(counters + Int64(instruction.signal) * self.layout.counter_bytes)
        if instruction.total_before > 0:
            total = instruction.signal - instruction.total_before
            ptx.counter_signal(counters + Int64(total) * self.layout.counter_bytes)

    @cute.jit
    def _storer(self, base, counters, trace):
        self._start("storer", base, trace)
        position = ptx.registers(Int32, 0, 0)
        state = ptx.registers(Int32, 0, 0, 0, 0)
        while self._kind(base, position) != END:
            slot = position[0]
            instruction = Instruction.read(self._slot(base, slot))
            tracing.begin(self.recorder, "instruction", instruction.op)
            self.waits.say(instruction.op, instruction.first)
            for k in cutlass.range_constexpr(len(self.kinds)):
                if const_expr("store" in self.kinds[k].declaration.phases):
                    if instruction.kind == k:
                        self._store_range(k, base, slot, instruction, state, counters)
            self._retire(base, slot)
            tracing.end(self.recorder, "instruction")
            self._next_slot(position)
        self._leave(base, position[0])
        self._stop()

    @cute.jit
    def _store_range(self, k: cutlass.Constexpr, base, slot, instruction, state, counters):
        kind = self.kinds[k]
        ring = StoreRing(self.layout, base, state, kind.stage_pages, self.unit, self.waits, COMPUTE_WARPS)
        self._run_tiles(k, "store", base, slot, instruction, {"ring": ring})
        tracing.begin(self.recorder, "drain")
        ring.drain()
        tracing.end(self.recorder, "drain")
        if instruction.signal >= 0:
            if instruction.fences:
                ptx.fence_async()
            cute.arch.sync_warp()
            if ptx.lane_index() == 0:
                self._signal(instruction, counters)

    # ------------------------------------------------------------------ the kernel

    @cute.jit
    def _init_barriers(self, base):
        layout = self.layout
        for page in cutlass.range_constexpr(0, layout.ring_pages, self.unit):
            ptx.mbarrier_init(self._at(base, layout.full_offset, page), 1)
            ptx.mbarrier_init(self._at(base, layout.empty_offset, page), COMPUTE_WARPS)
            if const_expr(self.multiplies):
                ptx.mbarrier_init(self._at(base, layout.operands_offset, page), 1)
        for slot in cutlass.range_constexpr(layout.output_slots):
            ptx.mbarrier_init(self._at(base, layout.out_full_offset, slot), COMPUTE_WARPS)
            ptx.mbarrier_init(self._at(base, layout.out_empty_offset, slot), 1)
        for slot in cutlass.range_constexpr(layout.slots):
            ptx.mbarrier_init(self._at(base, layout.slot_full_offset, slot), 1)
            ptx.mbarrier_init(self._at(base, layout.slot_clear_offset, slot), 1)
            ptx.mbarrier_init(self._at(base, layout.slot_free_offset, slot), self._slot_users)
            if const_expr(self.multiplies):
                ptx.mbarrier_init(self._at(base, layout.slot_begun_offset, slot), 1)
                # Whoever gives up waiting for the position reads it all the same: a page that there is.
                ptx.store_shared_word(Int64, self._at(base, layout.position_offset, slot), Int64(0))
        if const_expr(self.multiplies):
            ptx.mbarrier_init(self._at(base, layout.ended_offset, 0), COMPUTE_WARPS + 1)
        for index in cutlass.range_constexpr(layout.accumulators):
            ptx.mbarrier_init(self._at(base, layout.summed_offset, index), 1)
            ptx.mbarrier_init(self._at(base, layout.taken_offset, index), COMPUTE_WARPS)
        ptx.mbarrier_init_fence()

    @cute.jit
    def _finish(self, counters, num_counters):
        """The last CTA to finish sets every counter back to zero, so that the kernel can run again as it is."""
        lane = ptx.lane_index()
        last = Int32(0)
        if lane == 0:
            before = ptx.counter_fetch_add(counters)
            if Int32(before) == cute.arch.grid_dim()[0] - 1:
                last = Int32(1)
        last = cute.arch.shuffle_sync(last, 0)
        if last == 1:
            cute.arch.sync_warp()  # what the first lane has acquired; PTX promises no such thing of a shuffle
            for index in cutlass.range(lane, num_counters, 32, unroll=1):
                address = counters + Int64(index) * self.layout.counter_bytes
                cute.make_tensor(ptx.global_pointer(Int32, address, 4), cute.make_layout(1))[0] = Int32(0)

    @cute.jit
    def _acquire_descriptors(self, descriptors, num_descriptors):
        """The warp sees the descriptors that the host has written; the first ones are on their way."""
        lane = ptx.lane_index()
        for index in cutlass.range(lane, num_descriptors, 32, unroll=1):
            ptx.fence_descriptor(descriptors + Int64(index) * 128)
        if lane < num_descriptors:
            ptx.prefetch_descriptor(descriptors + Int64(lane) * 128)
        cute.arch.sync_warp()

    @cute.jit
    def _prefetch_records(self, records, end):
        """Records of the first ops: nobody knows yet which one is needed, but at the start each wait counts."""
        line = records + Int64(ptx.lane_index()) * 128
        if line < end:
            ptx.prefetch(line)

    @cute.kernel
    def kernel(
        self,
        queue_begin: Int64,
        rows: Int64,
        waits: Int64,
        records: Int64,
        descriptors: Int64,
        num_descriptors: Int32,
        counters: Int64,
        num_counters: Int32,
        report: Int64,
        patience: Int64,
        trace: Int64 | None,
    ):
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(thread // 32)
        cta = cute.arch.block_idx()[0]
        base = Int32(cute.arch.get_dyn_smem(cutlass.Uint8, alignment=1024).toint())
        queue = Int32(0) if const_expr(self.layout.one_queue) else cta
        begin = ptx.global_word(Int32, queue_begin + Int64(queue) * 4)
        end = ptx.global_word(Int32, queue_begin + Int64(queue + 1) * 4)
        # What the plan alone decides has been there since the kernel was made; all else may still be on its way.
        ptx.let_next_kernel_start()
        if thread == 0:
            self._init_barriers(base)
        ptx.await_kernel_before()
        if thread == 0:
            alarm = counters + Int64(num_counters + 1) * self.layout.counter_bytes
            prepare_alarm(base + self.layout.alarm_offset, alarm, report, patience, cta)
        if warp == WATCHER:
            self._prefetch_records(records, descriptors)
        if const_expr(self.multiplies):
            if warp == MULTIPLIER:
                tensor_memory.allocate(self.layout, base)
        cute.arch.sync_threads()
        # The first counter is the number of CTAs that have finished; dependencies count from the second on. The last
        # one hands out the rows of a queue that all CTAs share.
        dependency_counters = counters + Int64(self.layout.counter_bytes)
        if warp >= COMPUTE_WARPS:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            if warp == CONTROLLER:
                tickets = counters + Int64(num_counters) * self.layout.counter_bytes
                self._controller(base, begin, end, rows, waits, records, tickets, trace)
                if num_counters > 0:  # else nothing was counted, and nothing has to be reset
                    self._finish(counters, num_counters + 1)
                self._stop()
            if warp == WATCHER:
                self._watcher(base, waits, dependency_counters, trace)
            if const_expr(self.loads):
                if warp == LOADER:
                    if const_expr(self._has_descriptors("load")):
                        self._acquire_descriptors(descriptors, num_descriptors)
                    self._loader(base, trace)
            if const_expr(self.stores):
                if warp == STORER:
                    if const_expr(self._has_descriptors("store")):
                        self._acquire_descriptors(descriptors, num_descriptors)
                    self._storer(base, dependency_counters, trace)
            if const_expr(self.multiplies):
                if warp == MULTIPLIER:
                    self._multiplier(base, trace)
        else:
            cute.arch.setmaxregister_increase(COMPUTE_REGISTERS[self._other_warpgroups])
            self._compute(base, dependency_counters, trace)

    @cute.jit
    def launch(
        self,
        queue_begin: Int64,
        rows: Int64,
        waits: Int64,
        records: Int64,
        descriptors: Int64,
        num_descriptors: Int32,
        counters: Int64,
        num_counters: Int32,
        report: Int64,
        patience: Int64,
        trace: Int64 | None,
        stream,
    ):
        """The host side that `cute.compile` wants; machete launches the compiled kernel itself.

        `trace` is None without hooks; then the kernel has no such parameter.
        """
        self.kernel(
            queue_begin,
            rows,
            waits,
            records,
            descriptors,
            num_descriptors,
            counters,
            num_counters,
            report,
            patience,
            trace,
        ).launch(
            grid=[1, 1, 1],  # whoever launches the compiled kernel decides
            block=[self.threads, 1, 1],
            smem=self.layout.total_bytes,
            min_blocks_per_mp=1,
            stream=stream,
        )
