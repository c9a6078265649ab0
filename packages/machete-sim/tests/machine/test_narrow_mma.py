"""mma.sync of 8-, 6- and 4-bit floats on sm_120a with and without block scales; matrices of bytes in shared memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from machete.sim import BadDescriptor, Image, LaunchConfig, Region, UnknownInstruction, run

Module = Callable[..., str]
DTYPES: dict[str, tuple[Any, int]] = {  # type, and where its bits are in a byte
    "e4m3": (ml_dtypes.float8_e4m3fn, 0), "e5m2": (ml_dtypes.float8_e5m2, 0), "e2m3": (ml_dtypes.float6_e2m3fn, 0),
    "e3m2": (ml_dtypes.float6_e3m2fn, 0), "e2m1": (ml_dtypes.float4_e2m1fn, 2),
}  # fmt: skip
LANE = np.arange(32)


def operand(element: str, rows: int, k: int, *, packed: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random values [rows, k] and their bytes [rows, 32]."""
    dtype, shift = DTYPES[element]
    values = np.random.default_rng(seed).standard_normal((rows, k)).astype(dtype)
    codes = values.view(np.uint8)
    data = codes[:, ::2] | codes[:, 1::2] << 4 if packed else codes << shift
    return values.astype(np.float64), data.astype(np.uint8)


def fragments(data: np.ndarray, halves: int) -> np.ndarray:
    """Registers [32, 2 * halves] of bytes [8 * halves, 32]: groups of rows, then the second 16 bytes of k."""
    words = np.ascontiguousarray(data).view("<u4")  # [rows, 8]
    return np.stack([words[LANE // 4 + 8 * half, LANE % 4 + 4 * part] for part in (0, 1) for half in range(halves)], 1)


def accumulators(matrix: np.ndarray) -> np.ndarray:
    return np.stack([matrix[LANE // 4 + 8 * (i // 2), LANE % 4 * 2 + i % 2] for i in range(4)], 1)


def multiply(module: Module, opcode: str, inputs: list[np.ndarray], scales: str = "") -> np.ndarray:
    """inputs: registers of a, b, c and scales, [32, n] of 32 bits."""
    columns = np.concatenate([i.view(np.uint32).reshape(32, -1) for i in inputs], axis=1)
    count = columns.shape[1]
    storage, out = np.ascontiguousarray(columns), np.zeros((32, 4), np.uint32)
    loads = "".join(f"ld.global.u32 %x{i}, [%d2+{4 * i}];" for i in range(count))

    def names(first: int, n: int) -> str:
        return "{" + ", ".join(f"%x{i}" for i in range(first, first + n)) + "}"

    body = f"""
        .reg .b32 %x<{count}>; mov.u32 %r1, %tid.x;
        mul.wide.u32 %d1, %r1, {4 * count}; add.s64 %d2, %a0, %d1; mul.wide.u32 %d3, %r1, 16; add.s64 %d4, %a1, %d3;
        {loads}
        {opcode} {{%r10, %r11, %r12, %r13}}, {names(0, 4)}, {names(4, 2)}, {names(6, 4)}{scales};
        st.global.v4.u32 [%d4], {{%r10, %r11, %r12, %r13}};
    """
    image = Image.from_ptx(module(body, parameters=2, target="sm_120a"), arch="sm_120a")
    params = struct.pack("<QQ", storage.ctypes.data, out.ctypes.data)
    regions = [Region(a.ctypes.data, a.nbytes, "array") for a in (storage, out)]
    run(image, params, LaunchConfig((1, 1, 1), (32, 1, 1)), regions)
    return out.view(np.float32)


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_every_pair_of_elements(module: Module, a: str, b: str) -> None:
    left, left_bytes = operand(a, 16, 32, packed=False, seed=1)
    right, right_bytes = operand(b, 8, 32, packed=False, seed=2)
    start = np.random.default_rng(3).standard_normal((16, 8)).astype(np.float32)
    inputs = [fragments(left_bytes, 2), fragments(right_bytes, 1), accumulators(start)]
    out = multiply(module, f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32", inputs)
    exact = accumulators(left @ right.T + start)
    assert np.linalg.norm(out - exact) < 1e-6 * np.linalg.norm(exact)


CASES = [
    ("mxf8f6f4", "", "e4m3", 1, "ue8m0", (2, 1, 3, 3)),
    ("mxf8f6f4", ".scale_vec::1X", "e3m2", 1, "ue8m0", (0, 0, 1, 2)),
    ("mxf4", ".scale_vec::2X", "e2m1", 2, "ue8m0", (2, 1, 0, 0)),
    ("mxf4nvf4", ".scale_vec::2X", "e2m1", 2, "ue8m0", (0, 0, 2, 1)),
    ("mxf4nvf4", ".scale_vec::4X", "e2m1", 4, "ue4m3", (0, 1, 0, 3)),
    ("mxf4nvf4", ".scale_vec::4X", "e2m1", 4, "ue8m0", (0, 0, 0, 0)),
]


@pytest.mark.parametrize("kind_first", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}{c[1]}-{c[2]}-{c[4]}")
def test_block_scales(module: Module, case: Any, kind_first: bool) -> None:
    """Selectors say which byte of a scale register counts, and which lanes of four hold it."""
    kind, vector, element, count, scale, (a_byte, a_thread, b_byte, b_thread) = case
    packed, k = kind != "mxf8f6f4", 32 if kind == "mxf8f6f4" else 64
    left, left_bytes = operand(element, 16, k, packed=packed, seed=4)
    right, right_bytes = operand(element, 8, k, packed=packed, seed=5)
    rng = np.random.default_rng(6)
    if scale == "ue8m0":
        codes = [rng.integers(118, 136, (rows, count)).astype(np.uint8) for rows in (16, 8)]
        factors = [2.0 ** (c.astype(np.float64) - 127) for c in codes]
    else:
        values = [np.abs(rng.standard_normal((rows, count))).astype(ml_dtypes.float8_e4m3fn) for rows in (16, 8)]
        codes, factors = [v.view(np.uint8) for v in values], [v.astype(np.float64) for v in values]
    # What the selectors do not choose is NaN.
    a_scales, b_scales = np.full((32, 4), 0xFF, np.uint8), np.full((32, 4), 0xFF, np.uint8)
    for row in range(16):
        a_scales[row % 8 * 4 + 2 * a_thread + row // 8, a_byte : a_byte + count] = codes[0][row]
    for column in range(8):
        b_scales[column * 4 + b_thread, b_byte : b_byte + count] = codes[1][column]
    shape = f"m16n8k{k}.row.col"
    scaled = f"kind::{kind}.block_scale{vector}"
    head = f"{scaled}.{shape}" if kind_first else f"{shape}.{scaled}"
    inputs = [
        fragments(left_bytes, 2), fragments(right_bytes, 1), np.zeros((32, 4), np.float32), a_scales, b_scales,
    ]  # fmt: skip
    operands = f", {{%x10}}, {{{a_byte}, {a_thread}}}, %x11, {{{b_byte}, {b_thread}}}"
    out = multiply(module, f"mma.sync.aligned.{head}.f32.{element}.{element}.f32.{scale}", inputs, operands)
    block = k // count
    exact = accumulators((left * factors[0].repeat(block, 1)) @ (right * factors[1].repeat(block, 1)).T)
    assert np.linalg.norm(out - exact) < 1e-6 * np.linalg.norm(exact)


def test_selectors_are_checked(module: Module) -> None:
    opcode = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
    inputs = [np.zeros((32, 12), np.uint32)]
    for operands, message in [
        (", %x10, {1, 0}, %x11, {0, 0}", "byte ids 1 and 0"),
        (", %x10, {0, 2}, %x11, {0, 0}", "thread-id-a of mma is 2"),
        (", %x10, {0, 0}, %x11, {4, 0}", "byte-id-b of mma is 4"),
    ]:
        with pytest.raises(BadDescriptor, match=message):
            multiply(module, opcode, inputs, operands)


@pytest.mark.parametrize(
    ("opcode", "message"),
    [
        ("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue4m3", "4X"),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32", "sparse"),
        ("wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.bf16.bf16", "sparse"),
        ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc", "single bits"),
    ],
)
def test_what_does_not_exist(module: Module, opcode: str, message: str) -> None:
    with pytest.raises(UnknownInstruction, match=message):
        multiply(module, opcode, [np.zeros((32, 12), np.uint32)], ", %x10, {0, 0}, %x11, {0, 0}")


# ---- matrices of bytes


def through_shared(module: Module, source: np.ndarray, out: np.ndarray, body: str) -> np.ndarray:
    """Every lane puts 16 bytes of `source` at %r4 + 16 * lane; `body` writes to %d4, one row of `out` a lane."""
    text = f"""
        mov.u32 %r1, %tid.x; mov.u32 %r4, tile; shl.b32 %r5, %r1, 4; add.u32 %r6, %r4, %r5;
        cvt.u64.u32 %d1, %r5; add.s64 %d2, %a0, %d1; ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d2];
        st.shared.v4.u32 [%r6], {{%r10, %r11, %r12, %r13}}; bar.sync 0;
        mul.wide.u32 %d3, %r1, {out.nbytes // 32}; add.s64 %d4, %a1, %d3;
        {body}
    """
    before = ".shared .align 128 .b8 tile[512];"
    image = Image.from_ptx(module(text, parameters=2, before=before, target="sm_120a"), arch="sm_120a")
    params = struct.pack("<QQ", source.ctypes.data, out.ctypes.data)
    regions = [Region(a.ctypes.data, a.nbytes, "array") for a in (source, out)]
    run(image, params, LaunchConfig((1, 1, 1), (32, 1, 1)), regions)
    return out


@pytest.mark.parametrize(("packed", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_narrow_elements_become_bytes(module: Module, packed: str, bits: int) -> None:
    codes = np.random.default_rng(7).integers(0, 1 << bits, (32, 16)).astype(np.uint8)
    rows = np.zeros((32, 16), np.uint8)
    ones = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(32, -1)
    rows[:, : 2 * bits] = np.packbits(ones, axis=1, bitorder="little")
    body = f"""ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.{packed} {{%r20, %r21, %r22, %r23}}, [%r6];
        st.global.v4.u32 [%d4], {{%r20, %r21, %r22, %r23}};"""
    out = through_shared(module, rows, np.zeros((32, 4, 4), np.uint8), body)
    for lane in range(32):
        for matrix in range(4):
            assert np.array_equal(out[lane, matrix], codes[8 * matrix + lane // 4, lane % 4 * 4 : lane % 4 * 4 + 4])


def test_transposed_load_of_bytes(module: Module) -> None:
    rows = np.random.default_rng(8).integers(0, 256, (32, 16)).astype(np.uint8)
    body = """ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r20, %r21, %r22, %r23}, [%r6];
        st.global.v4.u32 [%d4], {%r20, %r21, %r22, %r23};"""
    out = through_shared(module, rows, np.zeros((32, 2, 2, 4), np.uint8), body)
    for lane in range(32):
        for matrix in range(2):
            for half in range(2):
                first = 16 * matrix + lane % 4 * 4
                assert np.array_equal(out[lane, matrix, half], rows[first : first + 4, lane // 4 + 8 * half])


def test_transposed_store_of_bytes(module: Module) -> None:
    registers = np.random.default_rng(9).integers(0, 256, (32, 4, 4)).astype(np.uint8)  # lane, register, byte
    body = """stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%r6], {%r10, %r11, %r12, %r13}; bar.warp.sync -1;
        ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r6]; st.global.v4.u32 [%d4], {%r20, %r21, %r22, %r23};"""
    out = through_shared(module, registers, np.zeros((32, 16), np.uint8), body)
    for lane in range(32):
        for register in range(4):
            for byte in range(4):
                row = 8 * register + lane % 4 * 2 + byte % 2
                assert out[row, lane // 4 + byte // 2 * 8] == registers[lane, register, byte]
