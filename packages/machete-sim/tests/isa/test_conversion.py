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


NARROW = {
    "e4m3": (8, ml_dtypes.float8_e4m3fn), "e5m2": (8, ml_dtypes.float8_e5m2), "e2m3": (6, ml_dtypes.float6_e2m3fn),
    "e3m2": (6, ml_dtypes.float6_e3m2fn), "e2m1": (4, ml_dtypes.float4_e2m1fn),
}  # fmt: skip


def codes_of(values: np.ndarray, kind: str) -> np.ndarray:
    """Codes of float32 values by ml-dtypes, saturated; a NaN is the type's own, or its largest number."""
    _, dtype = NARROW[kind]
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    codes = np.clip(np.nan_to_num(values, nan=0.0), -largest, largest).astype(dtype).view(np.uint8)
    nan = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m1": 7}.get(kind, 0x1F)
    return np.where(np.isnan(values), nan, codes).astype(np.uint32)


def pair_of(high: np.ndarray, low: np.ndarray, kind: str) -> np.ndarray:
    return (high << (4 if kind == "e2m1" else 8) | low).astype(np.uint32)


def convert(compute: Compute, opcode: str, kind: str, source: str, *operands: np.ndarray) -> np.ndarray:
    """A conversion to a narrow pair; that of e2m1 is a .b8 register."""
    names = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    if kind == "e2m1":
        text = f"{{{{ .reg .b8 pair; {opcode} pair, {names}; cvt.u16.u8 {{d}}, pair; }}}}"
    else:
        text = f"{opcode} {{d}}, {names}"
    return compute(text, "u16", *((source, operand) for operand in operands))


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", NARROW)
def test_every_half_becomes_narrow(compute: Compute, kind: str, relu: str) -> None:
    """All float16 and all bfloat16 numbers, packed and through float32."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for source, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        with np.errstate(invalid="ignore"):
            values = bits.view(dtype).astype(np.float32)
        if relu:
            expected = codes_of(np.where(values < 0, np.float32(0), values), kind)
            expected[np.signbit(values) & ~np.isnan(values)] = 0
        else:
            expected = codes_of(values, kind)
        swapped = np.roll(expected, 1)
        packed = bits.astype(np.uint32) << 16 | np.roll(bits, 1)
        out = convert(compute, f"cvt.rn.satfinite{relu}.{kind}x2.{source}x2", kind, "b32", packed)
        assert np.array_equal(out, pair_of(expected, swapped, kind))
        out = convert(compute, f"cvt.rn.satfinite{relu}.{kind}x2.f32", kind, "f32", values, np.roll(values, 1))
        assert np.array_equal(out, pair_of(expected, swapped, kind))


@pytest.mark.parametrize("kind", NARROW)
def test_every_narrow_pair_becomes_halves(compute: Compute, kind: str) -> None:
    bits, dtype = NARROW[kind]
    codes = np.arange(1 << 2 * bits, dtype=np.uint32)
    high, low = codes >> bits, codes & (1 << bits) - 1
    pairs = pair_of(high, low, kind).astype(np.uint16)
    for target, half in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        opcode = f"cvt.rn.{target}x2.{kind}x2"
        if kind == "e2m1":
            text = f"{{{{ .reg .b8 pair; cvt.u8.u16 pair, {{0}}; {opcode} {{d}}, pair; }}}}"
        else:
            text = f"{opcode} {{d}}, {{0}}"
        out = compute(text, "b32", ("u16", pairs))
        for part, source in ((out >> 16, high), (out & 0xFFFF, low)):
            expected = source.astype(np.uint8).view(dtype).astype(np.float32)
            values = part.astype(np.uint16).view(half).astype(np.float32)
            nan = np.isnan(expected)
            assert np.array_equal(values[~nan], expected[~nan])
            assert (part[nan] == 0x7FFF).all()


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("rounding", ["rz", "rp"])
def test_every_bfloat_becomes_a_scale(compute: Compute, rounding: str, satfinite: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = np.abs(bits.view(ml_dtypes.bfloat16).astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.log2(values)
        power = np.floor(exponent) if rounding == "rz" else np.ceil(exponent)
    expected = np.where(values == 0, 0, np.clip(np.nan_to_num(power) + 127, 0, 255)).astype(np.uint32)
    expected[np.isinf(values)] = 255
    if satfinite:
        expected = np.minimum(expected, 254)
    expected[np.isnan(values)] = 255
    packed = bits.astype(np.uint32) << 16 | np.roll(bits, 1)
    out = compute(f"cvt.{rounding}{satfinite}.ue8m0x2.bf16x2 {{d}}, {{0}}", "u16", ("b32", packed))
    assert np.array_equal(out, expected << 8 | np.roll(expected, 1))


def test_every_scale_becomes_a_bfloat(compute: Compute) -> None:
    codes = np.arange(256, dtype=np.uint16)
    out = compute("cvt.rn.bf16x2.ue8m0x2 {d}, {0}", "b32", ("u16", codes << 8 | codes[::-1])) >> 16
    values = out.astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(values[:255], 2.0 ** (codes[:255].astype(np.float64) - 127))
    assert out[255] == 0x7FFF
