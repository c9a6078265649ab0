"""CuTe DSL kernels for tests, with a function that compiles them to PTX (no GPU needed)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cutlass
import cutlass.utils.blackwell_helpers as blackwell
import cutlass.utils.hopper_helpers as hopper
from cutlass import BFloat16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05, warp, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum

STAGES, CHUNK = 3, 1024  # of the bulk pipeline: floats in a stage
TILE_M, TILE_N, TILE_K = 64, 128, 64
ptx = cute.arch.inline_ptx


def compile_to_ptx(function: Any, arch: str, folder: Path, *arguments: Any) -> str:
    """The PTX of a `cute.jit` function for `arch`."""
    folder.mkdir(exist_ok=True)
    compiled = cute.compile(function, *arguments, options=f"--gpu-arch {arch} --keep-ptx --dump-dir {folder}")
    artifact = compiled.artifacts.PTX
    return artifact if artifact.lstrip().startswith("//") else Path(artifact).read_text()


def pointer(dtype: Any, address: Any, align: int) -> Any:
    return cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)


# ---- elementwise


@cute.kernel
def axpy_kernel(x: cute.Tensor, y: cute.Tensor, a: Float32, n: Int32):
    i = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    if i < n:
        y[i] = a * x[i] + y[i]


@cute.jit
def axpy(x: cute.Tensor, y: cute.Tensor, a: Float32, n: Int32):
    axpy_kernel(x, y, a, n).launch(grid=(8, 1, 1), block=(128, 1, 1))


# ---- bulk copies through a ring of stages


@cute.kernel
def ring_kernel(x: Int64, y: Int64, chunks: Int32):
    """Warp 4 loads chunks of x into a ring; warps 0 to 3 double them into y."""
    smem = SmemAllocator()
    bars = smem.allocate_array(Int64, 2 * STAGES).toint()
    stages = smem.allocate_array(Float32, STAGES * CHUNK, byte_alignment=128)
    base = stages.toint()
    thread = cute.arch.thread_idx()[0]
    warp_index = cute.arch.make_warp_uniform(thread // 32)
    if thread == 0:
        for s in cutlass.range_constexpr(STAGES):
            ptx("mbarrier.init.shared::cta.b64 [{$r0}], 1;", read_only_args=[bars + 8 * s])
            ptx("mbarrier.init.shared::cta.b64 [{$r0}], 128;", read_only_args=[bars + 8 * (STAGES + s)])
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    block, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    stage, phase = Int32(0), Int32(0)
    if warp_index == 4:
        if thread == 128:
            chunk = block
            while chunk < chunks:
                wait(bars + 8 * (STAGES + stage), phase ^ 1)
                ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{$r0}], 4096;", read_only_args=[bars + 8 * stage])
                ptx(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[{$r0}], [{$r1}], 4096, [{$r2}];",
                    read_only_args=[base + stage * 4096, x + Int64(chunk) * 4096, bars + 8 * stage],
                )
                stage, phase = advance(stage, phase)
                chunk = chunk + blocks
    else:
        chunk = block
        while chunk < chunks:
            wait(bars + 8 * stage, phase)
            source = cute.make_tensor(
                cute.make_ptr(Float32, base + stage * 4096 + thread * 32, cute.AddressSpace.smem, assumed_align=16),
                cute.make_layout(8),
            )
            target = cute.make_tensor(
                pointer(Float32, y + Int64(chunk) * 4096 + Int64(thread) * 32, 16), cute.make_layout(8)
            )
            values = source.load() * 2.0
            ptx("mbarrier.arrive.shared::cta.b64 _, [{$r0}];", read_only_args=[bars + 8 * (STAGES + stage)])
            target.store(values)
            stage, phase = advance(stage, phase)
            chunk = chunk + blocks


WAIT = """{
.reg .pred done;
AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [{$r0}], {$r1};
@!done bra AGAIN;
}"""


def wait(bar: Any, parity: Any) -> None:
    ptx(WAIT, read_only_args=[bar, parity])


@cute.jit
def advance(stage, phase):
    stage = stage + 1
    if stage == STAGES:
        stage = 0
        phase = phase ^ 1
    return stage, phase


@cute.jit
def ring(x: Int64, y: Int64, chunks: Int32):
    ring_kernel(x, y, chunks).launch(grid=(4, 1, 1), block=(160, 1, 1))


# ---- a tensor tile


@cute.kernel
def tile_kernel(descriptor: Int64, out: Int64, column: Int32, row: Int32):
    """Loads a 64 x 64 tile with the 128-byte swizzle; every thread reads one row through the swizzled layout."""
    smem = SmemAllocator()
    atom = warpgroup.make_smem_layout_atom(hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, BFloat16, 64), BFloat16)
    layout = cute.tile_to_shape(atom, (64, 64), (0, 1))
    tile = smem.allocate_tensor(BFloat16, layout.outer, byte_alignment=1024, swizzle=layout.inner)
    bar = smem.allocate_array(Int64, 1).toint()
    thread = cute.arch.thread_idx()[0]
    if thread == 0:
        ptx("mbarrier.init.shared::cta.b64 [{$r0}], 1;", read_only_args=[bar])
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if thread == 0:
        ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{$r0}], 8192;", read_only_args=[bar])
        ptx(
            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            "[{$r0}], [{$r1}, {{$r2}, {$r3}}], [{$r4}];",
            read_only_args=[tile.iterator.toint(), descriptor, column, row, bar],
        )
    wait(bar, Int32(0))
    target = cute.make_tensor(pointer(BFloat16, out, 16), cute.make_layout((64, 64), stride=(64, 1)))
    for k in cutlass.range(64, unroll=1):
        target[thread, k] = tile[thread, k]


@cute.jit
def tile(descriptor: Int64, out: Int64, column: Int32, row: Int32):
    tile_kernel(descriptor, out, column, row).launch(grid=(1, 1, 1), block=(64, 1, 1))


# ---- matrix products of one tile: c[M, N] = a[M, K] b[N, K].T


@cute.kernel
def wgmma_kernel(a: Int64, b: Int64, c: Int64):
    smem = SmemAllocator()
    atom = warpgroup.make_smem_layout_atom(
        hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, BFloat16, TILE_K), BFloat16
    )
    layout_a = cute.tile_to_shape(atom, (TILE_M, TILE_K), (0, 1))
    layout_b = cute.tile_to_shape(atom, (TILE_N, TILE_K), (0, 1))
    sA = smem.allocate_tensor(BFloat16, layout_a.outer, byte_alignment=1024, swizzle=layout_a.inner)
    sB = smem.allocate_tensor(BFloat16, layout_b.outer, byte_alignment=1024, swizzle=layout_b.inner)
    gA = cute.make_tensor(pointer(BFloat16, a, 16), cute.make_layout((TILE_M, TILE_K), stride=(TILE_K, 1)))
    gB = cute.make_tensor(pointer(BFloat16, b, 16), cute.make_layout((TILE_N, TILE_K), stride=(TILE_K, 1)))
    gC = cute.make_tensor(pointer(Float32, c, 16), cute.make_layout((TILE_M, TILE_N), stride=(TILE_N, 1)))
    thread = cute.arch.thread_idx()[0]
    for i in cutlass.range(TILE_M * TILE_K // 128):
        flat = i * 128 + thread
        sA[flat // TILE_K, flat % TILE_K] = gA[flat // TILE_K, flat % TILE_K]
    for i in cutlass.range(TILE_N * TILE_K // 128):
        flat = i * 128 + thread
        sB[flat // TILE_K, flat % TILE_K] = gB[flat // TILE_K, flat % TILE_K]
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    mma = hopper.make_trivial_tiled_mma(
        BFloat16, BFloat16, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), tiler_mn=(TILE_M, TILE_N)
    )
    slice_ = mma.get_slice(thread)
    tCrA = mma.make_fragment_A(slice_.partition_A(sA))
    tCrB = mma.make_fragment_B(slice_.partition_B(sB))
    tCgC = slice_.partition_C(gC)
    tCrC = cute.make_rmem_tensor(tCgC.shape, Float32)
    tCrC.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.fence()
    for k in cutlass.range_constexpr(TILE_K // 16):
        cute.gemm(mma, tCrC, tCrA[None, None, k], tCrB[None, None, k], tCrC)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    cute.autovec_copy(tCrC, tCgC)


@cute.jit
def wgmma(a: Int64, b: Int64, c: Int64):
    wgmma_kernel(a, b, c).launch(grid=(1, 1, 1), block=(128, 1, 1))


@cute.kernel
def mma_kernel(a: Int64, b: Int64, c: Int64):
    """Four warps, 2 x 2, with ldmatrix from row-major tiles padded against bank conflicts."""
    pad = TILE_K + 8
    smem = SmemAllocator()
    sA = smem.allocate_tensor(BFloat16, cute.make_layout((TILE_M, TILE_K), stride=(pad, 1)), byte_alignment=16)
    sB = smem.allocate_tensor(BFloat16, cute.make_layout((TILE_N, TILE_K), stride=(pad, 1)), byte_alignment=16)
    gA = cute.make_tensor(pointer(BFloat16, a, 16), cute.make_layout((TILE_M, TILE_K), stride=(TILE_K, 1)))
    gB = cute.make_tensor(pointer(BFloat16, b, 16), cute.make_layout((TILE_N, TILE_K), stride=(TILE_K, 1)))
    gC = cute.make_tensor(pointer(Float32, c, 16), cute.make_layout((TILE_M, TILE_N), stride=(TILE_N, 1)))
    thread = cute.arch.thread_idx()[0]
    for i in cutlass.range(TILE_M * TILE_K // 128):
        flat = i * 128 + thread
        sA[flat // TILE_K, flat % TILE_K] = gA[flat // TILE_K, flat % TILE_K]
    for i in cutlass.range(TILE_N * TILE_K // 128):
        flat = i * 128 + thread
        sB[flat // TILE_K, flat % TILE_K] = gB[flat // TILE_K, flat % TILE_K]
    cute.arch.sync_threads()
    mma = cute.make_tiled_mma(
        cute.make_mma_atom(warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16))), cute.make_layout((2, 2, 1)), (32, 32, 16)
    )
    slice_ = mma.get_slice(thread)
    tCrA = mma.make_fragment_A(slice_.partition_A(sA))
    tCrB = mma.make_fragment_B(slice_.partition_B(sB))
    tCgC = slice_.partition_C(gC)
    tCrC = cute.make_rmem_tensor(tCgC.shape, Float32)
    tCrC.fill(0.0)
    atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), BFloat16)
    copy_a, copy_b = cute.make_tiled_copy_A(atom, mma), cute.make_tiled_copy_B(atom, mma)
    view_a, view_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
    cute.copy(copy_a, view_a.partition_S(sA), view_a.retile(tCrA))
    cute.copy(copy_b, view_b.partition_S(sB), view_b.retile(tCrB))
    for k in cutlass.range_constexpr(TILE_K // 16):
        cute.gemm(mma, tCrC, tCrA[None, None, k], tCrB[None, None, k], tCrC)
    cute.autovec_copy(tCrC, tCgC)


@cute.jit
def mma(a: Int64, b: Int64, c: Int64):
    mma_kernel(a, b, c).launch(grid=(1, 1, 1), block=(128, 1, 1))


# ---- tcgen05: a tile of one CTA, or of a pair, in tensor memory


@cute.kernel
def tensor_core_kernel(a: Int64, b: Int64, c: Int64, group: cutlass.Constexpr):
    """c[128 group, 64] = a[128 group, 64] b[64, 64].T; every CTA of the group stages its share of a and b."""
    rows = 128 * group
    pair = tcgen05.CtaGroup.TWO if group == 2 else tcgen05.CtaGroup.ONE
    op = tcgen05.MmaF16BF16Op(
        BFloat16, Float32, (rows, 64, 16), pair, tcgen05.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K
    )
    mma = cute.make_tiled_mma(op)
    layout_a = blackwell.make_smem_layout_a(mma, (rows, 64, 64), BFloat16, 1)
    layout_b = blackwell.make_smem_layout_b(mma, (rows, 64, 64), BFloat16, 1)
    smem = SmemAllocator()
    sA = smem.allocate_tensor(BFloat16, layout_a.outer, byte_alignment=1024, swizzle=layout_a.inner)
    sB = smem.allocate_tensor(BFloat16, layout_b.outer, byte_alignment=1024, swizzle=layout_b.inner)
    done = smem.allocate_array(Int64, 1)
    slot = smem.allocate_array(Int32, 1)
    thread = cute.arch.thread_idx()[0]
    warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.block_idx_in_cluster()
    gA = cute.make_tensor(pointer(BFloat16, a, 16), cute.make_layout((rows, 64), stride=(64, 1)))
    gB = cute.make_tensor(pointer(BFloat16, b, 16), cute.make_layout((64, 64), stride=(64, 1)))
    gC = cute.make_tensor(pointer(Float32, c, 16), cute.make_layout((rows, 64), stride=(64, 1)))
    slice_ = mma.get_slice(rank)
    tCgA, tCgB, tCgC = slice_.partition_A(gA), slice_.partition_B(gB), slice_.partition_C(gC)
    tCrA, tCrB = mma.make_fragment_A(sA), mma.make_fragment_B(sB)
    if warp_index == 0:
        cute.arch.alloc_tmem(64, slot, is_two_cta=group == 2)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=group == 2)
    if thread == 0:
        cute.arch.mbarrier_init(done, 1)
    cute.arch.mbarrier_init_fence()
    for i in cutlass.range(cute.size(tCgA) // 128):
        sA[i * 128 + thread] = tCgA[i * 128 + thread]
    for i in cutlass.range(cute.size(tCgB) // 128):
        sB[i * 128 + thread] = tCgB[i * 128 + thread]
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    if cutlass.const_expr(group == 2):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    columns = cute.arch.retrieve_tmem_ptr(Float32, 16, slot)
    tCtC = cute.make_tensor(columns, mma.make_fragment_C(mma.partition_shape_C((rows, 64))).layout)
    if rank == 0:
        if warp_index == 0:
            for k in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
                mma.set(tcgen05.Field.ACCUMULATE, k != 0)
                cute.gemm(mma, tCtC, tCrA[None, None, k, 0], tCrB[None, None, k, 0], tCtC)
            with cute.arch.elect_one():
                if cutlass.const_expr(group == 2):
                    tcgen05.commit(done, 3, tcgen05.CtaGroup.TWO)
                else:
                    tcgen05.commit(done)
    cute.arch.mbarrier_wait(done, 0)
    ptx("tcgen05.fence::after_thread_sync;")
    load = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32), tCtC)
    view = load.get_slice(thread)
    tDtC, tDgC = view.partition_S(tCtC), view.partition_D(tCgC)
    tDrC = cute.make_rmem_tensor(tDgC.shape, Float32)
    cute.copy(load, tDtC, tDrC)
    cute.arch.fence_view_async_tmem_load()
    cute.autovec_copy(tDrC, tDgC)
    ptx("tcgen05.fence::before_thread_sync;")
    cute.arch.sync_threads()
    if warp_index == 0:
        cute.arch.dealloc_tmem(columns, 64, is_two_cta=group == 2)
    if cutlass.const_expr(group == 2):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


@cute.jit
def tensor_core(a: Int64, b: Int64, c: Int64):
    tensor_core_kernel(a, b, c, 1).launch(grid=(1, 1, 1), block=(128, 1, 1))


@cute.jit
def tensor_core_pair(a: Int64, b: Int64, c: Int64):
    tensor_core_kernel(a, b, c, 2).launch(grid=(2, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1))


# ---- a cluster: one CTA loads a chunk for all, each takes its part from its neighbour


@cute.kernel
def share_kernel(x: Int64, y: Int64):
    """CTA 0 multicasts 128 floats; y[rank] is (rank + 1) x, plus what the next CTA has made of x."""
    smem = SmemAllocator()
    chunk = smem.allocate_array(Float32, 128, byte_alignment=128)
    own = smem.allocate_array(Float32, 128, byte_alignment=16)
    bar = smem.allocate_array(Int64, 1)
    thread, rank = cute.arch.thread_idx()[0], cute.arch.block_idx_in_cluster()
    if thread == 0:
        cute.arch.mbarrier_init(bar, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(bar, 512)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0:
        if thread == 0:
            ptx(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                "[{$r0}], [{$r1}], 512, [{$r2}], {$r3};",
                read_only_args=[chunk.toint(), x, bar.toint(), cutlass.Int16(15)],
            )
    cute.arch.mbarrier_wait(bar, 0)
    source, mine = cute.make_tensor(chunk, cute.make_layout(128)), cute.make_tensor(own, cute.make_layout(128))
    mine[thread] = source[thread] * (rank + 1)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    far = ptx(
        "{.reg .b32 there; mapa.shared::cluster.u32 there, {$r0}, {$r1}; ld.shared::cluster.f32 {$w0}, [there];}",
        write_only_types=[Float32],
        read_only_args=[own.toint() + thread * 4, (rank + 1) % 4],
    )
    target = cute.make_tensor(pointer(Float32, y, 16), cute.make_layout((4, 128), stride=(128, 1)))
    target[rank, thread] = mine[thread] + far
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def share(x: Int64, y: Int64):
    share_kernel(x, y).launch(grid=(4, 1, 1), block=(128, 1, 1), cluster=(4, 1, 1))
