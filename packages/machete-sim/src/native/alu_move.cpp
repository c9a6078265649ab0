// mov, also between a register and the parts of a wider one (PTX ISA 9.7.9.3, 9.7.9.4).
#include "alu.hpp"
#include "lanes.hpp"

namespace machete::sim {
namespace {

template <class V>
int copy(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<V>(w, i.a);
    write_lanes(lanes<V>(w, i.d), m, [&](uint32_t l) { return a[l]; });
    return kNext;
}

int copy128(RegView& w, const Inst& i, uint32_t m) {
    for (uint32_t h = 0; h < 2; ++h) {
        auto* a = lanes<uint64_t>(w, i.a) + kLanes * h;
        write_lanes(lanes<uint64_t>(w, i.d) + kLanes * h, m, [&](uint32_t l) { return a[l]; });
    }
    return kNext;
}

// mov between a register and a vector of narrower ones.

int pack32(RegView& w, const Inst& i, uint32_t m) {  // {b16, b16} -> b32
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return (a[l] & 0xffffu) | b[l] << 16; });
    return kNext;
}
int pack64(RegView& w, const Inst& i, uint32_t m) {  // {b32, b32} -> b64
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    write_lanes(lanes<uint64_t>(w, i.d), m, [&](uint32_t l) { return uint64_t(a[l]) | uint64_t(b[l]) << 32; });
    return kNext;
}
int pack64x4(RegView& w, const Inst& i, uint32_t m) {  // {b16 x 4} -> b64
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    auto* e = lanes<uint32_t>(w, i.e);
    write_lanes(lanes<uint64_t>(w, i.d), m, [&](uint32_t l) {
        return uint64_t(a[l] & 0xffffu) | uint64_t(b[l] & 0xffffu) << 16 | uint64_t(c[l] & 0xffffu) << 32 |
               uint64_t(e[l] & 0xffffu) << 48;
    });
    return kNext;
}
int pack8x4(RegView& w, const Inst& i, uint32_t m) {  // {b8 x 4} -> b32
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    auto* e = lanes<uint32_t>(w, i.e);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) {
        return (a[l] & 255u) | (b[l] & 255u) << 8 | (c[l] & 255u) << 16 | (e[l] & 255u) << 24;
    });
    return kNext;
}
int pack8x2(RegView& w, const Inst& i, uint32_t m) {  // {b8, b8} -> b16
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return (a[l] & 255u) | (b[l] & 255u) << 8; });
    return kNext;
}
int pack128(RegView& w, const Inst& i, uint32_t m) {  // {b64, b64} -> b128
    auto* d = lanes<uint64_t>(w, i.d);
    auto* a = lanes<uint64_t>(w, i.a);
    auto* b = lanes<uint64_t>(w, i.b);
    write_lanes(d, m, [&](uint32_t l) { return a[l]; });
    write_lanes(d + kLanes, m, [&](uint32_t l) { return b[l]; });
    return kNext;
}
// One part of a wider register: imm is its position in bits.
int part16_of_32(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const uint32_t s = static_cast<uint32_t>(i.imm);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return (a[l] >> s) & 0xffffu; });
    return kNext;
}
int part8_of_32(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint32_t>(w, i.a);
    const uint32_t s = static_cast<uint32_t>(i.imm);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return (a[l] >> s) & 255u; });
    return kNext;
}
int part16_of_64(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint64_t>(w, i.a);
    const uint32_t s = static_cast<uint32_t>(i.imm);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return static_cast<uint32_t>(a[l] >> s) & 0xffffu; });
    return kNext;
}
int part32_of_64(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint64_t>(w, i.a);
    const uint32_t s = static_cast<uint32_t>(i.imm);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return static_cast<uint32_t>(a[l] >> s); });
    return kNext;
}
int part64_of_128(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint64_t>(w, i.a) + (i.imm ? kLanes : 0);
    write_lanes(lanes<uint64_t>(w, i.d), m, [&](uint32_t l) { return a[l]; });
    return kNext;
}
int part32_of_128(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint64_t>(w, i.a) + (i.imm >= 64 ? kLanes : 0);
    const uint32_t s = static_cast<uint32_t>(i.imm & 63);
    write_lanes(lanes<uint32_t>(w, i.d), m, [&](uint32_t l) { return static_cast<uint32_t>(a[l] >> s); });
    return kNext;
}
int pack128x4(RegView& w, const Inst& i, uint32_t m) {  // {b32 x 4} -> b128
    auto* d = lanes<uint64_t>(w, i.d);
    auto* a = lanes<uint32_t>(w, i.a);
    auto* b = lanes<uint32_t>(w, i.b);
    auto* c = lanes<uint32_t>(w, i.c);
    auto* e = lanes<uint32_t>(w, i.e);
    write_lanes(d, m, [&](uint32_t l) { return uint64_t(a[l]) | uint64_t(b[l]) << 32; });
    write_lanes(d + kLanes, m, [&](uint32_t l) { return uint64_t(c[l]) | uint64_t(e[l]) << 32; });
    return kNext;
}

const NamedHandler table[] = {
    {"mov.b16", copy<uint32_t>},      {"mov.b32", copy<uint32_t>},
    {"pack.b32.b8x4", pack8x4},       {"pack.b16.b8x2", pack8x2},
    {"part.b8.b32", part8_of_32},     {"part.b8.b16", part8_of_32},
    {"mov.b64", copy<uint64_t>},      {"mov.b128", copy128},
    {"pack.b32.b16x2", pack32},       {"pack.b64.b32x2", pack64},
    {"pack.b64.b16x4", pack64x4},     {"pack.b128.b64x2", pack128},
    {"pack.b128.b32x4", pack128x4},   {"part.b16.b32", part16_of_32},
    {"part.b16.b64", part16_of_64},   {"part.b32.b64", part32_of_64},
    {"part.b64.b128", part64_of_128}, {"part.b32.b128", part32_of_128},
};

}  // namespace

HandlerTable VARIANT(move)() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
