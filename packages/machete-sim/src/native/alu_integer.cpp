// Integer, logic, shift and bit-field instructions (PTX ISA 9.7.1, 9.7.2, 9.7.8).
#include <type_traits>

#include "alu.hpp"
#include "lanes.hpp"

namespace machete::sim {
namespace {

#define OP2(NAME, EXPR)                  \
    struct NAME {                        \
        template <class T>               \
        static T f(T a, T b) {           \
            return static_cast<T>(EXPR); \
        }                                \
    };
#define OP1(NAME, EXPR)                  \
    struct NAME {                        \
        template <class T>               \
        static T f(T a) {                \
            return static_cast<T>(EXPR); \
        }                                \
    };

OP2(Add, a + b)
OP2(Sub, a - b)
OP2(Mul, a* b)
OP2(And, a& b)
OP2(Or, a | b)
OP2(Xor, a ^ b)
OP2(Min, a < b ? a : b)
OP2(Max, a > b ? a : b)
OP2(MinRelu, (a < b ? a : b) < 0 ? 0 : (a < b ? a : b))
OP2(MaxRelu, (a > b ? a : b) < 0 ? 0 : (a > b ? a : b))
OP1(Not, ~a)
OP1(Cnot, a == 0 ? 1 : 0)

struct Neg {
    template <class T>
    static T f(T a) {
        return static_cast<T>(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(a));
    }
};
struct Abs {
    template <class T>
    static T f(T a) {
        return a < 0 ? Neg::f(a) : a;
    }
};
struct Sad {  // c + |a - b|
    template <class T>
    static T f(T a, T b, T c) {
        using U = std::make_unsigned_t<T>;
        const U d = a < b ? U(b) - U(a) : U(a) - U(b);
        return static_cast<T>(U(c) + d);
    }
};
struct MadLo {
    template <class T>
    static T f(T a, T b, T c) {
        return static_cast<T>(a * b + c);
    }
};
struct Div {  // the result of a division by zero is unspecified; all ones is what hardware gives
    template <class T>
    static T f(T a, T b) {
        if (b == 0) return static_cast<T>(~T(0));
        if constexpr (T(-1) < T(0)) {
            if (b == T(-1)) return Neg::f(a);
        }
        return static_cast<T>(a / b);
    }
};
struct Rem {
    template <class T>
    static T f(T a, T b) {
        if (b == 0) return static_cast<T>(~T(0));  // unspecified; seen on an H200
        if constexpr (T(-1) < T(0)) {
            if (b == T(-1)) return 0;
        }
        return static_cast<T>(a % b);
    }
};

template <class T>
struct Wider;
template <>
struct Wider<uint16_t> {
    using type = uint32_t;
};
template <>
struct Wider<int16_t> {
    using type = int32_t;
};
template <>
struct Wider<uint32_t> {
    using type = uint64_t;
};
template <>
struct Wider<int32_t> {
    using type = int64_t;
};
template <>
struct Wider<uint64_t> {
    using type = unsigned __int128;
};
template <>
struct Wider<int64_t> {
    using type = __int128;
};

struct MulHi {
    template <class T>
    static T f(T a, T b) {
        using W = typename Wider<T>::type;
        return static_cast<T>((W(a) * W(b)) >> (8 * sizeof(T)));
    }
};
struct MadHi {
    template <class T>
    static T f(T a, T b, T c) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(U(MulHi::f(a, b)) + U(c));
    }
};
struct Mul24Lo {
    static uint32_t f(uint32_t a, uint32_t b) { return (a & 0xffffffu) * (b & 0xffffffu); }
    static int32_t f(int32_t a, int32_t b) {
        return static_cast<int32_t>(uint32_t((int32_t(uint32_t(a) << 8) >> 8)) *
                                    uint32_t(int32_t(uint32_t(b) << 8) >> 8));
    }
};
struct AddSat {
    static int32_t f(int32_t a, int32_t b) {
        const int64_t s = int64_t(a) + b;
        return s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : static_cast<int32_t>(s);
    }
};
struct SubSat {
    static int32_t f(int32_t a, int32_t b) {
        const int64_t s = int64_t(a) - b;
        return s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : static_cast<int32_t>(s);
    }
};

// a * b (+ c) with a result twice as wide
template <class N, class W, bool Mad>
int wide(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<typename N::lane>(w, i.a);
    auto* b = lanes<typename N::lane>(w, i.b);
    auto* d = lanes<typename W::lane>(w, i.d);
    using V = typename W::val;
    if constexpr (Mad) {
        auto* c = lanes<typename W::lane>(w, i.c);
        write_lanes(d, m, [&](uint32_t l) { return static_cast<V>(V(N::get(a[l])) * V(N::get(b[l])) + c[l]); });
    } else {
        write_lanes(d, m, [&](uint32_t l) { return static_cast<V>(V(N::get(a[l])) * V(N::get(b[l]))); });
    }
    return kNext;
}

// Shifts take a 32-bit count and clamp it.
template <class T, int Kind>  // 0 left, 1 right
int shift(RegView& w, const Inst& i, uint32_t m) {
    using V = typename T::val;
    constexpr uint32_t n = 8 * sizeof(V);
    auto* a = lanes<typename T::lane>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    write_lanes(lanes<typename T::lane>(w, i.d), m, [&](uint32_t l) {
        const V x = T::get(a[l]);
        const uint32_t s = b[l];
        if constexpr (Kind == 0) {
            return T::put(s >= n ? V(0) : static_cast<V>(x << (s & (n - 1))));
        } else if constexpr (V(-1) < V(0)) {
            return T::put(static_cast<V>(x >> (s >= n ? n - 1 : s)));
        } else {
            return T::put(s >= n ? V(0) : static_cast<V>(x >> (s & (n - 1))));
        }
    });
    return kNext;
}

// Funnel shift; mod bit 0: right, bit 1: wrap (else clamp).
int funnel(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    const bool right = i.mod & 1, wrap = i.mod & 2;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        const uint64_t x = uint64_t(b[l]) << 32 | a[l];
        const uint32_t n = wrap ? c[l] & 31u : (c[l] < 32u ? c[l] : 32u);
        return right ? static_cast<uint32_t>(x >> n) : static_cast<uint32_t>((x << n) >> 32);
    });
    return kNext;
}

template <class T>
int bit_extract(RegView& w, const Inst& i, uint32_t m) {
    using V = typename T::val;
    using U = std::make_unsigned_t<V>;
    constexpr uint32_t n = 8 * sizeof(V);
    auto* a = lanes<V>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    write_lanes(lanes<V>(w, i.d), m, [&](uint32_t l) -> V {
        const uint32_t pos = b[l] & 255u, len = c[l] & 255u;
        if (len == 0) return 0;
        const U x = static_cast<U>(a[l]);
        const uint32_t top = pos + len - 1 < n - 1 ? pos + len - 1 : n - 1;
        const bool sign = V(-1) < V(0) && (x >> top & 1);
        const uint32_t have = pos >= n ? 0 : (n - pos < len ? n - pos : len);  // bits that exist
        U r = pos >= n ? U(0) : static_cast<U>(x >> pos);
        if (have < n) {
            const U keep = (U(1) << have) - 1;
            r = sign ? (r | ~keep) : (r & keep);
        }
        return static_cast<V>(r);
    });
    return kNext;
}

template <class V>
int bit_insert(RegView& w, const Inst& i, uint32_t m) {
    constexpr uint32_t n = 8 * sizeof(V);
    auto* a = lanes<V>(w, i.a);
    auto* b = lanes<V>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    auto* e = lanes<uint32_t>(w, i.e);
    write_lanes(lanes<V>(w, i.d), m, [&](uint32_t l) -> V {
        const uint32_t pos = c[l] & 255u, len = e[l] & 255u;
        if (pos >= n || len == 0) return b[l];
        V field = len >= n ? ~V(0) : (V(1) << len) - 1;
        field <<= pos;
        return (b[l] & ~field) | ((a[l] << pos) & field);
    });
    return kNext;
}

template <class V>  // popc, clz: 32-bit results
int population(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    write_lanes(lanes<uint32_t>(w, i.d), m,
                [&](uint32_t l) { return static_cast<uint32_t>(__builtin_popcountll(a[l])); });
    return kNext;
}

template <class V>
int leading_zeros(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        return a[l] == 0 ? uint32_t(8 * sizeof(V))
                         : static_cast<uint32_t>(__builtin_clzll(a[l])) - (64 - 8 * uint32_t(sizeof(V)));
    });
    return kNext;
}

// Position of the highest bit that differs from the sign; mod bit 0: as a shift amount.
template <class V>
int find_bit(RegView& w, const Inst& i, uint32_t m) {
    using U = std::make_unsigned_t<V>;
    auto* a = lanes<V>(w, i.a);
    const bool amount = i.mod & 1;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) -> uint32_t {
        const U x = a[l] < 0 ? static_cast<U>(~a[l]) : static_cast<U>(a[l]);
        if (x == 0) return ~0u;
        const uint32_t p = 63u - static_cast<uint32_t>(__builtin_clzll(x));
        return amount ? uint32_t(8 * sizeof(V)) - 1 - p : p;
    });
    return kNext;
}

template <class V>
int reverse(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    write_lanes(lanes<V>(w, i.d), m, [&](uint32_t l) {
        V x = a[l], r = 0;
        for (uint32_t k = 0; k < 8 * sizeof(V); ++k) {
            r = (r << 1) | (x & 1);
            x >>= 1;
        }
        return r;
    });
    return kNext;
}

// Byte permutation; mod: 0 generic, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16.
int permute(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    static const uint16_t table[7][4] = {
        {0, 0, 0, 0},
        {0x3210, 0x4321, 0x5432, 0x6543},
        {0x5670, 0x6701, 0x7012, 0x0123},
        {0x0000, 0x1111, 0x2222, 0x3333},
        {0x3210, 0x3211, 0x3222, 0x3333},
        {0x0000, 0x1110, 0x2210, 0x3210},
        {0x1010, 0x3232, 0x1010, 0x3232},
    };
    const uint32_t mode = i.mod;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        const uint64_t x = uint64_t(b[l]) << 32 | a[l];
        const uint32_t sel = mode ? table[mode][c[l] & 3] : c[l];
        uint32_t r = 0;
        for (uint32_t k = 0; k < 4; ++k) {
            const uint32_t s = sel >> (4 * k) & 15u;
            uint32_t byte = static_cast<uint32_t>(x >> (8 * (s & 7u))) & 255u;
            if (s & 8u) byte = byte & 128u ? 255u : 0u;
            r |= byte << (8 * k);
        }
        return r;
    });
    return kNext;
}

int lop3(RegView& w, const Inst& i, uint32_t m) {  // truth table in mod
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    uint32_t k[8];
    for (uint32_t j = 0; j < 8; ++j) k[j] = i.mod >> j & 1 ? ~0u : 0u;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        const uint32_t x = a[l], y = b[l], z = c[l];
        return (k[0] & ~x & ~y & ~z) | (k[1] & ~x & ~y & z) | (k[2] & ~x & y & ~z) | (k[3] & ~x & y & z) |
               (k[4] & x & ~y & ~z) | (k[5] & x & ~y & z) | (k[6] & x & y & ~z) | (k[7] & x & y & z);
    });
    return kNext;
}

// Four-way byte dot product; mod bit 0: a is signed, bit 1: b is signed.
int dot4(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    const bool sa = i.mod & 1, sb = i.mod & 2;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        uint32_t r = c[l];
        for (uint32_t k = 0; k < 32; k += 8) {
            const uint32_t x = a[l] >> k & 255u, y = b[l] >> k & 255u;
            r += static_cast<uint32_t>((sa ? int32_t(int8_t(x)) : int32_t(x)) * (sb ? int32_t(int8_t(y)) : int32_t(y)));
        }
        return r;
    });
    return kNext;
}

// Extended precision: mod bit 0 takes the carry in, bit 1 writes the carry out.
template <class V, bool Subtract>
int carry(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    auto* b = lanes<V>(w, i.b);
    auto* d = lanes<V>(w, i.d);
    uint32_t out = w.carry;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        const V cin = (i.mod & 1) ? (w.carry >> l & 1) : V(0);
        const V x = a[l], y = b[l];
        V r;
        bool c;
        if constexpr (Subtract) {  // CC.CF holds the borrow
            r = x - y - cin;
            c = x < y || (x == y && cin);
        } else {
            r = x + y + cin;
            c = r < x || (cin && r == x);
        }
        d[l] = r;
        out = (out & ~(1u << l)) | (uint32_t(c) << l);
    }
    if (i.mod & 2) w.carry = out;
    return kNext;
}

// mad with carry; mod bit 2 takes the high half of the product.
template <class V, class W>
int mad_carry(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    auto* b = lanes<V>(w, i.b);
    auto* c = lanes<V>(w, i.c);
    auto* d = lanes<V>(w, i.d);
    using U = std::make_unsigned_t<V>;
    uint32_t out = w.carry;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(m >> l & 1)) continue;
        const W p = W(a[l]) * W(b[l]);
        const U t = static_cast<U>((i.mod & 4) ? p >> (8 * sizeof(V)) : p);
        const U cin = (i.mod & 1) ? (w.carry >> l & 1) : 0;
        const U s = t + static_cast<U>(c[l]);
        const U r = s + cin;
        const bool co = s < t || r < s;
        d[l] = static_cast<V>(r);
        out = (out & ~(1u << l)) | (uint32_t(co) << l);
    }
    if (i.mod & 2) w.carry = out;
    return kNext;
}

// Two 16-bit halves.
template <class Op, class V>
int halves(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        const V lo = Op::f(static_cast<V>(a[l]), static_cast<V>(b[l]));
        const V hi = Op::f(static_cast<V>(a[l] >> 16), static_cast<V>(b[l] >> 16));
        return uint32_t(uint16_t(lo)) | uint32_t(uint16_t(hi)) << 16;
    });
    return kNext;
}

const NamedHandler table[] = {
#define BIN(NAME, OP) \
    {NAME ".b16", binary<OP, U16>}, {NAME ".b32", binary<OP, U32>}, { NAME ".b64", binary<OP, U64> }
    BIN("add", Add),
    BIN("sub", Sub),
    BIN("mul.lo", Mul),
    BIN("and", And),
    BIN("or", Or),
    BIN("xor", Xor),
#define UN(NAME, OP) \
    {NAME ".b16", unary<OP, U16>}, {NAME ".b32", unary<OP, U32>}, { NAME ".b64", unary<OP, U64> }
    UN("not", Not),
    UN("cnot", Cnot),
#define SIGNED1(NAME, OP) \
    {NAME ".s16", unary<OP, S16>}, {NAME ".s32", unary<OP, S32>}, { NAME ".s64", unary<OP, S64> }
    SIGNED1("neg", Neg),
    SIGNED1("abs", Abs),
#define ALL2(NAME, OP)                                                                              \
    {NAME ".u16", binary<OP, U16>}, {NAME ".s16", binary<OP, S16>}, {NAME ".u32", binary<OP, U32>}, \
        {NAME ".s32", binary<OP, S32>}, {NAME ".u64", binary<OP, U64>}, {                           \
        NAME ".s64", binary<OP, S64>                                                                \
    }
    ALL2("min", Min),
    ALL2("max", Max),
    ALL2("div", Div),
    ALL2("rem", Rem),
    ALL2("mul.hi", MulHi),
#define ALL3(NAME, OP)                                                                                 \
    {NAME ".u16", ternary<OP, U16>}, {NAME ".s16", ternary<OP, S16>}, {NAME ".u32", ternary<OP, U32>}, \
        {NAME ".s32", ternary<OP, S32>}, {NAME ".u64", ternary<OP, U64>}, {                            \
        NAME ".s64", ternary<OP, S64>                                                                  \
    }
    ALL3("sad", Sad),
    ALL3("mad.hi", MadHi),
    {"mad.lo.b16", ternary<MadLo, U16>},
    {"mad.lo.b32", ternary<MadLo, U32>},
    {"mad.lo.b64", ternary<MadLo, U64>},
    {"min.relu.s32", binary<MinRelu, S32>},
    {"max.relu.s32", binary<MaxRelu, S32>},
    {"mul24.lo.u32", binary<Mul24Lo, U32>},
    {"mul24.lo.s32", binary<Mul24Lo, S32>},
    {"add.sat.s32", binary<AddSat, S32>},
    {"sub.sat.s32", binary<SubSat, S32>},
    {"mul.wide.u16", wide<U16, U32, false>},
    {"mul.wide.s16", wide<S16, S32, false>},
    {"mul.wide.u32", wide<U32, U64, false>},
    {"mul.wide.s32", wide<S32, S64, false>},
    {"mad.wide.u16", wide<U16, U32, true>},
    {"mad.wide.s16", wide<S16, S32, true>},
    {"mad.wide.u32", wide<U32, U64, true>},
    {"mad.wide.s32", wide<S32, S64, true>},
    {"shl.b16", shift<U16, 0>},
    {"shl.b32", shift<U32, 0>},
    {"shl.b64", shift<U64, 0>},
    {"shr.u16", shift<U16, 1>},
    {"shr.u32", shift<U32, 1>},
    {"shr.u64", shift<U64, 1>},
    {"shr.s16", shift<S16, 1>},
    {"shr.s32", shift<S32, 1>},
    {"shr.s64", shift<S64, 1>},
    {"shf", funnel},
    {"bfe.u32", bit_extract<U32>},
    {"bfe.s32", bit_extract<S32>},
    {"bfe.u64", bit_extract<U64>},
    {"bfe.s64", bit_extract<S64>},
    {"bfi.b32", bit_insert<uint32_t>},
    {"bfi.b64", bit_insert<uint64_t>},
    {"popc.b32", population<uint32_t>},
    {"popc.b64", population<uint64_t>},
    {"clz.b32", leading_zeros<uint32_t>},
    {"clz.b64", leading_zeros<uint64_t>},
    {"bfind.u32", find_bit<uint32_t>},
    {"bfind.s32", find_bit<int32_t>},
    {"bfind.u64", find_bit<uint64_t>},
    {"bfind.s64", find_bit<int64_t>},
    {"brev.b32", reverse<uint32_t>},
    {"brev.b64", reverse<uint64_t>},
    {"prmt", permute},
    {"lop3", lop3},
    {"dp4a", dot4},
    {"add.carry.b32", carry<uint32_t, false>},
    {"add.carry.b64", carry<uint64_t, false>},
    {"sub.carry.b32", carry<uint32_t, true>},
    {"sub.carry.b64", carry<uint64_t, true>},
    {"mad.carry.u32", mad_carry<uint32_t, uint64_t>},
    {"mad.carry.s32", mad_carry<int32_t, int64_t>},
    {"mad.carry.u64", mad_carry<uint64_t, unsigned __int128>},
    {"mad.carry.s64", mad_carry<int64_t, __int128>},
    {"add.b16x2", halves<Add, uint16_t>},
    {"min.u16x2", halves<Min, uint16_t>},
    {"max.u16x2", halves<Max, uint16_t>},
    {"min.s16x2", halves<Min, int16_t>},
    {"max.s16x2", halves<Max, int16_t>},
    {"min.relu.s16x2", halves<MinRelu, int16_t>},
    {"max.relu.s16x2", halves<MaxRelu, int16_t>},
};

}  // namespace

HandlerTable VARIANT(integer)() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
