// Loops over the 32 lanes of a warp, written so that GCC vectorises them.
// Everything here has internal linkage: the including units are compiled once
// per instruction set (see CMakeLists.txt).
#pragma once

#include <cstring>

#include "inst.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace machete::sim {
namespace {

template <class To, class From>
inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    return __builtin_bit_cast(To, x);
}

template <class T>
inline T* lanes(RegView& w, uint32_t operand) {
    return reinterpret_cast<T*>(__builtin_assume_aligned(w.base[operand >> 31] + (operand & 0x7fffffffu), 64));
}

// d[l] = f(l) for the lanes of the mask. f must be defined for all lanes. A register
// either equals another exactly or does not overlap it, hence ivdep.
template <class T, class F>
inline void write_lanes(T* d, uint32_t mask, F f) {
    if (mask == ~0u) {
#pragma GCC ivdep
        for (uint32_t l = 0; l < kLanes; ++l) d[l] = f(l);
        return;
    }
    alignas(64) T r[kLanes];
#pragma GCC ivdep
    for (uint32_t l = 0; l < kLanes; ++l) r[l] = f(l);
#pragma GCC ivdep
    for (uint32_t l = 0; l < kLanes; ++l) d[l] = (mask >> l & 1) ? r[l] : d[l];
}

// Packs 32 lane conditions (0 or -1) into a mask.
inline uint32_t pack(const int32_t* c) {
#if defined(__AVX2__)
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i)
        r |= static_cast<uint32_t>(
                 _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(c) + i))))
             << (8 * i);
    return r;
#else
    uint32_t r = 0;
    for (uint32_t l = 0; l < kLanes; ++l) r |= (static_cast<uint32_t>(c[l]) & 1u) << l;
    return r;
#endif
}

template <class F>
inline uint32_t test_lanes(F f) {
    alignas(64) int32_t c[kLanes];
    for (uint32_t l = 0; l < kLanes; ++l) c[l] = f(l) ? -1 : 0;
    return pack(c);
}

inline void write_pred(RegView& w, uint32_t p, uint32_t mask, uint32_t value) {
    if (p == kNoOperand) return;
    w.pred[p] = (w.pred[p] & ~mask) | (value & mask);
}

// ---- number formats ------------------------------------------------------------------

inline float half_to_float(uint32_t h) {
    uint32_t r = bits<uint32_t>(bits<float>((h & 0x7fffu) << 13) * 0x1p112f);
    r |= (h & 0x7fffu) >= 0x7c00u ? 0x7f800000u : 0u;
    return bits<float>(r | (h & 0x8000u) << 16);
}

inline uint32_t float_to_half(float v) {
    const uint32_t u = bits<uint32_t>(v), x = u & 0x7fffffffu;
    const uint32_t sub = bits<uint32_t>(bits<float>(x) + 0.5f) - 0x3f000000u;
    const uint32_t nor = (x + 0xc8000fffu + (x >> 13 & 1u)) >> 13;
    uint32_t r = x < 0x38800000u ? sub : nor;
    r = x >= 0x477ff000u ? 0x7c00u : r;
    r |= (u >> 16) & 0x8000u;
    return x > 0x7f800000u ? 0x7fffu : r;
}

inline float bfloat_to_float(uint32_t h) { return bits<float>(h << 16); }

inline uint32_t float_to_bfloat(float v) {
    const uint32_t u = bits<uint32_t>(v);
    const uint32_t r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : r;
}

inline float flush(float v) {
    const uint32_t u = bits<uint32_t>(v);
    return bits<float>((u & 0x7f800000u) ? u : (u & 0x80000000u));
}

// ---- typed views of lanes ------------------------------------------------------------
// Narrow registers live zero-extended in 32-bit lanes.

struct U16 {
    using lane = uint32_t;
    using val = uint16_t;
    static val get(lane x) { return static_cast<val>(x); }
    static lane put(val v) { return v; }
};
struct S16 {
    using lane = uint32_t;
    using val = int16_t;
    static val get(lane x) { return static_cast<val>(x); }
    static lane put(val v) { return static_cast<uint16_t>(v); }
};
template <class T>
struct Plain {
    using lane = T;
    using val = T;
    static val get(lane x) { return x; }
    static lane put(val v) { return v; }
};
using U32 = Plain<uint32_t>;
using S32 = Plain<int32_t>;
using U64 = Plain<uint64_t>;
using S64 = Plain<int64_t>;
using F32 = Plain<float>;
using F64 = Plain<double>;
struct F16 {
    static constexpr int exponent = 5;
    using lane = uint32_t;
    using val = float;
    static val get(lane x) { return half_to_float(x & 0xffffu); }
    static lane put(val v) { return float_to_half(v); }
};
struct BF16 {
    static constexpr int exponent = 8;
    using lane = uint32_t;
    using val = float;
    static val get(lane x) { return bfloat_to_float(x & 0xffffu); }
    static lane put(val v) { return float_to_bfloat(v); }
};

template <class Op, class T>
int unary(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<typename T::lane>(w, i.a);
    write_lanes(lanes<typename T::lane>(w, i.d), m, [&](uint32_t l) { return T::put(Op::f(T::get(a[l]))); });
    return kNext;
}

template <class Op, class T>
int binary(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<typename T::lane>(w, i.a);
    auto* b = lanes<typename T::lane>(w, i.b);
    write_lanes(lanes<typename T::lane>(w, i.d), m,
                [&](uint32_t l) { return T::put(Op::f(T::get(a[l]), T::get(b[l]))); });
    return kNext;
}

template <class Op, class T>
int ternary(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<typename T::lane>(w, i.a);
    auto* b = lanes<typename T::lane>(w, i.b);
    auto* c = lanes<typename T::lane>(w, i.c);
    write_lanes(lanes<typename T::lane>(w, i.d), m,
                [&](uint32_t l) { return T::put(Op::f(T::get(a[l]), T::get(b[l]), T::get(c[l]))); });
    return kNext;
}

}  // namespace
}  // namespace machete::sim
