"""Tiles whose K several SMs share. The one with the last slice adds up all, always in the same order.

The others hand their sums over in `partial`, zero where there is none yet (`hand_over`), and wait for nobody; they come
before the last one in whatever order the plan hands out tiles, so it does not wait for ever. It has a bit more of K, so
that the sums of the others are there when it needs them.
"""

from dataclasses import replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Int64

from machete.megakernel import ScheduledOp, temporary
from machete.megakernel.authoring import COMPUTE_THREADS

from .hand_over import VECTOR, hand_over, take_over
from .load import OperandLoader
from .op import ROW_BYTES, GemmOp, Tensors

MORE_BYTES = 256  # of K, for the slice that adds up all
VECTORS_BYTES = COMPUTE_THREADS * VECTOR * 4  # of sums that all threads hand over in one access


def split(op: ScheduledOp, kind: type[GemmOp], slices: int) -> ScheduledOp:
    """The op with each tile's K in slices, whose sums meet in a temporary; `kind` is a `SlicedProduct`."""
    fused = kind.fused(op.op.fusion_types)
    width = op.tile_sizes["M"] * op.tile_sizes["N"]
    more = {
        "partial": temporary((op.num_tiles, slices - 1, width), torch.float32, op.device, zeroed=True),
        "parts": temporary((slices,), torch.int32, op.device),
    }
    config = dict(sorted({**op.config, "slices": slices}.items()))
    op = op.with_tensors(fused, more, tile_sizes={**op.tile_sizes, "S": 1}, config=config)
    return replace(op, boxes=fused.descriptors(op))


class SlicedProduct(OperandLoader):
    """Mixin for an op with `slices` slices of K of a tile. `parts` has no contents, it is there for its extent."""

    hands_over = True
    writes: ClassVar[Tensors] = {
        **GemmOp.writes,
        "partial": (torch.float32, ("T", "others", "W")),
        "parts": (torch.int32, ("S",)),
    }
    tile: ClassVar[tuple[str, ...]] = ("B", "M", "N", "S")

    @classmethod
    def cost(cls, op: ScheduledOp) -> tuple[float, float]:
        """Bytes and FLOPs of one slice."""
        nbytes, flops = GemmOp.cost(op)
        return nbytes / op.config["slices"], flops / op.config["slices"]

    def slice_of(self, part):
        """First step of K in a slice, and how many."""
        steps = self.steps(self.K)
        share = cutlass.max(steps - MORE_BYTES // (self.parts * ROW_BYTES), 0) // self.slices
        return part * share, cutlass.select_(part < self.slices - 1, share, steps - part * share)

    @cute.jit
    def load(self, ring, tile_B, tile_M, tile_N, tile_S, tma_a, tma_b):
        first, steps = self.slice_of(tile_S)
        for number in cutlass.range(steps, unroll=1):
            self._load_step(ring, tile_B, tile_M, tile_N, first + number, tma_a, tma_b)
        self._fill_up(ring, steps)

    @cute.jit
    def _add_up(self, dependencies, partial, tile_B, tile_M, tile_N, tile_S, values: cutlass.Constexpr):
        """Hand the thread's sums of this slice over; or, with the last slice, add those of the others to them.

        Which threads call it follows from the tile alone.
        """
        tiles_m = (self.M + self.tile_size_M - 1) // self.tile_size_M
        tiles_n = (self.N + self.tile_size_N - 1) // self.tile_size_N
        tile = (tile_B * tiles_m + tile_M) * tiles_n + tile_N
        if tile_S < self.slices - 1:
            hand_over(self._partial(partial, tile, tile_S), VECTORS_BYTES, values)
        else:
            others = [self._partial(partial, tile, part) for part in range(self.slices - 1)]
            take_over(dependencies, others, VECTORS_BYTES, values)

    def _partial(self, partial, tile, part):
        """Where the thread's first sums of a slice are in global memory, as an address."""
        offset = Int64(tile) * partial.stride[0] + Int64(part) * partial.stride[1]
        return partial.iterator.toint() + offset * 4 + Int64(cute.arch.thread_idx()[0] * VECTOR * 4)
