"""Loads, stores and atomics in all state spaces, and the errors they raise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import MbarrierMisuse, Misaligned, OutOfBounds, Report, Uninitialised

Launch = Callable[..., Report]
TID = "mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, {0}; mul.lo.u32 %r2, %r0, {0};"


@pytest.mark.parametrize(("vector", "count"), [("", 1), (".v2", 2), (".v4", 4)])
@pytest.mark.parametrize("space", ["global", "shared", "local", "generic"])
def test_vectors(launch: Launch, space: str, vector: str, count: int) -> None:
    """Every space holds what was stored, lane by lane."""
    n = 64
    source = np.random.default_rng(0).integers(0, 1 << 32, (n, count), dtype=np.uint64).astype(np.uint32)
    out = np.zeros_like(source)
    registers = ", ".join(f"%r{10 + k}" for k in range(count))
    operand = f"{{{registers}}}" if vector else registers
    address = {"global": "%d9", "shared": "%r9", "local": "%d9", "generic": "%d9"}[space]
    setup = {
        "global": "add.s64 %d9, %a2, %d0;",
        "shared": "mov.u32 %r8, tile; add.s32 %r9, %r8, %r2;",
        "local": "mov.b64 %d9, mine;",
        "generic": "mov.b64 %d8, tile; cvta.shared.u64 %d7, %d8; add.s64 %d9, %d7, %d0;",
    }[space]
    suffix = "" if space == "generic" else f".{space}"
    launch(
        f"""
        .shared .align 16 .b8 tile[{n * 16}]; .local .align 16 .b8 mine[16];
        {TID.format(4 * count)} {setup}
        add.s64 %d1, %a0, %d0; ld.global{vector}.b32 {operand}, [%d1];
        st{suffix}{vector}.b32 [{address}], {operand};
        {" ".join(f"mov.b32 %r{10 + k}, 0;" for k in range(count))}
        ld{suffix}{vector}.b32 {operand}, [{address}];
        add.s64 %d1, %a1, %d0; st.global{vector}.b32 [%d1], {operand};
        """,
        [source, out, np.zeros_like(source)],
        threads=n,
    )
    assert np.array_equal(out, source)


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16", "u32", "s32"])
@pytest.mark.parametrize(("register", "width", "dtype"), [("%r9", 32, np.int32), ("%d9", 64, np.int64)])
def test_extension(launch: Launch, kind: str, register: str, width: int, dtype: type) -> None:
    narrow = {"8": np.uint8, "16": np.uint16, "32": np.uint32}[kind[1:]]
    source = np.random.default_rng(1).integers(0, 1 << 32, 32, dtype=np.uint64).astype(narrow)
    if kind[0] == "s":
        source = source.view({1: np.int8, 2: np.int16, 4: np.int32}[source.itemsize])
    out = np.zeros(32, dtype)
    launch(
        f"""
        {TID.format(source.itemsize)} add.s64 %d1, %a0, %d0; ld.global.{kind} {register}, [%d1];
        mul.wide.u32 %d2, %r0, {width // 8}; add.s64 %d3, %a1, %d2; st.global.b{width} [%d3], {register};
        """,
        [source, out],
    )
    assert np.array_equal(
        out.view(np.uint64 if width == 64 else np.uint32), source.astype(dtype).view(out.dtype.str.replace("i", "u"))
    )


def test_wide_registers(launch: Launch) -> None:
    source = np.random.default_rng(2).integers(0, 1 << 63, (32, 2), dtype=np.uint64)
    out = np.zeros_like(source)
    launch(
        f"""
        {TID.format(16)} add.s64 %d1, %a0, %d0; add.s64 %d2, %a1, %d0;
        ld.global.b128 %q0, [%d1]; mov.b128 {{%d3, %d4}}, %q0; mov.b128 %q1, {{%d4, %d3}}; st.global.b128 [%d2], %q1;
        """,
        [source, out],
    )
    assert np.array_equal(out, source[:, ::-1])


def test_constants_and_global_variables(launch: Launch) -> None:
    out = np.zeros(32, np.uint32)
    before = ".const .align 4 .u32 table[2] = {7, 0xFF}; .global .align 4 .u32 total;"
    launch(
        """
        mov.u64 %d3, table+4; ld.const.u32 %r1, [%d3];
        mov.u64 %d1, total; atom.global.add.u32 %r2, [%d1], 1; bar.sync 0;
        ld.global.u32 %r3, [total]; add.u32 %r4, %r1, %r3;
        mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 4; add.s64 %d2, %a0, %d0; st.global.u32 [%d2], %r4;
        """,
        [out],
        before=before,
    )
    assert (out == 255 + 32).all()


ATOMICS = {
    "add.u32": (np.uint32, lambda o, x: o + int(x.sum())),
    "min.s32": (np.int32, lambda o, x: min(o, int(x.min()))),
    "max.s32": (np.int32, lambda o, x: max(o, int(x.max()))),
    "max.u64": (np.uint64, lambda o, x: max(o, int(x.max()))),
    "and.b32": (np.uint32, lambda o, x: o & int(np.bitwise_and.reduce(x))),
    "or.b32": (np.uint32, lambda o, x: o | int(np.bitwise_or.reduce(x))),
    "xor.b64": (np.uint64, lambda o, x: o ^ int(np.bitwise_xor.reduce(x))),
    "add.u64": (np.uint64, lambda o, x: o + int(x.sum())),
}


@pytest.mark.parametrize("op", ATOMICS)
@pytest.mark.parametrize("space", ["global", "shared", "shared.cta", "cta.shared::cta"])
def test_atomics(launch: Launch, space: str, op: str) -> None:
    dtype, function = ATOMICS[op]
    n, size = 96, np.dtype(dtype).itemsize
    x = np.random.default_rng(3).integers(1, 1000, n).astype(dtype)
    total = np.array([500], dtype)
    width = 8 * size
    register = "%r" if width == 32 else "%d"
    body = f"""
        .shared .align 8 .b8 cell[8];
        {TID.format(size)} add.s64 %d1, %a0, %d0; ld.global.b{width} {register}20, [%d1];
        setp.eq.u32 %p0, %r0, 0; ld.global.b{width} {register}21, [%a1];
        @%p0 st.shared.b{width} [cell], {register}21; bar.sync 0;
    """
    if space == "global":
        body += f"red.relaxed.gpu.global.{op} [%a1], {register}20;"
    else:
        body += f"""
            mov.u32 %r5, cell; atom.{space}.{op} {register}22, [%r5], {register}20; bar.sync 0;
            @%p0 ld.shared.b{width} {register}23, [cell]; @%p0 st.global.b{width} [%a1], {register}23;
        """
    launch(body, [x, total], threads=n)
    assert int(total[0]) == function(500, x)


def test_float_atomics_and_old_values(launch: Launch) -> None:
    total = np.zeros(4, np.float32)
    old = np.zeros(32, np.float32)
    launch(
        f"""
        {TID.format(4)} atom.global.add.f32 %r1, [%a0], 0f3F800000; add.s64 %d1, %a1, %d0; st.global.f32 [%d1], %r1;
        red.global.add.noftz.f16x2 [%a0+4], %r9; red.global.add.v2.f32 [%a0+8], {{%r8, %r8}};
        """.replace("atom.global", "mov.b32 %r9, 0x3C003C00; mov.b32 %r8, 0f3F000000; atom.global"),
        [total, old],
    )
    assert total[0] == 32
    assert sorted(old) == list(range(32))
    assert (total[1:2].view(np.float16) == 32).all()
    assert (total[2:] == 16).all()


def aligned(count: int) -> np.ndarray:
    """Pairs of words, at a multiple of 16 bytes."""
    storage = np.zeros((count + 1, 2), np.uint64)
    return storage.reshape(-1)[storage.ctypes.data // 8 % 2 :][: 2 * count].reshape(count, 2)


@pytest.mark.parametrize("shared", [False, True])
def test_atomics_of_128_bits(launch: Launch, shared: bool) -> None:
    """An exchange by every lane hands the values on; a compare and swap looks at all of the bits."""
    cells, old, swapped = aligned(3), aligned(32), aligned(32)
    cells[:] = [[100, 200], [7, 8], [7, 9]]
    begin = """
        .shared .align 16 .b8 tile[48]; mov.u32 %r3, tile; ld.global.v2.b64 {%d10, %d11}, [%a0];
        st.shared.v2.b64 [tile], {%d10, %d11}; ld.global.v2.b64 {%d10, %d11}, [%a0+16];
        st.shared.v2.b64 [tile+16], {%d10, %d11}; ld.global.v2.b64 {%d10, %d11}, [%a0+32];
        st.shared.v2.b64 [tile+32], {%d10, %d11}; bar.warp.sync -1;
    """
    end = """
        bar.warp.sync -1; ld.shared.v2.b64 {%d10, %d11}, [tile]; st.global.v2.b64 [%a0], {%d10, %d11};
        ld.shared.v2.b64 {%d10, %d11}, [tile+16]; st.global.v2.b64 [%a0+16], {%d10, %d11};
        ld.shared.v2.b64 {%d10, %d11}, [tile+32]; st.global.v2.b64 [%a0+32], {%d10, %d11};
    """
    space, cell = ("shared", "%r3") if shared else ("global", "%a0")
    launch(
        f"""
        {TID.format(16)} {begin if shared else ""}
        cvt.u64.u32 %d4, %r0; not.b64 %d5, %d4; mov.b128 %q0, {{%d4, %d5}};
        add.s64 %d2, %a1, %d0; add.s64 %d3, %a2, %d0;
        atom.{space}.exch.b128 %q1, [{cell}], %q0; st.global.b128 [%d2], %q1;
        mov.u64 %d6, 7; mov.u64 %d7, 8; mov.b128 %q2, {{%d6, %d7}};
        and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 1;
        @%p1 atom.relaxed.gpu.{space}.cas.b128 %q3, [{cell}+16], %q2, %q0;
        @!%p1 atom.{space}.cas.b128 %q3, [{cell}+32], %q2, %q0; st.global.b128 [%d3], %q3; {end if shared else ""}
        """,
        [cells, old, swapped],
    )
    lanes = [[n, ~n & 2**64 - 1] for n in range(32)]
    seen = sorted([*old.tolist(), cells[0].tolist()])
    assert seen == sorted([[100, 200], *lanes])
    assert (swapped[::2] == [7, 9]).all()
    assert cells[2].tolist() == [7, 9]
    assert cells[1].tolist() in lanes[1::2]
    assert swapped[1::2].tolist().count([7, 8]) == 1
    assert swapped[1::2].tolist().count(cells[1].tolist()) == 15


def test_atomics_of_128_bits_are_aligned(launch: Launch) -> None:
    with pytest.raises(Misaligned, match="atomic of 16 bytes"):
        launch("atom.global.exch.b128 %q1, [%a0+8], %q0;", [aligned(2)], threads=1)


def test_compare_and_swap_is_a_lock(launch: Launch) -> None:
    lock, count = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    launch(
        """
        mov.u32 %r0, %laneid; setp.ne.u32 %p0, %r0, 0; @%p0 ret;
        AGAIN: atom.acquire.gpu.global.cas.b32 %r1, [%a0], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra AGAIN;
        ld.global.u32 %r2, [%a1]; add.u32 %r2, %r2, 1; st.global.u32 [%a1], %r2;
        atom.release.gpu.global.exch.b32 %r3, [%a0], 0;
        """,
        [lock, count],
        threads=128,
        ctas=8,
        seed=3,
    )
    assert count[0] == 32
    assert lock[0] == 0


def test_global_out_of_bounds_names_the_neighbour(launch: Launch) -> None:
    x = np.zeros(32, np.float32)
    with pytest.raises(OutOfBounds, match="'weights'") as caught:
        launch(f"{TID.format(4)} add.s64 %d1, %a0, %d0; ld.global.f32 %r1, [%d1+64];", [x], names=["weights"])
    error = caught.value
    assert error.cta == (0, 0, 0)
    assert error.warp == 0
    assert error.lanes == (16,)
    assert error.place is not None
    assert error.place.text == "ld.global.f32 %r1, [%d1+64];"
    assert "lanes 16" in str(error)


FIRST = "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 ret;"


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("ld.global.b32 %r1, [%a0+2];", Misaligned, "not a multiple of 4"),
        ("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%a0+8];", Misaligned, "not a multiple of 16"),
        ("st.global.b64 [%a0+124], %d1;", Misaligned, "not a multiple of 8"),
        ("st.global.b64 [%a0+128], %d1;", OutOfBounds, "ends 0 bytes before it"),
        ("mov.u32 %r1, 0; ld.shared.b32 %r2, [%r1];", OutOfBounds, "shared address 0"),
        ("mov.u32 %r1, 99996; st.shared.b32 [%r1], %r2;", OutOfBounds, "this CTA has"),
        ("ld.shared.b32 %r1, [tile];", Uninitialised, "never written"),
        ("mov.b16 %h1, 1; st.shared.b16 [tile], %h1; ld.shared.b32 %r1, [tile];", Uninitialised, "0x402"),
        ("mov.u64 %d1, tile; cvta.shared.u64 %d2, %d1; ld.b32 %r1, [%d2];", Uninitialised, "never written"),
        ("mov.u32 %r1, tile; atom.shared.add.u32 %r2, [%r1], 1;", Uninitialised, "never written"),
        (f"{FIRST} mbarrier.init.shared.b64 [tile], 1; ld.shared.b64 %d1, [tile];", MbarrierMisuse, "an mbarrier"),
        ("mov.b64 %d1, 0; ld.local.b32 %r1, [%d1+16];", OutOfBounds, "a thread has 0 bytes"),
        ("ld.param.b32 %r1, [p0+8];", OutOfBounds, "parameters have 8 bytes"),
        ("mov.u64 %d1, 64; ld.global.b32 %r1, [%d1];", OutOfBounds, "starts"),
        ("red.global.add.u32 [%a0+2], 1;", Misaligned, "not a multiple of 4"),
    ],
)  # fmt: skip
def test_bad_accesses(launch: Launch, body: str, error: type[Exception], message: str) -> None:
    storage = np.zeros(64, np.uint32)
    x = storage[(-storage.ctypes.data % 128) // 4 :][:32]
    with pytest.raises(error, match=message):
        launch(f".shared .align 16 .b8 tile[64]; {body}", [x])


def test_read_only_memory(module: Callable[..., str]) -> None:
    from machete.sim import Image, LaunchConfig, Region, run

    x = np.zeros(32, np.uint32)
    image = Image.from_ptx(module("st.global.u32 [%a0], 1;", parameters=1))
    config = LaunchConfig((1, 1, 1), (32, 1, 1))
    with pytest.raises(OutOfBounds, match="'x' is read-only"):
        run(image, x.ctypes.data.to_bytes(8, "little"), config, [Region(x.ctypes.data, x.nbytes, "x", writable=False)])
