"""sm_100a and sm_120a: mma.sync with ldmatrix from the ring's swizzled pages.

Works on any target with TMA. On sm_100a it stands in until tcgen05 arrives; the ring is small enough for the 99 KB of
sm_120a.
"""

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Uint32

from machete.megakernel import PipelineSpec, ScheduledOp

from .epilogue import store_fragment
from .load import OperandLoader
from .op import PAGE_BYTES, TILE_K, TILE_M, GemmOp, gemm_pipeline

WARPS_M, WARPS_N = 2, 4
ROW_BYTES = TILE_K * 2
RING_PAGES = 4  # with the resident page 80 KB


class MmaSyncGemm(OperandLoader, GemmOp):
    """One 128 x tile_n tile; eight warps, 2 x 4, each 64 rows by tile_n / 4 columns."""

    pipeline = gemm_pipeline(TILE_M, 128, TILE_K, RING_PAGES)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        return gemm_pipeline(TILE_M, op.tile_sizes["N"], TILE_K, RING_PAGES)

    @cute.jit
    def compute(self, ring, tile_B, tile_M, tile_N, c, epilogue):
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)
        warp_rows, warp_columns = self.tile_size_M // WARPS_M, self.tile_size_N // WARPS_N
        first_row = warp % WARPS_M * warp_rows
        first_column = warp // WARPS_M * warp_columns
        fragments = [cute.make_rmem_tensor((warp_columns // 2,), Float32) for _ in range(warp_rows // 16)]
        for fragment in fragments:
            fragment.fill(0.0)

        for _ in cutlass.range((self.K + TILE_K - 1) // TILE_K, unroll=1):
            stage = ring.wait()
            for k in cutlass.range_constexpr(0, TILE_K, 16):
                b = []
                for n in cutlass.range_constexpr(0, warp_columns, 16):
                    b += load_b(stage.address + PAGE_BYTES, first_column + n, k)
                for m in cutlass.range_constexpr(warp_rows // 16):
                    a = load_a(stage.address, first_row + m * 16, k)
                    for n in cutlass.range_constexpr(warp_columns // 8):
                        multiply(self.a_dtype, fragments[m], n * 4, a, b[2 * n : 2 * n + 2])
            ring.release(stage)

        row = tile_M * self.tile_size_M + first_row
        column = tile_N * self.tile_size_N + first_column
        for m in cutlass.range_constexpr(warp_rows // 16):
            store_fragment(c, tile_B, row + m * 16, column, fragments[m], warp_columns // 8, epilogue)


def _swizzled(base, row, chunk):
    """Address of 16-byte chunk `chunk` of row `row` in a 128-byte swizzled tile (PTX ISA, tensor swizzling modes)."""
    return base + (row * ROW_BYTES + ((chunk ^ (row % 8)) * 16))


def _ldmatrix(address):
    return cute.arch.inline_ptx(
        "ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Uint32] * 4,
        read_only_args=[address],
    )


def load_a(base, row, k: int):
    """The 16x16 block of a at `row`, `k`: four registers of the mma A fragment."""
    lane = cute.arch.thread_idx()[0] % 32
    return list(_ldmatrix(_swizzled(base, row + lane % 16, k // 8 + lane // 16)))


def load_b(base, column, k: int):
    """Two neighbouring 16x8 blocks of b.T at `column`, `k`: two registers each."""
    lane = cute.arch.thread_idx()[0] % 32
    return list(_ldmatrix(_swizzled(base, column + lane // 16 * 8 + lane % 8, k // 8 + lane // 8 % 2)))


def multiply(dtype, accumulators, index: int, a, b) -> None:
    """accumulators[index:index+4] += a @ b, m16n8k16."""
    name = "bf16" if dtype is BFloat16 else "f16"
    result = cute.arch.inline_ptx(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32"
        " {{$w0}, {$w1}, {$w2}, {$w3}}, {{$r0}, {$r1}, {$r2}, {$r3}}, {{$r4}, {$r5}}, {{$r6}, {$r7}, {$r8}, {$r9}};",
        write_only_types=[Float32] * 4,
        read_only_args=[*a, *b, *(accumulators[index + i] for i in range(4))],
    )
    for i in range(4):
        accumulators[index + i] = result[i]
