"""Floating-point arithmetic against NumPy; 16-bit formats against one rounding of the exact result."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Compute = Callable[..., np.ndarray]
HALVES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def floats(dtype: Any, count: int = 1024, seed: int = 0) -> np.ndarray:
    """Random bit patterns (subnormals, infinities and NaNs among them), mixed with ordinary numbers."""
    rng = np.random.default_rng(seed)
    width = np.dtype(dtype).itemsize
    bits = rng.integers(0, 1 << (8 * width - 1), count, dtype=np.uint64) * 2 + rng.integers(
        0, 2, count, dtype=np.uint64
    )
    out = bits.astype({2: np.uint16, 4: np.uint32, 8: np.uint64}[width]).view(dtype)
    ordinary = rng.standard_normal(count // 2).astype(dtype)
    out[: count // 2] = ordinary
    return out


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal as numbers, signed zeros told apart; NaNs are all alike."""
    a, b = np.asarray(a), np.asarray(b)
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    equal = (a == b) & (np.signbit(a.astype(np.float64)) == np.signbit(b.astype(np.float64)))
    return bool(np.all(nan | equal))


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize(
    ("op", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div.rn", np.divide)]
)
def test_binary(compute: Compute, op: str, function: Any, kind: str, dtype: Any) -> None:
    a, b = floats(dtype), floats(dtype, seed=1)
    out = compute(f"{op}.{kind} {{d}}, {{0}}, {{1}}", kind, (kind, a), (kind, b))
    assert same(out, function(a, b))


def exact(a: float, b: float, c: float) -> Fraction:
    return Fraction(a) * Fraction(b) + Fraction(c)


@pytest.mark.parametrize(("rounding", "direction"), [("rn", 0), ("rz", None), ("rm", -1), ("rp", 1)])
def test_fma_rounds_once(compute: Compute, rounding: str, direction: int | None) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(1024).astype(np.float32) for _ in range(3))
    c[:512] = -(a * b)[:512]  # cancellation
    out = compute(f"fma.{rounding}.f32 {{d}}, {{0}}, {{1}}, {{2}}", "f32", ("f32", a), ("f32", b), ("f32", c))
    for i in range(len(a)):
        value = exact(float(a[i]), float(b[i]), float(c[i]))
        result = out[i]
        error = Fraction(float(result)) - value
        up, down = np.nextafter(result, np.float32(np.inf)), np.nextafter(result, np.float32(-np.inf))
        if direction == 0:
            assert abs(error) <= min(abs(Fraction(float(up)) - value), abs(Fraction(float(down)) - value))
        elif direction == -1:
            assert error <= 0
            assert Fraction(float(up)) > value
        elif direction == 1:
            assert error >= 0
            assert Fraction(float(down)) < value
        else:
            assert abs(Fraction(float(result))) <= abs(value)


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(("op", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
def test_half_pairs(compute: Compute, op: str, function: Any, kind: str) -> None:
    dtype = HALVES[kind]
    a, b = floats(dtype, 2048), floats(dtype, 2048, seed=1)
    out = compute(
        f"{op}.rn.{kind}x2 {{d}}, {{0}}, {{1}}", "u32", ("u32", a.view(np.uint32)), ("u32", b.view(np.uint32))
    )
    expected = function(a.astype(np.float64), b.astype(np.float64)).astype(np.float32).astype(dtype)
    assert same(out.view(dtype), expected)
    single = compute(f"{op}.{kind} {{d}}, {{0}}, {{1}}", "u16", ("u16", a.view(np.uint16)), ("u16", b.view(np.uint16)))
    assert same(single.view(dtype), expected)


@pytest.mark.parametrize("kind", HALVES)
def test_half_fma_rounds_once(compute: Compute, kind: str) -> None:
    dtype = HALVES[kind]
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(2048).astype(dtype) for _ in range(3))
    c[:1024] = (c[:1024].astype(np.float32) * 2.0**-9).astype(dtype)
    raw = [("u16", x.view(np.uint16)) for x in (a, b, c)]
    out = compute(f"fma.rn.{kind} {{d}}, {{0}}, {{1}}, {{2}}", "u16", *raw).view(dtype)
    for i in range(len(a)):
        value = exact(float(a[i]), float(b[i]), float(c[i]))
        error = abs(Fraction(float(out[i])) - value)
        for step in (-1, 1):
            neighbour = (out[i : i + 1].view(np.uint16) + np.uint16(step & 0xFFFF)).view(dtype)[0]
            if np.isfinite(neighbour):
                assert error <= abs(Fraction(float(neighbour)) - value)


@pytest.mark.parametrize("kind", HALVES)
def test_mixed_precision(compute: Compute, kind: str) -> None:
    dtype = HALVES[kind]
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(512).astype(dtype) for _ in range(2))
    c = rng.standard_normal(512).astype(np.float32)
    raw = ("u16", a.view(np.uint16)), ("u16", b.view(np.uint16)), ("f32", c)
    out = compute(f"fma.rn.f32.{kind} {{d}}, {{0}}, {{1}}, {{2}}", "f32", *raw)
    product = a.astype(np.float64) * b.astype(np.float64)
    assert np.array_equal(out, (product + c.astype(np.float64)).astype(np.float32))
    out = compute(f"add.rn.f32.{kind} {{d}}, {{0}}, {{1}}", "f32", raw[0], raw[2])
    assert np.array_equal(out, a.astype(np.float32) + c)
    out = compute(f"sub.rn.f32.{kind} {{d}}, {{0}}, {{1}}", "f32", raw[0], raw[2])
    assert np.array_equal(out, a.astype(np.float32) - c)


def test_packed_f32x2(compute: Compute) -> None:
    a, b, c = (floats(np.float32, 1024, seed) for seed in range(3))
    raw = [("u64", x.view(np.uint64)) for x in (a, b, c)]
    out = compute("mul.rn.f32x2 {d}, {0}, {1}", "u64", *raw[:2]).view(np.float32)
    assert same(out, a * b)
    a, b, c = (np.random.default_rng(seed).standard_normal(1024).astype(np.float32) for seed in range(3))
    raw = [("u64", x.view(np.uint64)) for x in (a, b, c)]
    out = compute("fma.rn.f32x2 {d}, {0}, {1}, {2}", "u64", *raw).view(np.float32)
    single = compute("fma.rn.f32 {d}, {0}, {1}, {2}", "f32", ("f32", a), ("f32", b), ("f32", c))
    assert np.array_equal(out, single)


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_and_nan(compute: Compute, op: str) -> None:
    a = np.array([1, -0.0, 0.0, np.nan, 3, np.nan, -np.inf, 2], np.float32).repeat(8)
    b = np.tile(np.array([1, -0.0, 0.0, np.nan, 3, np.nan, -np.inf, 2], np.float32), 8)
    out = compute(f"{op}.f32 {{d}}, {{0}}, {{1}}", "f32", ("f32", a), ("f32", b))
    pick = min if op == "min" else max

    def expected(x: float, y: float, propagate: bool) -> float:
        if np.isnan(x) or np.isnan(y):
            return np.nan if propagate or (np.isnan(x) and np.isnan(y)) else (y if np.isnan(x) else x)
        return pick((x, y), key=lambda v: (v, not np.signbit(v)))

    assert same(out, np.array([expected(x, y, False) for x, y in zip(a, b, strict=True)], np.float32))
    out = compute(f"{op}.NaN.f32 {{d}}, {{0}}, {{1}}", "f32", ("f32", a), ("f32", b))
    assert same(out, np.array([expected(x, y, True) for x, y in zip(a, b, strict=True)], np.float32))
    c = np.roll(a, 3)
    out = compute(f"{op}.f32 {{d}}, {{0}}, {{1}}, {{2}}", "f32", ("f32", a), ("f32", b), ("f32", c))
    three = [expected(expected(x, y, False), z, False) for x, y, z in zip(a, b, c, strict=True)]
    assert same(out, np.array(three, np.float32))


def test_flush_and_saturate(compute: Compute) -> None:
    tiny = np.array([1e-40, -1e-40, 1e-38, 2.0, -3.0, np.nan, 0.25, 1e-45], np.float32).repeat(4)
    one = np.ones_like(tiny)
    out = compute("mul.ftz.f32 {d}, {0}, {1}", "f32", ("f32", tiny), ("f32", one))
    normal = np.abs(tiny) >= np.finfo(np.float32).tiny
    assert same(out, np.where(normal | np.isnan(tiny), tiny, np.copysign(np.float32(0), tiny)))
    out = compute("mul.sat.f32 {d}, {0}, {1}", "f32", ("f32", tiny), ("f32", one))
    assert same(out, np.where(np.isnan(tiny), np.float32(0), np.clip(tiny, np.float32(0), np.float32(1))))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("ex2.approx.f32", np.exp2),
        ("lg2.approx.f32", np.log2),
        ("rcp.approx.f32", lambda x: 1 / x),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)),
        ("sqrt.approx.f32", np.sqrt),
        ("sin.approx.f32", np.sin),
        ("cos.approx.f32", np.cos),
        ("tanh.approx.f32", np.tanh),
        ("rcp.rn.f32", lambda x: 1 / x),
        ("sqrt.rn.f32", np.sqrt),
    ],
)
def test_functions(compute: Compute, op: str, function: Any) -> None:
    a = np.abs(np.random.default_rng(7).standard_normal(256)).astype(np.float32) + np.float32(0.01)
    out = compute(f"{op} {{d}}, {{0}}", "f32", ("f32", a))
    assert np.allclose(out, function(a.astype(np.float64)), rtol=3e-7, atol=1e-7)


def test_signs(compute: Compute) -> None:
    a, b = floats(np.float32), floats(np.float32, seed=1)
    assert same(compute("neg.f32 {d}, {0}", "f32", ("f32", a)), -a)
    assert same(compute("abs.f32 {d}, {0}", "f32", ("f32", a)), np.abs(a))
    # copysign.f32 d, a, b: the sign of a on the magnitude of b
    assert same(compute("copysign.f32 {d}, {0}, {1}", "f32", ("f32", a), ("f32", b)), np.copysign(b, a))
