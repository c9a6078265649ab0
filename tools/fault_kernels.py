"""Stand-alone CuTe DSL kernels for the fault suite: each lives by synchronisation of another sort.

Every kernel takes addresses (Int64) and sizes (Int32), so that it compiles without a GPU and without tensors.
"""

from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as hopper
from cutlass import BFloat16, Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import OperandMajorMode, warp, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.tensor_utils import LayoutEnum

ptx = cute.arch.inline_ptx
CHUNK = 512  # floats in a stage of `through`
ROWS, COLUMNS, DEPTH = 64, 128, 64  # tile of the products: c[ROWS, COLUMNS] = a[ROWS, K] b[COLUMNS, K].T
STAGES = 2


def _global(dtype: Any, address: Any, align: int = 16) -> Any:
    return cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)


def _wait(bar: Any, parity: Any) -> None:
    ptx(
        "{ .reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [{$r0}], {$r1}; @!done bra AGAIN; }",
        read_only_args=[bar, parity],
    )


def _arrive(bar: Any) -> None:
    ptx("mbarrier.arrive.shared::cta.b64 _, [{$r0}];", read_only_args=[bar])


def _init(bar: Any, count: int) -> None:
    ptx("mbarrier.init.shared::cta.b64 [{$r0}], {$r1};", read_only_args=[bar, Int32(count)])


def _expect(bar: Any, nbytes: int) -> None:
    ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{$r0}], {$r1};", read_only_args=[bar, Int32(nbytes)])


def _acquire(*maps: Any) -> None:
    for address in maps:
        ptx("fence.proxy.tensormap::generic.acquire.sys [{$r0}], 128;", read_only_args=[address])


@cute.jit
def _advance(stage, phase):
    stage = stage + 1
    if stage == STAGES:
        stage = 0
        phase = phase ^ 1
    return stage, phase


# ---- in by bulk copies, through registers, out by bulk copies


@cute.kernel
def _through(x: Int64, y: Int64, chunks: Int32):
    """Warp 4 loads chunks of x; warps 0 to 3 double them into a buffer of two; thread 0 stores those to y."""
    smem = SmemAllocator()
    bars = smem.allocate_array(Int64, 2 * STAGES).toint()
    loaded = smem.allocate_array(Float32, STAGES * CHUNK, byte_alignment=128).toint()
    staged = smem.allocate_array(Float32, 2 * CHUNK, byte_alignment=128).toint()
    thread = cute.arch.thread_idx()[0]
    if thread == 0:
        for s in cutlass.range_constexpr(STAGES):
            _init(bars + 8 * s, 1)
            _init(bars + 8 * (STAGES + s), 128)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    stage, phase = Int32(0), Int32(0)
    chunk = cute.arch.block_idx()[0]
    if thread >= 128:
        if thread == 128:
            while chunk < chunks:
                _wait(bars + 8 * (STAGES + stage), phase ^ 1)
                _expect(bars + 8 * stage, 4 * CHUNK)
                ptx(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[{$r0}], [{$r1}], {$r2}, [{$r3}];",
                    read_only_args=[
                        loaded + stage * (4 * CHUNK),
                        x + Int64(chunk) * (4 * CHUNK),
                        Int32(4 * CHUNK),
                        bars + 8 * stage,
                    ],
                )
                stage, phase = _advance(stage, phase)
                chunk = chunk + cute.arch.grid_dim()[0]
    else:
        buffer = Int32(0)
        while chunk < chunks:
            _wait(bars + 8 * stage, phase)
            source = cute.make_ptr(
                Float32, loaded + stage * (4 * CHUNK) + thread * 16, cute.AddressSpace.smem, assumed_align=16
            )
            values = cute.make_tensor(source, cute.make_layout(4)).load() * 2.0
            cute.arch.fence_proxy("async.shared", space="cta")  # an arrival overtakes loads
            _arrive(bars + 8 * (STAGES + stage))
            if thread == 0:  # the store before last has read its buffer
                ptx("cp.async.bulk.wait_group.read 1;")
            cute.arch.barrier(barrier_id=1, number_of_threads=128)
            target = cute.make_ptr(
                Float32, staged + buffer * (4 * CHUNK) + thread * 16, cute.AddressSpace.smem, assumed_align=16
            )
            cute.make_tensor(target, cute.make_layout(4)).store(values)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=2, number_of_threads=128)
            if thread == 0:
                ptx(
                    "cp.async.bulk.global.shared::cta.bulk_group [{$r0}], [{$r1}], {$r2};",
                    read_only_args=[
                        y + Int64(chunk) * (4 * CHUNK),
                        staged + buffer * (4 * CHUNK),
                        Int32(4 * CHUNK),
                    ],
                )
                ptx("cp.async.bulk.commit_group;")
            buffer = buffer ^ 1
            stage, phase = _advance(stage, phase)
            chunk = chunk + cute.arch.grid_dim()[0]
        if thread == 0:
            ptx("cp.async.bulk.wait_group.read 0;")


@cute.jit
def through(x: Int64, y: Int64, chunks: Int32):
    _through(x, y, chunks).launch(grid=(2, 1, 1), block=(160, 1, 1))


# ---- partial sums of CTAs, added up by the last one


@cute.kernel
def _total(x: Int64, partial: Int64, counter: Int64, out: Int64):
    """Every CTA of 128 threads adds 128 elements of x; the last one to finish adds up their sums, in order."""
    smem = SmemAllocator()
    sums = smem.allocate_array(Float32, 4)
    flag = smem.allocate_array(Int32, 1)
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    value = cute.make_tensor(_global(Float32, x, 4), cute.make_layout(1 << 20))[block * 128 + thread]
    for step in cutlass.range_constexpr(5):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=1 << step)
    shared = cute.make_tensor(sums, cute.make_layout(4))
    last = cute.make_tensor(flag, cute.make_layout(1))
    partials = cute.make_tensor(_global(Float32, partial, 4), cute.make_layout(1 << 10))
    if thread % 32 == 0:
        shared[thread // 32] = value
    cute.arch.sync_threads()
    if thread == 0:
        partials[block] = shared[0] + shared[1] + shared[2] + shared[3]
        before = ptx(
            "atom.acq_rel.gpu.global.add.u32 {$w0}, [{$r0}], 1;", write_only_types=[Int32], read_only_args=[counter]
        )
        last[0] = before
    cute.arch.sync_threads()
    if last[0] == cute.arch.grid_dim()[0] - 1:
        if thread < cute.arch.grid_dim()[0]:
            value = partials[thread]
            ptx("red.relaxed.gpu.global.add.f32 [{$r0}], {$r1};", read_only_args=[out, value])


@cute.jit
def total(x: Int64, partial: Int64, counter: Int64, out: Int64):
    _total(x, partial, counter, out).launch(grid=(4, 1, 1), block=(128, 1, 1))


# ---- producers and consumers that meet at named barriers


@cute.kernel
def _exchange(x: Int64, y: Int64, rounds: Int32):
    """Warps 0 and 1 put values into a buffer of two, warps 2 and 3 take them out, reversed: arrive here, sync there."""
    smem = SmemAllocator()
    buffer = cute.make_tensor(smem.allocate_array(Float32, 128), cute.make_layout(128))
    thread = cute.arch.thread_idx()[0]
    source = cute.make_tensor(_global(Float32, x, 4), cute.make_layout(1 << 20))
    target = cute.make_tensor(_global(Float32, y, 4), cute.make_layout(1 << 20))
    for turn in cutlass.range(rounds, unroll=1):
        half = turn % 2
        if thread < 64:
            if turn >= 2:
                cute.arch.barrier(barrier_id=3 + half, number_of_threads=128)
            buffer[half * 64 + thread] = source[turn * 64 + thread]
            cute.arch.barrier_arrive(barrier_id=1 + half, number_of_threads=128)
        else:
            cute.arch.barrier(barrier_id=1 + half, number_of_threads=128)
            target[turn * 64 + thread - 64] = buffer[half * 64 + 127 - thread]
            if turn + 2 < rounds:
                cute.arch.barrier_arrive(barrier_id=3 + half, number_of_threads=128)


@cute.jit
def exchange(x: Int64, y: Int64, rounds: Int32):
    _exchange(x, y, rounds).launch(grid=(1, 1, 1), block=(128, 1, 1))


# ---- a product by mma.sync, operands by cp.async in two stages


@cute.kernel
def _gemm_cp_async(a: Int64, b: Int64, c: Int64, depth: Int32):
    pad = DEPTH + 8
    smem = SmemAllocator()
    layout_a = cute.make_layout((ROWS, DEPTH, STAGES), stride=(pad, 1, ROWS * pad))
    layout_b = cute.make_layout((COLUMNS, DEPTH, STAGES), stride=(pad, 1, COLUMNS * pad))
    sA = smem.allocate_tensor(BFloat16, layout_a, byte_alignment=16)
    sB = smem.allocate_tensor(BFloat16, layout_b, byte_alignment=16)
    gC = cute.make_tensor(_global(Float32, c), cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1)))
    thread = cute.arch.thread_idx()[0]
    tiles = depth // DEPTH
    mma = cute.make_tiled_mma(
        cute.make_mma_atom(warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16))), cute.make_layout((2, 2, 1)), (32, 32, 16)
    )
    slice_ = mma.get_slice(thread)
    tCrA = mma.make_fragment_A(slice_.partition_A(sA[None, None, 0]))
    tCrB = mma.make_fragment_B(slice_.partition_B(sB[None, None, 0]))
    tCgC = slice_.partition_C(gC)
    tCrC = cute.make_rmem_tensor(tCgC.shape, Float32)
    tCrC.fill(0.0)
    atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), BFloat16)
    copy_a, copy_b = cute.make_tiled_copy_A(atom, mma), cute.make_tiled_copy_B(atom, mma)
    view_a, view_b = copy_a.get_slice(thread), copy_b.get_slice(thread)
    _copy_tile(sA.iterator.toint(), sB.iterator.toint(), a, b, depth, Int32(0), thread)
    for tile in cutlass.range(tiles, unroll=1):
        stage = tile % STAGES
        if tile + 1 < tiles:
            _copy_tile(sA.iterator.toint(), sB.iterator.toint(), a, b, depth, tile + 1, thread)
            cute.arch.cp_async_wait_group(1)
        else:
            cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        cute.copy(copy_a, view_a.partition_S(sA[None, None, stage]), view_a.retile(tCrA))
        cute.copy(copy_b, view_b.partition_S(sB[None, None, stage]), view_b.retile(tCrB))
        for k in cutlass.range_constexpr(DEPTH // 16):
            cute.gemm(mma, tCrC, tCrA[None, None, k], tCrB[None, None, k], tCrC)
        if tile + 2 < tiles:
            cute.arch.sync_threads()
    cute.autovec_copy(tCrC, tCgC)


@cute.jit
def _copy_tile(sA, sB, a, b, depth, tile, thread):
    """Tile number `tile` of both operands, 16 bytes at a time, as one group."""
    stage = tile % STAGES
    for rows, shared, source in ((ROWS, sA, a), (COLUMNS, sB, b)):
        for i in cutlass.range_constexpr(rows * DEPTH // 8 // 128):
            row, part = (i * 128 + thread) // 8, (i * 128 + thread) % 8
            ptx(
                "cp.async.cg.shared.global [{$r0}], [{$r1}], 16;",
                read_only_args=[
                    shared + (stage * rows + row) * (2 * DEPTH + 16) + part * 16,
                    source + Int64(row * depth + tile * DEPTH + part * 8) * 2,
                ],
            )
    cute.arch.cp_async_commit_group()


@cute.jit
def gemm_cp_async(a: Int64, b: Int64, c: Int64, depth: Int32):
    _gemm_cp_async(a, b, c, depth).launch(grid=(1, 1, 1), block=(128, 1, 1))


# ---- a product by wgmma, operands by TMA in stages


@cute.kernel
def _gemm_wgmma(map_a: Int64, map_b: Int64, c: Int64, tiles: Int32):
    """Warp 4 loads tiles, warps 0 to 3 multiply: one product stays in flight, the stage before it is released."""
    smem = SmemAllocator()
    atom = warpgroup.make_smem_layout_atom(hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, BFloat16, DEPTH), BFloat16)
    layout_a = cute.tile_to_shape(atom, (ROWS, DEPTH, STAGES), (0, 1, 2))
    layout_b = cute.tile_to_shape(atom, (COLUMNS, DEPTH, STAGES), (0, 1, 2))
    sA = smem.allocate_tensor(BFloat16, layout_a.outer, byte_alignment=1024, swizzle=layout_a.inner)
    sB = smem.allocate_tensor(BFloat16, layout_b.outer, byte_alignment=1024, swizzle=layout_b.inner)
    bars = smem.allocate_array(Int64, 2 * STAGES).toint()
    thread = cute.arch.thread_idx()[0]
    if thread == 0:
        for s in cutlass.range_constexpr(STAGES):
            _init(bars + 8 * s, 1)
            _init(bars + 8 * (STAGES + s), 4)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    stage, phase = Int32(0), Int32(0)
    if thread >= 128:
        if thread == 128:
            _acquire(map_a, map_b)
            for tile in cutlass.range(tiles, unroll=1):
                _wait(bars + 8 * (STAGES + stage), phase ^ 1)
                _expect(bars + 8 * stage, 2 * DEPTH * (ROWS + COLUMNS))
                for shared, rows, descriptor in ((sA, ROWS, map_a), (sB, COLUMNS, map_b)):
                    ptx(
                        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                        "[{$r0}], [{$r1}, {{$r2}, {$r3}}], [{$r4}];",
                        read_only_args=[
                            shared.iterator.toint() + stage * (2 * DEPTH * rows),
                            descriptor,
                            tile * DEPTH,
                            Int32(0),
                            bars + 8 * stage,
                        ],
                    )
                stage, phase = _advance(stage, phase)
    else:
        mma = hopper.make_trivial_tiled_mma(
            BFloat16, BFloat16, OperandMajorMode.K, OperandMajorMode.K, Float32, (1, 1, 1), tiler_mn=(ROWS, COLUMNS)
        )
        slice_ = mma.get_slice(thread)
        tCrA = mma.make_fragment_A(slice_.partition_A(sA))
        tCrB = mma.make_fragment_B(slice_.partition_B(sB))
        gC = cute.make_tensor(_global(Float32, c), cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1)))
        tCgC = slice_.partition_C(gC)
        tCrC = cute.make_rmem_tensor(tCgC.shape, Float32)
        tCrC.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        before = Int32(0)
        for tile in cutlass.range(tiles, unroll=1):
            _wait(bars + 8 * stage, phase)
            warpgroup.fence()
            for k in cutlass.range_constexpr(DEPTH // 16):
                cute.gemm(mma, tCrC, tCrA[None, None, k, stage], tCrB[None, None, k, stage], tCrC)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if tile > 0 and thread % 32 == 0:
                _arrive(bars + 8 * (STAGES + before))
            before = stage
            stage, phase = _advance(stage, phase)
        warpgroup.wait_group(0)
        cute.autovec_copy(tCrC, tCgC)


@cute.jit
def gemm_wgmma(map_a: Int64, map_b: Int64, c: Int64, tiles: Int32):
    _gemm_wgmma(map_a, map_b, c, tiles).launch(grid=(1, 1, 1), block=(160, 1, 1))


# ---- a product by tcgen05 that starts from values in tensor memory

TALL, WIDE = 128, 32  # tile of c
UMMA_TILE = 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61  # descriptor of rows of 128 bytes, swizzled
UMMA_PRODUCT = 1 << 4 | 1 << 7 | 1 << 10 | WIDE // 8 << 17 | TALL // 16 << 24  # bf16 to float32


@cute.kernel
def _gemm_tcgen05(map_a: Int64, map_b: Int64, c: Int64, tiles: Int32, depth: Int32):
    """Warp 4 loads; warp 5 multiplies; warps 0 to 3 put the lane into tensor memory, and take the sums from there."""
    smem = SmemAllocator()
    sA = smem.allocate_array(BFloat16, STAGES * TALL * DEPTH, byte_alignment=1024).toint()
    sB = smem.allocate_array(BFloat16, STAGES * WIDE * DEPTH, byte_alignment=1024).toint()
    bars = smem.allocate_array(Int64, 2 * STAGES + 2).toint()
    slot = smem.allocate_array(Int32, 1).toint()
    ready, summed = bars + 16 * STAGES, bars + 16 * STAGES + 8
    thread = cute.arch.thread_idx()[0]
    warp_index = cute.arch.make_warp_uniform(thread // 32)
    if thread == 0:
        for s in cutlass.range_constexpr(2 * STAGES):
            _init(bars + 8 * s, 1)
        _init(ready, 128)
        _init(summed, 1)
        cute.arch.mbarrier_init_fence()
    if warp_index == 5:
        ptx("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{$r0}], 32;", read_only_args=[slot])
        ptx("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")
    cute.arch.sync_threads()
    tensor = ptx("ld.shared.u32 {$w0}, [{$r0}];", write_only_types=[Int32], read_only_args=[slot])
    stage, phase = Int32(0), Int32(0)
    if thread == 128:
        _acquire(map_a, map_b)
        for tile in cutlass.range(tiles, unroll=1):
            for k in cutlass.range(depth, unroll=1):
                _wait(bars + 8 * (STAGES + stage), phase ^ 1)
                _expect(bars + 8 * stage, 2 * DEPTH * (TALL + WIDE))
                for shared, rows, descriptor, row in ((sA, TALL, map_a, tile * TALL), (sB, WIDE, map_b, Int32(0))):
                    ptx(
                        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                        "[{$r0}], [{$r1}, {{$r2}, {$r3}}], [{$r4}];",
                        read_only_args=[
                            shared + stage * (2 * DEPTH * rows),
                            descriptor,
                            k * DEPTH,
                            row,
                            bars + 8 * stage,
                        ],
                    )
                stage, phase = _advance(stage, phase)
    if warp_index == 5:
        for tile in cutlass.range(tiles, unroll=1):
            _wait(ready, tile % 2)
            ptx("tcgen05.fence::after_thread_sync;")
            for _ in cutlass.range(depth, unroll=1):
                _wait(bars + 8 * stage, phase)
                a = Int64(UMMA_TILE) | Int64((sA + stage * (2 * DEPTH * TALL)) >> 4)
                b = Int64(UMMA_TILE) | Int64((sB + stage * (2 * DEPTH * WIDE)) >> 4)
                with cute.arch.elect_one():
                    for k in cutlass.range_constexpr(DEPTH // 16):
                        ptx(
                            "{ .reg .pred adds; setp.eq.u32 adds, 0, 0; "
                            "tcgen05.mma.cta_group::1.kind::f16 [{$r0}], {$r1}, {$r2}, {$r3}, adds; }",
                            read_only_args=[tensor, a + 2 * k, b + 2 * k, Int32(UMMA_PRODUCT)],
                        )
                    _commit(bars + 8 * (STAGES + stage))
                stage, phase = _advance(stage, phase)
            with cute.arch.elect_one():
                _commit(summed)
    if thread < 128:
        own = tensor + (warp_index << 21)
        gC = cute.make_tensor(_global(Float32, c, 4), cute.make_layout(1 << 24))
        for tile in cutlass.range(tiles, unroll=1):
            for column in cutlass.range_constexpr(WIDE):
                ptx(
                    "tcgen05.st.sync.aligned.32x32b.x1.b32 [{$r0}], {{$r1}};",
                    read_only_args=[own + column, Float32(thread)],
                )
            ptx("tcgen05.wait::st.sync.aligned;")
            ptx("tcgen05.fence::before_thread_sync;")
            _arrive(ready)
            _wait(summed, tile % 2)
            ptx("tcgen05.fence::after_thread_sync;")
            sums = [
                ptx(
                    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {{$w0}}, [{$r0}];",
                    write_only_types=[Float32],
                    read_only_args=[own + column],
                )
                for column in range(WIDE)
            ]
            ptx("tcgen05.wait::ld.sync.aligned;")
            for column in cutlass.range_constexpr(WIDE):
                gC[(tile * TALL + thread) * WIDE + column] = sums[column]
        ptx("tcgen05.fence::before_thread_sync;")
    cute.arch.sync_threads()
    if warp_index == 5:
        ptx("tcgen05.dealloc.cta_group::1.sync.aligned.b32 {$r0}, 32;", read_only_args=[tensor])


def _commit(bar: Any) -> None:
    ptx("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{$r0}];", read_only_args=[bar])


@cute.jit
def gemm_tcgen05(map_a: Int64, map_b: Int64, c: Int64, tiles: Int32, depth: Int32):
    _gemm_tcgen05(map_a, map_b, c, tiles, depth).launch(grid=(1, 1, 1), block=(192, 1, 1))


# ---- two CTAs of a cluster that read each other's shared memory


@cute.kernel
def _swap(x: Int64, y: Int64, rounds: Int32):
    """Every round, each CTA of a pair writes 64 values, and reads those of the other one."""
    smem = SmemAllocator()
    bar = smem.allocate_array(Int64, 1).toint()
    base = smem.allocate_array(Float32, 64, byte_alignment=16).toint()
    buffer = cute.make_tensor(
        cute.make_ptr(Float32, base, cute.AddressSpace.smem, assumed_align=4), cute.make_layout(64)
    )
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    source = cute.make_tensor(_global(Float32, x, 4), cute.make_layout(1 << 20))
    target = cute.make_tensor(_global(Float32, y, 4), cute.make_layout(1 << 20))
    peer = (block % 2) ^ 1
    remote = ptx("mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[base, peer])
    remote_bar = ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};", write_only_types=[Int32], read_only_args=[bar, peer]
    )
    if thread == 0:
        _init(bar, 64)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()  # the fence releases the barrier
    cute.arch.cluster_wait()
    for turn in cutlass.range(rounds, unroll=1):
        if turn > 0:  # the other CTA has read what this one wrote
            ptx(
                "{ .reg .pred done; AGAIN: "
                "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [{$r0}], {$r1}; @!done bra AGAIN; }",
                read_only_args=[bar, (turn - 1) % 2],
            )
        buffer[thread] = source[(block * rounds + turn) * 64 + thread]
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        value = ptx(
            "ld.shared::cluster.f32 {$w0}, [{$r0}];",
            write_only_types=[Float32],
            read_only_args=[remote + (63 - thread) * 4],
        )
        target[(block * rounds + turn) * 64 + thread] = value
        ptx("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{$r0}];", read_only_args=[remote_bar])
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def swap(x: Int64, y: Int64, rounds: Int32):
    _swap(x, y, rounds).launch(grid=(4, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1))
