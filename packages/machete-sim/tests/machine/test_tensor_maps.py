"""Tensor maps that the kernel edits, and what TMA does beyond plain tiles: four rows, padding, tf32, clusters."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from machete.sim import BadDescriptor, Image, LaunchConfig, MissingProxyFence, Region, Report, UnknownInstruction, run
from machete.sim._core import engine

Module = Callable[..., str]


def aligned(count: int, dtype: type = np.uint8) -> np.ndarray:
    nbytes = count * np.dtype(dtype).itemsize
    storage = np.zeros(nbytes + 128, np.uint8)
    start = -storage.ctypes.data % 128
    return storage[start : start + nbytes].view(dtype)


def tensor_map(
    base: int, dtype: int, dim: list[int], stride: list[int], box: list[int], swizzle: int = 0
) -> np.ndarray:
    out = aligned(128)
    ones = [1] * len(dim)
    out[:] = engine.encode_tensormap(
        base=base, dtype=dtype, dim=dim, stride=stride, box=box, elem_stride=ones, swizzle=swizzle
    )
    return out


def launch(module: Module, body: str, arrays: Sequence[np.ndarray], seed: int = 0, **config: object) -> Report:
    before = ".shared .align 1024 .b8 tile[16384];\n.shared .align 128 .b8 map[128];\n.shared .align 8 .b64 bar;"
    prologue = """mov.u32 %r0, %tid.x; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], 1;
        fence.mbarrier_init.release.cluster; bar.sync 0;"""
    text = module(prologue + body, parameters=len(arrays), before=before, target="sm_100a")
    image = Image.from_ptx(text, arch="sm_100a")
    params = b"".join(struct.pack("<Q", a.ctypes.data) for a in arrays)
    regions = [Region(a.ctypes.data, a.nbytes, f"p{i}") for i, a in enumerate(arrays)]
    return run(image, params, LaunchConfig((1, 1, 1), (32, 1, 1), seed=seed, **config), regions)  # type: ignore[arg-type]


WAIT = "$wait: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra $wait;"


def copy_out(nbytes: int, parameter: int) -> str:
    """Thread 0 stores the tile as it is in shared memory."""
    return f"""fence.proxy.async.shared::cta; bar.sync 0; @!%p1 ret;
        cp.async.bulk.global.shared::cta.bulk_group [%a{parameter}], [tile], {nbytes};
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""


@pytest.mark.parametrize("space", ["global", "shared::cta"])
def test_replaced_fields(module: Module, space: str) -> None:
    """Every field of a map is replaced, in global memory or in a copy in shared memory that is written back."""
    target = aligned(4096)
    old = tensor_map(target.ctypes.data + 256, 10, [8, 8, 8], [2, 64, 512], [8, 8, 8])
    new = tensor_map(target.ctypes.data, 2, [24, 17], [4, 112], [32, 5], swizzle=128)
    fields = [
        ("global_address", "b64", "%a1"), ("global_stride", "b64", "0, 112"), ("rank", "b32", "1"),
        ("box_dim", "b32", "0, 32"), ("box_dim", "b32", "1, 5"), ("box_dim", "b32", "2, 1"),
        ("global_dim", "b32", "0, 24"), ("global_dim", "b32", "1, 17"), ("global_dim", "b32", "2, 1"),
        ("element_stride", "b32", "0, 1"), ("elemtype", "b32", "2"), ("interleave_layout", "b32", "0"),
        ("swizzle_mode", "b32", "3"), ("swizzle_atomicity", "b32", "0"), ("fill_mode", "b32", "0"),
        ("global_stride", "b64", "1, 0"),
    ]  # fmt: skip
    address = "%a0" if space == "global" else "map"
    replace = "".join(f"@%p1 tensormap.replace.tile.{f}.{space}.b1024.{t} [{address}], {v};\n" for f, t, v in fields)
    body = f"{replace} fence.proxy.tensormap::generic.release.gpu;"
    if space != "global":
        body = f"""shl.b32 %r1, %r0, 2; cvt.u64.u32 %d1, %r1; add.s64 %d2, %a0, %d1; ld.global.u32 %r2, [%d2];
            mov.u32 %r3, map; add.u32 %r3, %r3, %r1; st.shared.u32 [%r3], %r2; bar.sync 0; {replace} bar.sync 0;
            tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%a0], [map], 128;
            fence.proxy.tensormap::generic.acquire.gpu [%a0], 128;"""
    launch(module, body, [old, target])
    assert engine.decode_tensormap(old) == engine.decode_tensormap(new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensormap.replace.tile.rank.global.b1024.b32 [%a0], 7;", "rank - 1 of 7"),
        ("tensormap.replace.tile.box_dim.global.b1024.b32 [%a0], 1, 300;", "box dimension of 300"),
        ("tensormap.replace.tile.global_stride.global.b1024.b64 [%a0], 0, 24;", "stride of 24"),
    ],
)
def test_wrong_values_are_refused(module: Module, text: str, message: str) -> None:
    map_ = tensor_map(aligned(4096).ctypes.data, 10, [8, 8], [2, 64], [8, 8])
    with pytest.raises(BadDescriptor, match=message):
        launch(module, text, [map_])


@pytest.mark.parametrize("swizzle", [0, 128])
def test_four_rows_are_gathered_and_scattered(module: Module, swizzle: int) -> None:
    source, target = aligned(32 * 64, np.uint16).reshape(32, 64), aligned(32 * 64, np.uint16).reshape(32, 64)
    source[:] = np.arange(32 * 64, dtype=np.uint16).reshape(32, 64)
    maps = [tensor_map(a.ctypes.data, 1, [64, 32], [2, 128], [64, 1], swizzle) for a in (source, target)]
    body = f"""
        @!%p1 bra $wait; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512;
        cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
            [tile], [%a0, {{0, 7, 3, 31, 40}}], [bar];
        {WAIT} @!%p1 ret;
        cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%a1, {{0, 1, 2, 4, 30}}], [tile];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
    launch(module, body, [*maps, source, target])
    expected = np.zeros((32, 64), np.uint16)
    expected[[1, 2, 4]] = source[[7, 3, 31]]  # row 40 does not exist: zeros
    assert np.array_equal(target, expected)


@pytest.mark.parametrize(("dtype", "bits"), [(12, 4), (13, 6)])
def test_padded_elements_get_16_bytes_for_16(module: Module, dtype: int, bits: int) -> None:
    """Rows of 128 elements; the transaction counts the packed bytes."""
    packed = 128 * bits // 8
    source, out = aligned(4 * packed).reshape(4, packed), aligned(4 * 128)
    source[:] = np.random.default_rng(0).integers(0, 256, source.shape)
    map_ = tensor_map(source.ctypes.data, dtype, [128, 4], [0, packed], [128, 4])
    body = f"""
        @!%p1 bra $wait; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {4 * packed};
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [tile], [%a0, {{0, 0}}], [bar];
        {WAIT} {copy_out(512, 1)}"""
    launch(module, body, [map_, out, source])
    groups = out.reshape(4, 8, 16)
    assert np.array_equal(groups[..., : 2 * bits], source.reshape(4, 8, 2 * bits))
    assert (groups[..., 2 * bits :] == 0).all()


def test_tf32_is_rounded_on_its_way(module: Module) -> None:
    source, out = aligned(256, np.float32), aligned(256, np.float32)
    source[:] = np.random.default_rng(1).standard_normal(256)
    map_ = tensor_map(source.ctypes.data, 7, [32, 8], [4, 128], [32, 8])
    map_[10] |= 1  # bit 16 of the second word
    body = f"""
        @!%p1 bra $wait; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 1024;
        cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [tile], [%a0, {{0, 0}}], [bar];
        {WAIT} {copy_out(1024, 1)}"""
    launch(module, body, [map_, out, source])
    assert (out.view(np.uint32) & 0x1FFF == 0).all()
    assert np.abs(out - source).max() <= 2.0**-11 * np.abs(source).max()
    assert not np.array_equal(out.view(np.uint32), source.view(np.uint32) & np.uint32(0xFFFFE000))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pairs", [False, True])
def test_multicast_tiles(module: Module, pairs: bool, seed: int) -> None:
    """CTA 0 of a pair loads for both; with cta_group::2 both copies report to CTA 0, else each to its own mbarrier."""
    source, out = aligned(64 * 8, np.uint16).reshape(8, 64), aligned(2 * 1024)
    source[:] = np.arange(512, dtype=np.uint16).reshape(8, 64)
    map_ = tensor_map(source.ctypes.data, 1, [64, 8], [2, 128], [64, 8], 128)
    group, expect = (".cta_group::2", 2048) if pairs else ("", 1024)
    waits = "setp.eq.u32 %p3, %r5, 0;" if pairs else "setp.ne.u32 %p3, %r5, 9;"
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = f"""
        mov.u32 %r5, %cluster_ctarank; {waits} and.pred %p4, %p3, %p1;
        @%p4 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {expect}; {sync}
        setp.eq.and.u32 %p5, %r5, 0, %p1; mov.u16 %h1, 3;
        @%p5 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster{group}
            [tile], [%a0, {{0, 0}}], [bar], %h1;
        @!%p3 bra $there; {WAIT} $there: {sync}
        mul.wide.u32 %d1, %r5, 1024; add.s64 %a1, %a1, %d1; {copy_out(1024, 1)}"""
    text_config = {"cluster": (2, 1, 1)}
    before = ".shared .align 1024 .b8 tile[16384];\n.shared .align 8 .b64 bar;"
    prologue = """mov.u32 %r0, %tid.x; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [bar], 1;
        fence.mbarrier_init.release.cluster; bar.sync 0;"""
    image = Image.from_ptx(module(prologue + body, parameters=2, before=before, target="sm_100a"), arch="sm_100a")
    arrays = [map_, out, source]
    params = struct.pack("<QQ", map_.ctypes.data, out.ctypes.data)
    regions = [Region(a.ctypes.data, a.nbytes, "array") for a in arrays]
    run(image, params, LaunchConfig((2, 1, 1), (32, 1, 1), seed=seed, **text_config), regions)  # type: ignore[arg-type]
    tiles = out.reshape(2, 64, 16)
    for unit in range(64):
        place = (engine.swizzle_address(1024 + 16 * unit, 128) - 1024) // 16
        expected = source.view(np.uint8).reshape(64, 16)[unit]
        assert np.array_equal(tiles[0, place], expected)
        assert np.array_equal(tiles[1, place], expected)


def test_what_is_not_simulated_is_refused(module: Module) -> None:
    text = (
        "cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1], [%a0, {0, 0, 0}], [%r2];"
    )
    with pytest.raises(UnknownInstruction, match="im2col"):
        Image.from_ptx(module(text, parameters=1))


ACQUIRE = "fence.proxy.tensormap::generic.acquire.sys [%a0], 128;"
ACQUIRED = {
    "by the thread that copies": (f"@%p1 {ACQUIRE}", True),
    "by all": (ACQUIRE, True),
    "by nobody": ("", False),
    "by another lane": (f"setp.eq.u32 %p3, %r0, 7; @%p3 {ACQUIRE}", False),
    "by another lane, before the warp meets": (f"setp.eq.u32 %p3, %r0, 7; @%p3 {ACQUIRE} bar.warp.sync -1;", True),
    "by another lane, before a barrier": (f"setp.eq.u32 %p3, %r0, 7; @%p3 {ACQUIRE} bar.sync 0;", True),
    "another one": ("@%p1 fence.proxy.tensormap::generic.acquire.sys [%a0+128], 128;", False),
}


@pytest.mark.parametrize(("acquire", "good"), ACQUIRED.values(), ids=ACQUIRED)
def test_a_map_in_global_memory_is_acquired(module: Module, acquire: str, good: bool) -> None:
    """By a thread of each CTA; the CUDA programming guide asks for it. check="races" does not."""
    source = aligned(1024)
    maps = aligned(256)
    maps[:128] = tensor_map(source.ctypes.data, 0, [16, 8], [1, 64], [16, 8])
    body = f"""{acquire} @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;
        @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
            [tile], [%a0, {{0, 0}}], [bar];
        {WAIT}"""
    launch(module, body, [maps, source], check="races")
    if good:
        launch(module, body, [maps, source], check="strict")
        return
    with pytest.raises(MissingProxyFence, match=r"fence\.proxy\.tensormap::generic\.acquire"):
        launch(module, body, [maps, source], check="strict")
