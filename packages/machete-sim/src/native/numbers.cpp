#include "numbers.hpp"

#include <cmath>

namespace machete::sim {

uint8_t ue8m0_from_f32(float value, Rounding rounding, bool satfinite) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & number_bits::f32_magnitude;
    if (magnitude > number_bits::f32_infinity) return 0xff;
    uint32_t exponent = magnitude >> 23;
    // 2^-127 is a subnormal float32 with mantissa 0x400000: below it there is nothing to round up from.
    const bool inexact = (magnitude & 0x7fffffu) && magnitude > 0x400000u;
    if (rounding == Rounding::up && inexact && magnitude < number_bits::f32_infinity) ++exponent;
    if (satfinite && exponent == 0xff) exponent = 0xfe;
    return static_cast<uint8_t>(exponent);
}

float f32_round_to_odd(double value) {
    const float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
    uint32_t bits = std::bit_cast<uint32_t>(nearest);
    if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
    return std::bit_cast<float>(bits | 1u);
}

namespace {

// a * b + c rounded to odd in float64. The product of two 16-bit floats is exact there; the sum's error is found by
// Knuth's two-sum and folded into the last bit.
double fma_round_to_odd(double a, double b, double c) {
    const double product = a * b, sum = product + c;
    if (!std::isfinite(sum)) return sum;
    const double c_part = sum - product;
    const double error = (product - (sum - c_part)) + (c - c_part);
    uint64_t bits = std::bit_cast<uint64_t>(sum);
    if (error != 0 && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
    return std::bit_cast<double>(bits);
}

}  // namespace

uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c, Narrowing how) {
    return f16_from_f32(f32_round_to_odd(fma_round_to_odd(f32_from_f16(a), f32_from_f16(b), f32_from_f16(c))), how);
}

uint16_t fma_bf16(uint16_t a, uint16_t b, uint16_t c, Narrowing how) {
    return bf16_from_f32(f32_round_to_odd(fma_round_to_odd(f32_from_bf16(a), f32_from_bf16(b), f32_from_bf16(c))),
                         how);
}

}  // namespace machete::sim
