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
// Pairs of narrow floats: two bytes, or for e2m1 the halves of one.
template <uint8_t (*Narrow)(float, bool), uint32_t Width>
int narrow_from_singles(RegView& w, const Inst& i, uint32_t m) {
    const bool relu = i.mod & kRelu;
    return pair(w, i, m, Width, [&](float v) { return Narrow(v, relu); });
}

template <uint8_t (*Narrow)(float, bool), uint32_t Width, float (*Source)(uint16_t)>
int narrow_from_halves(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const bool relu = i.mod & kRelu;
    return each(w, i, m, [&](uint32_t l) {
        return uint32_t(Narrow(Source(high_16(a[l])), relu)) << Width | Narrow(Source(low_16(a[l])), relu);
    });
}

template <float (*Widen)(uint8_t), uint32_t Width, uint16_t (*Target)(float, Narrowing)>
int halves_from_narrow(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const Narrowing how = narrowing(i.mod);
    constexpr uint32_t bits = (1u << Width) - 1;
    return each(w, i, m, [&](uint32_t l) {
        return pack_16x2(Target(Widen(static_cast<uint8_t>(a[l] >> Width & bits)), how),
                         Target(Widen(static_cast<uint8_t>(a[l] & bits)), how));
    });
}

// Powers of two, as the scales of block-scaled formats; mod: rounding towards zero or up.
int ue8m0x2(RegView& w, const Inst& i, uint32_t m) {
    const Rounding rounding = (i.mod & kRoundMask) == 1 ? Rounding::toward_zero : Rounding::up;
    const bool satfinite = i.mod & kSatFinite;
    return pair(w, i, m, 8, [&](float v) { return ue8m0_from_f32(v, rounding, satfinite); });
}
int ue8m0x2_from_bfloats(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const Rounding rounding = (i.mod & kRoundMask) == 1 ? Rounding::toward_zero : Rounding::up;
    const bool satfinite = i.mod & kSatFinite;
    return each(w, i, m, [&](uint32_t l) {
        return uint32_t(ue8m0_from_f32(f32_from_bf16(high_16(a[l])), rounding, satfinite)) << 8 |
               ue8m0_from_f32(f32_from_bf16(low_16(a[l])), rounding, satfinite);
    });
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

#define NARROW(NAME, F, WIDTH)                                                             \
    {"cvt." NAME ".f32", narrow_from_singles<F##_from_f32, WIDTH>},                        \
        {"cvt." NAME ".f16x2", narrow_from_halves<F##_from_f32, WIDTH, f32_from_f16>},     \
        {"cvt." NAME ".bf16x2", narrow_from_halves<F##_from_f32, WIDTH, f32_from_bf16>},   \
        {"cvt.f16x2." NAME, halves_from_narrow<f32_from_##F, WIDTH, f16_from_f32>}, {      \
        "cvt.bf16x2." NAME, halves_from_narrow<f32_from_##F, WIDTH, bf16_from_f32>         \
    }

const NamedHandler table[] = {
    {"cvt.narrow.f16x2", f16x2},
    {"cvt.narrow.bf16x2", bf16x2},
    NARROW("e4m3x2", e4m3, 8),
    NARROW("e5m2x2", e5m2, 8),
    NARROW("e2m3x2", e2m3, 8),
    NARROW("e3m2x2", e3m2, 8),
    NARROW("e2m1x2", e2m1, 4),
    {"cvt.ue8m0x2.bf16x2", ue8m0x2_from_bfloats},
    {"cvt.ue8m0x2.f32", ue8m0x2},
    {"cvt.bf16x2.ue8m0x2", bfloats_from_ue8m0},
    {"cvt.tf32.f32", tf32},
};

}  // namespace

HandlerTable narrow_convert_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
