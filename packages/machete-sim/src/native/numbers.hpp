// Number formats of PTX: conversions and the arithmetic that float32 cannot express in one rounding.
//
// Branch-free where it matters, so that a loop over 32 lanes vectorises. NaN results are the canonical NaN of the
// destination (PTX ISA "cvt"): f16 and bf16 0x7fff, tf32 0x7fffffff, e4m3 and e5m2 0x7f, ue8m0 0xff.
#pragma once

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

// ---- to float32 (exact) -------------------------------------------------------------------------------------
float f32_from_f16(uint16_t bits);
float f32_from_bf16(uint16_t bits);  // a NaN keeps its payload: the hardware only shifts
float f32_from_tf32(uint32_t bits);  // as a tensor core reads a 32-bit register: the low 13 bits are ignored
float f32_from_e4m3(uint8_t bits);
float f32_from_e5m2(uint8_t bits);
float f32_from_e2m1(uint8_t bits);   // low 4 bits
float f32_from_ue8m0(uint8_t bits);  // 2^(bits-127), 0xff is NaN

// ---- from float32 -------------------------------------------------------------------------------------------
uint16_t f16_from_f32(float value, Narrowing how = {});
uint16_t bf16_from_f32(float value, Narrowing how = {});
uint32_t tf32_from_f32(float value, Narrowing how = {});
// These round to nearest even and always saturate (PTX has no other form); e2m1 has no NaN and gives +6.
uint8_t e4m3_from_f32(float value, bool relu = false);
uint8_t e5m2_from_f32(float value, bool relu = false);
uint8_t e2m1_from_f32(float value, bool relu = false);
// Rounding toward_zero or up; the sign is dropped, without satfinite overflow and infinity give NaN.
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

// Applies a float32 function to both halves and rounds each result once to nearest even. Right for add, sub, mul, min,
// max, neg, abs of f16 and bf16: rounding their float32 result again equals rounding once. Not for fma: see below.
template <class Operation, class... Pair>
uint32_t map_f16x2(Operation operation, Pair... pair);
template <class Operation, class... Pair>
uint32_t map_bf16x2(Operation operation, Pair... pair);
template <class Operation, class... Pair>
uint64_t map_f32x2(Operation operation, Pair... pair);

// fma.rn.f16 and fma.rn.bf16: one rounding of the exact a * b + c.
uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c, Narrowing how = {});
uint16_t fma_bf16(uint16_t a, uint16_t b, uint16_t c, Narrowing how = {});

}  // namespace machete::sim
