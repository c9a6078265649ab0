"""wgmma against NumPy. Operands lie in shared memory as the PTX ISA draws them: in swizzle atoms, not by address."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from machete.sim._core import engine

NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
    "b1": np.dtype(np.uint8),  # eight of them
}
SHARED_BYTES = 128 * 1024
POISON = 0xEE


@dataclass
class Shared:
    """Shared memory of one CTA that starts at address `base`, and which of its bytes were written."""

    base: int = 0x400

    def __post_init__(self) -> None:
        self.data = np.full(SHARED_BYTES, POISON, np.uint8)
        self.written = np.zeros(SHARED_BYTES, np.uint8)

    def put(self, address: int, values: NDArray) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8)
        where = slice(address - self.base, address - self.base + raw.size)
        assert not self.written[where].any()
        self.data[where] = raw
        self.written[where] = 1


@dataclass
class Layout:
    """An operand's layout: `swizzle` bytes (0: core matrices), the dimension that is contiguous, offsets in bytes."""

    swizzle: int
    mn_major: bool
    start: int
    leading: int
    stride: int
    base_offset: int = 0

    def descriptor(self) -> int:
        code = {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle]
        return (
            (self.start & 0x3FFFF) >> 4
            | self.leading >> 4 << 16
            | self.stride >> 4 << 32
            | self.base_offset << 49
            | code << 62
        )


def place(shared: Shared, matrix: NDArray, layout: Layout) -> None:
    """Writes `matrix` [rows, k] in units of 16 bytes.

    Without swizzle a core matrix is 8 such units, one after the other. With swizzle an atom is 8 lines of 32, 64 or 128
    bytes; the units of line r are permuted by XOR with r, r / 2 or r / 4 (a line of 64 or 32 bytes is half or a quarter
    of the 128 bytes of banks).
    """
    lines, along = (matrix.T, matrix.shape[0]) if layout.mn_major else (matrix, matrix.shape[1])
    per_unit = 16 // matrix.itemsize
    for line in range(lines.shape[0]):
        for unit in range(along // per_unit):
            values = lines[line, unit * per_unit : (unit + 1) * per_unit]
            if not layout.swizzle:
                across, down = (layout.stride, layout.leading) if layout.mn_major else (layout.leading, layout.stride)
                address = layout.start + line // 8 * down + line % 8 * 16 + unit * across
            else:
                units = layout.swizzle // 16
                atom, inside = divmod(unit, units)
                permuted = inside ^ (line % 8 * layout.swizzle // 128)
                address = layout.start + line // 8 * layout.stride + line % 8 * layout.swizzle + permuted * 16
                assert layout.mn_major or atom == 0
                address += atom * layout.leading
            shared.put(address, values)


def a_registers(a: NDArray) -> NDArray[np.uint32]:
    """A [64, k] as 4 registers of 4 warps: 16 rows a warp, the m16 fragments of mma.sync."""
    row_bytes = (
        np.ascontiguousarray(a).view(np.uint8).reshape(4, 2, 8, 2, 4, 4)
    )  # warp, half, group, k half, thread, byte
    return np.ascontiguousarray(row_bytes.transpose(0, 3, 1, 2, 4, 5)).view(np.uint32).reshape(16, 32)


def d_registers(d: NDArray) -> NDArray[np.uint32]:
    """D [64, n], as the figure of m64nN: per 8 columns, rows lane / 4 and + 8, columns 2 * (lane % 4) and + 1."""
    n = d.shape[1]
    blocks = d.reshape(4, 2, 8, n // 8, 4, 2)  # warp, half, group, column group, thread, element
    lanes = np.ascontiguousarray(blocks.transpose(0, 2, 4, 3, 1, 5)).reshape(4, 32, -1)
    return np.ascontiguousarray(lanes.view(np.uint32).transpose(0, 2, 1)).reshape(-1, 32)


def d_matrix(registers: NDArray[np.uint32], n: int, dtype: np.dtype) -> NDArray:
    lanes = np.ascontiguousarray(registers.reshape(4, -1, 32).transpose(0, 2, 1)).view(dtype)
    return lanes.reshape(4, 8, 4, n // 8, 2, 2).transpose(0, 4, 1, 3, 2, 5).reshape(64, n)


def small_integers(name: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray:
    low = 0 if name == "u8" else -4
    return rng.integers(low, 4, shape, endpoint=True).astype(NUMPY[name])


def operand_layout(swizzle: int, mn_major: bool, rows: int, itemsize: int, start: int) -> Layout:
    """A dense placement of rows x 32 bytes of k from `start` on, with some bytes of padding between its parts."""
    if mn_major:  # 16 values of k: two groups of 8
        per_atom = (swizzle or 16) // itemsize
        atoms = -(-rows // per_atom)
        part = 1024 if swizzle else 8 * 16 + 16
        if swizzle:
            return Layout(swizzle, True, start, leading=2 * part, stride=part)
        return Layout(0, True, start, leading=atoms * part + 32, stride=part)
    if swizzle:
        return Layout(swizzle, False, start, leading=16, stride=1024)
    return Layout(0, False, start, leading=128 + 16, stride=2 * 144)


def run(n: int, types: tuple[str, str, str], d: NDArray, shared: Shared, **options: Any) -> NDArray:
    """D after m64n{n} of `types` (a, b, d), with shared memory checked for bytes never written."""
    registers = engine.wgmma(
        n,
        256 if types[0] == "b1" else 32 // NUMPY[types[0]].itemsize,
        *types,
        d_registers(d),
        shared=shared.data,
        written=shared.written,
        shared_base=shared.base,
        **options,
    )
    return d_matrix(registers, n, NUMPY[types[2]])


KINDS = [
    ("bf16", "bf16", "f32"),
    ("f16", "f16", "f32"),
    ("f16", "f16", "f16"),
    ("tf32", "tf32", "f32"),
    ("e4m3", "e4m3", "f32"),
    ("e5m2", "e4m3", "f16"),
    ("s8", "u8", "s32"),
]


@pytest.mark.parametrize(("a_type", "b_type", "d_type"), KINDS)
@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_k_major_operands(a_type: str, b_type: str, d_type: str, n: int) -> None:
    rng = np.random.default_rng(n)
    k = 32 // NUMPY[a_type].itemsize
    a, b, c = (
        small_integers(a_type, (64, k), rng),
        small_integers(b_type, (n, k), rng),
        small_integers(d_type, (64, n), rng),
    )
    for swizzle in (0, 32, 64, 128):
        shared = Shared()
        a_layout = operand_layout(swizzle, False, 64, a.itemsize, 0x1000)
        b_layout = operand_layout(swizzle, False, n, b.itemsize, 0x8000)
        place(shared, a, a_layout)
        place(shared, b, b_layout)
        got = run(
            n,
            (a_type, b_type, d_type),
            c,
            shared,
            a_descriptor=a_layout.descriptor(),
            b_descriptor=b_layout.descriptor(),
        )
        expected = a.astype(np.float64) @ b.astype(np.float64).T + c.astype(np.float64)
        np.testing.assert_array_equal(got.astype(np.float64), expected, err_msg=f"swizzle {swizzle}")


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("n", [8, 24, 64, 256])
def test_single_bits(n: int, swizzle: int) -> None:
    """and.popc: how many bits a row of A and a column of B have in common."""
    rng = np.random.default_rng(n)
    a, b = (rng.integers(0, 256, (rows, 32), np.uint8) for rows in (64, n))
    c = rng.integers(-(2**31), 2**31 - 1, (64, n), np.int32)
    common = np.unpackbits(a, axis=1).astype(np.int64) @ np.unpackbits(b, axis=1).T.astype(np.int64)
    shared = Shared()
    a_layout, b_layout = operand_layout(swizzle, False, 64, 1, 0x1000), operand_layout(swizzle, False, n, 1, 0x8000)
    place(shared, a, a_layout)
    place(shared, b, b_layout)
    for operand in ({"a_descriptor": a_layout.descriptor()}, {"a": a_registers(a)}):
        for scale_d in (False, True):
            got = run(n, ("b1", "b1", "s32"), c, shared, b_descriptor=b_layout.descriptor(), scale_d=scale_d, **operand)
            np.testing.assert_array_equal(got, (common + (c if scale_d else 0)).astype(np.int32))


@pytest.mark.parametrize("a_mn_major", [False, True])
@pytest.mark.parametrize("b_mn_major", [False, True])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_transposed_operands(a_mn_major: bool, b_mn_major: bool, swizzle: int) -> None:
    rng = np.random.default_rng(swizzle)
    n = 128
    a, b, c = (
        small_integers("bf16", (64, 16), rng),
        small_integers("bf16", (n, 16), rng),
        small_integers("f32", (64, n), rng),
    )
    shared = Shared()
    a_layout = operand_layout(swizzle, a_mn_major, 64, 2, 0x1000)
    b_layout = operand_layout(swizzle, b_mn_major, n, 2, 0x8000)
    place(shared, a, a_layout)
    place(shared, b, b_layout)
    got = run(
        n,
        ("bf16", "bf16", "f32"),
        c,
        shared,
        a_descriptor=a_layout.descriptor(),
        b_descriptor=b_layout.descriptor(),
        mn_major=(a_mn_major, b_mn_major),
    )
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T + c)


@pytest.mark.parametrize("rows_before", range(8))
def test_base_offset_moves_the_start_of_the_pattern(rows_before: int) -> None:
    """A pattern that starts `rows_before` lines behind a multiple of 1024 bytes (checked on an H200)."""
    rng = np.random.default_rng(rows_before)
    a, b, c = (
        small_integers("f16", (64, 16), rng),
        small_integers("f16", (32, 16), rng),
        small_integers("f32", (64, 32), rng),
    )
    shared = Shared()
    b_layout = Layout(128, False, 0x8000 + 128 * rows_before, leading=16, stride=1024, base_offset=rows_before)
    place(shared, b, b_layout)
    got = run(32, ("f16", "f16", "f32"), c, shared, a=a_registers(a), b_descriptor=b_layout.descriptor())
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32).T + c)


def test_k_steps_inside_a_swizzle_atom() -> None:
    """Advancing the start address by 32 bytes walks along k, as every GEMM main loop does."""
    rng = np.random.default_rng(9)
    a, b = small_integers("bf16", (64, 64), rng), small_integers("bf16", (64, 64), rng)
    shared = Shared()
    a_layout, b_layout = (operand_layout(128, False, 64, 2, start) for start in (0x1000, 0x8000))
    place(shared, a, a_layout)
    place(shared, b, b_layout)
    total = np.zeros((64, 64), np.float32)
    for step in range(4):
        total = run(
            64,
            ("bf16", "bf16", "f32"),
            total,
            shared,
            scale_d=step > 0,
            a_descriptor=a_layout.descriptor() + 2 * step,
            b_descriptor=b_layout.descriptor() + 2 * step,
        )
    np.testing.assert_array_equal(total, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("name", ["bf16", "tf32", "e4m3"])
def test_a_from_registers_scaled_and_negated(name: str) -> None:
    rng = np.random.default_rng(4)
    k = 32 // NUMPY[name].itemsize
    a, b, c = (
        small_integers(name, (64, k), rng),
        small_integers(name, (16, k), rng),
        small_integers("f32", (64, 16), rng),
    )
    shared = Shared()
    layout = operand_layout(64, False, 16, b.itemsize, 0x2000)
    place(shared, b, layout)
    product = a.astype(np.float32) @ b.astype(np.float32).T
    for negate, scale_d in [
        ((False, False), False),
        ((True, False), True),
        ((False, True), True),
        ((True, True), True),
    ]:
        got = run(
            16,
            (name, name, "f32"),
            c,
            shared,
            a=a_registers(a),
            b_descriptor=layout.descriptor(),
            negate=negate,
            scale_d=scale_d,
        )
        sign = -1 if negate[0] != negate[1] else 1
        np.testing.assert_array_equal(got, sign * product + (c if scale_d else 0))


def faulting(match: str, layout: Layout, shared: Shared, reserved: int = 0) -> None:
    zeros = np.zeros((64, 16), NUMPY["bf16"])
    with pytest.raises(ValueError, match=match):
        run(
            32,
            ("bf16", "bf16", "f32"),
            np.zeros((64, 32), np.float32),
            shared,
            a=a_registers(zeros),
            b_descriptor=layout.descriptor() | reserved,
        )


def test_reads_of_bytes_never_written_name_the_first() -> None:
    shared = Shared()
    layout = operand_layout(128, False, 32, 2, 0x2000)
    place(shared, np.ones((32, 16), NUMPY["bf16"]), layout)
    hole = 0x2000 + 1024 + 3 * 128 + (0 ^ 3) * 16 + 5  # row 11, its first unit
    shared.written[hole - shared.base] = 0
    faulting(f"never written.*{hole}", layout, shared)


def test_descriptors_that_leave_shared_memory_or_set_reserved_bits() -> None:
    shared = Shared()
    end = shared.base + SHARED_BYTES
    shared.written[:] = 1
    faulting(f"outside shared memory.*{end}", Layout(128, False, end - 2048, leading=16, stride=1024), shared)
    faulting(f"outside shared memory.*{0x100}", Layout(0, False, 0x100, leading=16, stride=1024), shared)
    for bit in (14, 30, 46, 48, 52, 61):
        faulting("must be 0", Layout(0, False, 0x1000, leading=16, stride=1024), shared, reserved=1 << bit)


@pytest.mark.parametrize(
    ("n", "k", "types", "options"),
    [
        (12, 16, ("bf16", "bf16", "f32"), {}),
        (264, 16, ("bf16", "bf16", "f32"), {}),
        (8, 8, ("bf16", "bf16", "f32"), {}),
        (8, 16, ("bf16", "bf16", "f16"), {}),
        (8, 16, ("f16", "bf16", "f32"), {}),
        (8, 8, ("tf32", "tf32", "f32"), {"mn_major": (True, False)}),
        (40, 32, ("s8", "s8", "s32"), {}),
        (40, 256, ("b1", "b1", "s32"), {}),
        (8, 256, ("b1", "s8", "s32"), {}),
        (8, 32, ("s8", "s8", "s32"), {"negate": (True, False)}),
        (8, 16, ("f16", "f16", "f32"), {"satfinite": True}),
    ],
)
def test_what_is_not_a_wgmma(n: int, k: int, types: tuple[str, str, str], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such wgmma"):
        engine.wgmma(
            n, k, *types, np.zeros((16, 32), np.uint32), 0, np.zeros(1024, np.uint8), a_descriptor=0, **options
        )
