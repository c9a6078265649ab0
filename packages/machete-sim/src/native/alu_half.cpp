// float16 and bfloat16 arithmetic, scalar, in pairs, and mixed with float32 (PTX ISA 9.7.4, 9.7.5).
#include "alu.hpp"
#include "lanes.hpp"
#include "rounding.hpp"

namespace machete::sim {
namespace {

// a * b + c in double, rounded to odd, so that the final rounding to 11 or 8 bits is the only one.
inline float fma_to_odd(float a, float b, float c) {
    const double p = double(a) * double(b), s = p + double(c);
    const double t = s - p, err = (p - (s - t)) + (double(c) - t);
    uint64_t u = bits<uint64_t>(s);
    if (err != 0 && err == err && s - s == 0 && !(u & 1)) u += ((err > 0) == (s > 0)) ? 1 : -1;
    const double odd = bits<double>(u);
    float f = static_cast<float>(odd);  // to odd again
    if (double(f) != odd && odd == odd && f - f == 0) {
        uint32_t v = bits<uint32_t>(f);
        const double mag = odd < 0 ? -odd : odd, fm = f < 0 ? -double(f) : double(f);
        if (fm > mag) --v;  // truncate, then set the sticky bit
        f = bits<float>(v | 1u);
    }
    return f;
}

struct Add {
    static float f(float a, float b, float) { return a + b; }
};
struct Sub {
    static float f(float a, float b, float) { return a - b; }
};
struct Mul {
    static float f(float a, float b, float) { return a * b; }
};
struct Fma {
    static float f(float a, float b, float c) { return fma_to_odd(a, b, c); }
};

template <class T>
constexpr uint32_t tiny() {
    return T::exponent == 5 ? 0x7c00u : 0x7f80u;
}  // exponent bits

template <class T>
uint32_t flush_half(uint32_t h) {
    return (h & tiny<T>()) ? h : (h & 0x8000u);
}

template <class Op, class T>
uint32_t one(uint32_t a, uint32_t b, uint32_t c, uint32_t mod) {
    if (mod & kFtz) a = flush_half<T>(a & 0xffffu), b = flush_half<T>(b & 0xffffu), c = flush_half<T>(c & 0xffffu);
    uint32_t r = T::put(Op::f(T::get(a), T::get(b), T::get(c)));
    if (mod & kFtz) r = flush_half<T>(r);
    if (mod & (kSat | kRelu)) {
        const float v = T::get(r);
        if ((mod & kSat)) r = v > 0.f ? (v < 1.f ? r : T::put(1.f)) : 0u;
        if ((mod & kRelu) && !(v != v)) r = v > 0.f ? r : 0u;
    }
    return r;
}

template <class Op, class T>
int scalar(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = i.c == kNoOperand ? a : lanes<uint32_t>(w, i.c);
    const uint32_t mod = i.mod;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return one<Op, T>(a[l], b[l], c[l], mod); });
    return kNext;
}
template <class Op, class T>
int pair(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = i.c == kNoOperand ? a : lanes<uint32_t>(w, i.c);
    const uint32_t mod = i.mod;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        return one<Op, T>(a[l], b[l], c[l], mod) | one<Op, T>(a[l] >> 16, b[l] >> 16, c[l] >> 16, mod) << 16;
    });
    return kNext;
}

template <bool Max, class T>
uint32_t extremum(uint32_t a, uint32_t b, uint32_t mod) {
    a &= 0xffffu, b &= 0xffffu;
    if (mod & kFtz) a = flush_half<T>(a), b = flush_half<T>(b);
    const uint32_t s = (a ^ b) & 0x8000u;
    if (mod & kXorSignAbs) a &= 0x7fffu, b &= 0x7fffu;
    const float x = T::get(a), y = T::get(b);
    uint32_t r;
    if (x != x || y != y) {
        if ((mod & kNan) || (x != x && y != y)) return 0x7fffu;
        r = x != x ? b : a;
    } else if (x == y) {
        r = Max ? a & b : a | b;
    } else {
        r = (Max ? x > y : x < y) ? a : b;
    }
    return (mod & kXorSignAbs) ? (r & 0x7fffu) | s : r;
}

template <bool Max, class T, bool Pair>
int min_max(RegView& w, const Inst& i, uint32_t m) {  // two or three inputs
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    const bool three = i.c != kNoOperand;
    auto* c = three ? lanes<uint32_t>(w, i.c) : a;
    const uint32_t mod = i.mod;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        uint32_t r = extremum<Max, T>(a[l], b[l], mod);
        if (three) r = extremum<Max, T>(r, c[l], mod);
        if constexpr (Pair) {
            uint32_t h = extremum<Max, T>(a[l] >> 16, b[l] >> 16, mod);
            if (three) h = extremum<Max, T>(h, c[l] >> 16, mod);
            r |= h << 16;
        }
        return r;
    });
    return kNext;
}

template <class T, bool Pair, bool Negate>  // neg, abs
int sign(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const bool ftz = i.mod & kFtz;
    constexpr uint32_t s = Pair ? 0x80008000u : 0x8000u;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        uint32_t x = a[l];
        if (ftz) x = flush_half<T>(x & 0xffffu) | (Pair ? flush_half<T>(x >> 16) << 16 : 0u);
        return Negate ? x ^ s : x & ~s;
    });
    return kNext;
}

struct Exp2 {
    static float f(float a) { return __builtin_exp2f(a); }
};
struct Tanh {
    static float f(float a) { return __builtin_tanhf(a); }
};

template <class Op, class T, bool Pair>
int function(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* d = lanes<uint32_t>(w, i.d);
    const bool ftz = i.mod & kFtz;
    auto f = [ftz](uint32_t h) {
        h &= 0xffffu;
        const uint32_t r = T::put(Op::f(T::get(ftz ? flush_half<T>(h) : h)));
        return ftz ? flush_half<T>(r) : r;
    };
    for (uint32_t l = 0; l < kLanes; ++l)
        if (m >> l & 1) d[l] = f(a[l]) | (Pair ? f(a[l] >> 16) << 16 : 0u);
    return kNext;
}

// d.f32 = a.half (* b.half) + c.f32
template <class T, int Kind>  // 0 add, 1 sub, 2 fma
int mixed(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<float>(w, Kind == 2 ? i.c : i.b);
    auto* d = lanes<float>(w, i.d);
    const int mode = static_cast<int>(i.mod & kRoundMask);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        const float x = T::get(a[l]);
        float r;
        if constexpr (Kind == 2) {
            r = mode ? rounded(FloatOp::fma, mode, x, T::get(b[l]), c[l]) : __builtin_fmaf(x, T::get(b[l]), c[l]);
        } else {
            const float y = Kind == 1 ? -c[l] : c[l];
            r = mode ? rounded(FloatOp::add, mode, x, y, 0.f) : x + y;
        }
        if (i.mod & kSat) r = r > 0.f ? (r < 1.f ? r : 1.f) : 0.f;
        d[l] = r;
    }
    return kNext;
}

const NamedHandler table[] = {
#define HALF(OPNAME, OP)                                                                                      \
    {OPNAME ".f16", scalar<OP, F16>}, {OPNAME ".bf16", scalar<OP, BF16>}, {OPNAME ".f16x2", pair<OP, F16>}, { \
        OPNAME ".bf16x2", pair<OP, BF16>                                                                      \
    }
    HALF("add", Add),
    HALF("sub", Sub),
    HALF("mul", Mul),
    HALF("fma", Fma),
#define HALF_EXTREMUM(OPNAME, MAX)                                                          \
    {OPNAME ".f16", min_max<MAX, F16, false>}, {OPNAME ".bf16", min_max<MAX, BF16, false>}, \
        {OPNAME ".f16x2", min_max<MAX, F16, true>}, {                                       \
        OPNAME ".bf16x2", min_max<MAX, BF16, true>                                          \
    }
    HALF_EXTREMUM("min", false),
    HALF_EXTREMUM("max", true),
#define HALF_SIGN(OPNAME, NEG)                                                        \
    {OPNAME ".f16", sign<F16, false, NEG>}, {OPNAME ".bf16", sign<BF16, false, NEG>}, \
        {OPNAME ".f16x2", sign<F16, true, NEG>}, {                                    \
        OPNAME ".bf16x2", sign<BF16, true, NEG>                                       \
    }
    HALF_SIGN("neg", true),
    HALF_SIGN("abs", false),
#define HALF_FUNCTION(OPNAME, OP)                                                           \
    {OPNAME ".f16", function<OP, F16, false>}, {OPNAME ".bf16", function<OP, BF16, false>}, \
        {OPNAME ".f16x2", function<OP, F16, true>}, {                                       \
        OPNAME ".bf16x2", function<OP, BF16, true>                                          \
    }
    HALF_FUNCTION("ex2", Exp2),
    HALF_FUNCTION("tanh", Tanh),
    {"add.f32.f16", mixed<F16, 0>},
    {"add.f32.bf16", mixed<BF16, 0>},
    {"sub.f32.f16", mixed<F16, 1>},
    {"sub.f32.bf16", mixed<BF16, 1>},
    {"fma.f32.f16", mixed<F16, 2>},
    {"fma.f32.bf16", mixed<BF16, 2>},
};

}  // namespace

HandlerTable VARIANT(half)() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
