"""Integer, logic and bit-field instructions against NumPy and Python's own integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

DTYPES = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
}  # fmt: skip
Compute = Callable[..., np.ndarray]


def samples(kind: str, count: int = 512, seed: int = 0) -> np.ndarray:
    """Random values of all magnitudes, and the corners."""
    dtype = DTYPES[kind]
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 8 * dtype().itemsize, count)
    values = rng.integers(0, 1 << 64, count, dtype=np.uint64) >> (63 - bits).astype(np.uint64)
    out = values.astype(dtype)
    corners = np.array([0, 1, info.max, info.min, 2, 3, 255, 5], dtype)
    out[:64] = np.repeat(corners, 8)
    if seed:
        out[:64] = np.tile(corners, 8)
    return out


def wrap(value: int, kind: str) -> int:
    width = 8 * DTYPES[kind]().itemsize
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value


def each(function: Callable[..., int], kind: str, *arrays: np.ndarray) -> np.ndarray:
    return np.array([wrap(function(*map(int, row)), kind) for row in zip(*arrays, strict=True)], DTYPES[kind])


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": truncated,
    "rem": lambda a, b: a - b * truncated(a, b),
}


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("op", BINARY)
def test_binary(compute: Compute, op: str, kind: str) -> None:
    a, b = samples(kind), samples(kind, seed=1)
    if op in ("div", "rem"):
        b = np.where(b == 0, 1, b).astype(b.dtype)
    out = compute(f"{op}.{kind} {{d}}, {{0}}, {{1}}", kind, (kind, a), (kind, b))
    assert np.array_equal(out, each(BINARY[op], kind, a, b))


@pytest.mark.parametrize("kind", DTYPES)
def test_high_products_and_mad(compute: Compute, kind: str) -> None:
    a, b, c = samples(kind), samples(kind, seed=1), samples(kind, seed=2)
    width = 8 * DTYPES[kind]().itemsize
    out = compute(f"mul.hi.{kind} {{d}}, {{0}}, {{1}}", kind, (kind, a), (kind, b))
    assert np.array_equal(out, each(lambda x, y: x * y >> width, kind, a, b))
    out = compute(f"mad.lo.{kind} {{d}}, {{0}}, {{1}}, {{2}}", kind, (kind, a), (kind, b), (kind, c))
    assert np.array_equal(out, each(lambda x, y, z: x * y + z, kind, a, b, c))


@pytest.mark.parametrize(("kind", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_wide(compute: Compute, kind: str, wide: str) -> None:
    a, b, c = samples(kind), samples(kind, seed=1), samples(wide, seed=2)
    out = compute(f"mul.wide.{kind} {{d}}, {{0}}, {{1}}", wide, (kind, a), (kind, b))
    assert np.array_equal(out, each(lambda x, y: x * y, wide, a, b))
    out = compute(f"mad.wide.{kind} {{d}}, {{0}}, {{1}}, {{2}}", wide, (kind, a), (kind, b), (wide, c))
    assert np.array_equal(out, each(lambda x, y, z: x * y + z, wide, a, b, c))


@pytest.mark.parametrize("kind", DTYPES)
def test_shifts_clamp(compute: Compute, kind: str) -> None:
    a = samples(kind)
    count = np.arange(len(a), dtype=np.uint32) % 70
    width = 8 * DTYPES[kind]().itemsize
    right = compute(f"shr.{kind} {{d}}, {{0}}, {{1}}", kind, (kind, a), ("u32", count))
    assert np.array_equal(right, each(lambda x, s: x >> s, kind, a, count))
    left = compute(f"shl.b{width} {{d}}, {{0}}, {{1}}", kind, (kind, a), ("u32", count))
    assert np.array_equal(left, each(lambda x, s: x << s, kind, a, count))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic(compute: Compute, width: int) -> None:
    kind = f"u{width}"
    a, b = samples(kind), samples(kind, seed=1)
    for op, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        out = compute(f"{op}.b{width} {{d}}, {{0}}, {{1}}", kind, (kind, a), (kind, b))
        assert np.array_equal(out, function(a, b))
    assert np.array_equal(compute(f"not.b{width} {{d}}, {{0}}", kind, (kind, a)), ~a)


def bit_field(value: int, position: int, length: int, width: int, signed: bool) -> int:
    """The definition of bfe in the PTX ISA, bit by bit."""
    position, length = position & 255, length & 255
    sign = value >> min(position + length - 1, width - 1) & 1 if signed and length else 0
    bits = [value >> (position + i) & 1 if i < length and position + i < width else sign for i in range(width)]
    return sum(bit << i for i, bit in enumerate(bits))


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(compute: Compute, kind: str) -> None:
    rng = np.random.default_rng(3)
    a, b = samples(kind), samples(kind, seed=1)
    position, length = (rng.integers(0, 80, len(a)).astype(np.uint32) for _ in range(2))
    width = int(kind[1:])
    mask = (1 << width) - 1
    out = compute(f"bfe.{kind} {{d}}, {{0}}, {{1}}, {{2}}", kind, (kind, a), ("u32", position), ("u32", length))
    expected = each(lambda x, p, n: bit_field(x & mask, p, n, width, kind[0] == "s"), kind, a, position, length)
    assert np.array_equal(out, expected)

    def insert(x: int, y: int, p: int, n: int) -> int:
        field = ((1 << n) - 1) << p & mask
        return y & ~field | (x & mask) << p & field

    bits = f"b{width}"
    out = compute(
        f"bfi.{bits} {{d}}, {{0}}, {{1}}, {{2}}, {{3}}", kind, (kind, a), (kind, b), ("u32", position), ("u32", length)
    )
    assert np.array_equal(out, each(insert, kind, a, b, position, length))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 2**32 - 1), min_size=32, max_size=32), st.integers(0, 255))
def test_lop3_and_prmt(compute: Compute, values: list[int], table: int) -> None:
    a = np.array(values, np.uint32)
    b, c = np.roll(a, 1), np.roll(a, 2)
    out = compute(f"lop3.b32 {{d}}, {{0}}, {{1}}, {{2}}, {table}", "u32", ("u32", a), ("u32", b), ("u32", c))
    expected = np.zeros(32, np.uint32)
    for bit in range(32):
        index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        expected |= (table >> index & 1).astype(np.uint32) << bit
    assert np.array_equal(out, expected)
    out = compute("prmt.b32 {d}, {0}, {1}, {2}", "u32", ("u32", a), ("u32", b), ("u32", c))
    for i in range(32):
        data = int(b[i]) << 32 | int(a[i])
        result = 0
        for k in range(4):
            select = int(c[i]) >> 4 * k & 15
            byte = data >> 8 * (select & 7) & 255
            result |= (byte if select < 8 else 255 * (byte >> 7)) << 8 * k
        assert result == out[i]


def test_counts_and_reversal(compute: Compute) -> None:
    for width in (32, 64):
        kind = f"u{width}"
        a = samples(kind)
        assert np.array_equal(compute(f"popc.b{width} {{d}}, {{0}}", "u32", (kind, a)), [int(x).bit_count() for x in a])
        leading = [width - int(x).bit_length() for x in a]
        assert np.array_equal(compute(f"clz.b{width} {{d}}, {{0}}", "u32", (kind, a)), leading)
        top = [(int(x).bit_length() - 1) & 0xFFFFFFFF for x in a]
        assert np.array_equal(compute(f"bfind.{kind} {{d}}, {{0}}", "u32", (kind, a)), top)
        reverse = [int(f"{int(x):0{width}b}"[::-1], 2) for x in a]
        assert np.array_equal(compute(f"brev.b{width} {{d}}, {{0}}", kind, (kind, a)), np.array(reverse, a.dtype))


@pytest.mark.parametrize("direction", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shift(compute: Compute, direction: str, mode: str) -> None:
    a, b = samples("u32"), samples("u32", seed=1)
    count = np.arange(len(a), dtype=np.uint32) % 70
    out = compute(
        f"shf.{direction}.{mode}.b32 {{d}}, {{0}}, {{1}}, {{2}}", "u32", ("u32", a), ("u32", b), ("u32", count)
    )

    def funnel(x: int, y: int, n: int) -> int:
        n = n & 31 if mode == "wrap" else min(n, 32)
        both = y << 32 | x
        return both << n >> 32 if direction == "l" else both >> n

    assert np.array_equal(out, each(funnel, "u32", a, b, count))


def test_carry_chain(launch: Callable[..., object]) -> None:
    a, b = samples("u64"), samples("u64", seed=1)
    high, out = samples("u64", seed=2), np.zeros((len(a), 2), np.uint64)
    launch(
        """
        mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 8; mul.wide.u32 %d1, %r0, 16;
        add.s64 %d2, %a0, %d0; ld.global.u64 %d10, [%d2]; add.s64 %d2, %a1, %d0; ld.global.u64 %d11, [%d2];
        add.s64 %d2, %a2, %d0; ld.global.u64 %d12, [%d2];
        add.cc.u64 %d13, %d10, %d11; addc.u64 %d14, %d12, 0;
        add.s64 %d2, %a3, %d1; st.global.v2.u64 [%d2], {%d13, %d14};
        """,
        [a, b, high, out],
        threads=len(a),
    )
    for i in range(len(a)):
        total = int(a[i]) + int(b[i])
        assert int(out[i, 0]) == total & (1 << 64) - 1
        assert int(out[i, 1]) == (int(high[i]) + (total >> 64)) & (1 << 64) - 1
