"""sm_100a: tcgen05, straight from the ring into tensor memory. The multiplier goes on with the next tile while the
compute warps take the sums of this one.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int32, Int64, const_expr

from machete.megakernel import ScheduledOp

from .epilogue import store_row
from .load import BLOCK_BYTES, PRODUCT_BYTES, LargeTiles
from .op import MOST_SPLIT_COLUMNS, ROW_BYTES, choose_slices, with_columns
from .split_k import SlicedProduct, split

CHUNK = 32  # columns that a thread takes at once

# Shared-memory descriptor (PTX ISA, "tcgen05 Shared memory descriptor"): rows of 128 bytes with the 128-byte swizzle,
# groups of eight rows 1024 bytes apart; transposed, blocks of 64 rows of the operand as far apart as `load` puts them.
# Addresses and distances go in without their low four bits.
GROUP_BYTES = 8 * ROW_BYTES
_SWIZZLED_ROWS = GROUP_BYTES >> 4 << 32 | 1 << 46 | 2 << 61
ALONG_K = _SWIZZLED_ROWS | 1 << 16
TRANSPOSED = _SWIZZLED_ROWS | BLOCK_BYTES >> 4 << 16
PRODUCT_ROWS = 16  # of a transposed operand, one for each column of K
_FORMATS = {Float16: 0, BFloat16: 1, Float8E4M3FN: 0, Float8E5M2: 1}


def lowered(op: ScheduledOp) -> ScheduledOp:
    """The op as this path runs it."""
    slices = op.config.get("slices") or choose_slices(op)
    if slices > 1:
        # Sums of others need registers beside a thread's own.
        op = with_columns(op, min(op.tile_sizes["N"], MOST_SPLIT_COLUMNS))
        return split(op, SplitTcgen05Gemm, slices)
    kind = Tcgen05Gemm.fused(op.op.fusion_types)
    op = replace(op, op=kind)
    return replace(op, boxes=kind.descriptors(op))


class Tcgen05Gemm(LargeTiles):
    """One 128 x tile_n tile; K steps of 64 or 128."""

    targets = ("sm_100a",)

    @property
    def kept_stages(self) -> int:
        """Stages that a tile takes at least: none, where K is 0."""
        return 0

    @cute.jit
    def multiply(self, ring, accumulators):
        self._multiply(ring, accumulators, self.steps(self.K))

    @cute.jit
    def _multiply(self, ring, accumulators, steps):
        """Products of `steps` steps of K."""
        sums = accumulators.acquire()
        adds = Int32(0)  # the first product overwrites what is there
        for _ in cutlass.range(steps, unroll=1):
            stage = ring.wait()
            with cute.arch.elect_one():
                self._multiply_step(sums, stage.address, adds)
            ring.release(stage)
            adds = Int32(1)
        accumulators.commit()

    @cute.jit
    def _multiply_step(self, sums, address, adds):
        """Products of the rows of a and b in one stage; one thread."""
        a_transposed, b_transposed = ("a" in self.transposed), ("b" in self.transposed)
        product = self._product()
        for part in cutlass.range_constexpr(self.parts):
            a = address + part * self.tile_size_M * ROW_BYTES
            b = address + (self.b_offset + part * self.tile_size_N * ROW_BYTES)
            for block in cutlass.range_constexpr(ROW_BYTES // PRODUCT_BYTES):
                first = adds if const_expr(part == 0 and block == 0) else Int32(1)
                one, other = operand(a, block, a_transposed), operand(b, block, b_transposed)
                multiply(self.a_dtype, sums, one, other, product, first)

    def _product(self):
        """What the instructions multiply (PTX ISA, "tcgen05 Instruction descriptor"): to float32."""
        formats = _FORMATS[self.a_dtype] << 7 | _FORMATS[self.b_dtype] << 10
        transposed = ("a" in self.transposed) << 15 | ("b" in self.transposed) << 16
        return Int32(1 << 4 | formats | transposed | self.tile_size_N // 8 << 17 | self.tile_size_M // 16 << 24)

    @cute.jit
    def compute(self, accumulators, tile_B, tile_M, tile_N, c, epilogue):
        values = self._sums(accumulators, self.steps(self.K))
        row, column = self._corner(tile_M, tile_N)
        store_row(c, tile_B, row, column, values, epilogue)

    @property
    def group_columns(self) -> int:
        """Columns that a warpgroup takes; each of its threads takes those of one row."""
        return self.tile_size_N // 2

    def _own_column(self):
        """First column of the warpgroup in the tile."""
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)
        return warp // 4 * self.group_columns

    def _corner(self, tile_M, tile_N):
        """The thread's row of c, and its first column."""
        row = cute.arch.thread_idx()[0] % self.tile_size_M
        return tile_M * self.tile_size_M + row, tile_N * self.tile_size_N + self._own_column()

    @cute.jit
    def _sums(self, accumulators, steps):
        """The thread's part of the next accumulator, after `steps` steps of K."""
        values = cute.make_rmem_tensor((self.group_columns,), Float32)
        values.fill(0.0)
        sums = accumulators.wait()
        if steps > 0:  # else there are no sums
            for first in cutlass.range_constexpr(0, self.group_columns, CHUNK):
                chunk = accumulators.read(sums, self._own_column() + first, CHUNK)
                for i in cutlass.range_constexpr(CHUNK):
                    values[first + i] = chunk[i]
        accumulators.release()
        return values


class SplitTcgen05Gemm(SlicedProduct, Tcgen05Gemm):
    """One of `slices` slices of K of a tile."""

    @cute.jit
    def multiply(self, ring, accumulators, tile_S):
        _first, steps = self.slice_of(tile_S)
        self._multiply(ring, accumulators, steps)

    @cute.jit
    def compute(self, accumulators, tile_B, tile_M, tile_N, tile_S, dependencies, c, partial, epilogue):
        dependencies.wait()
        _first, steps = self.slice_of(tile_S)
        values = self._sums(accumulators, steps)
        row, column = self._corner(tile_M, tile_N)
        if row - cute.arch.thread_idx()[0] % 32 < self.M:  # else the warp has no rows of c
            self._add_up(dependencies, partial, tile_B, tile_M, tile_N, tile_S, values)
            if tile_S == self.slices - 1:
                store_row(c, tile_B, row, column, values, epilogue)


def operand(address, block: int, transposed: bool):
    """The descriptor of an operand's rows at `address` in shared memory, for the product of block `block` of K."""
    offset = block * (PRODUCT_ROWS * ROW_BYTES if transposed else PRODUCT_BYTES)
    return Int64(TRANSPOSED if transposed else ALONG_K) | Int64((address + offset & 0x3FFFF) >> 4)


def multiply(dtype, sums, a, b, product, adds) -> None:
    """tcgen05.mma: 32 bytes of K; what was in `sums` counts where `adds` is not 0. One thread."""
    kind = "f8f6f4" if dtype.width == 8 else "f16"
    cute.arch.inline_ptx(
        "{ .reg .pred adds; setp.ne.u32 adds, {$r4}, 0; "
        f"tcgen05.mma.cta_group::1.kind::{kind} "
        "[{$r0}], {$r1}, {$r2}, {$r3}, adds; }",
        read_only_args=[sums, a, b, product, adds],
    )
