// Number formats of PTX: conversions and the arithmetic that float32 cannot express in one rounding.
//
// Branch-free where it matters, so that a loop over 32 lanes vectorises. NaN results are the canonical NaN of the
// destination (PTX ISA "cvt"; an H200 agrees): f16 and bf16 0x7fff, f32 0x7fffffff, tf32 0x7fffe000, e4m3 and e5m2
// 0x7f, ue8m0 0xff.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace machete::sim {

enum class Rounding : uint8_t { nearest_even, toward_zero, nearest_away, up };

// The modifiers of a narrowing cvt. relu clamps negative results to +0 (NaN stays the canonical NaN); satfinite turns
// infinities and overflow into the largest finite value of that sign.
struct Narrowing {
    Rounding rounding = Rounding::nearest_even;  // f16, bf16: nearest_even, toward_zero; tf32: also nearest_away
    bool satfinite = false;
    bool relu = false;
};

namespace number_bits {
inline constexpr uint32_t f32_sign = 0x80000000u;
inline constexpr uint32_t f32_magnitude = 0x7fffffffu;
inline constexpr uint32_t f32_infinity = 0x7f800000u;
inline constexpr uint32_t f32_nan = 0x7fffffffu;

// A float with `mantissa` explicit bits and exponent bias `bias`, sign stripped, to float32: the exponent is rebased
// by an integer addition, subnormals by a float subtraction that normalises them.
template <int mantissa, int bias>
inline uint32_t widen(uint32_t magnitude) {
    constexpr uint32_t rebase = static_cast<uint32_t>(127 - bias) << 23;
    const uint32_t shifted = magnitude << (23 - mantissa);
    const float subnormal =
        std::bit_cast<float>(shifted + rebase + (1u << 23)) - std::bit_cast<float>(rebase + (1u << 23));
    return magnitude >> mantissa ? shifted + rebase : std::bit_cast<uint32_t>(subnormal);
}

// The inverse, rounding to nearest even; the exponent field may overflow into larger numbers, which the caller clamps.
// Subnormals round by adding the power of two whose ulp is theirs.
template <int mantissa, int bias>
inline uint32_t narrow(uint32_t magnitude) {
    constexpr int shift = 23 - mantissa;
    constexpr uint32_t rebase = static_cast<uint32_t>(127 - bias) << 23;
    constexpr uint32_t round_up = static_cast<uint32_t>(127 + 1 - bias - mantissa + 23) << 23;
    const uint32_t normal = (magnitude + ((1u << (shift - 1)) - 1) + (magnitude >> shift & 1) - rebase) >> shift;
    const float aligned = std::bit_cast<float>(magnitude) + std::bit_cast<float>(round_up);
    const uint32_t subnormal = std::bit_cast<uint32_t>(aligned) - round_up;
    return magnitude < rebase + (1u << 23) ? subnormal : normal;
}

template <int mantissa, int bias, int width, uint32_t largest, uint32_t nan>
inline uint8_t narrow_saturated(float value, bool relu) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & f32_magnitude;
    const uint32_t sign = bits >> 31 << (width - 1);
    const uint32_t result = std::min(narrow<mantissa, bias>(magnitude), largest) | sign;
    const uint32_t clamped = relu && sign ? 0 : result;
    return static_cast<uint8_t>(magnitude > f32_infinity ? nan : clamped);
}
}  // namespace number_bits

// ---- to float32 (exact) -------------------------------------------------------------------------------------

inline float f32_from_f16(uint16_t bits) {
    const uint32_t magnitude = bits & 0x7fffu, sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t finite = number_bits::widen<10, 15>(magnitude) | sign;
    const uint32_t special = magnitude > 0x7c00 ? number_bits::f32_nan : number_bits::f32_infinity | sign;
    return std::bit_cast<float>(magnitude >= 0x7c00 ? special : finite);
}

// A NaN keeps its payload: the hardware only shifts.
inline float f32_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// As a tensor core reads a 32-bit register: the low 13 bits are ignored.
inline float f32_from_tf32(uint32_t bits) { return std::bit_cast<float>(bits & 0xffffe000u); }

inline float f32_from_e4m3(uint8_t bits) {
    const uint32_t magnitude = bits & 0x7fu, sign = static_cast<uint32_t>(bits & 0x80u) << 24;
    return std::bit_cast<float>(magnitude == 0x7f ? number_bits::f32_nan
                                                  : number_bits::widen<3, 7>(magnitude) | sign);
}

// e5m2 is the upper byte of f16.
inline float f32_from_e5m2(uint8_t bits) { return f32_from_f16(static_cast<uint16_t>(bits << 8)); }

// The low 4 bits.
inline float f32_from_e2m1(uint8_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 8u) << 28;
    return std::bit_cast<float>(number_bits::widen<1, 1>(bits & 7u) | sign);
}

// The low 6 bits.
inline float f32_from_e2m3(uint8_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 32u) << 26;
    return std::bit_cast<float>(number_bits::widen<3, 1>(bits & 31u) | sign);
}
inline float f32_from_e3m2(uint8_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 32u) << 26;
    return std::bit_cast<float>(number_bits::widen<2, 3>(bits & 31u) | sign);
}

// 2^(bits - 127); 0xff is NaN.
inline float f32_from_ue8m0(uint8_t bits) {
    const uint32_t power = bits ? static_cast<uint32_t>(bits) << 23 : 1u << 22;
    return std::bit_cast<float>(bits == 0xff ? number_bits::f32_nan : power);
}

// ---- from float32 -------------------------------------------------------------------------------------------

inline uint16_t f16_from_f32(float value, Narrowing how = {}) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & number_bits::f32_magnitude;
    uint32_t result;
    if (how.rounding == Rounding::toward_zero) {
        const uint32_t normal = (magnitude - (112u << 23)) >> 13;
        const auto subnormal = static_cast<uint32_t>(
            static_cast<int32_t>(std::bit_cast<float>(std::min(magnitude, 0x38800000u)) * 16777216.0f));
        result = std::min(magnitude < 0x38800000u ? subnormal : normal, 0x7bffu);
        result = magnitude == number_bits::f32_infinity ? 0x7c00u : result;
    } else {
        result = std::min(number_bits::narrow<10, 15>(magnitude), 0x7c00u);
    }
    result = how.satfinite ? std::min(result, 0x7bffu) : result;
    result |= bits >> 16 & 0x8000u;
    result = how.relu && (result & 0x8000u) ? 0 : result;
    return static_cast<uint16_t>(magnitude > number_bits::f32_infinity ? 0x7fffu : result);
}

inline uint16_t bf16_from_f32(float value, Narrowing how = {}) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & number_bits::f32_magnitude;
    const uint32_t increment = how.rounding == Rounding::toward_zero ? 0 : 0x7fffu + (magnitude >> 16 & 1);
    uint32_t result = (magnitude + increment) >> 16;
    result = how.satfinite ? std::min(result, 0x7f7fu) : result;
    result |= bits >> 16 & 0x8000u;
    result = how.relu && (result & 0x8000u) ? 0 : result;
    return static_cast<uint16_t>(magnitude > number_bits::f32_infinity ? 0x7fffu : result);
}

inline uint32_t tf32_from_f32(float value, Narrowing how = {}) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & number_bits::f32_magnitude;
    const uint32_t increment = how.rounding == Rounding::toward_zero    ? 0
                               : how.rounding == Rounding::nearest_away ? 0x1000u
                                                                        : 0xfffu + (magnitude >> 13 & 1);
    uint32_t result = (magnitude + increment) & 0xffffe000u;
    result = how.satfinite ? std::min(result, 0x7f7fe000u) : result;
    result |= bits & number_bits::f32_sign;
    result = how.relu && (result & number_bits::f32_sign) ? 0 : result;
    return magnitude > number_bits::f32_infinity ? 0x7fffe000u : result;
}

// These round to nearest even and always saturate (PTX has no other form). e2m1, e2m3 and e3m2 have no NaN:
// it becomes the largest number.
inline uint8_t e4m3_from_f32(float value, bool relu = false) {
    return number_bits::narrow_saturated<3, 7, 8, 0x7e, 0x7f>(value, relu);
}
inline uint8_t e5m2_from_f32(float value, bool relu = false) {
    return number_bits::narrow_saturated<2, 15, 8, 0x7b, 0x7f>(value, relu);
}
inline uint8_t e2m3_from_f32(float value, bool relu = false) {
    return number_bits::narrow_saturated<3, 1, 6, 0x1f, 0x1f>(value, relu);
}
inline uint8_t e3m2_from_f32(float value, bool relu = false) {
    return number_bits::narrow_saturated<2, 3, 6, 0x1f, 0x1f>(value, relu);
}
inline uint8_t e2m1_from_f32(float value, bool relu = false) {
    return number_bits::narrow_saturated<1, 1, 4, 7, 7>(value, relu);
}

// Rounding toward_zero or up. The sign is dropped; overflow and infinity give NaN unless satfinite.
uint8_t ue8m0_from_f32(float value, Rounding rounding, bool satfinite);

// ---- packed pairs -------------------------------------------------------------------------------------------
// `high` is the upper half of the register: operand a of cvt.rn.f16x2.f32 d, a, b.

inline uint32_t pack_16x2(uint16_t high, uint16_t low) { return static_cast<uint32_t>(high) << 16 | low; }
inline uint16_t low_16(uint32_t pair) { return static_cast<uint16_t>(pair); }
inline uint16_t high_16(uint32_t pair) { return static_cast<uint16_t>(pair >> 16); }
inline uint64_t pack_f32x2(float high, float low) {
    return static_cast<uint64_t>(std::bit_cast<uint32_t>(high)) << 32 | std::bit_cast<uint32_t>(low);
}
inline float low_f32(uint64_t pair) { return std::bit_cast<float>(static_cast<uint32_t>(pair)); }
inline float high_f32(uint64_t pair) { return std::bit_cast<float>(static_cast<uint32_t>(pair >> 32)); }

// Applies a float32 function to both halves and rounds each result once to nearest even. Right for add, sub, mul, min
// and max of f16 and bf16: rounding their float32 result again equals rounding once. Not for fma: see below. (min and
// max take -0 for less than +0 on the hardware, which std::fmin need not.)
template <class Operation, class... Pair>
inline uint32_t map_f16x2(Operation operation, Pair... pair) {
    return pack_16x2(f16_from_f32(operation(f32_from_f16(high_16(pair))...)),
                     f16_from_f32(operation(f32_from_f16(low_16(pair))...)));
}
template <class Operation, class... Pair>
inline uint32_t map_bf16x2(Operation operation, Pair... pair) {
    return pack_16x2(bf16_from_f32(operation(f32_from_bf16(high_16(pair))...)),
                     bf16_from_f32(operation(f32_from_bf16(low_16(pair))...)));
}
template <class Operation, class... Pair>
inline uint64_t map_f32x2(Operation operation, Pair... pair) {
    return pack_f32x2(operation(high_f32(pair)...), operation(low_f32(pair)...));
}

// ---- one rounding where two would differ --------------------------------------------------------------------

// float32 rounded to odd: rounding it again to f16 or bf16 gives what rounding `value` once would have given. For
// cvt from f64 and integers to 16-bit types.
float f32_round_to_odd(double value);

// fma.rn.f16 and fma.rn.bf16: one rounding of the exact a * b + c.
uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c, Narrowing how = {});
uint16_t fma_bf16(uint16_t a, uint16_t b, uint16_t c, Narrowing how = {});

}  // namespace machete::sim
