// Comparison, selection and predicate logic (PTX ISA 9.7.6, 9.7.7).
//
// Inst::mod of setp and set: bits 0-1 combine with predicate c (1 and, 2 or, 3 xor), bit 2 .ftz,
// bit 8 negates c. setp writes d = compare OP c and, if e is given, e = !compare OP c.
#include "alu.hpp"
#include "lanes.hpp"

namespace machete::sim {
namespace {

constexpr uint32_t kNegateC = 256;

uint32_t combine(RegView& w, const Inst& i, uint32_t r) {
    if ((i.mod & 3) == 0) return r;
    const uint32_t c = (i.mod & kNegateC) ? ~w.pred[i.c] : w.pred[i.c];
    return (i.mod & 3) == 1 ? r & c : (i.mod & 3) == 2 ? r | c : r ^ c;
}

#define COMPARE(NAME, EXPR)       \
    struct NAME {                 \
        template <class T>        \
        static bool f(T a, T b) { \
            return EXPR;          \
        }                         \
    };
COMPARE(Eq, a == b)
COMPARE(Lt, a < b)
COMPARE(Le, a <= b)
COMPARE(Gt, a > b)
COMPARE(Ge, a >= b)
COMPARE(Ne, a != b)                    // integers
COMPARE(NeOrdered, (a < b) | (a > b))  // floats: false if either is NaN
COMPARE(Equ, !((a < b) | (a > b)))
COMPARE(Ltu, !(a >= b))
COMPARE(Leu, !(a > b))
COMPARE(Gtu, !(a <= b))
COMPARE(Geu, !(a < b))
COMPARE(Num, (a == a) & (b == b))
COMPARE(Nan, (a != a) | (b != b))

inline float flush_value(float v) { return flush(v); }
template <class T>
inline T flush_value(T v) {
    return v;
}

template <class Op, class T>
uint32_t compare(RegView& w, const Inst& i) {
    auto* a = lanes<typename T::lane>(w, i.a);
    auto* b = lanes<typename T::lane>(w, i.b);
    if (i.mod & kFtz)
        return test_lanes([&](uint32_t l) { return Op::f(flush_value(T::get(a[l])), flush_value(T::get(b[l]))); });
    return test_lanes([&](uint32_t l) { return Op::f(T::get(a[l]), T::get(b[l])); });
}

template <class Op, class T>
int setp(RegView& w, const Inst& i, uint32_t m) {
    const uint32_t r = compare<Op, T>(w, i);
    const uint32_t p = combine(w, i, r), q = combine(w, i, ~r);
    write_pred(w, i.d, m, p);
    write_pred(w, i.e, m, q);
    return kNext;
}

template <class Op, class T>  // two results, one per half: d low, e high
int setp_pair(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    const uint32_t lo = test_lanes([&](uint32_t l) { return Op::f(T::get(a[l]), T::get(b[l])); });
    const uint32_t hi = test_lanes([&](uint32_t l) { return Op::f(T::get(a[l] >> 16), T::get(b[l] >> 16)); });
    const uint32_t p = combine(w, i, lo), q = combine(w, i, hi);
    write_pred(w, i.d, m, p);
    write_pred(w, i.e, m, q);
    return kNext;
}

template <class Op, class T>  // imm 0: all ones, else the bits of 1.0f
int set(RegView& w, const Inst& i, uint32_t m) {
    const uint32_t r = combine(w, i, compare<Op, T>(w, i));
    const uint32_t one = i.imm ? 0x3f800000u : ~0u;
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return (r >> l & 1) ? one : 0u; });
    return kNext;
}

// selp: d = c ? a : b
template <class V>
int select(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    auto* b = lanes<V>(w, i.b);
    const uint32_t c = w.pred[i.c];
    write_lanes(lanes<V>(w, i.d), m, [&](uint32_t l) { return (c >> l & 1) ? a[l] : b[l]; });
    return kNext;
}

// slct: d = c >= 0 ? a : b
template <class V, class C>
int select_sign(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    auto* b = lanes<V>(w, i.b);
    auto* c = lanes<C>(w, i.c);
    write_lanes(lanes<V>(w, i.d), m, [&](uint32_t l) { return c[l] >= C(0) ? a[l] : b[l]; });
    return kNext;
}

// testp; mod: 0 finite, 1 infinite, 2 number, 3 notanumber, 4 normal, 5 subnormal
template <class W, int Mantissa>
int test_property(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<W>(w, i.a);
    constexpr W sign = W(1) << (8 * sizeof(W) - 1);
    constexpr W frac = (W(1) << Mantissa) - 1, expo = ~(sign | frac);
    const uint32_t kind = i.mod;
    const uint32_t r = test_lanes([&](uint32_t l) {
        const W e = a[l] & expo, f = a[l] & frac;
        switch (kind) {
            case 0: return e != expo;
            case 1: return e == expo && f == 0;
            case 2: return !(e == expo && f != 0);
            case 3: return e == expo && f != 0;
            case 4: return e != expo && e != 0;
            default: return e == 0 && f != 0;
        }
    });
    write_pred(w, i.d, m, r);
    return kNext;
}

int pred_and(RegView& w, const Inst& i, uint32_t m) {
    write_pred(w, i.d, m, w.pred[i.a] & w.pred[i.b]);
    return kNext;
}
int pred_or(RegView& w, const Inst& i, uint32_t m) {
    write_pred(w, i.d, m, w.pred[i.a] | w.pred[i.b]);
    return kNext;
}
int pred_xor(RegView& w, const Inst& i, uint32_t m) {
    write_pred(w, i.d, m, w.pred[i.a] ^ w.pred[i.b]);
    return kNext;
}
int pred_not(RegView& w, const Inst& i, uint32_t m) {
    write_pred(w, i.d, m, ~w.pred[i.a]);
    return kNext;
}
int pred_mov(RegView& w, const Inst& i, uint32_t m) {
    write_pred(w, i.d, m, w.pred[i.a]);
    return kNext;
}

#define INTEGER(FN, KIND, CMP, OP)                                                                              \
    {KIND "." CMP ".u16", FN<OP, U16>}, {KIND "." CMP ".s16", FN<OP, S16>}, {KIND "." CMP ".u32", FN<OP, U32>}, \
        {KIND "." CMP ".s32", FN<OP, S32>}, {KIND "." CMP ".u64", FN<OP, U64>}, {                               \
        KIND "." CMP ".s64", FN<OP, S64>                                                                        \
    }
#define FLOATING(FN, KIND, CMP, OP)                                                                               \
    {KIND "." CMP ".f32", FN<OP, F32>}, {KIND "." CMP ".f64", FN<OP, F64>}, {KIND "." CMP ".f16", FN<OP, F16>}, { \
        KIND "." CMP ".bf16", FN<OP, BF16>                                                                        \
    }
#define PAIRS(CMP, OP) \
    {"setp." CMP ".f16x2", setp_pair<OP, F16>}, { "setp." CMP ".bf16x2", setp_pair<OP, BF16> }
#define ALL_INTEGER(FN, KIND)                                                              \
    INTEGER(FN, KIND, "eq", Eq), INTEGER(FN, KIND, "ne", Ne), INTEGER(FN, KIND, "lt", Lt), \
        INTEGER(FN, KIND, "le", Le), INTEGER(FN, KIND, "gt", Gt), INTEGER(FN, KIND, "ge", Ge)
#define ALL_FLOATING(FN, KIND)                                                                          \
    FLOATING(FN, KIND, "eq", Eq), FLOATING(FN, KIND, "ne", NeOrdered), FLOATING(FN, KIND, "lt", Lt),    \
        FLOATING(FN, KIND, "le", Le), FLOATING(FN, KIND, "gt", Gt), FLOATING(FN, KIND, "ge", Ge),       \
        FLOATING(FN, KIND, "equ", Equ), FLOATING(FN, KIND, "neu", Ne), FLOATING(FN, KIND, "ltu", Ltu),  \
        FLOATING(FN, KIND, "leu", Leu), FLOATING(FN, KIND, "gtu", Gtu), FLOATING(FN, KIND, "geu", Geu), \
        FLOATING(FN, KIND, "num", Num), FLOATING(FN, KIND, "nan", Nan)

const NamedHandler table[] = {
    ALL_INTEGER(setp, "setp"),
    ALL_FLOATING(setp, "setp"),
    ALL_INTEGER(set, "set"),
    ALL_FLOATING(set, "set"),
    PAIRS("eq", Eq),
    PAIRS("ne", NeOrdered),
    PAIRS("lt", Lt),
    PAIRS("le", Le),
    PAIRS("gt", Gt),
    PAIRS("ge", Ge),
    PAIRS("equ", Equ),
    PAIRS("neu", Ne),
    PAIRS("ltu", Ltu),
    PAIRS("leu", Leu),
    PAIRS("gtu", Gtu),
    PAIRS("geu", Geu),
    PAIRS("num", Num),
    PAIRS("nan", Nan),
    {"selp.b16", select<uint32_t>},
    {"selp.b32", select<uint32_t>},
    {"selp.b64", select<uint64_t>},
    {"slct.b16.s32", select_sign<uint32_t, int32_t>},
    {"slct.b32.s32", select_sign<uint32_t, int32_t>},
    {"slct.b64.s32", select_sign<uint64_t, int32_t>},
    {"slct.b16.f32", select_sign<uint32_t, float>},
    {"slct.b32.f32", select_sign<uint32_t, float>},
    {"slct.b64.f32", select_sign<uint64_t, float>},
    {"testp.f32", test_property<uint32_t, 23>},
    {"testp.f64", test_property<uint64_t, 52>},
    {"and.pred", pred_and},
    {"or.pred", pred_or},
    {"xor.pred", pred_xor},
    {"not.pred", pred_not},
    {"mov.pred", pred_mov},
};

}  // namespace

HandlerTable VARIANT(compare)() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
