"""cvt against exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Compute = Callable[..., np.ndarray]
INTEGERS = {
    "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
}  # fmt: skip


def integers(kind: str, count: int = 512) -> np.ndarray:
    rng = np.random.default_rng(1)
    info = np.iinfo(INTEGERS[kind])
    values = rng.integers(0, 1 << 64, count, dtype=np.uint64) >> rng.integers(0, 64, count).astype(np.uint64)
    out = values.astype(INTEGERS[kind])
    out[:4] = [0, 1, info.max, info.min]
    return out


def clamp(values: np.ndarray, kind: str) -> np.ndarray:
    info = np.iinfo(INTEGERS[kind])
    return np.array([min(max(int(v), info.min), info.max) for v in values], INTEGERS[kind])


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("dest", INTEGERS)
def test_integers(compute: Compute, source: str, dest: str) -> None:
    a = integers(source)
    out = compute(f"cvt.{dest}.{source} {{d}}, {{0}}", dest, (source, a))
    assert np.array_equal(out, a.astype(INTEGERS[dest]))
    out = compute(f"cvt.sat.{dest}.{source} {{d}}, {{0}}", dest, (source, a))
    assert np.array_equal(out, clamp(a, dest))


def test_narrow_integers_keep_the_register_wide(compute: Compute) -> None:
    a = integers("s32")
    out = compute("cvt.s8.s32 {d}, {0}", "s32", ("s32", a))
    assert np.array_equal(out, a.astype(np.int8).astype(np.int32))
    out = compute("cvt.u8.u32 {d}, {0}", "u32", ("u32", a.view(np.uint32)))
    assert np.array_equal(out, a.view(np.uint32) & 255)
    out = compute("cvt.sat.s8.s32 {d}, {0}", "s32", ("s32", a))
    assert np.array_equal(out, np.clip(a, -128, 127))


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize(("dest", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
def test_integer_to_float(compute: Compute, source: str, dest: str, dtype: Any) -> None:
    a = integers(source)
    raw = "u16" if dest == "f16" else dest
    with np.errstate(over="ignore"):
        out = compute(f"cvt.rn.{dest}.{source} {{d}}, {{0}}", raw, (source, a)).view(dtype)
        assert np.array_equal(out, a.astype(dtype))


ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.mark.parametrize("rounding", ROUND)
@pytest.mark.parametrize("dest", INTEGERS)
def test_float_to_integer_saturates(compute: Compute, rounding: str, dest: str) -> None:
    a = (np.random.default_rng(2).standard_normal(512) * 2.0 ** np.arange(512).__mod__(70)).astype(np.float32)
    a[:8] = [0.5, 1.5, -0.5, -1.5, 2.5, 1e30, -1e30, np.inf]
    out = compute(f"cvt.{rounding}.{dest}.f32 {{d}}, {{0}}", dest, ("f32", a))
    rounded = ROUND[rounding](a.astype(np.float64))
    limit = [v if np.isfinite(v) else np.sign(v) * 1e40 for v in rounded]
    assert np.array_equal(out, clamp(np.array(limit, object), dest))


def test_nan_becomes_zero(compute: Compute) -> None:
    a = np.full(32, np.nan, np.float32)
    assert not compute("cvt.rzi.s32.f32 {d}, {0}", "s32", ("f32", a)).any()
    assert not compute("cvt.rni.u32.f32 {d}, {0}", "u32", ("f32", a)).any()


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_every_half_widens_exactly(compute: Compute, kind: str, dtype: Any) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = compute(f"cvt.f32.{kind} {{d}}, {{0}}", "f32", ("u16", bits))
    expected = bits.view(dtype).astype(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(out[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    assert np.isnan(out[nan]).all()


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_narrowing_to_nearest(compute: Compute, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(0, 1 << 32, 1 << 14, dtype=np.uint64).astype(np.uint32).view(np.float32)
    halves = np.arange(1 << 15, dtype=np.uint16).view(dtype).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    middle = (halves[:-1].astype(np.float64) + halves[1:]) / 2  # ties, exact in float32 but for the smallest
    with np.errstate(all="ignore"):
        a = np.concatenate([a, middle.astype(np.float32)])
        out = compute(f"cvt.rn.{kind}.f32 {{d}}, {{0}}", "u16", ("f32", a))
        expected = a.astype(dtype)
        b = np.roll(a, 1)
        packed = compute(f"cvt.rn.{kind}x2.f32 {{d}}, {{0}}, {{1}}", "u32", ("f32", a), ("f32", b))
    nan = np.isnan(a)
    assert np.array_equal(out[~nan], expected.view(np.uint16)[~nan])
    assert (out[nan] == 0x7FFF).all()
    assert np.array_equal(packed >> 16, out)  # the first source is the upper half
    assert np.array_equal(packed & 0xFFFF, np.roll(out, 1))


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_fp8(compute: Compute, kind: str, dtype: Any) -> None:
    a = (np.random.default_rng(8).standard_normal(1024) * 50).astype(np.float32)
    b = np.roll(a, 1)
    out = compute(f"cvt.rn.satfinite.{kind}x2.f32 {{d}}, {{0}}, {{1}}", "u16", ("f32", a), ("f32", b))
    largest = float(ml_dtypes.finfo(dtype).max)
    expected = np.clip(a, -largest, largest).astype(dtype).view(np.uint8).astype(np.uint16)
    assert np.array_equal(out, expected << 8 | np.roll(expected, 1))
    back = compute(f"cvt.rn.f16x2.{kind}x2 {{d}}, {{0}}", "u32", ("u16", out)).view(np.float16)
    assert np.array_equal(back[1::2].astype(np.float32), expected.astype(np.uint8).view(dtype).astype(np.float32))


def test_fp4_through_byte_registers(compute: Compute) -> None:
    """As NVVM writes it: the pair is a .b8 register, moved to and from 16 bits."""
    a = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -6, 100, -100, 0.25, 0.75, 2.5, 5], np.float32).repeat(2)
    b = np.roll(a, 1)
    out = compute(
        "{{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, {0}, {1}; cvt.u16.u8 {d}, pair; }}",
        "u16",
        ("f32", a),
        ("f32", b),
    )
    codes = a.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).astype(np.uint16)
    assert np.array_equal(out, codes << 4 | np.roll(codes, 1))
    back = compute("{{ .reg .b8 pair; cvt.u8.u16 pair, {0}; cvt.rn.f16x2.e2m1x2 {d}, pair; }}", "u32", ("u16", out))
    expected = a.astype(ml_dtypes.float4_e2m1fn).astype(np.float16)
    assert np.array_equal(back.view(np.float16)[1::2], expected)
    assert np.array_equal(back.view(np.float16)[::2], np.roll(expected, 1))


def test_scales_are_powers_of_two(compute: Compute) -> None:
    a = np.array([1, 2, 3, 0.75, 1e-38, 3e38, 5e-20, 1024.5], np.float32).repeat(4)
    up = compute("cvt.rp.satfinite.ue8m0x2.f32 {d}, {0}, {0}", "u16", ("f32", a))
    down = compute("cvt.rz.satfinite.ue8m0x2.f32 {d}, {0}, {0}", "u16", ("f32", a))
    exponent = np.log2(a.astype(np.float64))
    assert np.array_equal(down & 0xFF, np.clip(np.floor(exponent) + 127, 0, 254).astype(np.uint16))
    assert np.array_equal(up >> 8, np.clip(np.ceil(exponent) + 127, 0, 254).astype(np.uint16))
    back = compute("cvt.rn.bf16x2.ue8m0x2 {d}, {0}", "u32", ("u16", down)).view(ml_dtypes.bfloat16)
    assert np.array_equal(back[::2].astype(np.float64), 2.0 ** np.floor(exponent))


def test_tf32_and_f64(compute: Compute) -> None:
    a = np.random.default_rng(9).standard_normal(256).astype(np.float32)
    out = compute("cvt.rna.tf32.f32 {d}, {0}", "u32", ("f32", a))
    assert np.array_equal(out, (a.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000))
    d = np.random.default_rng(10).standard_normal(256)
    assert np.array_equal(compute("cvt.rn.f32.f64 {d}, {0}", "f32", ("f64", d)), d.astype(np.float32))
    up = compute("cvt.rp.f32.f64 {d}, {0}", "f32", ("f64", d)).astype(np.float64)
    assert (up >= d).all()
    assert np.array_equal(compute("cvt.f64.f32 {d}, {0}", "f64", ("f32", a)), a.astype(np.float64))
