"""tcgen05.ld and st in all shapes, cp, shift: where every cell of tensor memory goes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

from machete.sim import (
    Deadlock,
    Image,
    LaunchConfig,
    OutOfBounds,
    PendingRegisters,
    Race,
    Region,
    TensorMemoryMisuse,
    Uninitialised,
    run,
)

Module = Callable[..., str]

# Row and column of register `r` of thread `t`, as the figures of PTX ISA 9.7.16.2.3 show them.
SHAPES: dict[str, tuple[int, Callable[[int, int], tuple[int, int]]]] = {
    "32x32b": (1, lambda t, r: (t, r)),
    "16x64b": (1, lambda t, r: (t // 4 + 8 * (t % 2), 2 * r + t // 2 % 2)),
    "16x128b": (2, lambda t, r: (t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4)),
    "16x256b": (4, lambda t, r: (t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2)),
}
COLUMNS = 64
WAIT_LD, WAIT_ST = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
BEFORE_SYNC, AFTER_SYNC = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"


def launch(module: Module, body: str, out: np.ndarray, *, threads: int = 128, columns: int = COLUMNS) -> np.ndarray:
    """Runs `body` between allocation and deallocation; %r7 is the address of the warp's lanes, %d6 of its output."""
    text = f"""
        mov.u32 %r2, %tid.x; shr.u32 %r1, %r2, 5; mov.u32 %r6, slot; setp.lt.u32 %p3, %r2, 32; @!%p3 bra $allocated;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6], {columns};
        $allocated: bar.sync 0; ld.shared.u32 %r8, [%r6]; shl.b32 %r9, %r1, 21; add.u32 %r7, %r8, %r9;
        mul.wide.u32 %d5, %r2, {out.nbytes // threads}; add.s64 %d6, %a0, %d5;
        {body}
        {BEFORE_SYNC if "tcgen05.fence" in body else ""}
        bar.sync 0; @!%p3 bra $done; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, {columns};
        $done:
    """
    before = ".shared .align 4 .b32 slot;\n.shared .align 16 .b8 rows[4096];\n.shared .align 8 .b64 bar;"
    source = module(text, parameters=1, before=before, target="sm_100a")
    image = Image.from_ptx(source, arch="sm_100a")
    region = Region(out.ctypes.data, out.nbytes, "out")
    run(image, struct.pack("<Q", out.ctypes.data), LaunchConfig((1, 1, 1), (threads, 1, 1)), [region])
    return out


def registers(count: int) -> tuple[str, str]:
    return f".reg .b32 %t<{count}>;", "{" + ", ".join(f"%t{i}" for i in range(count)) + "}"


def fill(count: int) -> str:
    """Column c of lane l becomes 1000 l + c."""
    declare, names = registers(count)
    values = "".join(f"mad.lo.u32 %t{c}, %r2, 1000, {c};" for c in range(count))
    store = f"tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r7], {names};"
    return f"{{ {declare} {values} {store} }}\ntcgen05.wait::st.sync.aligned;"


@pytest.mark.parametrize("repeat", [1, 2, 8])
@pytest.mark.parametrize(("shape", "half"), [("32x32b", 0), *((s, h) for s in SHAPES for h in (0, 1) if s != "32x32b")])
def test_loads(module: Module, shape: str, repeat: int, half: int) -> None:
    per, place = SHAPES[shape]
    count = per * repeat
    declare, names = registers(count)
    stores = "".join(f"st.global.u32 [%d6+{4 * r}], %t{r};" for r in range(count))
    body = (
        f"{fill(64)} add.u32 %r10, %r7, {half << 20}; {{ {declare} tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 "
        f"{names}, [%r10]; tcgen05.wait::ld.sync.aligned; {stores} }}"
    )
    out = launch(module, body, np.zeros((4, 32, count), np.uint32))
    for warp in range(4):
        for t in range(32):
            cells = [place(t, r) for r in range(count)]
            assert out[warp, t].tolist() == [1000 * (32 * warp + 16 * half + row) + column for row, column in cells]


@pytest.mark.parametrize("shape", SHAPES)
def test_stores_and_packing_are_the_inverse(module: Module, shape: str) -> None:
    """Two 16-bit halves go to two columns with unpack::16b, and come back with pack::16b."""
    per, place = SHAPES[shape]
    repeat, count = 4, 4 * per
    declare, names = registers(count)
    values = "".join(f"mad.lo.u32 %t{r}, %r2, 0x10000, {r + 7};" for r in range(count))
    loads = "".join(f"add.u32 %r11, %r7, {c}; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r12}}, [%r11]; {WAIT_LD}"
                    f"st.global.u32 [%d6+{4 * (c + count)}], %r12;" for c in range(COLUMNS))  # fmt: skip
    back = "".join(f"st.global.u32 [%d6+{4 * r}], %t{r};" for r in range(count))
    zero = fill(64)
    body = (
        f"{zero} {{ {declare} {values} tcgen05.st.sync.aligned.{shape}.x{repeat}.unpack::16b.b32 [%r7], {names};"
        f"tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.{shape}.x{repeat}.pack::16b.b32 {names}, [%r7];"
        f"tcgen05.wait::ld.sync.aligned; {back} }} {loads}"
    )
    out = launch(module, body, np.zeros((4, 32, count + COLUMNS), np.uint32))
    for warp in range(4):
        for t in range(32):
            thread = 32 * warp + t
            assert out[warp, t, :count].tolist() == [thread << 16 | r + 7 for r in range(count)]
            for r in range(count):
                row, column = place(t, r)
                pair = out[warp, row, count + 2 * column : count + 2 * column + 2]
                assert pair.tolist() == [r + 7, thread]


def test_the_split_shape_takes_an_offset(module: Module) -> None:
    body = f"""{fill(64)} tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {{%r20, %r21}}, [%r7], 40;
        tcgen05.wait::ld.sync.aligned; st.global.v2.u32 [%d6], {{%r20, %r21}};"""
    out = launch(module, body, np.zeros((4, 32, 2), np.uint32))
    for warp in range(4):
        for t in range(32):
            first = 1000 * (32 * warp + t % 16) + (40 if t >= 16 else 0)
            assert out[warp, t].tolist() == [first, first + 1]


COMMIT = """tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r30];"""
WAIT = """$wait: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r30], 0; @!%p9 bra $wait;
    tcgen05.fence::after_thread_sync;"""
ROWS = """mov.u32 %r30, bar; mov.u32 %r31, rows; setp.eq.u32 %p1, %r2, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r30], 1;
    mov.u32 %r32, 0; shl.b32 %r33, %r2, 2; add.u32 %r34, %r31, %r33;
    $rows: mad.lo.u32 %r35, %r32, 128, %r2; st.shared.u32 [%r34], %r35; add.u32 %r34, %r34, 512;
    add.u32 %r32, %r32, 1; setp.lt.u32 %p4, %r32, 8; @%p4 bra $rows;
    fence.proxy.async.shared::cta; bar.sync 0;
    shr.u32 %r36, %r31, 4; cvt.u64.u32 %d1, %r36; or.b64 %d1, %d1, {descriptor};"""

COPIES = {
    "128x256b": (128, 8, lambda row: [row]),
    "4x256b": (4, 8, lambda row: [32 * row]),
    "128x128b": (128, 4, lambda row: [row]),
    "64x128b.warpx2::02_13": (64, 4, lambda row: [row, row + 64]),
    "64x128b.warpx2::01_23": (64, 4, lambda row: [row % 32 + row // 32 * 64, row % 32 + row // 32 * 64 + 32]),
    "32x128b.warpx4": (32, 4, lambda row: [row, row + 32, row + 64, row + 96]),
}


@pytest.mark.parametrize("shape", COPIES)
def test_copies(module: Module, shape: str) -> None:
    """Word w of shared memory holds w; rows are in core matrices, those of the second 16 bytes after 128 rows."""
    rows, columns, lanes = COPIES[shape]
    descriptor = 2048 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46
    loads = "".join(f"add.u32 %r11, %r7, {c}; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r12}}, [%r11]; {WAIT_LD}"
                    f"st.global.u32 [%d6+{4 * c}], %r12;" for c in range(columns))  # fmt: skip
    body = f"""{fill(8)} {ROWS.format(descriptor=descriptor)}
        @%p1 tcgen05.cp.cta_group::1.{shape} [%r8], %d1; @%p1 {COMMIT} {WAIT} {loads}"""
    out = launch(module, body, np.zeros((128, columns), np.uint32))
    expected = (1000 * np.arange(128)[:, None] + np.arange(columns)).astype(np.uint32)
    for row in range(rows):
        words = [row // 8 * 32 + row % 8 * 4 + c % 4 + c // 4 * 512 for c in range(columns)]
        for lane in lanes(row):
            expected[lane] = words
    assert np.array_equal(out, expected)


def test_shift_moves_every_lane_but_the_last_of_a_subpartition(module: Module) -> None:
    loads = "".join(f"add.u32 %r11, %r7, {c}; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r12}}, [%r11]; {WAIT_LD}"
                    f"st.global.u32 [%d6+{4 * c}], %r12;" for c in range(8))  # fmt: skip
    body = f"""{fill(8)} {ROWS.format(descriptor=1 << 46)} @%p1 tcgen05.shift.cta_group::1.down [%r8];
        @%p1 {COMMIT} {WAIT} {loads}"""
    out = launch(module, body, np.zeros((128, 8), np.uint32))
    lane = np.arange(128)
    moved = np.where(lane % 32 == 31, lane, lane + 1)
    assert np.array_equal(out, 1000 * moved[:, None] + np.arange(8))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r12}, [%r7];", Uninitialised, "never written"),
        ("add.u32 %r7, %r7, 64; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r2};", OutOfBounds, "64 is not alloc"),
        ("add.u32 %r7, %r7, 512; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r2};", OutOfBounds, "there are 512"),
        ("add.u32 %r7, %r7, 0x100000; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r2};", OutOfBounds, "may access"),
        ("@%p3 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 64;", TensorMemoryMisuse, "not what was allocated"),
        ("bar.sync 0; @!%p3 bra $more; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6], 512; $more:",
         Deadlock, "waits for 512 columns of tensor memory"),
    ],
)  # fmt: skip
def test_mistakes_are_named(module: Module, body: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        launch(module, body, np.zeros((128, 1), np.uint32))


def test_an_allocation_waits_until_columns_are_free(module: Module) -> None:
    """Warp 1 wants 512 columns while warp 0 has 64 of them."""
    body = """bar.sync 0; setp.eq.u32 %p5, %r1, 1; @!%p5 bra $free;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6], 512; ld.shared.u32 %r8, [%r6];
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 512; bra $again;
        $free: @!%p3 bra $again; nanosleep.u32 100; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 64;
        $again: bar.sync 0; @!%p3 bra $last; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6], 64;
        ld.shared.u32 %r8, [%r6]; $last: st.global.u32 [%d6], %r8;"""
    out = launch(module, body, np.ones((128, 1), np.uint32))
    assert (out == 0).all()


STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r2};"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r12}, [%r7];"
USE = "st.global.u32 [%d6], %r12;"


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (f"{STORE} {WAIT_ST} {LOAD} {USE}", None, ""),  # as ptxas has it, the use of a register waits for its load
        (f"{STORE} {LOAD}", Race, "wait::st"),
        (f"{STORE} {WAIT_ST} {STORE}", Race, "wait::st"),  # of which the deallocation by warp 0 knows nothing
        (f"{STORE} {WAIT_ST} {LOAD}", Race, "wait::ld"),
        (f"{STORE} {WAIT_ST} {LOAD} {WAIT_LD} {STORE} {WAIT_ST} {AFTER_SYNC}", None, ""),
        (f"{STORE} {WAIT_ST} {LOAD} {USE} {AFTER_SYNC}", PendingRegisters, "wait::ld must come first"),
        (f"{STORE} {WAIT_ST} {LOAD} {STORE} {AFTER_SYNC}", Race, "wait::ld"),
    ],
)
def test_what_must_be_waited_for(module: Module, body: str, error: type[Exception] | None, message: str) -> None:
    """A kernel with a tcgen05.fence is held to every wait, any other to those that registers do not make needless."""
    with pytest.raises(error, match=message) if error else nullcontext():
        launch(module, body, np.zeros((128, 1), np.uint32))
