// cvt between integers, float16, bfloat16, float32 and float64 (PTX ISA 9.7.9.21).
//
// Common conversions have a vectorised handler each; the rest share three general ones.
#include "alu.hpp"
#include "lanes.hpp"
#include "rounding.hpp"

namespace machete::sim {
namespace {

// Inst::mod of the general forms, above the floating-point modifiers in the low 12 bits.
// Integers: width in bits and sign; floats: kind.
enum FloatKind { kF16, kBF16, kF32, kF64 };
constexpr uint32_t kSourceShift = 12, kDestShift = 20, kSignedBit = 0x80;

uint32_t source_of(const Inst& i) { return i.mod >> kSourceShift & 0xffu; }
uint32_t dest_of(const Inst& i) { return i.mod >> kDestShift & 0xffu; }

int64_t read_integer(RegView& w, const Inst& i, uint32_t l) {
    const uint64_t raw = (i.flags & kFlagAddr64) ? lanes<uint64_t>(w, i.a)[l] : lanes<uint32_t>(w, i.a)[l];
    const uint32_t n = 64 - (source_of(i) & 0x7fu);
    return (source_of(i) & kSignedBit) ? static_cast<int64_t>(raw << n) >> n : static_cast<int64_t>((raw << n) >> n);
}

void write_integer(RegView& w, const Inst& i, uint32_t l, uint64_t v) {
    const uint32_t n = 64 - (dest_of(i) & 0x7fu);
    v = (dest_of(i) & kSignedBit) ? static_cast<uint64_t>(static_cast<int64_t>(v << n) >> n) : (v << n) >> n;
    if (i.flags & kFlagReg64) {
        lanes<uint64_t>(w, i.d)[l] = v;
    } else {
        lanes<uint32_t>(w, i.d)[l] = static_cast<uint32_t>((i.flags & kFlagReg16) ? v & 0xffffu : v);
    }
}

int integer_to_integer(RegView& w, const Inst& i, uint32_t m) {
    const uint32_t n = dest_of(i) & 0x7fu;
    const bool to_signed = dest_of(i) & kSignedBit, from_signed = source_of(i) & kSignedBit;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        int64_t v = read_integer(w, i, l);
        if (i.mod & kSat) {
            const __int128 x = from_signed ? __int128(v) : __int128(static_cast<uint64_t>(v));
            const __int128 hi = to_signed ? (__int128(1) << (n - 1)) - 1 : (__int128(1) << n) - 1;
            const __int128 lo = to_signed ? -(__int128(1) << (n - 1)) : 0;
            v = static_cast<int64_t>(x > hi ? hi : x < lo ? lo : x);
        }
        write_integer(w, i, l, static_cast<uint64_t>(v));
    }
    return kNext;
}

double read_float(RegView& w, const Inst& i, uint32_t l) {
    switch (source_of(i)) {
        case kF16: return half_to_float(lanes<uint32_t>(w, i.a)[l] & 0xffffu);
        case kBF16: return bfloat_to_float(lanes<uint32_t>(w, i.a)[l] & 0xffffu);
        case kF32: {
            const float v = lanes<float>(w, i.a)[l];
            return (i.mod & kFtz) ? flush(v) : v;
        }
        default: return lanes<double>(w, i.a)[l];
    }
}

// Rounds to odd, so that a second rounding to fewer bits is right.
float to_odd(double v) {
    float f = round_to_float(1, v);
    if (double(f) != v && v == v && f - f == 0) f = bits<float>(bits<uint32_t>(f) | 1u);
    return f;
}

uint32_t narrow(double v, bool half, uint32_t mode) {
    const float f = to_odd(v);
    if (mode == 0) return half ? float_to_half(f) : float_to_bfloat(f);
    if (f != f) return 0x7fffu;
    uint32_t r = half ? float_to_half(f) : float_to_bfloat(f);
    const double back = half ? half_to_float(r) : bfloat_to_float(r);
    const uint32_t sign = r & 0x8000u;
    // step to the neighbour where nearest went the wrong way
    const bool away = sign ? back < v : back > v, toward = sign ? back > v : back < v;
    if (mode == 1 && (sign ? back < v : back > v)) r -= 1;
    if (mode == 2) r = sign ? (toward ? r + 1 : r) : (away ? r - 1 : r);
    if (mode == 3) r = sign ? (away ? r - 1 : r) : (toward ? r + 1 : r);
    return r;
}

void write_float(RegView& w, const Inst& i, uint32_t l, double v) {
    const uint32_t mode = i.mod & kRoundMask, kind = dest_of(i);
    if (i.mod & kSat) v = v > 0 ? (v < 1 ? v : 1.0) : 0.0;
    if ((i.mod & kRelu) && !(v > 0) && v == v) v = 0.0;
    switch (kind) {
        case kF16:
        case kBF16: {
            uint32_t r = narrow(v, kind == kF16, mode);
            if ((i.mod & kSatFinite) && (r & 0x7fffu) == (kind == kF16 ? 0x7c00u : 0x7f80u)) r -= 1;
            lanes<uint32_t>(w, i.d)[l] = r;
            return;
        }
        case kF32: {
            const float f = round_to_float(static_cast<int>(mode), v);
            lanes<float>(w, i.d)[l] = (i.mod & kFtz) ? flush(f) : f;
            return;
        }
        default: lanes<double>(w, i.d)[l] = v;
    }
}

double round_integral(double v, uint32_t mode) {
    switch (mode) {
        case 0: return __builtin_rint(v);
        case 1: return __builtin_trunc(v);
        case 2: return __builtin_floor(v);
        default: return __builtin_ceil(v);
    }
}

int float_to_float(RegView& w, const Inst& i, uint32_t m) {  // imm: round to an integral value
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        double v = read_float(w, i, l);
        if (i.imm) v = round_integral(v, i.mod & kRoundMask);
        write_float(w, i, l, v);
    }
    return kNext;
}

int float_to_integer(RegView& w, const Inst& i, uint32_t m) {  // always saturates
    const uint32_t n = dest_of(i) & 0x7fu;
    const bool sign = dest_of(i) & kSignedBit;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        const double v = round_integral(read_float(w, i, l), i.mod & kRoundMask);
        const double hi = __builtin_ldexp(1.0, static_cast<int>(sign ? n - 1 : n)), lo = sign ? -hi : 0.0;
        uint64_t r;
        if (v != v) {
            r = n == 64 ? 1ull << 63 : 0;
        } else if (v >= hi) {
            r = sign ? (1ull << (n - 1)) - 1 : ~0ull >> (64 - n);
        } else if (v <= lo) {
            r = sign ? static_cast<uint64_t>(-1) << (n - 1) : 0;
        } else {
            r = sign ? static_cast<uint64_t>(static_cast<int64_t>(v)) : static_cast<uint64_t>(v);
        }
        write_integer(w, i, l, r);
    }
    return kNext;
}

int integer_to_float(RegView& w, const Inst& i, uint32_t m) {
    const int mode = static_cast<int>(i.mod & kRoundMask);
    const bool sign = source_of(i) & kSignedBit;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        const long long s = read_integer(w, i, l);
        const auto u = static_cast<unsigned long long>(s);
        switch (dest_of(i)) {
            case kF64: lanes<double>(w, i.d)[l] = sign ? round_to_double(mode, s) : round_to_double(mode, u); break;
            case kF32: {
                float f = sign ? round_to_float(mode, s) : round_to_float(mode, u);
                if (i.mod & kSat) f = f > 0.f ? (f < 1.f ? f : 1.f) : 0.f;
                lanes<float>(w, i.d)[l] = f;
                break;
            }
            default: {  // to odd in double first: 64 bits do not fit
                double v = sign ? round_to_double(1, s) : round_to_double(1, u);
                const bool exact =
                    sign ? static_cast<__int128>(v) == s : static_cast<__int128>(v) == static_cast<__int128>(u);
                if (!exact) v = bits<double>(bits<uint64_t>(v) | 1u);
                write_float(w, i, l, v);
            }
        }
    }
    return kNext;
}

template <class To, class From>
int cast(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<typename From::lane>(w, i.a);
    write_lanes(lanes<typename To::lane>(w, i.d), m,
                [&](uint32_t l) { return To::put(static_cast<typename To::val>(From::get(a[l]))); });
    return kNext;
}

// cvt.rzi.s32.f32
int truncate_s32(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<float>(w, i.a);
    write_lanes(lanes<int32_t>(w, i.d), m, [&](uint32_t l) {
        const float v = a[l];
        const float inside = v >= -0x1p31f && v < 0x1p31f ? v : 0.f;
        const int32_t r = static_cast<int32_t>(inside);
        return v >= 0x1p31f ? INT32_MAX : v < -0x1p31f ? INT32_MIN : r;
    });
    return kNext;
}

// cvt.rn.{f16x2,bf16x2}.f32 d, a, b: a is the upper half
template <class T>
int pack_nearest(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<float>(w, i.a);
    auto* b = lanes<float>(w, i.b);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return T::put(b[l]) | T::put(a[l]) << 16; });
    return kNext;
}

const NamedHandler table[] = {
    {"cvt.i.i", integer_to_integer},   {"cvt.f.f", float_to_float},          {"cvt.i.f", float_to_integer},
    {"cvt.f.i", integer_to_float},     {"cvt.u64.u32", cast<U64, U32>},      {"cvt.s64.s32", cast<S64, S32>},
    {"cvt.u32.u64", cast<U32, U64>},   {"cvt.s32.s16", cast<S32, S16>},      {"cvt.u32.u16", cast<U32, U16>},
    {"cvt.u16.u32", cast<U16, U32>},   {"cvt.f32.s32", cast<F32, S32>},      {"cvt.f32.u32", cast<F32, U32>},
    {"cvt.f32.f16", cast<F32, F16>},   {"cvt.f32.bf16", cast<F32, BF16>},    {"cvt.f16.f32", cast<F16, F32>},
    {"cvt.bf16.f32", cast<BF16, F32>}, {"cvt.f64.f32", cast<F64, F32>},      {"cvt.f32.f64", cast<F32, F64>},
    {"cvt.rzi.s32.f32", truncate_s32}, {"cvt.f16x2.f32", pack_nearest<F16>}, {"cvt.bf16x2.f32", pack_nearest<BF16>},
};

}  // namespace

HandlerTable VARIANT(convert)() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
