"""Number formats against NumPy, ml_dtypes and exact rational arithmetic."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from machete.sim._core import engine

F32_NAN = np.uint32(0x7FFFFFFF)

EIGHT_BITS = np.arange(256, dtype=np.uint8)
SIXTEEN_BITS = np.arange(65536, dtype=np.uint16)

# name, every bit pattern, the NumPy type of the same format
FORMATS: dict[str, tuple[NDArray, Any]] = {
    "f16": (SIXTEEN_BITS, np.float16),
    "bf16": (SIXTEEN_BITS, ml_dtypes.bfloat16),
    "e4m3": (EIGHT_BITS, ml_dtypes.float8_e4m3fn),
    "e5m2": (EIGHT_BITS, ml_dtypes.float8_e5m2),
    "e2m1": (np.arange(16, dtype=np.uint8), ml_dtypes.float4_e2m1fn),
    "ue8m0": (EIGHT_BITS, ml_dtypes.float8_e8m0fnu),
}
CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F, "e2m1": 7}
LARGEST = {
    "f16": 65504.0,
    "bf16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
    "e4m3": 448,
    "e5m2": 57344,
    "e2m1": 6,
}
SATURATES_ALWAYS = ("e4m3", "e5m2", "e2m1")


def narrowing(name: str) -> Callable[..., NDArray]:
    return getattr(engine, f"{name}_from_f32")


def values_of(name: str) -> NDArray[np.float32]:
    patterns, dtype = FORMATS[name]
    return patterns.view(dtype).astype(np.float32)


def interesting_floats(name: str) -> NDArray[np.float32]:
    """Every value of the format, every midpoint of neighbours and its float32 neighbours, specials and random bits."""
    finite = np.unique(values_of(name)[np.isfinite(values_of(name))].astype(np.float64))
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38], np.float32)
    with np.errstate(over="ignore"):
        beyond = np.float32(finite[-1]) * np.array([1.0, 1.01, 1.0625, 1.2, 2.0], np.float32)
        around = [np.nextafter(middles, np.float32(d)) for d in (-np.inf, np.inf)]
    return np.concatenate([finite.astype(np.float32), middles, *around, random, beyond, -beyond, special])


@pytest.mark.parametrize("name", FORMATS)
def test_widening_is_exact_for_every_pattern(name: str) -> None:
    patterns, dtype = FORMATS[name]
    got = getattr(engine, f"f32_from_{name}")(patterns)
    expected = patterns.view(dtype).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))
    if name != "bf16":
        assert (got[nan].view(np.uint32) == F32_NAN).all()


def test_bf16_nan_keeps_its_payload() -> None:
    got = engine.f32_from_bf16(np.array([0x7F81, 0xFFC1], np.uint16))
    np.testing.assert_array_equal(got.view(np.uint32), np.array([0x7F810000, 0xFFC10000], np.uint32))


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "e2m1"])
@pytest.mark.parametrize("relu", [False, True])
def test_narrowing_rounds_to_nearest_even(name: str, relu: bool) -> None:
    _, dtype = FORMATS[name]
    values = interesting_floats(name)
    clipped = np.clip(values, -LARGEST[name], LARGEST[name]) if name in SATURATES_ALWAYS else values
    with np.errstate(over="ignore", invalid="ignore"):
        expected = clipped.astype(dtype).view(SIXTEEN_BITS.dtype if name in ("f16", "bf16") else np.uint8)
    if relu:
        expected = np.where(np.signbit(values), 0, expected)
    expected = np.where(np.isnan(values), CANONICAL_NAN[name], expected)
    np.testing.assert_array_equal(narrowing(name)(values, relu=relu), expected)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrowing_toward_zero_never_grows(name: str) -> None:
    patterns, dtype = FORMATS[name]
    values = interesting_floats(name)
    values = values[np.isfinite(values)]
    got = narrowing(name)(values, rounding="rz")
    magnitudes = patterns[: 0x7C00 if name == "f16" else 0x7F80].view(dtype).astype(np.float64)
    index = np.searchsorted(magnitudes, np.abs(values.astype(np.float64)), side="right") - 1
    np.testing.assert_array_equal(got & 0x7FFF, index)
    np.testing.assert_array_equal(got >> 15, np.signbit(values))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("rounding", ["rn", "rz"])
def test_satfinite_and_infinity(name: str, rounding: str) -> None:
    values = np.array([np.inf, -np.inf, 3e38, np.nan], np.float32)
    largest = {"f16": 0x7BFF, "bf16": 0x7F7F}[name]
    infinity = {"f16": 0x7C00, "bf16": 0x7F80}[name]
    saturated = narrowing(name)(values, rounding=rounding, satfinite=True)
    assert saturated[0] == largest
    assert saturated[1] == largest | 0x8000
    assert saturated[3] == 0x7FFF
    plain = narrowing(name)(values, rounding=rounding)
    assert plain[0] == infinity
    assert plain[1] == infinity | 0x8000
    if name == "f16":
        assert saturated[2] == largest
        assert plain[2] == (infinity if rounding == "rn" else largest)


@pytest.mark.parametrize("rounding", ["rn", "rz", "rna"])
def test_tf32_keeps_ten_mantissa_bits(rounding: str) -> None:
    bits = np.random.default_rng(3).integers(0x00800000, 0x7F000000, 100_000, dtype=np.uint32)
    bits[:1000] = bits[:1000] & 0xFFFFE000 | 0x1000  # ties
    values = bits.view(np.float32) * np.where(np.arange(bits.size) % 2, -1, 1).astype(np.float32)
    mantissa, exponent = np.frexp(np.abs(values).astype(np.float64))
    scaled = np.ldexp(mantissa, 11)
    whole = {"rn": np.rint(scaled), "rz": np.floor(scaled), "rna": np.floor(scaled + 0.5)}[rounding]
    expected = np.copysign(np.ldexp(whole, exponent - 11), values).astype(np.float32)
    got = engine.tf32_from_f32(values, rounding=rounding)
    np.testing.assert_array_equal(got, expected.view(np.uint32))
    np.testing.assert_array_equal(engine.f32_from_tf32(got | np.uint32(0x1FFF)), expected)


def test_tf32_specials() -> None:
    values = np.array([np.nan, np.inf, 3.4028235e38, -1.0], np.float32)
    plain = engine.tf32_from_f32(values, rounding="rna")
    np.testing.assert_array_equal(plain, np.array([0x7FFFE000, 0x7F800000, 0x7F800000, 0xBF800000], np.uint32))
    clamped = engine.tf32_from_f32(values, rounding="rna", satfinite=True, relu=True)
    np.testing.assert_array_equal(clamped, np.array([0x7FFFE000, 0x7F7FE000, 0x7F7FE000, 0], np.uint32))


@pytest.mark.parametrize("rounding", ["rz", "rp"])
def test_ue8m0_is_the_rounded_exponent(rounding: str) -> None:
    bits = np.random.default_rng(5).integers(0, 0x7F800000, 100_000, dtype=np.uint32)
    bits[:200] = np.arange(1, 201, dtype=np.uint32) << 23  # exact powers of two
    bits[200:203] = [0x00400000, 0x00400001, 0x00000001]
    values = bits.view(np.float32)
    mantissa, exponent = np.frexp(values.astype(np.float64))
    floor = np.where(values > 0, exponent - 1, -127)
    ceiling = np.where(mantissa == 0.5, floor, floor + 1)
    expected = np.clip((floor if rounding == "rz" else ceiling) + 127, 0, 255)
    np.testing.assert_array_equal(engine.ue8m0_from_f32(values, rounding), expected)
    np.testing.assert_array_equal(engine.ue8m0_from_f32(-values, rounding, True), np.minimum(expected, 254))
    special = engine.ue8m0_from_f32(np.array([np.inf, np.nan], np.float32), rounding)
    np.testing.assert_array_equal(special, [255, 255])


def exactly_rounded(value: Fraction, name: str) -> int:
    """Magnitude bits of |value| rounded to nearest even; what overflows is infinity."""
    patterns, dtype = FORMATS[name]
    infinity = 0x7C00 if name == "f16" else 0x7F80
    magnitude = abs(value)
    low, high = 0, infinity - 1
    while low < high:
        middle = (low + high + 1) // 2
        if Fraction(float(patterns[middle : middle + 1].view(dtype)[0])) <= magnitude:
            low = middle
        else:
            high = middle - 1
    below = Fraction(float(patterns[low : low + 1].view(dtype)[0]))
    step = below - Fraction(float(patterns[low - 1 : low].view(dtype)[0])) if low else Fraction(0)
    above = below + step if low == infinity - 1 else Fraction(float(patterns[low + 1 : low + 2].view(dtype)[0]))
    middle_value = (below + above) / 2
    return low + int(magnitude > middle_value or (magnitude == middle_value and low % 2 == 1))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fma_rounds_once(name: str) -> None:
    _, dtype = FORMATS[name]
    rng = np.random.default_rng(11)
    a, b, c = (rng.standard_normal(3000).astype(dtype) for _ in range(3))
    # Sums that land next to a tie of the result: a product far below c, on its half ulp.
    c[:1500] = (c[:1500].astype(np.float32) * 4096).astype(dtype)
    a[:500] = (np.sign(a[:500].astype(np.float32)) * 2.0).astype(dtype)
    got = getattr(engine, f"fma_{name}")(a.view(np.uint16), b.view(np.uint16), c.view(np.uint16))
    for x, y, z, bits in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert bits == exactly_rounded(exact, name) | (0x8000 if exact < 0 else 0), (x, y, z)


def test_fma_is_not_a_twice_rounded_one() -> None:
    """2050 + (1 - 2^-20) is below the tie 2051; float32 would round it up to the tie, and f16 the tie up to 2052."""
    a, b, c = (np.array([v], np.float16).view(np.uint16) for v in (1 + 2.0**-10, 1 - 2.0**-10, 2050.0))
    assert engine.fma_f16(a, b, c).view(np.float16)[0] == 2050


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["f16", "bf16"]))
def test_round_to_odd_then_narrow_equals_one_rounding(value: float, name: str) -> None:
    bits = int(narrowing(name)(engine.f32_round_to_odd(np.array([value])))[0])
    assert bits & 0x7FFF == exactly_rounded(Fraction(value), name)


def test_packed_addition_is_numpys() -> None:
    a, b = np.random.default_rng(1).standard_normal((2, 4096)).astype(np.float16)
    with np.errstate(over="ignore"):
        expected = (a + b).view(np.uint32)
    np.testing.assert_array_equal(engine.add_f16x2(a.view(np.uint32), b.view(np.uint32)), expected)
