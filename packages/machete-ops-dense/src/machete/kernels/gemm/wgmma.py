"""sm_90a: wgmma, straight from the ring. The two compute warpgroups multiply 64 rows of the tile each, or, for tiles of
no more than 64 rows, half of the columns each.

A result of 16-bit elements in rows that TMA can step over leaves through the ring, too: it takes the place of the
tile's last operands, and the storer copies it out while the next tile is multiplied. Others are stored from registers.
"""

from dataclasses import replace
from types import MappingProxyType

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32, const_expr
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.tensor_utils import LayoutEnum

from machete.megakernel import PipelineSpec, ScheduledOp, TmaBox
from machete.megakernel.authoring import sync_compute_threads

from .epilogue import stage_fragment, store_fragment
from .load import OperandLoader, k_steps
from .op import PAGE_BYTES, TILE_K, TMA_ALIGNMENT, GemmOp, gemm_pipeline, operand_pages

WARPGROUP_ROWS = 64
PANEL_TILES = 16  # 132 tiles of 128 x 256 in panels of 16 are about square: they read the least
RING_PAGES = 12
BOX_COLUMNS = 64  # of a 16-bit result: one swizzle atom, a page of 128 rows
PART_COLUMNS = 2 * BOX_COLUMNS  # in the pages of one stage


def lowered(op: ScheduledOp) -> ScheduledOp:
    """The op as this path runs it."""
    if op.extents["M"] <= WARPGROUP_ROWS:
        tile_sizes = {**op.tile_sizes, "M": WARPGROUP_ROWS}
        op = replace(op, tile_sizes=tile_sizes)
    c = op.infos["c"]
    steps = [info for axis, info in enumerate(c.strides[:-1]) if c.shape[axis] > 1]
    by_tma = (
        c.itemsize == 2
        and c.unit_inner
        and not c.is_empty
        and c.alignment >= TMA_ALIGNMENT
        and all(stride * c.itemsize % TMA_ALIGNMENT == 0 for stride in steps)
    )
    kind = (WgmmaTmaStoreGemm if by_tma else WgmmaGemm).fused(op.op.fusion_types)
    op = replace(op, op=kind)
    return replace(op, boxes=kind.descriptors(op))


class WgmmaGemm(OperandLoader, GemmOp):
    """One 128 x tile_n tile; K steps of 64; the previous step is released while the next one multiplies."""

    targets = ("sm_90a",)
    panels = MappingProxyType({"M": PANEL_TILES})
    pipeline = gemm_pipeline(256, RING_PAGES // operand_pages(256))

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        tile_n = op.tile_sizes["N"]
        return gemm_pipeline(tile_n, RING_PAGES // operand_pages(tile_n))

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, c, epilogue):
        tCrC, stages = self._product(ring)
        for stage in stages:
            ring.release(stage)
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
    def _product(self, ring):
        """The warpgroup's accumulators, and the last stages of the ring, which nobody has released yet."""
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
        mma = hopper.make_trivial_tiled_mma(
            self.a_dtype,
            self.b_dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            tiler_mn=(WARPGROUP_ROWS, self.group_columns),
        )
        slice_ = mma.get_slice(0)
        rows = Int32(0) if self.tile_size_M == WARPGROUP_ROWS else group * WARPGROUP_ROWS
        columns = group * self.group_columns if self.tile_size_M == WARPGROUP_ROWS else Int32(0)
        sA = self._operand(ring, self.a_dtype, WARPGROUP_ROWS, rows * (TILE_K * 2))
        sB = self._operand(ring, self.b_dtype, self.group_columns, columns * (TILE_K * 2) + PAGE_BYTES)
        tCrA = mma.make_fragment_A(slice_.partition_A(sA))
        tCrB = mma.make_fragment_B(slice_.partition_B(sB))
        tCrC = cute.make_rmem_tensor(mma.partition_shape_C((WARPGROUP_ROWS, self.group_columns)), Float32)
        tCrC.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        stages = self._accumulate(ring, mma, tCrC, tCrA, tCrB)
        return tCrC, stages

    @cute.jit
    def _accumulate(self, ring, mma, tCrC, tCrA, tCrB):
        """Multiply all steps of K, each released when the one after it has been issued; returns the stages kept."""
        steps = k_steps(self.K)
        before = previous = ring.wait()
        if steps > 0:  # K may be smaller in a run than it was planned
            self._multiply(mma, tCrC, tCrA, tCrB, previous.page)
        for step in cutlass.range(1, steps, unroll=1):
            stage = ring.wait()
            self._multiply(mma, tCrC, tCrA, tCrB, stage.page)
            warpgroup.wait_group(1)
            if const_expr(self.kept_stages == 1):
                ring.release(previous)
            else:
                if step < steps - 1:
                    ring.release(previous)
            before = previous
            previous = stage
        for _ in cutlass.range(cutlass.max(steps, 1), self.kept_stages, unroll=1):
            before = previous
            previous = ring.wait()
        warpgroup.wait_group(0)
        if const_expr(self.kept_stages == 1):
            return [previous]
        return [before, previous]

    def _operand(self, ring, dtype, rows: int, offset):
        """`rows` x TILE_K of every page of the ring, in the layout TMA wrote; the last mode is the page."""
        kind = hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, TILE_K)
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        layout = cute.tile_to_shape(atom, (rows, TILE_K), (0, 1))
        return ring.tensor(dtype, layout, offset)

    @cute.jit
    def _multiply(self, mma, tCrC, tCrA, tCrB, page):
        warpgroup.fence()
        for block in cutlass.range_constexpr(TILE_K // 16):
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
        tCrC, stages = self._product(ring)
        sync_compute_threads()  # both warpgroups have read their operands
        own_row, own_column = self._corner()
        row, column = tile_M * self.tile_size_M, tile_N * self.tile_size_N + own_column
        for begin in cutlass.range_constexpr(0, self.group_columns, BOX_COLUMNS):
            count = min(BOX_COLUMNS, self.group_columns - begin)
            address, chunk = self._place(stages, begin, own_column)
            place = (tile_B, row, column + begin)
            stage_fragment(c, address, own_row, chunk, *place, tCrC, begin // 8, count // 8, epilogue)
        for stage in stages:
            ring.forward(stage)

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
