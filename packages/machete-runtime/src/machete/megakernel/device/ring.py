"""The page ring, as the three phases of an op see it.

Shared memory holds R pages. A *stage* is an aligned group of `stage_pages` pages. Stage numbers run on across tiles and
across instructions: while one op still computes, the loader already fills pages for the next. The pages form *units*,
the largest of which all stages are made. Each unit has two mbarriers, those of its first page: `full` (its copies have
landed) and `empty` (nobody reads it any more); both flip once per trip around the ring for every unit, whatever the
stage size, so parities never depend on which op used a page (a ring in which some pages skip a phase aliases parities
and reads pages that have not landed: docs/decisions/0006).

    load:     stage = ring.acquire();  ring.load_span(...) or ring.load_tile(...);    ring.commit(stage)
    multiply: stage = ring.wait();     ... tcgen05.mma from stage ...;                ring.release(stage)
    compute:  stage = ring.wait();     ... use stage ...;                             ring.release(stage) or .forward
    store:    stage = ring.wait();     ring.store_span(...) or ring.store_tile(...);  ring.release(stage)

`forward` hands a stage, now holding results, to the store phase instead of back to the loader: output stages are
released input pages. The framework owns every barrier and phase bit; an op never initialises one.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from machete.megakernel.abi.tma import TmaBox
from machete.megakernel.plan.shared import SharedLayout

from . import ptx, tracing
from .waiting import Waits

#: How often the loader tries for each page at the end, in case that nothing was committed: longer than any copy takes.
SETTLING_TRIES = 10_000


@cute.jit
def advance(position, steps: cutlass.Constexpr, count: cutlass.Constexpr):
    """Go on in a ring of `count` places. `position` is a register array [place, parity, …]: each trip flips parity."""
    place = position[0] + steps
    if place == count:
        place = Int32(0)
        position[1] = position[1] ^ 1
    position[0] = place


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage in shared memory: `page` (its first page), `address` (Int32, shared window), `full` (its barrier)."""

    page: Any
    address: Any
    full: Any

    def pointer(self, dtype, offset: int = 0, align: int = 16):
        """A pointer of element type `dtype`, `offset` bytes into the stage."""
        return ptx.shared_pointer(dtype, self.address + offset, align)

    def tensor(self, dtype, layout, offset: int = 0, align: int = 16):
        """A CuTe tensor over the stage, `offset` bytes into it."""
        return cute.make_tensor(self.pointer(dtype, offset, align), layout)

    # A stage may be carried through a runtime loop (to be released one iteration later).
    def __extract_mlir_values__(self):
        return [self.page.ir_value(), self.address.ir_value(), self.full.ir_value()]

    def __new_from_mlir_values__(self, values):
        return Stage(*(Int32(value) for value in values))


@dataclass(frozen=True, eq=False)
class TmaHandle:
    """A TMA descriptor: its global address, the box it moves, and the size of an element in bytes."""

    address: Any
    box: TmaBox
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of one box; a copy reports all of them, also where it fills with zeros."""
        return self.box.num_bytes(self.itemsize)

    def innermost_first(self, coordinates):
        """Coordinates as the copy engine counts them."""
        return [coordinates[dim] for dim in self.box.order[::-1]]


@dataclass(frozen=True, eq=False)
class _Ring:
    """What the three views share: where the pages and barriers are, and this role's position."""

    layout: SharedLayout
    base: Any  # Int32 shared address of the kernel's dynamic shared memory
    state: Any  # register array: [page, parity, …]
    stage_pages: int
    unit: int  # pages that are always filled and freed together: what all stage sizes of the kernel have in common
    waits: Waits

    @property
    def _stage_bytes(self) -> int:
        return self.stage_pages * self.layout.page_bytes

    @cute.jit
    def _check_span(self, nbytes, offset: cutlass.Constexpr):
        """A copy beyond the end of its stage would overwrite the next one: stop instead, and say so."""
        if nbytes + offset > self._stage_bytes:
            ptx.mark("{0} bytes from offset {1} do not fit a stage of {2} bytes", nbytes, offset, self._stage_bytes)
            ptx.trap()

    def _barrier(self, offset: int, index):
        return self.base + (index * 8 + offset)

    def _wait(self, cause: str, offset: int, index, parity, for_stage: bool = False) -> None:
        self.waits.until(cause, self._barrier(offset, index), parity, for_stage)

    def _record_stage(self) -> None:
        if self.waits.recorder is not None:
            self.waits.recorder.stage()

    def _goes_on(self):
        """Whether this warp has had every wait fulfilled; else it must not touch what it has not got."""
        return self.waits.given_up[0] == 0

    def _stage(self, page) -> Stage:
        return Stage(
            page,
            self.base + (page * self.layout.page_bytes + self.layout.ring_offset),
            self._barrier(self.layout.full_offset, page),
        )

    def _advance(self, pages: int) -> None:
        advance(self.state, pages, self.layout.ring_pages)


@dataclass(frozen=True, eq=False)
class LoadRing(_Ring):
    """The loader's view; the whole loader warp calls every method.

    `state` is [page, parity, pages since the instruction began, parities of `operands` barriers]. Too many bytes in
    flight are as bad as too few: small accesses that somebody waits for queue up behind the prefetch. So an op that
    streams from memory keeps `in_flight` = (pages at first, for how many pages, pages from then on) going, whole
    stages each.
    """

    in_flight: Any = None  # three ints, or None for an op that is not throttled
    multiplies: bool = False  # the multiplier uses the stages, not compute

    def acquire(self) -> Stage:
        """Wait until the next stage is free, and few enough bytes are on their way."""
        page = self.state[0]
        if self.in_flight is not None:
            self._throttle(page, *self.in_flight)
        for i in range(0, self.stage_pages, self.unit):
            self._wait("page", self.layout.empty_offset, page + i, self.state[1], for_stage=True)
        self._pass_followers(page)
        self._advance(self.stage_pages)
        stage = self._stage(page)
        if not self.multiplies:
            return stage
        self.state[3] = self.state[3] ^ (1 << page)
        return Stage(page, stage.address, self._barrier(self.layout.operands_offset, page))

    @cute.jit
    def _throttle(self, page, first: cutlass.Constexpr, ramp: cutlass.Constexpr, steady: cutlass.Constexpr):
        """Wait for the landing of the stage as far back as pages may be in flight.

        Its barrier has not moved on: only the loader fills the stage again. On the first trip there may be none so far
        back; a barrier that nobody has used yet counts as through with the phase before its first.
        """
        limit = Int32(steady)
        if self.state[2] < ramp:
            limit = Int32(first)
        oldest, parity = page - limit, self.state[1] ^ 1
        if oldest < 0:
            oldest = oldest + self.layout.ring_pages
            parity = self.state[1]
        self._wait("throttle", self.layout.full_offset, oldest, parity, for_stage=True)
        self.state[2] = self.state[2] + self.stage_pages

    @cute.jit
    def _pass_followers(self, page):
        # Waiters look at a stage's first page only; the others flip here so that their parities keep step. Nobody waits
        # for the `full` barrier of what the multiplier uses.
        first: cutlass.Constexpr = 0 if self.multiplies else self.unit
        if cutlass.const_expr(self.stage_pages > first):
            if self._goes_on():
                with cute.arch.elect_one():
                    for i in cutlass.range_constexpr(first, self.stage_pages, self.unit):
                        ptx.mbarrier_arrive(self._barrier(self.layout.full_offset, page + i))

    @cute.jit
    def load_span(self, stage, tensor, first, count, offset: cutlass.Constexpr = 0):
        """Copy `count` elements of a contiguous rank-1 `tensor` from element `first` to `offset` bytes into the stage.

        `first` must fall on a 16-byte boundary. Whole 16-byte units go by one bulk copy; the ragged rest, fewer than
        16 bytes, goes through registers of the loader warp.
        """
        itemsize = tensor.element_type.width // 8
        nbytes = count * itemsize
        self._check_span(nbytes, offset)
        bulk = nbytes & -16
        source = tensor.iterator.toint() + Int64(first) * itemsize
        target = stage.address + offset
        lane = ptx.lane_index()
        if bulk > 0 and self._goes_on():
            with cute.arch.elect_one():
                ptx.mbarrier_expect(stage.full, bulk)
                ptx.bulk_load(target, source, bulk, stage.full)
        if nbytes > bulk:
            if lane * itemsize < nbytes - bulk:
                element = ptx.global_word(tensor.element_type, source + Int64(bulk + lane * itemsize))
                ptx.store_shared_word(tensor.element_type, target + (bulk + lane * itemsize), element)
                ptx.fence_async_shared()  # the next copy into this page overwrites it through another proxy
            cute.arch.sync_warp()  # one lane commits the stage for all

    @cute.jit
    def load_bytes(self, stage, source, nbytes, offset):
        """Copy `nbytes` (Int32, a multiple of 16) from global address `source` (Int64, of 16) into the stage."""
        if self._goes_on():
            with cute.arch.elect_one():
                ptx.mbarrier_expect(stage.full, nbytes)
                ptx.bulk_load(stage.address + offset, source, nbytes, stage.full)

    @cute.jit
    def load_tile(self, stage, handle, coordinates, offset: cutlass.Constexpr = 0):
        """Copy one TMA box at `coordinates` (elements along each dim); what is outside the tensor becomes zero."""
        if self._goes_on():
            with cute.arch.elect_one():
                ptx.mbarrier_expect(stage.full, Int32(handle.nbytes))
                ptx.tma_load(stage.address + offset, handle.address, handle.innermost_first(coordinates), stage.full)

    @cute.jit
    def commit(self, stage):
        """No more copies into this stage: it is full when those issued have landed."""
        if self._goes_on():
            with cute.arch.elect_one():
                ptx.mbarrier_arrive(stage.full)
        self._record_stage()  # not before, when memory would have to wait for it

    @cute.jit
    def settle(self):
        """At the end: copies that are on their way land before the shared memory is gone.

        That takes time only if nobody has waited for them, in a kernel that gave up.
        """
        for page in cutlass.range(0, self.layout.ring_pages, self.unit, unroll=1):
            parity = self.state[1]
            if page < self.state[0]:
                parity = parity ^ 1
            ptx.mbarrier_settle(self._barrier(self.layout.full_offset, page), parity, SETTLING_TRIES)
            if cutlass.const_expr(self.layout.accumulators > 0):
                operands = self._barrier(self.layout.operands_offset, page)
                ptx.mbarrier_settle(operands, (self.state[3] >> page & 1) ^ 1, SETTLING_TRIES)

    @cute.jit
    def align(self):
        """Skip to a page where a stage of this size may begin (ops with other stage sizes came before)."""
        while self.state[0] % self.stage_pages != 0:
            page = self.state[0]
            self._wait("page", self.layout.empty_offset, page, self.state[1])
            if ptx.lane_index() == 0 and self._goes_on():
                ptx.mbarrier_arrive(self._barrier(self.layout.full_offset, page))
            self._advance(self.unit)


@dataclass(frozen=True, eq=False)
class ComputeRing(_Ring):
    """The compute threads' view; every compute thread calls every method.

    `outputs` is a register array [slot, parity] for the way to the store phase.
    """

    outputs: Any = None

    def tensor(self, dtype, layout, offset):
        """A swizzled operand layout repeated over the pages of the ring: the last mode is a stage's first page.

        `layout` is a composed layout (swizzle inside) of one stage's operand, `offset` its bytes into the stage.
        """
        page_stride = self.layout.page_bytes * 8 // dtype.width
        pages = cute.make_layout(self.layout.ring_pages, stride=page_stride)
        pointer = ptx.shared_pointer(dtype, self.base + (self.layout.ring_offset + offset), 1024)
        return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, dtype=dtype), cute.append(layout.outer, pages))

    def wait(self) -> Stage:
        """Wait until the next stage has landed."""
        page = self.state[0]
        self._wait("data", self.layout.full_offset, page, self.state[1], for_stage=True)
        self._record_stage()
        self._advance(self.stage_pages)
        return self._stage(page)

    @cute.jit
    def release(self, stage, after: cutlass.Constexpr = None):
        """This warp has read what it needs; the loader may refill the stage when all warps have released it.

        An arrival overtakes loads that are on their way, and the refill what they would have read (decision 17). So
        there is a fence. `after` spares it: registers of 32 bits, one of each load from the stage that nothing has used
        yet; or none, where all that was read has been used, or tensor cores have read it.
        """
        if cutlass.const_expr(after is None):
            ptx.fence_async_shared()
        cute.arch.sync_warp()
        if ptx.lane_index() == 0:
            for i in cutlass.range_constexpr(0, self.stage_pages, self.unit):
                empty = self._barrier(self.layout.empty_offset, stage.page + i)
                if cutlass.const_expr(after is not None and len(after) > 0):
                    ptx.mbarrier_arrive_after(empty, after)
                else:
                    ptx.mbarrier_arrive(empty)

    def forward(self, *stages) -> None:
        """Hand stages, now holding results, to the store phase (all compute threads have written their part)."""
        ptx.fence_async_shared()
        cute.arch.sync_warp()
        for stage in stages:
            self._hand_over(stage)

    @cute.jit
    def _hand_over(self, stage):
        """The lanes have met since they wrote to the stage."""
        slot = self.outputs[0]
        self._wait("output", self.layout.out_empty_offset, slot, self.outputs[1] ^ 1)
        if ptx.lane_index() == 0:
            # Every warp writes the same number, so that each warp's arrival carries it.
            ptx.store_shared_word(Int32, self.base + (slot * 4 + self.layout.out_page_offset), stage.page)
            ptx.mbarrier_arrive(self._barrier(self.layout.out_full_offset, slot))
        advance(self.outputs, 1, self.layout.output_slots)

    @cute.jit
    def align(self):
        """The counterpart of the loader's skip: pass over pages that hold nothing."""
        while self.state[0] % self.stage_pages != 0:
            page = self.state[0]
            self._wait("data", self.layout.full_offset, page, self.state[1])
            cute.arch.sync_warp()
            if ptx.lane_index() == 0:
                ptx.mbarrier_arrive(self._barrier(self.layout.empty_offset, page))
            self._advance(self.unit)


@dataclass(frozen=True, eq=False)
class MultiplyRing(_Ring):
    """The multiplier's view, in the place of compute; the whole warp calls every method.

    It passes over the stages that compute uses, without a look at their barriers. So pages have other barriers,
    `operands`, for the stages that it uses itself: it sees every phase of these. `state` is [page, their parities, a
    bit for each page].
    """

    compute_warps: int = 0

    def wait(self) -> Stage:
        """Wait until the next stage has landed."""
        page = self.state[0]
        self._wait("data", self.layout.operands_offset, page, self.state[1] >> page & 1, for_stage=True)
        self._record_stage()
        self.state[1] = self.state[1] ^ (1 << page)
        self._pass(self.stage_pages)
        return self._stage(page)

    @cute.jit
    def release(self, stage):
        """The loader may refill the stage once the products that have been issued are complete."""
        if self._goes_on():
            with cute.arch.elect_one():
                for i in cutlass.range_constexpr(0, self.stage_pages, self.unit):
                    empty = self._barrier(self.layout.empty_offset, stage.page + i)
                    ptx.mbarrier_arrive_many(empty, self.compute_warps - 1)
                    ptx.tensor_commit(empty)

    @cute.jit
    def align(self):
        """Skip to where a stage of this size may begin; compute passes over the pages in between."""
        while self.state[0] % self.stage_pages != 0:
            self._pass(self.unit)

    @cute.jit
    def _pass(self, pages: cutlass.Constexpr):
        page = self.state[0] + pages
        if page == self.layout.ring_pages:
            page = Int32(0)
        self.state[0] = page


@dataclass(frozen=True, eq=False)
class StoreRing(_Ring):
    """The storer's view; the whole storer warp calls every method.

    `state` is [slot, parity, slot to free next, stores not yet freed].
    """

    compute_warps: int = 0

    def wait(self) -> Stage:
        """Wait for the next stage that compute has forwarded."""
        slot = self.state[0]
        self._free_if_idle(slot)
        self._wait("results", self.layout.out_full_offset, slot, self.state[1])
        page = self._forwarded(slot)
        advance(self.state, 1, self.layout.output_slots)
        return self._stage(page)

    @cute.jit
    def _forwarded(self, slot):
        """The page that compute has handed over, if it has."""
        page = Int32(0)
        if self._goes_on():
            page = ptx.shared_word(Int32, self.base + (slot * 4 + self.layout.out_page_offset))
        return page

    @cute.jit
    def _free_if_idle(self, slot):
        """With nothing to store yet, give back what has been read: compute may be waiting for just these pages."""
        ready = ptx.mbarrier_test(self._barrier(self.layout.out_full_offset, slot), self.state[1])
        ready = cute.arch.shuffle_sync(ready, 0)
        if ready == 0 and self.state[3] > 0:
            if ptx.lane_index() == 0:
                ptx.bulk_wait_read(0)
            for _ in cutlass.range(self.state[3], unroll=1):
                self._free_oldest()

    @cute.jit
    def store_span(self, stage, tensor, first, count, offset: cutlass.Constexpr = 0):
        """Copy `count` elements from `offset` bytes into the stage to a contiguous rank-1 `tensor` from `first` on."""
        itemsize = tensor.element_type.width // 8
        nbytes = count * itemsize
        self._check_span(nbytes, offset)
        bulk = nbytes & -16
        target = tensor.iterator.toint() + Int64(first) * itemsize
        source = stage.address + offset
        lane = ptx.lane_index()
        if bulk > 0 and self._goes_on():
            with cute.arch.elect_one():
                ptx.bulk_store(target, source, bulk)
        if lane * itemsize < nbytes - bulk:
            element = ptx.shared_word(tensor.element_type, source + (bulk + lane * itemsize))
            pointer = ptx.global_pointer(tensor.element_type, target + Int64(bulk + lane * itemsize), itemsize)
            cute.make_tensor(pointer, cute.make_layout(1))[0] = element

    @cute.jit
    def store_tile(self, stage, handle, coordinates, offset: cutlass.Constexpr = 0):
        """Copy one TMA box to `coordinates` (elements along each dim); what is outside the tensor is dropped."""
        if self._goes_on():
            with cute.arch.elect_one():
                ptx.tma_store(handle.address, handle.innermost_first(coordinates), stage.address + offset)

    @cute.jit
    def release(self, stage):
        """The copies of this stage are issued; its pages go back to the loader once they have been read."""
        cute.arch.sync_warp()
        if ptx.lane_index() == 0:
            ptx.bulk_commit()
        self.state[3] = self.state[3] + 1
        if self.state[3] == self.layout.output_slots:
            tracing.begin(self.waits.recorder, "drain")
            if ptx.lane_index() == 0:
                ptx.bulk_wait_read(self.layout.output_slots - 1)
            self._free_oldest()
            tracing.end(self.waits.recorder, "drain")

    @cute.jit
    def _free_oldest(self):
        """The lanes have met in `release` since they read the stage."""
        slot = self.state[2]
        if ptx.lane_index() == 0 and self._goes_on():
            page = ptx.shared_word(Int32, self.base + (slot * 4 + self.layout.out_page_offset))
            for i in cutlass.range_constexpr(0, self.stage_pages, self.unit):
                ptx.mbarrier_arrive_many(self._barrier(self.layout.empty_offset, page + i), self.compute_warps)
            ptx.mbarrier_arrive(self._barrier(self.layout.out_empty_offset, slot))
        slot = slot + 1
        if slot == self.layout.output_slots:
            slot = Int32(0)
        self.state[2] = slot
        self.state[3] = self.state[3] - 1

    @cute.jit
    def drain(self):
        """Every store of this instruction is complete and visible, and every stage is freed."""
        if ptx.lane_index() == 0:
            ptx.bulk_wait(0)
        for _ in cutlass.range(self.state[3], unroll=1):
            self._free_oldest()
