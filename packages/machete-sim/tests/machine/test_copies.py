"""Asynchronous copies: cp.async, bulk copies, tensor tiles; what may go wrong between issue and completion."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import BadDescriptor, Deadlock, Misaligned, OutOfBounds, Race, Report, Uninitialised
from machete.sim._core import engine

Launch = Callable[..., Report]
SHARED = ".shared .align 128 .b8 tile[16384]; .shared .align 8 .b8 bar[32];"
ONE = f"{SHARED} mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0;"
INIT = f"{ONE} @!%p0 mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster; bar.sync 0;"
WAIT = "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra AGAIN;"
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a0], {0}, [bar];"
FENCE = "fence.proxy.async.shared::cta;"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%a0], [{0}], 16;"
MULTICAST = LOAD.format(16).replace("bytes [", "bytes.multicast::cluster [").replace("[bar]", "[bar], 3")
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {0};"


def aligned(count: int, dtype: type = np.uint32) -> np.ndarray:
    """An array on a 128-byte boundary, so that bulk copies may start at any multiple of 16 bytes."""
    size = np.dtype(dtype).itemsize
    storage = np.zeros(count * size + 128, np.uint8)
    start = -storage.ctypes.data % 128
    return storage[start : start + count * size].view(dtype)


def pattern(count: int, seed: int = 0) -> np.ndarray:
    out = aligned(count)
    out[:] = np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_bulk_load_and_store(launch: Launch, seed: int) -> None:
    x, y = pattern(256), aligned(256)
    report = launch(
        f"""
        {INIT} @%p0 bra W; {EXPECT.format(1024)} {LOAD.format(1024)}
        W: {WAIT} mul.wide.u32 %d0, %r0, 4; cvt.u32.u64 %r2, %d0; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2;
        ld.shared.u32 %r4, [%r3]; add.u32 %r4, %r4, 1; st.shared.u32 [%r3], %r4;
        fence.proxy.async.shared::cta; bar.sync 0; @%p0 ret;
        cp.async.bulk.global.shared::cta.bulk_group [%a1], [tile], 1024; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        """,
        [x, y],
        threads=256,
        seed=seed,
    )
    assert np.array_equal(y, x + np.uint32(1))
    assert report.async_copies == 2
    assert report.bytes_loaded == report.bytes_stored == 1024
    assert report.max_stages_in_flight == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("kind", "dtype"), [("u32", np.uint32), ("f32", np.float32)])
def test_bulk_reduction(launch: Launch, kind: str, dtype: type, seed: int) -> None:
    y = aligned(64, dtype)
    y[:] = 100
    one = "1" if kind == "u32" else "0f3F800000"
    launch(
        f"""
        {ONE} mul.wide.u32 %d0, %r0, 4; cvt.u32.u64 %r2, %d0; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2;
        mov.b32 %r4, {one}; st.shared.b32 [%r3], %r4; {FENCE} bar.sync 0; @%p0 ret;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{kind} [%a0], [tile], 256;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        """,
        [y],
        threads=64,
        ctas=3,
        seed=seed,
    )
    assert (y == 103).all()


def test_groups_complete_in_order_of_the_wait(launch: Launch) -> None:
    """wait_group 1 leaves the youngest group alone: only the older source may be reused."""
    body = """
        @%p0 ret; st.shared.v4.u32 [tile], {%r0, %r0, %r0, %r0}; st.shared.v4.u32 [tile+16], {%r0, %r0, %r0, %r0};
        FENCE cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 16; cp.async.bulk.commit_group;
        cp.async.bulk.global.shared::cta.bulk_group [%a0+16], [tile+16], 16; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 1; st.shared.u32 [REUSED], 9; cp.async.bulk.wait_group 0;
    """.replace("FENCE", FENCE)
    launch(ONE + body.replace("REUSED", "tile"), [aligned(64)], seed=4)
    for check, message in (("memory", "overwritten before the store had read it"), ("races", "may still read it")):
        with pytest.raises(Race, match=message):
            launch(ONE + body.replace("REUSED", "tile+16"), [aligned(64)], seed=4, check=check)


def test_others_may_overtake_who_waits_for_a_store(launch: Launch) -> None:
    """A warp that waits for its group stays until the copy has happened, while another counts."""
    body = f"""
        {ONE} setp.eq.u32 %p2, %r0, 32; mov.u32 %r1, 0; @%p2 bra COUNT; @%p0 ret;
        BEGIN: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3000; @%p1 bra BEGIN;
        st.shared.v4.u32 [tile], {{%r0, %r0, %r0, %r0}}; {FENCE}
        cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 16; cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0; st.relaxed.gpu.global.u32 [%a0+16], 1; ret;
        COUNT: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9000; @%p1 bra COUNT;
        ld.relaxed.gpu.global.u32 %r2, [%a0+16]; st.global.u32 [%a0+32], %r2;
    """
    first = []
    for seed in (1, 4):  # copies that complete soon, and as late as possible
        memory = aligned(16)
        launch(body, [memory], threads=64, seed=seed)
        assert memory[4] == 1
        first.append(memory[8])
    assert first == [1, 0]


def test_reading_before_the_copy_lands(launch: Launch) -> None:
    x = pattern(256)
    with pytest.raises(Uninitialised, match="copy into it is in flight"):
        launch(
            f"{INIT} @%p0 ret; {EXPECT.format(1024)} {LOAD.format(1024)} ld.shared.u32 %r1, [tile];",
            [x],
            seed=4,
            check="memory",
        )


def test_a_late_reader_is_caught_in_a_reused_stage(launch: Launch) -> None:
    """The stage holds valid old data, but a new copy into it has been issued: a missing wait for 'empty'."""
    x = pattern(256)
    with pytest.raises(Uninitialised, match="in flight"):
        launch(
            f"""
            {INIT} @%p0 ret; {EXPECT.format(1024)} {LOAD.format(1024)} {WAIT} ld.shared.u32 %r1, [tile];
            {EXPECT.format(1024)} {LOAD.format(1024)} ld.shared.u32 %r1, [tile+4];
            """,
            [x],
            seed=4,
            check="memory",
        )


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (f"{LOAD.format(1024)} ret;", Race, "copy into its shared memory was in flight|ended while"),
        (f"{EXPECT.format(1040)} {LOAD.format(1024)} {WAIT}", Deadlock, "16 bytes are missing"),
        (f"{EXPECT.format(24)} {LOAD.format(24)}", Misaligned, "multiples of 16"),
        (f"{EXPECT.format(1040)} {LOAD.format(1040)} {WAIT}", OutOfBounds, "runs past its end"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 16;", Uninitialised, "never written"),
        (f"mov.u32 %r1, 99984; {STORE.format('%r1')}", OutOfBounds, "shared address"),
        (f"st.shared.v2.b64 [tile], {{%d0, %d0}}; {FENCE} {STORE.format('tile')} ret;", Race, "read is missing"),
        (MULTICAST, OutOfBounds, "cluster of 1"),
    ],
)  # fmt: skip
def test_bulk_errors(launch: Launch, body: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        launch(f"{INIT} @%p0 ret; {body}", [pattern(256)], seed=4)


@pytest.mark.parametrize("seed", range(5))
def test_cp_async(launch: Launch, seed: int) -> None:
    """Two groups of 16 bytes a thread; half of the threads copy 4 bytes and zeros."""
    x, y = pattern(256), aligned(256)
    launch(
        f"""
        {SHARED} mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %a0, %d0; add.s64 %d2, %a1, %d0;
        shl.b32 %r1, %r0, 4; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1;
        setp.lt.u32 %p0, %r0, 16; selp.u32 %r3, 16, 4, %p0;
        cp.async.cg.shared.global [%r2], [%d1], 16, %r3; cp.async.commit_group;
        cp.async.ca.shared.global [%r2+1024], [%d1+512], 8; cp.async.ca.shared.global [%r2+1032], [%d1+520], 8;
        cp.async.commit_group; cp.async.wait_group 1;
        ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r2]; st.global.v4.u32 [%d2], {{%r4, %r5, %r6, %r7}};
        cp.async.wait_all; ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r2+1024];
        st.global.v4.u32 [%d2+512], {{%r4, %r5, %r6, %r7}};
        """,
        [x, y],
        seed=seed,
    )
    expected = x.copy().reshape(64, 4)
    expected[16:32, 1:] = 0
    assert np.array_equal(y.reshape(64, 4), expected)


def test_cp_async_without_waiting(launch: Launch) -> None:
    with pytest.raises(Uninitialised, match="in flight"):
        launch(
            f"{ONE} cp.async.ca.shared.global [tile], [%a0], 16; ld.shared.u32 %r1, [tile];",
            [pattern(64)],
            seed=4,
            check="memory",
        )


def test_cp_async_arrives_at_an_mbarrier(launch: Launch) -> None:
    x, y = pattern(128), aligned(128)
    launch(
        f"""
        {ONE} @!%p0 mbarrier.init.shared.b64 [bar], 32; bar.sync 0;
        mul.wide.u32 %d0, %r0, 16; add.s64 %d1, %a0, %d0; shl.b32 %r1, %r0, 4; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1;
        cp.async.cg.shared.global [%r2], [%d1], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [bar]; {WAIT}
        xor.b32 %r3, %r1, 16; mov.u32 %r2, tile; add.u32 %r3, %r3, %r2; ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r3];
        add.s64 %d2, %a1, %d0; st.global.v4.u32 [%d2], {{%r4, %r5, %r6, %r7}};
        """,
        [x, y],
        seed=1,
    )
    assert np.array_equal(y.reshape(32, 4), x.reshape(32, 4)[np.arange(32) ^ 1])


# ---- tensor tiles


def tensor_map(array: np.ndarray, box: tuple[int, ...], swizzle: int) -> np.ndarray:
    """The 128 bytes of a tensor map of a C-contiguous float16 array, on a 128-byte boundary; box innermost first."""
    out = aligned(128, np.uint8)
    out[:] = engine.encode_tensormap(
        base=array.ctypes.data,
        dtype=6,
        dim=list(array.shape[::-1]),
        stride=list(array.strides[::-1]),
        box=list(box),
        elem_stride=[1] * array.ndim,
        swizzle=swizzle,
    )
    return out


TILE = """
    @%p0 bra W; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 2048;
    cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%a0, {COORDS}], [bar];
    W: AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0; @!%p1 bra AGAIN; bar.sync 0;
    mul.wide.u32 %d0, %r0, 4; cvt.u32.u64 %r2, %d0; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2; ld.shared.u32 %r4, [%r3];
    add.s64 %d1, %a4, %d0; st.global.u32 [%d1], %r4; @%p0 ret;
    cp.async.bulk.tensor.RANKd.global.shared::cta.tile.bulk_group [%a1, {ZEROS}], [tile];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("corner", [(0, 0), (8, 3), (80, 60), (-8, -5), (96, 64)])
def test_tiles(launch: Launch, corner: tuple[int, int], swizzle: int, seed: int) -> None:
    """A box of 1024 elements, partly or wholly outside, through shared memory into another tensor."""
    columns = swizzle // 2 or 64
    rows = 1024 // columns
    source, target, raw = aligned(64 * 96, np.float16), aligned(1024, np.float16), aligned(1024, np.float16)
    source[:] = np.arange(1, 64 * 96 + 1) % 2039
    source, target = source.reshape(64, 96), target.reshape(rows, columns)
    maps = tensor_map(source, (columns, rows), swizzle), tensor_map(target, (columns, rows), swizzle)
    text = TILE.replace("RANK", "2").replace("COORDS", f"{corner[0]}, {corner[1]}").replace("ZEROS", "0, 0")
    launch(INIT + text, [*maps, source, target, raw], threads=512, seed=seed)
    padded = np.zeros((64 + 2 * 64, 96 + 2 * 96), np.float16)
    padded[64:128, 96:192] = source
    expected = padded[64 + corner[1] :, 96 + corner[0] :][:rows, :columns]
    assert np.array_equal(target, expected)
    # In shared memory the 16-byte units of a row are permuted by the row's address bits. The tile starts at 1024.
    units = raw.reshape(-1, 8)
    for index in range(len(units)):
        place = (engine.swizzle_address(1024 + 16 * index, swizzle) - 1024) // 16
        assert np.array_equal(units[place], expected.reshape(-1, 8)[index])


def test_five_dimensions(launch: Launch) -> None:
    shape = (3, 4, 5, 6, 16)
    source, target, raw = aligned(5760, np.float16), aligned(1024, np.float16), aligned(1024, np.float16)
    source[:] = np.arange(5760) % 2039
    source = source.reshape(shape)
    box = (16, 2, 4, 4, 2)
    maps = tensor_map(source, box, 0), tensor_map(target.reshape(2, 4, 4, 2, 16), box, 0)
    text = TILE.replace("RANK", "5").replace("COORDS", "0, 3, 1, 0, 1").replace("ZEROS", "0, 0, 0, 0, 0")
    launch(INIT + text, [*maps, source, target, raw], threads=512, seed=2)
    assert np.array_equal(target.reshape(2, 4, 4, 2, 16), source[1:3, 0:4, 1:5, 3:5, :])


def test_tile_reduction(launch: Launch) -> None:
    target = aligned(1024, np.float16)
    map_ = tensor_map(target.reshape(16, 64), (64, 16), 128)
    launch(
        f"""
        {ONE} shl.b32 %r2, %r0, 2; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2; mov.b32 %r4, 0x3C003C00;
        st.shared.b32 [%r3], %r4; {FENCE} bar.sync 0; @%p0 ret;
        cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%a0, {{0, 0}}], [tile];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        """,
        [map_, target],
        threads=512,
        ctas=3,
    )
    assert (target == 3).all()


def test_tile_errors(launch: Launch) -> None:
    source = aligned(64 * 96, np.float16).reshape(64, 96)
    text = TILE.replace("RANK", "2").replace("COORDS", "0, 0").replace("ZEROS", "0, 0")
    broken = aligned(128, np.uint8)
    broken[:] = 0xFF
    with pytest.raises(BadDescriptor, match="malformed tensor map"):
        launch(INIT + text, [broken, broken, source, source, source], threads=512)
    three = tensor_map(source.reshape(4, 16, 96), (64, 16, 1), 128)
    with pytest.raises(BadDescriptor, match="2 dimensions, the tensor map 3"):
        launch(INIT + text, [three, three, source, source, source], threads=512)
    map_ = tensor_map(source, (64, 16), 128)
    with pytest.raises(OutOfBounds, match="outside of all memory"):
        launch(INIT + text, [map_, map_, aligned(64), aligned(64), aligned(1024)], threads=512)
