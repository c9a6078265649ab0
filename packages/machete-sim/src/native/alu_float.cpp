// float32 and float64 arithmetic (PTX ISA 9.7.3, 9.7.4). The approximate functions are exact here.
#include "alu.hpp"
#include "lanes.hpp"
#include "rounding.hpp"

namespace machete::sim {
namespace {

inline float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma_(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float flush_(float v) { return flush(v); }
inline double flush_(double v) { return v; }  // .ftz exists for float32 only

struct Add {
    static constexpr FloatOp op = FloatOp::add;
    template <class T>
    static T f(T a, T b, T) {
        return a + b;
    }
};
struct Sub {
    static constexpr FloatOp op = FloatOp::sub;
    template <class T>
    static T f(T a, T b, T) {
        return a - b;
    }
};
struct Mul {
    static constexpr FloatOp op = FloatOp::mul;
    template <class T>
    static T f(T a, T b, T) {
        return a * b;
    }
};
struct Div {
    static constexpr FloatOp op = FloatOp::div;
    template <class T>
    static T f(T a, T b, T) {
        return a / b;
    }
};
struct Fma {
    static constexpr FloatOp op = FloatOp::fma;
    template <class T>
    static T f(T a, T b, T c) {
        return fma_(a, b, c);
    }
};

template <class T>
T saturate(T v) {
    return v > T(0) ? (v < T(1) ? v : T(1)) : T(0);
}  // NaN becomes 0

template <class Op, class T>
T with_modifiers(uint32_t mod, T a, T b, T c) {
    if (mod & kFtz) a = flush_(a), b = flush_(b), c = flush_(c);
    T r = (mod & kRoundMask) ? rounded(Op::op, static_cast<int>(mod & kRoundMask), a, b, c) : Op::f(a, b, c);
    if (mod & kFtz) r = flush_(r);
    return (mod & kSat) ? saturate(r) : r;
}

template <class Op, class T>
int arithmetic(RegView& w, const Inst& i, uint32_t m) {
    constexpr bool three = Op::op == FloatOp::fma;
    auto* a = lanes<T>(w, i.a);
    auto* b = lanes<T>(w, i.b);
    auto* c = three ? lanes<T>(w, i.c) : a;
    auto* d = lanes<T>(w, i.d);
    if (i.mod == 0) {
        write_lanes(d, m, [&](uint32_t l) { return Op::f(a[l], b[l], c[l]); });
        return kNext;
    }
    for (uint32_t l = 0; l < kLanes; ++l)
        if (m >> l & 1) d[l] = with_modifiers<Op, T>(i.mod, a[l], b[l], c[l]);
    return kNext;
}

// Two float32 in a 64-bit register.
template <class Op>
int packed(RegView& w, const Inst& i, uint32_t m) {
    constexpr bool three = Op::op == FloatOp::fma;
    auto* a = lanes<float>(w, i.a);
    auto* b = lanes<float>(w, i.b);
    auto* c = three ? lanes<float>(w, i.c) : a;
    alignas(64) float r[2 * kLanes];
    if (i.mod == 0) {
        for (uint32_t l = 0; l < 2 * kLanes; ++l) r[l] = Op::f(a[l], b[l], c[l]);
    } else {
        for (uint32_t l = 0; l < 2 * kLanes; ++l) r[l] = with_modifiers<Op, float>(i.mod, a[l], b[l], c[l]);
    }
    auto* s = reinterpret_cast<uint64_t*>(r);
    write_lanes(lanes<uint64_t>(w, i.d), m, [&](uint32_t l) { return s[l]; });
    return kNext;
}

template <class T>
struct Word;
template <>
struct Word<float> {
    using type = uint32_t;
};
template <>
struct Word<double> {
    using type = uint64_t;
};

template <bool Max, class T>
T extremum(T a, T b, uint32_t mod) {
    using W = typename Word<T>::type;
    constexpr W sign = W(1) << (8 * sizeof(T) - 1);
    if (mod & kFtz) a = flush_(a), b = flush_(b);
    const W s = (bits<W>(a) ^ bits<W>(b)) & sign;
    if (mod & kXorSignAbs)
        a = bits<T>(static_cast<W>(bits<W>(a) & ~sign)), b = bits<T>(static_cast<W>(bits<W>(b) & ~sign));
    T r;
    if (a != a || b != b) {
        if ((mod & kNan) || (a != a && b != b))
            return sizeof(T) == 4 ? bits<T>(static_cast<W>(0x7fffffffu))
                                  : bits<T>(static_cast<W>(0x7fffffffffffffffull));
        r = a != a ? b : a;
    } else if (a == b) {  // -0 is below +0
        r = bits<T>(static_cast<W>(Max ? bits<W>(a) & bits<W>(b) : bits<W>(a) | bits<W>(b)));
    } else {
        r = (Max ? a > b : a < b) ? a : b;
    }
    return (mod & kXorSignAbs) ? bits<T>(static_cast<W>((bits<W>(r) & ~sign) | s)) : r;
}

template <bool Max, class T>
int min_max(RegView& w, const Inst& i, uint32_t m) {  // two or three inputs
    auto* a = lanes<T>(w, i.a);
    auto* b = lanes<T>(w, i.b);
    const uint32_t mod = i.mod;
    if (i.c == kNoOperand) {
        if (mod == 0) {
            write_lanes(lanes<T>(w, i.d), m, [&](uint32_t l) { return extremum<Max>(a[l], b[l], 0); });
        } else {
            write_lanes(lanes<T>(w, i.d), m, [&](uint32_t l) { return extremum<Max>(a[l], b[l], mod); });
        }
        return kNext;
    }
    auto* c = lanes<T>(w, i.c);
    write_lanes(lanes<T>(w, i.d), m,
                [&](uint32_t l) { return extremum<Max>(extremum<Max>(a[l], b[l], mod), c[l], mod); });
    return kNext;
}

template <class T>
int negate(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<T>(w, i.a);
    const bool ftz = i.mod & kFtz;
    write_lanes(lanes<T>(w, i.d), m, [&](uint32_t l) { return -(ftz ? flush_(a[l]) : a[l]); });
    return kNext;
}
template <class T>
int absolute(RegView& w, const Inst& i, uint32_t m) {
    using W = typename Word<T>::type;
    auto* a = lanes<W>(w, i.a);
    const bool ftz = i.mod & kFtz;
    write_lanes(lanes<W>(w, i.d), m, [&](uint32_t l) {
        const W x = ftz ? bits<W>(flush_(bits<T>(a[l]))) : a[l];
        return static_cast<W>(x & ~(W(1) << (8 * sizeof(T) - 1)));
    });
    return kNext;
}
template <class T>  // d = sign of a, magnitude of b
int copy_sign(RegView& w, const Inst& i, uint32_t m) {
    using W = typename Word<T>::type;
    auto* a = lanes<W>(w, i.a);
    auto* b = lanes<W>(w, i.b);
    constexpr W sign = W(1) << (8 * sizeof(T) - 1);
    write_lanes(lanes<W>(w, i.d), m, [&](uint32_t l) { return static_cast<W>((a[l] & sign) | (b[l] & ~sign)); });
    return kNext;
}

struct Reciprocal {
    template <class T>
    static T f(T a) {
        return T(1) / a;
    }
};
struct Sqrt {
    static float f(float a) { return __builtin_sqrtf(a); }
    static double f(double a) { return __builtin_sqrt(a); }
};
struct Rsqrt {
    static float f(float a) { return static_cast<float>(1.0 / __builtin_sqrt(double(a))); }
    static double f(double a) { return 1.0 / __builtin_sqrt(a); }
};
struct Sin {
    static float f(float a) { return __builtin_sinf(a); }
};
struct Cos {
    static float f(float a) { return __builtin_cosf(a); }
};
struct Log2 {
    static float f(float a) { return __builtin_log2f(a); }
};
struct Exp2 {
    static float f(float a) { return __builtin_exp2f(a); }
};
struct Tanh {
    static float f(float a) { return __builtin_tanhf(a); }
};

template <class Op, class T>
int function(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<T>(w, i.a);
    auto* d = lanes<T>(w, i.d);
    const bool ftz = i.mod & kFtz;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        const T r = Op::f(ftz ? flush_(a[l]) : a[l]);
        d[l] = ftz ? flush_(r) : r;
    }
    return kNext;
}

template <class T>
int square_root(RegView& w, const Inst& i, uint32_t m) {
    if ((i.mod & kRoundMask) == 0) return function<Sqrt, T>(w, i, m);
    auto* a = lanes<T>(w, i.a);
    auto* d = lanes<T>(w, i.d);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (m >> l & 1) {
            const T x = (i.mod & kFtz) ? flush_(a[l]) : a[l];
            const T r = rounded(FloatOp::sqrt, static_cast<int>(i.mod & kRoundMask), x, T(0), T(0));
            d[l] = (i.mod & kFtz) ? flush_(r) : r;
        }
    return kNext;
}

template <class T>
int reciprocal(RegView& w, const Inst& i, uint32_t m) {
    if ((i.mod & kRoundMask) == 0) return function<Reciprocal, T>(w, i, m);
    auto* a = lanes<T>(w, i.a);
    auto* d = lanes<T>(w, i.d);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (m >> l & 1) d[l] = with_modifiers<Div, T>(i.mod, T(1), a[l], T(0));
    return kNext;
}

const NamedHandler table[] = {
    {"add.f32", arithmetic<Add, float>},
    {"sub.f32", arithmetic<Sub, float>},
    {"mul.f32", arithmetic<Mul, float>},
    {"div.f32", arithmetic<Div, float>},
    {"fma.f32", arithmetic<Fma, float>},
    {"add.f64", arithmetic<Add, double>},
    {"sub.f64", arithmetic<Sub, double>},
    {"mul.f64", arithmetic<Mul, double>},
    {"div.f64", arithmetic<Div, double>},
    {"fma.f64", arithmetic<Fma, double>},
    {"add.f32x2", packed<Add>},
    {"sub.f32x2", packed<Sub>},
    {"mul.f32x2", packed<Mul>},
    {"fma.f32x2", packed<Fma>},
    {"min.f32", min_max<false, float>},
    {"max.f32", min_max<true, float>},
    {"min.f64", min_max<false, double>},
    {"max.f64", min_max<true, double>},
    {"neg.f32", negate<float>},
    {"neg.f64", negate<double>},
    {"abs.f32", absolute<float>},
    {"abs.f64", absolute<double>},
    {"copysign.f32", copy_sign<float>},
    {"copysign.f64", copy_sign<double>},
    {"rcp.f32", reciprocal<float>},
    {"rcp.f64", reciprocal<double>},
    {"sqrt.f32", square_root<float>},
    {"sqrt.f64", square_root<double>},
    {"rsqrt.f32", function<Rsqrt, float>},
    {"rsqrt.f64", function<Rsqrt, double>},
    {"sin.f32", function<Sin, float>},
    {"cos.f32", function<Cos, float>},
    {"lg2.f32", function<Log2, float>},
    {"ex2.f32", function<Exp2, float>},
    {"tanh.f32", function<Tanh, float>},
};

}  // namespace

HandlerTable VARIANT(float)() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
