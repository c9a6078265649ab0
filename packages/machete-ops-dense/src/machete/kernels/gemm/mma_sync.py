"""sm_120a: mma.sync with ldmatrix from the ring's swizzled pages.

Works on any target with TMA. The ring is small enough for the 99 KB of sm_120a.
"""

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Uint32

from machete.megakernel import PipelineSpec, ScheduledOp

from .epilogue import store_fragment
from .load import BLOCK_BYTES, PRODUCT_BYTES, OperandLoader
from .op import BLOCK_ROWS, ROW_BYTES, TILE_M, GemmOp, gemm_pipeline

WARPS_M, WARPS_N = 2, 4
RING_PAGES = 6  # 96 KB of 99 if no other op needs some; else two stages will do


class MmaSyncGemm(OperandLoader, GemmOp):
    """One 128 x tile_n tile; eight warps, 2 x 4, each 64 rows by tile_n / 4 columns."""

    pipeline = gemm_pipeline(TILE_M, 128, 1, RING_PAGES, elastic=True)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        return gemm_pipeline(TILE_M, op.tile_sizes["N"], 1, RING_PAGES, elastic=True)

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, c, epilogue):
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)
        warp_rows, warp_columns = self.tile_size_M // WARPS_M, self.tile_size_N // WARPS_N
        first_row = warp % WARPS_M * warp_rows
        first_column = warp // WARPS_M * warp_columns
        fragments = [cute.make_rmem_tensor((warp_columns // 2,), Float32) for _ in range(warp_rows // 16)]
        for fragment in fragments:
            fragment.fill(0.0)

        for _ in cutlass.range(self.steps(self.K), unroll=1):
            stage, last = ring.wait(), []
            for block in cutlass.range_constexpr(ROW_BYTES // PRODUCT_BYTES):
                b = []
                for n in cutlass.range_constexpr(0, warp_columns, 16):
                    b += self._b(stage.address + self.b_offset, first_column + n, block)
                last = b[::4]
                for m in cutlass.range_constexpr(warp_rows // 16):
                    a = self._a(stage.address, first_row + m * 16, block)
                    last.append(a[0])
                    for n in cutlass.range_constexpr(warp_columns // 8):
                        multiply((self.a_dtype, self.b_dtype), fragments[m], n * 4, a, b[2 * n : 2 * n + 2])
            # Loads of the blocks before have been served by then. To wait for all takes more registers than there are.
            ring.release(stage, after=last)

        row = tile_M * self.tile_size_M + first_row
        column = tile_N * self.tile_size_N + first_column
        for m in cutlass.range_constexpr(warp_rows // 16):
            store_fragment(c, tile_B, row + m * 16, column, fragments[m], warp_columns // 8, epilogue)

    def _a(self, base, row, block: int):
        """The 16 rows of a from `row` on, block `block` of K: four registers of the mma A fragment."""
        lane = cute.arch.thread_idx()[0] % 32
        if "a" in self.transposed:
            return list(_ldmatrix(_column(base, row + lane // 8 % 2 * 8, block * 16 + lane // 16 * 8), transpose=True))
        return list(_ldmatrix(_swizzled(base, row + lane % 16, block * 2 + lane // 16)))

    def _b(self, base, row, block: int):
        """The 16 rows of b from `row` on, as two neighbouring blocks of eight columns of c: two registers each."""
        lane = cute.arch.thread_idx()[0] % 32
        if "b" in self.transposed:
            return list(_ldmatrix(_column(base, row + lane // 16 * 8, block * 16 + lane // 8 % 2 * 8), transpose=True))
        return list(_ldmatrix(_swizzled(base, row + lane // 16 * 8 + lane % 8, block * 2 + lane // 8 % 2)))


def _swizzled(base, row, chunk):
    """Address of 16-byte chunk `chunk` of row `row` in a 128-byte swizzled tile (PTX ISA, tensor swizzling modes)."""
    return base + (row * ROW_BYTES + ((chunk ^ (row % 8)) * 16))


def _column(base, row, k):
    """Address of eight rows of a transposed operand, from `row` on, at place `k` + lane % 8 of K."""
    place = k + cute.arch.thread_idx()[0] % 8
    return _swizzled(base + row // BLOCK_ROWS * BLOCK_BYTES, place, row % BLOCK_ROWS // 8)


def _ldmatrix(address, transpose: bool = False):
    """Four 8x8 blocks of 16-bit elements; lane l gives the address of row l % 8 of block l / 8."""
    return cute.arch.inline_ptx(
        f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transpose else ''}.shared::cta.b16"
        " {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Uint32] * 4,
        read_only_args=[address],
    )


_NAMES = {BFloat16: "bf16", Float16: "f16", Float8E4M3FN: "e4m3", Float8E5M2: "e5m2"}


def multiply(dtypes, accumulators, index: int, a, b) -> None:
    """accumulators[index:index+4] += a @ b, m16n8, 32 bytes of K; `dtypes` of a and b."""
    names = ".".join(_NAMES[dtype] for dtype in dtypes)
    columns = PRODUCT_BYTES * 8 // dtypes[0].width
    result = cute.arch.inline_ptx(
        f"mma.sync.aligned.m16n8k{columns}.row.col.f32.{names}.f32"
        " {{$w0}, {$w1}, {$w2}, {$w3}}, {{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[Float32] * 4,
        read_only_args=[*a, *b, *(accumulators[index + i] for i in range(4))],
    )
    for i in range(4):
        accumulators[index + i] = result[i]
