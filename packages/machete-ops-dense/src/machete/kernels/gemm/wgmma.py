"""sm_90a: each of the two compute warpgroups multiplies 64 rows of the tile with wgmma, straight from the ring."""

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.tensor_utils import LayoutEnum

from machete.megakernel import PipelineSpec, ScheduledOp

from .epilogue import store_fragment
from .load import OperandLoader
from .op import PAGE_BYTES, TILE_K, GemmOp, gemm_pipeline, operand_pages

WARPGROUP_ROWS = 64
RING_PAGES = 12


class WgmmaGemm(OperandLoader, GemmOp):
    """One 128 x tile_n tile; K steps of 64; the previous step is released while the next one multiplies."""

    targets = ("sm_90a",)
    pipeline = gemm_pipeline(256, RING_PAGES // operand_pages(256))

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        tile_n = op.tile_sizes["N"]
        return gemm_pipeline(tile_n, RING_PAGES // operand_pages(tile_n))

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, c, epilogue):
        group = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 128)
        mma = hopper.make_trivial_tiled_mma(
            self.a_dtype,
            self.b_dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            tiler_mn=(WARPGROUP_ROWS, self.tile_size_N),
        )
        slice_ = mma.get_slice(0)
        sA = self._operand(ring, self.a_dtype, WARPGROUP_ROWS, group * (WARPGROUP_ROWS * TILE_K * 2))
        sB = self._operand(ring, self.b_dtype, self.tile_size_N, PAGE_BYTES)
        tCrA = mma.make_fragment_A(slice_.partition_A(sA))
        tCrB = mma.make_fragment_B(slice_.partition_B(sB))
        tCrC = cute.make_rmem_tensor(mma.partition_shape_C((WARPGROUP_ROWS, self.tile_size_N)), Float32)
        tCrC.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)

        if self.K > 0:  # it may be smaller in a run than it was planned
            self._accumulate(ring, mma, tCrC, tCrA, tCrB)

        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)
        row = tile_M * self.tile_size_M + warp * 16
        store_fragment(c, tile_B, row, tile_N * self.tile_size_N, tCrC, self.tile_size_N // 8, epilogue)

    @cute.jit
    def _accumulate(self, ring, mma, tCrC, tCrA, tCrB):
        """Multiply all steps of K, each released when the one after it has been issued."""
        previous = ring.wait()
        self._multiply(mma, tCrC, tCrA, tCrB, previous.page)
        for _ in cutlass.range(1, (self.K + TILE_K - 1) // TILE_K, unroll=1):
            stage = ring.wait()
            self._multiply(mma, tCrC, tCrA, tCrB, stage.page)
            warpgroup.wait_group(1)
            ring.release(previous)
            previous = stage
        warpgroup.wait_group(0)
        ring.release(previous)

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
