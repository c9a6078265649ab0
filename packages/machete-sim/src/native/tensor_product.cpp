#include "tensor_product.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "numbers.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace machete::sim {

namespace {

// Values of narrow formats: sign, `exponent` bits, `mantissa` bits, by the bit pattern in the low bits of a byte.
template <int mantissa, int bias, int width>
std::array<float, 1 << width> narrow_table() {
    std::array<float, 1 << width> values;
    for (uint32_t v = 0; v < values.size(); ++v) {
        const uint32_t magnitude = v & ((1u << (width - 1)) - 1), sign = v >> (width - 1) << 31;
        values[v] = std::bit_cast<float>(number_bits::widen<mantissa, bias>(magnitude) | sign);
    }
    return values;
}
const auto e2m3_values = narrow_table<3, 1, 6>();
const auto e3m2_values = narrow_table<2, 3, 6>();
const auto e2m1_values = narrow_table<1, 1, 4>();
const auto e4m3_values = [] {
    std::array<float, 256> values;
    for (uint32_t v = 0; v < 256; ++v) values[v] = f32_from_e4m3(static_cast<uint8_t>(v));
    return values;
}();
const auto e5m2_values = [] {
    std::array<float, 256> values;
    for (uint32_t v = 0; v < 256; ++v) values[v] = f32_from_e5m2(static_cast<uint8_t>(v));
    return values;
}();

// The elements of 16 bytes of shared memory. e2m3 and e3m2: 16 elements in 12 bytes, then 4 of padding; e2m1: in 8
// bytes, then 8 (TMA's types b6x16_p32 and b4x16_p64).
template <TensorElement e>
uint32_t widen_chunk(const uint8_t* chunk, uint32_t* out) {
    using enum TensorElement;
    if constexpr (e == f16 || e == bf16) {
        for (uint32_t n = 0; n < 8; ++n) {
            uint16_t bits;
            std::memcpy(&bits, chunk + 2 * n, 2);
            out[n] = std::bit_cast<uint32_t>(e == f16 ? f32_from_f16(bits) : f32_from_bf16(bits));
        }
        return 8;
    } else if constexpr (e == tf32) {
        for (uint32_t n = 0; n < 4; ++n) {
            uint32_t bits;
            std::memcpy(&bits, chunk + 4 * n, 4);
            out[n] = std::bit_cast<uint32_t>(f32_from_tf32(bits));
        }
        return 4;
    } else if constexpr (e == e2m1_packed) {
        for (uint32_t n = 0; n < 32; ++n)
            out[n] = std::bit_cast<uint32_t>(e2m1_values[chunk[n / 2] >> (4 * (n % 2)) & 15]);
        return 32;
    } else if constexpr (e == e2m1) {
        for (uint32_t n = 0; n < 16; ++n)
            out[n] = std::bit_cast<uint32_t>(e2m1_values[chunk[n / 2] >> (4 * (n % 2)) & 15]);
        return 16;
    } else if constexpr (e == e2m3 || e == e3m2) {
        for (uint32_t n = 0; n < 16; ++n) {
            uint16_t pair;
            std::memcpy(&pair, chunk + 6 * n / 8, 2);
            const uint32_t bits = pair >> (6 * n % 8) & 63;
            out[n] = std::bit_cast<uint32_t>(e == e2m3 ? e2m3_values[bits] : e3m2_values[bits]);
        }
        return 16;
    } else {
        for (uint32_t n = 0; n < 16; ++n) {
            if constexpr (e == e4m3) out[n] = std::bit_cast<uint32_t>(e4m3_values[chunk[n]]);
            if constexpr (e == e5m2) out[n] = std::bit_cast<uint32_t>(e5m2_values[chunk[n]]);
            if constexpr (e == s8) out[n] = std::bit_cast<uint32_t>(float(static_cast<int8_t>(chunk[n])));
            if constexpr (e == u8) out[n] = std::bit_cast<uint32_t>(float(chunk[n]));
        }
        return 16;
    }
}

template <class F>
auto with_element(TensorElement element, F f) {
    using enum TensorElement;
    switch (element) {
        case f16: return f.template operator()<f16>();
        case bf16: return f.template operator()<bf16>();
        case tf32: return f.template operator()<tf32>();
        case e4m3: return f.template operator()<e4m3>();
        case e5m2: return f.template operator()<e5m2>();
        case e2m3: return f.template operator()<e2m3>();
        case e3m2: return f.template operator()<e3m2>();
        case e2m1: return f.template operator()<e2m1>();
        case e2m1_packed: return f.template operator()<e2m1_packed>();
        case s8: return f.template operator()<s8>();
        default: return f.template operator()<u8>();
    }
}

// Elements of 16 bytes, and the address of the chunk with element (row, k).
struct Walk {
    MatrixDescriptor descriptor;
    bool k_major, packed;
    int bytes;
    uint32_t per_chunk;

    Walk(const MatrixDescriptor& d, TensorElement element, bool mn_major)
        : descriptor(d), k_major(!mn_major), packed(element == TensorElement::e2m1_packed) {
        const int bits = tensor_element_bits(element);
        bytes = packed ? 1 : bits / 8;
        per_chunk = static_cast<uint32_t>(128 / bits);
    }
    uint32_t row_step() const { return k_major ? 1 : per_chunk; }
    uint32_t k_step() const { return k_major ? per_chunk : 1; }
    uint32_t address(uint32_t row, uint32_t k) const {
        return matrix_chunk_address(descriptor, k_major, bytes, row, packed ? k / 2 : k);
    }
};

const uint8_t* chunk_at(const SharedView& shared, uint32_t address, SharedFault& fault) {
    const uint32_t offset = address - shared.base;
    if (address < shared.base || offset + 16 > shared.bytes) {
        fault = {SharedFault::Kind::out_of_range, address, "matrix operand lies outside shared memory"};
        return nullptr;
    }
    if (!shared.written) return shared.data + offset;
    uint64_t flags[2];
    std::memcpy(flags, shared.written + offset, 16);
    if (flags[0] == 0x0101010101010101ull && flags[1] == 0x0101010101010101ull) return shared.data + offset;
    uint32_t hole = 0;
    while (shared.written[offset + hole] == 1) ++hole;
    fault = {SharedFault::Kind::uninitialised, address + hole, "matrix operand was never written"};
    return nullptr;
}

}  // namespace

bool decode_tensor_descriptor(uint64_t bits, MatrixDescriptor& descriptor, SharedFault& fault) {
    constexpr uint64_t fields = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 7ull << 61;
    const auto refuse = [&](const char* why) {
        fault = {SharedFault::Kind::descriptor, static_cast<uint32_t>(bits & 0x3fff) << 4, why};
        return false;
    };
    if ((bits >> 46 & 7) != 1) return refuse("tcgen05 matrix descriptor: bits 46 to 48 are not 0b001");
    if (bits & ~(fields | 1ull << 46)) {
        return refuse(bits >> 52 & 1 ? "tcgen05 matrix descriptor: absolute leading dimension addresses (bit 52) exist "
                                       "on sm_103a only"
                                     : "tcgen05 matrix descriptor has bits set that must be 0");
    }
    constexpr int swizzle_of[] = {0, 128, 128, -1, 64, -1, 32, -1};
    descriptor.swizzle = swizzle_of[bits >> 61];
    if (descriptor.swizzle < 0) return refuse("tcgen05 matrix descriptor: unknown swizzle mode");
    descriptor.atom = bits >> 61 == 1 ? 32 : 16;
    descriptor.start = static_cast<uint32_t>(bits & 0x3fff) << 4;
    descriptor.leading = static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4;
    descriptor.stride = static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4;
    descriptor.base_offset = static_cast<uint32_t>(bits >> 49 & 7);
    return true;
}

bool tensor_tile_chunks(uint64_t bits, TensorElement element, bool mn_major, uint32_t rows, uint32_t k,
                        std::vector<uint32_t>& out, SharedFault& fault) {
    MatrixDescriptor descriptor;
    if (!decode_tensor_descriptor(bits, descriptor, fault)) return false;
    const Walk walk(descriptor, element, mn_major);
    for (uint32_t row = 0; row < rows; row += walk.row_step())
        for (uint32_t c = 0; c < k; c += walk.k_step()) out.push_back(walk.address(row, c));
    return true;
}

bool read_tensor_tile(uint64_t bits, TensorElement element, bool mn_major, bool negate, uint32_t rows, uint32_t k,
                      const SharedView& shared, uint32_t* out, uint32_t row_step, uint32_t k_step, SharedFault& fault) {
    MatrixDescriptor descriptor;
    if (!decode_tensor_descriptor(bits, descriptor, fault)) return false;
    const Walk walk(descriptor, element, mn_major);
    const uint32_t flip = negate ? 0x80000000u : 0, along = mn_major ? row_step : k_step;
    return with_element(element, [&]<TensorElement e>() {
        uint32_t values[32];
        for (uint32_t row = 0; row < rows; row += walk.row_step()) {
            for (uint32_t c = 0; c < k; c += walk.k_step()) {
                const uint8_t* chunk = chunk_at(shared, walk.address(row, c), fault);
                if (!chunk) return false;
                const uint32_t count = widen_chunk<e>(chunk, values);
                uint32_t* at = out + size_t(row) * row_step + size_t(c) * k_step;
                for (uint32_t n = 0; n < count; ++n) at[size_t(n) * along] = values[n] ^ flip;
            }
        }
        return true;
    });
}

void widen_tensor_row(TensorElement element, bool negate, const uint32_t* cells, uint32_t k, uint32_t* out,
                      uint32_t k_step) {
    const uint32_t flip = negate ? 0x80000000u : 0;
    using enum TensorElement;
    if (element == e2m3 || element == e3m2 || element == e2m1) {
        for (uint32_t c = 0; c < k; ++c) {
            const uint32_t byte = cells[c / 4] >> (8 * (c % 4)) & 255;
            const float value = element == e2m1   ? e2m1_values[byte >> 2 & 15]
                                : element == e2m3 ? e2m3_values[byte >> 1 & 63]
                                                  : e3m2_values[byte >> 1 & 63];
            out[size_t(c) * k_step] = std::bit_cast<uint32_t>(value) ^ flip;
        }
        return;
    }
    with_element(element, [&]<TensorElement e>() {
        uint32_t values[32];
        for (uint32_t c = 0, at = 0; c < k; at += 4) {
            uint8_t chunk[16];
            std::memcpy(chunk, cells + at, 16);
            const uint32_t count = widen_chunk<e>(chunk, values);
            for (uint32_t n = 0; n < count; ++n, ++c) out[size_t(c) * k_step] = values[n] ^ flip;
        }
        return true;
    });
}

namespace {

constexpr uint32_t block_rows = 16, block_columns = 4;

// One block of 16 rows and 4 columns.
void multiply_block(const TensorProduct& p, uint32_t row, uint32_t n) {
    typedef float Vector __attribute__((vector_size(16)));
    constexpr uint32_t parts = block_rows / 4;
    Vector sum[block_columns][parts] = {};
    for (uint32_t c = 0; p.accumulate && c < block_columns; ++c)
        std::memcpy(sum[c], p.d + size_t(n + c) * p.d_step + row, sizeof sum[c]);
    for (uint32_t k = 0; k < p.k; ++k) {
        Vector a[parts];
        std::memcpy(a, p.a + size_t(k) * p.a_rows + row, sizeof a);
        for (uint32_t c = 0; c < block_columns; ++c) {
            float b;
            std::memcpy(&b, p.b + size_t(n + c) * p.k + k, 4);
            for (uint32_t part = 0; part < parts; ++part) sum[c][part] += a[part] * b;
        }
    }
    for (uint32_t c = 0; c < block_columns; ++c)
        std::memcpy(p.d + size_t(n + c) * p.d_step + row, sum[c], sizeof sum[c]);
}

#if defined(__x86_64__)
// 8 sums in flight hide the latency of the fused multiply-add.
__attribute__((target("avx2,fma"))) void multiply_block_avx2(const TensorProduct& p, uint32_t row, uint32_t n) {
    __m256 sum[block_columns][2];
    for (uint32_t c = 0; c < block_columns; ++c)
        for (uint32_t h = 0; h < 2; ++h)
            sum[c][h] = p.accumulate ? _mm256_loadu_ps(reinterpret_cast<const float*>(p.d + size_t(n + c) * p.d_step +
                                                                                     row + 8 * h))
                                     : _mm256_setzero_ps();
    const auto* a = reinterpret_cast<const float*>(p.a) + row;
    const auto* b = reinterpret_cast<const float*>(p.b) + size_t(n) * p.k;
    for (uint32_t k = 0; k < p.k; ++k, a += p.a_rows, ++b) {
        const __m256 low = _mm256_loadu_ps(a), high = _mm256_loadu_ps(a + 8);
        for (uint32_t c = 0; c < block_columns; ++c) {
            const __m256 value = _mm256_broadcast_ss(b + size_t(c) * p.k);
            sum[c][0] = _mm256_fmadd_ps(low, value, sum[c][0]);
            sum[c][1] = _mm256_fmadd_ps(high, value, sum[c][1]);
        }
    }
    for (uint32_t c = 0; c < block_columns; ++c)
        for (uint32_t h = 0; h < 2; ++h)
            _mm256_storeu_ps(reinterpret_cast<float*>(p.d + size_t(n + c) * p.d_step + row + 8 * h), sum[c][h]);
}

const bool have_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif

}  // namespace

void multiply_tensor(const TensorProduct& p) {
    for (uint32_t n = 0; n < p.n; n += block_columns) {
        for (uint32_t row = 0; row < p.rows; row += block_rows) {
#if defined(__x86_64__)
            if (have_avx2) {
                multiply_block_avx2(p, row, n);
                continue;
            }
#endif
            multiply_block(p, row, n);
        }
    }
}

}  // namespace machete::sim
