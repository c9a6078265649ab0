"""Tensor memory, as the two phases that use it see it (sm_100a).

An SM has 512 columns of 32 bits in each of 128 lanes. A kernel with a `multiply` phase has all of them, in two
*accumulators* of 256 columns that are used in turn: while compute takes the sums of one tile, the products of the next
one go to the other. Each has two mbarriers: `summed` (its products are complete) and `taken` (nobody reads it any
more).

    multiply:  sums = accumulators.acquire();  ... tcgen05.mma to column sums ...;      accumulators.commit()
    compute:   sums = accumulators.wait();     accumulators.read(sums, column, count);  accumulators.release()
"""

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32

from machete.megakernel.plan.shared import ACCUMULATOR_COLUMNS, TENSOR_COLUMNS, SharedLayout

from . import ptx
from .ring import advance
from .waiting import Waits


@dataclass(frozen=True, eq=False)
class _Accumulators:
    """What both views share: where the barriers are, and this role's position."""

    layout: SharedLayout
    base: Any  # Int32 shared address of the kernel's dynamic shared memory
    state: Any  # register array: [accumulator, parity]
    waits: Waits

    def _barrier(self, offset: int, index):
        return self.base + (index * 8 + offset)

    def _address(self, index):
        """Int32 address in tensor memory of an accumulator's lane 0, column 0."""
        first = ptx.shared_word(Int32, self.base + self.layout.tensor_address_offset)
        return first + index * ACCUMULATOR_COLUMNS

    def _next(self) -> None:
        advance(self.state, 1, self.layout.accumulators)


@dataclass(frozen=True, eq=False)
class MultiplyAccumulators(_Accumulators):
    """The multiplier's view; the whole warp calls every method. A fresh `taken` barrier has parity 1 behind it."""

    def acquire(self):
        """Wait until the next accumulator is free; its address (Int32). What it holds is of no use."""
        index = self.state[0]
        self.waits.until("accumulator", self._barrier(self.layout.taken_offset, index), self.state[1])
        ptx.tensor_fence_after()
        return self._address(index)

    @cute.jit
    def commit(self):
        """No more products into the accumulator acquired last: compute gets it when those issued are complete."""
        with cute.arch.elect_one():
            ptx.tensor_commit(self._barrier(self.layout.summed_offset, self.state[0]))
        self._next()

    @cute.jit
    def finish(self):
        """At the end: free tensor memory once all products are complete, and compute does not read them any more.

        Both come whatever happens: in a kernel that gave up, waits end and products go on.
        """
        ended = self._barrier(self.layout.ended_offset, 0)
        with cute.arch.elect_one():
            ptx.tensor_commit(ended)
        ptx.mbarrier_wait_surely(ended, Int32(0))
        # No tcgen05.fence: it orders asynchronous operations, and dealloc is none.
        ptx.tensor_free(ptx.shared_word(Int32, self.base + self.layout.tensor_address_offset), TENSOR_COLUMNS)


@dataclass(frozen=True, eq=False)
class ComputeAccumulators(_Accumulators):
    """The compute threads' view; every compute thread calls every method."""

    def wait(self):
        """Wait for the next accumulator whose products are complete; its address (Int32)."""
        index = self.state[0]
        self.waits.until("products", self._barrier(self.layout.summed_offset, index), self.state[1])
        ptx.tensor_fence_after()
        return self._address(index)

    def read(self, accumulator, column, count: int):
        """`count` float32 sums of one lane from `column` on; a power of two, at most 128.

        A warp reaches 32 lanes: thread t of warp w gets lane 32 (w % 4) + t.
        """
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)
        return ptx.tensor_load(accumulator + (warp % 4 << 21) + column, count)

    @cute.jit
    def release(self):
        """This warp has read what it needs of the accumulator that it waited for last."""
        ptx.tensor_fence_before()
        cute.arch.sync_warp()
        if ptx.lane_index() == 0:
            ptx.mbarrier_arrive(self._barrier(self.layout.taken_offset, self.state[0]))
        self._next()

    @cute.jit
    def finish(self):
        """At the end: this warp has read all that it will read, and has met since, when it released that."""
        if ptx.lane_index() == 0:
            ptx.mbarrier_arrive(self._barrier(self.layout.ended_offset, 0))


def allocate(layout: SharedLayout, base) -> None:
    """The multiplier, before the CTA meets: take all of tensor memory, once whoever has it gives it back."""
    ptx.tensor_allocate(base + layout.tensor_address_offset, TENSOR_COLUMNS)
