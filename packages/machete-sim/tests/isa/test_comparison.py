"""setp, set, selp, slct and predicate logic."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest

Compute = Callable[..., np.ndarray]
ORDERED = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
VALUES = {
    "u16": [0, 1, 0x7FFF, 0x8000, 0xFFFF], "s16": [0, 1, -1, 0x7FFF, -0x8000], "u32": [0, 1, 1 << 31, (1 << 32) - 1],
    "s32": [0, 1, -1, -(1 << 31), (1 << 31) - 1], "u64": [0, 1, 1 << 63, (1 << 64) - 1],
    "s64": [0, 1, -1, -(1 << 63), (1 << 63) - 1],
    "f32": [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], "f64": [0.0, -0.0, 1.0, np.nan, -np.inf],
}  # fmt: skip
DTYPES = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "f32": np.float32, "f64": np.float64,
}  # fmt: skip


def pairs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    values = np.array(VALUES[kind], DTYPES[kind])
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", ORDERED)
def test_setp(compute: Compute, kind: str, name: str) -> None:
    a, b = pairs(kind)
    out = compute(f"setp.{name}.{kind} {{d}}, {{0}}, {{1}}", "pred", (kind, a), (kind, b))
    expected = ORDERED[name](a, b)
    if kind[0] == "f":
        unordered = np.isnan(a) | np.isnan(b)
        assert np.array_equal(out, expected & ~unordered)
        out = compute(f"setp.{name}u.{kind} {{d}}, {{0}}, {{1}}", "pred", (kind, a), (kind, b))
        assert np.array_equal(out, expected | unordered)
    else:
        assert np.array_equal(out, expected)


def test_unordered_and_unsigned_names(compute: Compute) -> None:
    a, b = pairs("f32")
    unordered = np.isnan(a) | np.isnan(b)
    assert np.array_equal(compute("setp.nan.f32 {d}, {0}, {1}", "pred", ("f32", a), ("f32", b)), unordered)
    assert np.array_equal(compute("setp.num.f32 {d}, {0}, {1}", "pred", ("f32", a), ("f32", b)), ~unordered)
    a, b = pairs("u32")
    assert np.array_equal(compute("setp.lo.u32 {d}, {0}, {1}", "pred", ("u32", a), ("u32", b)), a < b)
    assert np.array_equal(compute("setp.hs.u32 {d}, {0}, {1}", "pred", ("u32", a), ("u32", b)), a >= b)


@pytest.mark.parametrize(
    ("name", "function"), [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)]
)
@pytest.mark.parametrize("negated", ["", "!"])
def test_setp_combines(compute: Compute, name: str, function: Callable[..., np.ndarray], negated: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 3, 256).astype(np.uint32) for _ in range(2))
    c = rng.integers(0, 2, 256).astype(np.uint32)
    out = compute(
        f"setp.lt.{name}.u32 {{d}}, {{0}}, {{1}}, {negated}{{2}}", "pred", ("u32", a), ("u32", b), ("pred", c)
    )
    assert np.array_equal(out, function(a < b, (c == 0) if negated else (c != 0)))
    second = compute(
        f"setp.lt.{name}.u32 %p8|{{d}}, {{0}}, {{1}}, {negated}{{2}}", "pred", ("u32", a), ("u32", b), ("pred", c)
    )
    assert np.array_equal(second, function(a >= b, (c == 0) if negated else (c != 0)))


def test_selection(compute: Compute) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 1 << 31, 128).astype(np.uint32) for _ in range(2))
    c = rng.integers(0, 2, 128).astype(np.uint32)
    out = compute("selp.b32 {d}, {0}, {1}, {2}", "u32", ("u32", a), ("u32", b), ("pred", c))
    assert np.array_equal(out, np.where(c, a, b))
    sign = rng.integers(-2, 3, 128).astype(np.int32)
    out = compute("slct.u32.s32 {d}, {0}, {1}, {2}", "u32", ("u32", a), ("u32", b), ("s32", sign))
    assert np.array_equal(out, np.where(sign >= 0, a, b))
    out = compute("set.lt.u32.s32 {d}, {0}, {1}", "u32", ("s32", sign), ("s32", np.zeros_like(sign)))
    assert np.array_equal(out, np.where(sign < 0, 0xFFFFFFFF, 0))
    out = compute("set.lt.f32.s32 {d}, {0}, {1}", "f32", ("s32", sign), ("s32", np.zeros_like(sign)))
    assert np.array_equal(out, (sign < 0).astype(np.float32))


def test_properties(compute: Compute) -> None:
    a = np.array([0.0, 1.0, np.inf, np.nan, 1e-40, -3.0, -np.inf, -1e-45], np.float32).repeat(4)
    tiny = np.finfo(np.float32).tiny
    expected = {
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & (np.abs(a) >= tiny),
        "subnormal": (a != 0) & (np.abs(a) < tiny),
    }
    for name, values in expected.items():
        assert np.array_equal(compute(f"testp.{name}.f32 {{d}}, {{0}}", "pred", ("f32", a)), values), name


def test_pairs_give_two_predicates(compute: Compute) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(128).astype(np.float16) for _ in range(2))
    raw = ("u32", a.view(np.uint32)), ("u32", b.view(np.uint32))
    low = compute("setp.lt.f16x2 {d}|%p8, {0}, {1}", "pred", *raw)
    high = compute("setp.lt.f16x2 %p8|{d}, {0}, {1}", "pred", *raw)
    assert np.array_equal(low, (a < b)[::2])
    assert np.array_equal(high, (a < b)[1::2])
