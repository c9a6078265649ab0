// cvt to and from formats below 16 bits, packed and modified 16-bit forms, tf32 (PTX ISA 9.7.9.21).
#include "lanes.hpp"
#include "machine.hpp"
#include "numbers.hpp"

namespace machete::sim {
namespace {

Narrowing narrowing(uint32_t mod) {
    Narrowing how;
    how.rounding = (mod & kRoundAway)        ? Rounding::nearest_away
                   : (mod & kRoundMask) == 1 ? Rounding::toward_zero
                                             : Rounding::nearest_even;
    how.satfinite = mod & kSatFinite;
    how.relu = mod & kRelu;
    return how;
}

template <class F>
int each(RegView& w, const Inst& i, uint32_t mask, F f) {
    write_lanes(lanes<uint32_t>(w, i.d), mask, f);
    return kNext;
}

// d = {f(a), f(b)}: a is the upper part
template <class F>
int pair(RegView& w, const Inst& i, uint32_t mask, uint32_t width, F f) {
    auto* a = lanes<float>(w, i.a);
    auto* b = lanes<float>(w, i.b);
    return each(w, i, mask, [&](uint32_t l) { return uint32_t(f(a[l])) << width | uint32_t(f(b[l])); });
}

int f16x2(RegView& w, const Inst& i, uint32_t m) {
    const Narrowing how = narrowing(i.mod);
    return pair(w, i, m, 16, [&](float v) { return f16_from_f32(v, how); });
}
int bf16x2(RegView& w, const Inst& i, uint32_t m) {
    const Narrowing how = narrowing(i.mod);
    return pair(w, i, m, 16, [&](float v) { return bf16_from_f32(v, how); });
}
int e4m3x2(RegView& w, const Inst& i, uint32_t m) {
    const bool relu = i.mod & kRelu;
    return pair(w, i, m, 8, [&](float v) { return e4m3_from_f32(v, relu); });
}
int e5m2x2(RegView& w, const Inst& i, uint32_t m) {
    const bool relu = i.mod & kRelu;
    return pair(w, i, m, 8, [&](float v) { return e5m2_from_f32(v, relu); });
}

template <uint8_t (*Narrow)(float, bool)>
int fp8_from_halves(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const bool relu = i.mod & kRelu;
    return each(w, i, m, [&](uint32_t l) {
        return uint32_t(Narrow(f32_from_f16(high_16(a[l])), relu)) << 8 | Narrow(f32_from_f16(low_16(a[l])), relu);
    });
}

template <float (*Widen)(uint8_t)>
int halves_from_fp8(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const Narrowing how = narrowing(i.mod);
    return each(w, i, m, [&](uint32_t l) {
        return pack_16x2(f16_from_f32(Widen(static_cast<uint8_t>(a[l] >> 8)), how),
                         f16_from_f32(Widen(static_cast<uint8_t>(a[l])), how));
    });
}

// Four-bit pairs fill a byte: a is the upper half.
int e2m1x2(RegView& w, const Inst& i, uint32_t m) {
    const bool relu = i.mod & kRelu;
    return pair(w, i, m, 4, [&](float v) { return e2m1_from_f32(v, relu); });
}
int halves_from_e2m1(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const Narrowing how = narrowing(i.mod);
    return each(w, i, m, [&](uint32_t l) {
        return pack_16x2(f16_from_f32(f32_from_e2m1(static_cast<uint8_t>(a[l] >> 4 & 15u)), how),
                         f16_from_f32(f32_from_e2m1(static_cast<uint8_t>(a[l] & 15u)), how));
    });
}

// Powers of two, as the scales of block-scaled formats; mod: rounding towards zero or up.
int ue8m0x2(RegView& w, const Inst& i, uint32_t m) {
    const Rounding rounding = (i.mod & kRoundMask) == 1 ? Rounding::toward_zero : Rounding::up;
    const bool satfinite = i.mod & kSatFinite;
    return pair(w, i, m, 8, [&](float v) { return ue8m0_from_f32(v, rounding, satfinite); });
}
int bfloats_from_ue8m0(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    return each(w, i, m, [&](uint32_t l) {
        return pack_16x2(bf16_from_f32(f32_from_ue8m0(static_cast<uint8_t>(a[l] >> 8))),
                         bf16_from_f32(f32_from_ue8m0(static_cast<uint8_t>(a[l]))));
    });
}

int tf32(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<float>(w, i.a);
    const Narrowing how = narrowing(i.mod);
    return each(w, i, m, [&](uint32_t l) { return tf32_from_f32(a[l], how); });
}

const NamedHandler table[] = {
    {"cvt.narrow.f16x2", f16x2},
    {"cvt.narrow.bf16x2", bf16x2},
    {"cvt.e4m3x2.f32", e4m3x2},
    {"cvt.e5m2x2.f32", e5m2x2},
    {"cvt.e4m3x2.f16x2", fp8_from_halves<e4m3_from_f32>},
    {"cvt.e5m2x2.f16x2", fp8_from_halves<e5m2_from_f32>},
    {"cvt.f16x2.e4m3x2", halves_from_fp8<f32_from_e4m3>},
    {"cvt.f16x2.e5m2x2", halves_from_fp8<f32_from_e5m2>},
    {"cvt.e2m1x2.f32", e2m1x2},
    {"cvt.f16x2.e2m1x2", halves_from_e2m1},
    {"cvt.ue8m0x2.f32", ue8m0x2},
    {"cvt.bf16x2.ue8m0x2", bfloats_from_ue8m0},
    {"cvt.tf32.f32", tf32},
};

}  // namespace

HandlerTable narrow_convert_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
