// mma.sync of 8-, 6- and 4-bit floats, with and without block scales (PTX ISA 9.7.14.5.14, 9.7.14.3).
//
// A register holds 4 bytes of k. A byte is one element, e2m1 in bits 2 to 5 and e2m3, e3m2 in bits 0 to 5, or for the
// kinds mxf4 and mxf4nvf4 two elements of e2m1, the lower first.
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "numbers.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace machete::sim {
namespace {

enum Format { kE4M3, kE5M2, kE2M3, kE3M2, kE2M1, kPackedE2M1 };

template <int mantissa, int bias, int width>
float narrow(uint32_t v) {
    const uint32_t magnitude = v & ((1u << (width - 1)) - 1), sign = (v >> (width - 1) & 1) << 31;
    return bits<float>(number_bits::widen<mantissa, bias>(magnitude) | sign);
}

float element(Format format, uint32_t byte) {
    switch (format) {
        case kE4M3: return f32_from_e4m3(static_cast<uint8_t>(byte));
        case kE5M2: return f32_from_e5m2(static_cast<uint8_t>(byte));
        case kE2M3: return narrow<3, 1, 6>(byte & 63);
        case kE3M2: return narrow<2, 3, 6>(byte & 63);
        case kE2M1: return f32_from_e2m1(static_cast<uint8_t>(byte >> 2 & 15));
        default: return 0;
    }
}

constexpr uint32_t kMaxK = 64;
struct Tile {
    alignas(32) float a[16][kMaxK];
    alignas(32) float b[kMaxK][8];
    alignas(32) float c[16][8];
};

template <class Put>
void unpack(Format format, const uint32_t* reg, uint32_t first_byte, Put put) {
    for (uint32_t l = 0; l < kLanes; ++l)
        for (uint32_t e = 0; e < 4; ++e) {
            const uint32_t byte = reg[l] >> (8 * e) & 255, k = first_byte + l % 4 * 4 + e;
            if (format == kPackedE2M1) {
                put(l / 4, 2 * k, f32_from_e2m1(static_cast<uint8_t>(byte & 15)));
                put(l / 4, 2 * k + 1, f32_from_e2m1(static_cast<uint8_t>(byte >> 4)));
            } else {
                put(l / 4, k, element(format, byte));
            }
        }
}

void multiply_portable(Tile& t, uint32_t k_extent) {
    for (uint32_t row = 0; row < 16; ++row)
        for (uint32_t k = 0; k < k_extent; ++k)
            for (uint32_t n = 0; n < 8; ++n) t.c[row][n] += t.a[row][k] * t.b[k][n];
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void multiply_avx2(Tile& t, uint32_t k_extent) {
    for (uint32_t first = 0; first < 16; first += 8) {
        __m256 sum[8];
        for (uint32_t r = 0; r < 8; ++r) sum[r] = _mm256_load_ps(t.c[first + r]);
        for (uint32_t k = 0; k < k_extent; ++k) {
            const __m256 b = _mm256_load_ps(t.b[k]);
            for (uint32_t r = 0; r < 8; ++r) sum[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(&t.a[first + r][k]), b, sum[r]);
        }
        for (uint32_t r = 0; r < 8; ++r) _mm256_store_ps(t.c[first + r], sum[r]);
    }
}
const bool have_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif

float scale(uint32_t byte, bool e8m0) {
    return e8m0 ? f32_from_ue8m0(static_cast<uint8_t>(byte)) : f32_from_e4m3(static_cast<uint8_t>(byte & 127));
}

// A selector of scales must be one value for the warp.
uint32_t selector(Warp& w, uint32_t operand, uint32_t limit, const char* what, uint32_t mask) {
    const uint32_t* values = lanes<uint32_t>(w, operand);
    for (uint32_t l = 0; l < kLanes; ++l)
        if ((values[l] & 0xffffu) != (values[0] & 0xffffu))
            throw Fault{FaultKind::divergence, format("%s of mma differs between lanes", what), mask};
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
    const auto a_format = static_cast<Format>(v & 15), b_format = static_cast<Format>(v >> 4 & 15);
    const uint32_t k_extent = v >> 8 & 255, scales = v >> 20 & 15;
    const bool half = v >> 16 & 1, e8m0 = v >> 24 & 1;
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    const uint32_t outputs = half ? 2 : 4;
    auto reg = [&](uint32_t n) { return lanes<uint32_t>(w, ext[n]); };
    Tile t;
    for (uint32_t n = 0; n < 4; ++n)
        unpack(a_format, reg(outputs + n), n / 2 * 16, [&](uint32_t row, uint32_t k, float x) { t.a[row + n % 2 * 8][k] = x; });
    for (uint32_t n = 0; n < 2; ++n)
        unpack(b_format, reg(outputs + 4 + n), n * 16, [&](uint32_t column, uint32_t k, float x) { t.b[k][column] = x; });
    for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t l = 0; l < kLanes; ++l) {
            float& c = t.c[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2];
            const uint32_t* from = reg(outputs + 6 + (half ? n / 2 : n));
            c = half ? f32_from_f16(n % 2 ? high_16(from[l]) : low_16(from[l])) : bits<float>(from[l]);
        }
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
        for (uint32_t row = 0; row < 16; ++row) {
            const uint32_t word = a_scale[row % 8 * 4 + 2 * a_thread + row / 8];
            for (uint32_t k = 0; k < k_extent; ++k) t.a[row][k] *= scale(word >> 8 * (a_byte + k / block) & 255, e8m0);
        }
        for (uint32_t column = 0; column < 8; ++column) {
            const uint32_t word = b_scale[column * 4 + b_thread];
            for (uint32_t k = 0; k < k_extent; ++k)
                t.b[k][column] *= scale(word >> 8 * (b_byte + k / block) & 255, e8m0);
        }
    }
#if defined(__x86_64__)
    if (have_avx2)
        multiply_avx2(t, k_extent);
    else
#endif
        multiply_portable(t, k_extent);
    for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t l = 0; l < kLanes; ++l) {
            const float c = t.c[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2];
            if (!half) {
                reg(n)[l] = bits<uint32_t>(c);
                continue;
            }
            uint32_t& pair = reg(n / 2)[l];
            const uint16_t value = f16_from_f32(c);
            pair = n % 2 ? pack_16x2(value, low_16(pair)) : pack_16x2(high_16(pair), value);
        }
    ++w.machine->stats().matrix_instructions;
    return kNext;
}

const NamedHandler table[] = {{"mma.narrow", multiply}};

}  // namespace

HandlerTable block_matrix_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
