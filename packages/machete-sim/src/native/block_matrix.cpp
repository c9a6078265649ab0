// mma.sync of 8-, 6- and 4-bit floats, with and without block scales (PTX ISA 9.7.14.5.14, 9.7.14.3).
//
// A register holds 4 bytes of k. A byte is one element, e2m1 in bits 2 to 5 and e2m3, e3m2 in bits 0 to 5, or for the
// kinds mxf4 and mxf4nvf4 two elements of e2m1, the lower first.
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "numbers.hpp"
#include "widen.hpp"

namespace machete::sim {
namespace {

enum Format { kE4M3, kE5M2, kE2M3, kE3M2, kE2M1, kPackedE2M1 };
constexpr Packed kPacked[] = {Packed::e4m3, Packed::e5m2,      Packed::e2m3,
                              Packed::e3m2, Packed::e2m1_high, Packed::e2m1_nibbles};

float scale(uint32_t byte, bool e8m0) {
    return e8m0 ? f32_from_ue8m0(static_cast<uint8_t>(byte)) : f32_from_e4m3(static_cast<uint8_t>(byte & 127));
}

// A selector of scales must be one value for the warp.
uint32_t selector(Warp& w, uint32_t operand, uint32_t limit, const char* what, uint32_t mask) {
    const uint32_t* values = lanes<uint32_t>(w, operand);
    uint32_t differ = 0;
    for (uint32_t l = 0; l < kLanes; ++l) differ |= values[l] ^ values[0];
    if (differ & 0xffffu) throw Fault{FaultKind::divergence, format("%s of mma differs between lanes", what), mask};
    const uint32_t value = values[0] & 0xffffu;
    if (value >= limit) throw Fault{FaultKind::descriptor, format("%s of mma is %u, not below %u", what, value, limit), mask};
    return value;
}

// ext: 4 (f32) or 2 (f16) registers of d, 4 of a, 2 of b, c like d, then with scales: scale of a, byte and thread
// selector, the same of b. imm: format of a | of b << 4 | k << 8 | f16 accumulators << 16 | scales a row << 20 |
// ue8m0 << 24
int multiply(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const auto v = static_cast<uint32_t>(i.imm);
    const Packed a_format = kPacked[v & 15], b_format = kPacked[v >> 4 & 15];
    const uint32_t k_extent = v >> 8 & 255, scales = v >> 20 & 15;
    const bool half = v >> 16 & 1, e8m0 = v >> 24 & 1;
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    const uint32_t outputs = half ? 2 : 4;
    auto reg = [&](uint32_t n) { return lanes<uint32_t>(w, ext[n]); };
    const uint32_t* a[4] = {reg(outputs), reg(outputs + 1), reg(outputs + 2), reg(outputs + 3)};
    const uint32_t* b[2] = {reg(outputs + 4), reg(outputs + 5)};
    uint32_t *c[4], *d[4];
    for (uint32_t n = 0; n < outputs; ++n) c[n] = reg(outputs + 6 + n), d[n] = reg(n);
    WarpTile t;
    unpack_tile(a_format, a, 4, b_format, b, 2, t);
    load_accumulators(c, half, t);
    if (scales) {
        const uint32_t at = 2 * outputs + 6;
        const uint32_t* a_scale = reg(at);
        const uint32_t* b_scale = reg(at + 3);
        const uint32_t a_byte = selector(w, ext[at + 1], 4, "byte-id-a", mask);
        const uint32_t a_thread = selector(w, ext[at + 2], 2, "thread-id-a", mask);
        const uint32_t b_byte = selector(w, ext[at + 4], 4, "byte-id-b", mask);
        const uint32_t b_thread = selector(w, ext[at + 5], 4, "thread-id-b", mask);
        if (a_byte % scales || b_byte % scales)
            throw Fault{FaultKind::descriptor,
                        format("byte ids %u and %u of mma with %u scales a row", a_byte, b_byte, scales), mask};
        const uint32_t block = k_extent / scales;
        for (uint32_t s = 0; s < scales; ++s) {
            float column_scales[8];
            for (uint32_t column = 0; column < 8; ++column)
                column_scales[column] = scale(b_scale[column * 4 + b_thread] >> 8 * (b_byte + s) & 255, e8m0);
            for (uint32_t k = s * block; k < (s + 1) * block; ++k)
                for (uint32_t column = 0; column < 8; ++column) t.b[k][column] *= column_scales[column];
            for (uint32_t row = 0; row < 16; ++row) {
                const uint32_t word = a_scale[row % 8 * 4 + 2 * a_thread + row / 8];
                const float row_scale = scale(word >> 8 * (a_byte + s) & 255, e8m0);
                for (uint32_t k = s * block; k < (s + 1) * block; ++k) t.a[row][k] *= row_scale;
            }
        }
    }
    multiply_tile(t, k_extent);
    store_accumulators(t, half, d);
    ++w.machine->stats().matrix_instructions;
    return kNext;
}

const NamedHandler table[] = {{"mma.narrow", multiply}};

}  // namespace

HandlerTable block_matrix_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
