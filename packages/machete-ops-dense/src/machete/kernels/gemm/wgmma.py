"""sm_90a: wgmma, straight from the ring. The two compute warpgroups multiply 64 rows of the tile each, or, for tiles of
no more than 64 rows, half of the columns each.

A result of 16-bit elements in rows that TMA can step over leaves through the ring, too: it takes the place of the
tile's last operands, and the storer copies it out while the next tile is multiplied. Others are stored from registers.
"""

from dataclasses import replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32, const_expr
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.tensor_utils import LayoutEnum

from machete.megakernel import PipelineSpec, ScheduledOp, TmaBox
from machete.megakernel.authoring import sync_compute_threads

from .epilogue import stage_fragment, store_fragment
from .load import PRODUCT_BYTES, LargeTiles
from .op import (
    BLOCK_ROWS,
    BYTES,
    PAGE_BYTES,
    ROW_BYTES,
    TMA_ALIGNMENT,
    choose_slices,
    stored_by_tma,
)
from .split_k import SlicedProduct, split

WARPGROUP_ROWS = 64
MOST_PROMOTED_COLUMNS = 128  # of a tile: a step's sums need registers beside those of all
BOX_COLUMNS = 64  # of a 16-bit result: one swizzle atom, a page of 128 rows
PART_COLUMNS = 2 * BOX_COLUMNS  # in the pages of one stage


def lowered(op: ScheduledOp) -> ScheduledOp:
    """The op as this path runs it."""
    tile_sizes = dict(op.tile_sizes)
    if op.infos["a"].dtype in BYTES and not op.config.get("fast_accumulation"):
        tile_sizes["N"] = min(tile_sizes["N"], MOST_PROMOTED_COLUMNS)
    # With few rows each warpgroup has half of the columns: of a transposed operand whole blocks.
    halves = "b" not in op.config.get("transposed", ()) or tile_sizes["N"] >= 2 * BLOCK_ROWS
    if op.extents["M"] <= WARPGROUP_ROWS and halves:
        tile_sizes["M"] = WARPGROUP_ROWS
    op = replace(op, tile_sizes=tile_sizes)
    slices = op.config.get("slices") or choose_slices(op)
    if slices > 1:
        return split(op, SplitWgmmaGemm, slices)
    c = op.infos["c"]
    steps = [info for axis, info in enumerate(c.strides[:-1]) if c.shape[axis] > 1]
    by_tma = (
        c.itemsize == 2
        and stored_by_tma(op.tile_sizes["M"], op.tile_sizes["N"])
        and c.unit_inner
        and not c.is_empty
        and c.alignment >= TMA_ALIGNMENT
        and all(stride * c.itemsize % TMA_ALIGNMENT == 0 for stride in steps)
    )
    kind = (WgmmaTmaStoreGemm if by_tma else WgmmaGemm).fused(op.op.fusion_types)
    op = replace(op, op=kind)
    return replace(op, boxes=kind.descriptors(op))


class WgmmaGemm(LargeTiles):
    """One 128 x tile_n tile; K steps of 64 or 128; the previous step is released while the next one multiplies."""

    targets = ("sm_90a",)
    #: Whether tensor cores add up 8-bit products over all of K.
    fast_accumulation: ClassVar[bool] = False

    @property
    def promotes(self) -> bool:
        """Whether each step's sums go to float32: tensor cores keep 14 bits or so of sums of 8-bit products."""
        return self.a_dtype.width == 8 and not self.fast_accumulation

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, c, epilogue):
        tCrC, stages = self._product(ring, self.steps(self.K))
        for stage in stages:
            ring.release(stage, after=())
        own_row, own_column = self._corner()
        row, column = tile_M * self.tile_size_M + own_row, tile_N * self.tile_size_N + own_column
        store_fragment(c, tile_B, row, column, tCrC, self.group_columns // 8, epilogue)

    @property
    def group_columns(self) -> int:
        """Columns that a warpgroup multiplies."""
        return self.tile_size_N * self.tile_size_M // (2 * WARPGROUP_ROWS)

    def _corner(self):
        """First row and column of the warp in the tile."""
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)
        if self.tile_size_M == WARPGROUP_ROWS:
            return warp % 4 * 16, warp // 4 * self.group_columns
        return warp * 16, Int32(0)

    @cute.jit
    def _product(self, ring, steps):
        """The warpgroup's accumulators after `steps` steps of K, and the last stages, which nobody has released yet."""
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
        mma = hopper.make_trivial_tiled_mma(
            self.a_dtype,
            self.b_dtype,
            OperandMajorMode.MN if "a" in self.transposed else OperandMajorMode.K,
            OperandMajorMode.MN if "b" in self.transposed else OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            tiler_mn=(WARPGROUP_ROWS, self.group_columns),
        )
        slice_ = mma.get_slice(0)
        rows = Int32(0) if self.tile_size_M == WARPGROUP_ROWS else group * WARPGROUP_ROWS
        columns = group * self.group_columns if self.tile_size_M == WARPGROUP_ROWS else Int32(0)
        operands = []
        for part in cutlass.range_constexpr(self.parts):
            offset_a = (rows + part * self.tile_size_M) * ROW_BYTES
            offset_b = (columns + part * self.tile_size_N) * ROW_BYTES + self.b_offset
            sA = self._operand(ring, "a", self.a_dtype, WARPGROUP_ROWS, offset_a)
            sB = self._operand(ring, "b", self.b_dtype, self.group_columns, offset_b)
            operands.append((mma.make_fragment_A(slice_.partition_A(sA)), mma.make_fragment_B(slice_.partition_B(sB))))
        tCrC = cute.make_rmem_tensor(mma.partition_shape_C((WARPGROUP_ROWS, self.group_columns)), Float32)
        tCrC.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        if const_expr(self.promotes):
            return tCrC, self._promote(ring, steps, mma, tCrC, operands)
        return tCrC, self._accumulate(ring, steps, mma, tCrC, operands)

    @cute.jit
    def _promote(self, ring, steps, mma, tCrC, operands: cutlass.Constexpr):
        """Add up the sums of all steps in float32; returns the stages kept."""
        before = previous = ring.wait()
        for step in cutlass.range(steps, unroll=1):
            if step > 0:
                before = previous
                previous = ring.wait()
            sums = cute.make_rmem_tensor_like(tCrC)
            sums.fill(0.0)
            self._multiply(mma, sums, operands, previous.page)
            warpgroup.wait_group(0)
            tCrC.store(tCrC.load() + sums.load())
            if step < steps - self.kept_stages:
                ring.release(previous, after=())
        return self._kept(ring, steps, before, previous)

    @cute.jit
    def _accumulate(self, ring, steps, mma, tCrC, operands: cutlass.Constexpr):
        """Multiply all steps of K, each released when the one after it has been issued; returns the stages kept."""
        before = previous = ring.wait()
        if steps > 0:  # K may be smaller in a run than it was planned
            self._multiply(mma, tCrC, operands, previous.page)
        for step in cutlass.range(1, steps, unroll=1):
            stage = ring.wait()
            self._multiply(mma, tCrC, operands, stage.page)
            warpgroup.wait_group(1)
            if const_expr(self.kept_stages == 1):
                ring.release(previous, after=())
            else:
                if step < steps - 1:
                    ring.release(previous, after=())
            before = previous
            previous = stage
        stages = self._kept(ring, steps, before, previous)
        warpgroup.wait_group(0)
        return stages

    @cute.jit
    def _kept(self, ring, steps, before, previous):
        """The stages kept at the end of a tile, whose last ones so far are given."""
        for _ in cutlass.range(cutlass.max(steps, 1), self.kept_stages, unroll=1):
            before = previous
            previous = ring.wait()
        if const_expr(self.kept_stages == 1):
            return [previous]
        return [before, previous]

    def _operand(self, ring, name: str, dtype, rows: int, offset):
        """`rows` x 128 bytes of K of every page of the ring, in the layout TMA wrote; the last mode is the page."""
        if name in self.transposed:
            kind = hopper.get_smem_layout_atom(LayoutEnum.COL_MAJOR, dtype, BLOCK_ROWS)
            order = (1, 0)  # K first, then the next block of rows
        else:
            kind = hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, self.part_columns)
            order = (0, 1)
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        layout = cute.tile_to_shape(atom, (rows, self.part_columns), order)
        return ring.tensor(dtype, layout, offset)

    @cute.jit
    def _multiply(self, mma, tCrC, operands: cutlass.Constexpr, page):
        warpgroup.fence()
        for part in cutlass.range_constexpr(len(operands)):
            tCrA, tCrB = operands[part]
            for block in cutlass.range_constexpr(ROW_BYTES // PRODUCT_BYTES):
                cute.gemm(mma, tCrC, tCrA[None, None, block, page], tCrB[None, None, block, page], tCrC)
        warpgroup.commit_group()


class WgmmaTmaStoreGemm(WgmmaGemm):
    """The same with a result that TMA stores, 128 columns in the pages of one stage."""

    pipeline = replace(WgmmaGemm.pipeline, output_stages=2)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        return replace(super().pipeline_of(op), output_stages=2)

    @classmethod
    def descriptors(cls, op: ScheduledOp):
        return {**super().descriptors(op), "c": TmaBox((1, op.tile_sizes["M"], BOX_COLUMNS), swizzle=128)}

    @property
    def kept_stages(self) -> int:
        """Stages at the end of a tile whose pages take the result."""
        return -(-self.tile_size_N // PART_COLUMNS)

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, c, epilogue):
        tCrC, stages = self._product(ring, self.steps(self.K))
        sync_compute_threads()  # both warpgroups have read their operands
        own_row, own_column = self._corner()
        row, column = tile_M * self.tile_size_M, tile_N * self.tile_size_N + own_column
        for begin in cutlass.range_constexpr(0, self.group_columns, BOX_COLUMNS):
            count = min(BOX_COLUMNS, self.group_columns - begin)
            address, chunk = self._place(stages, begin, own_column)
            place = (tile_B, row, column + begin)
            stage_fragment(c, address, own_row, chunk, *place, tCrC, begin // 8, count // 8, epilogue)
        ring.forward(*stages)

    def _place(self, stages, begin: int, own_column):
        """Where the warpgroup's columns from `begin` on go: address of the box, and the 16-byte chunk in its rows."""
        if self.tile_size_M > WARPGROUP_ROWS:
            part, first = divmod(begin, PART_COLUMNS)
            return stages[part].address + first // BOX_COLUMNS * PAGE_BYTES, Int32(0)
        if self.kept_stages == 1:
            first = own_column + begin
            return stages[0].address + first // BOX_COLUMNS * PAGE_BYTES, first % BOX_COLUMNS // 8
        address = cutlass.select_(own_column == 0, stages[0].address, stages[1].address)
        return address + begin // BOX_COLUMNS * PAGE_BYTES, Int32(0)

    @cute.jit
    def store(self, ring, tile_B, tile_M, tile_N, tma_c):
        for part in cutlass.range_constexpr(self.kept_stages):
            stage = ring.wait()
            first = part * PART_COLUMNS
            for box in cutlass.range_constexpr(min(PART_COLUMNS, self.tile_size_N - first) // BOX_COLUMNS):
                column = tile_N * self.tile_size_N + (first + box * BOX_COLUMNS)
                ring.store_tile(stage, tma_c, (tile_B, tile_M * self.tile_size_M, column), offset=box * PAGE_BYTES)
            ring.release(stage)


class SplitWgmmaGemm(SlicedProduct, WgmmaGemm):
    """One of `slices` slices of K of a tile."""

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, tile_S, dependencies, c, partial, epilogue):
        dependencies.wait()
        _first, steps = self.slice_of(tile_S)
        tCrC, stages = self._product(ring, steps)
        for stage in stages:
            ring.release(stage, after=())
        own_row, own_column = self._corner()
        row, column = tile_M * self.tile_size_M + own_row, tile_N * self.tile_size_N + own_column
        if row < self.M:  # else the warp has no rows of c
            self._add_up(dependencies, partial, tile_B, tile_M, tile_N, tile_S, tCrC)
            if tile_S == self.slices - 1:
                store_fragment(c, tile_B, row, column, tCrC, self.group_columns // 8, epilogue)
