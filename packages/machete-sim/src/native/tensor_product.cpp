#include "tensor_product.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "numbers.hpp"
#include "opcodes.hpp"
#include "widen.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace machete::sim {

namespace {

Packed packed(TensorElement e) {
    constexpr Packed table[] = {Packed::f16,         Packed::bf16,        Packed::tf32,        Packed::e4m3,
                                Packed::e5m2,        Packed::e2m3_groups, Packed::e3m2_groups, Packed::e2m1_groups,
                                Packed::e2m1_nibbles, Packed::s8,         Packed::u8};
    return table[static_cast<int>(e)];
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
    const Packed type = packed(element);
    const Widen widen = widener(type);
    const uint32_t count = walk.per_chunk, chunks = k / count, flip = negate ? 0x80000000u : 0;
    float values[kMaxDepth * 8];
    if (mn_major || k_step == 1) {  // the elements of a chunk are written one by one, or as neighbours
        const uint32_t along = mn_major ? row_step : k_step;
        for (uint32_t row = 0; row < rows; row += walk.row_step()) {
            for (uint32_t c = 0; c < k; c += walk.k_step()) {
                const uint8_t* chunk = chunk_at(shared, walk.address(row, c), fault);
                if (!chunk) return false;
                widen(chunk, values);
                uint32_t* at = out + size_t(row) * row_step + size_t(c) * k_step;
                for (uint32_t n = 0; n < count; ++n) at[size_t(n) * along] = std::bit_cast<uint32_t>(values[n]) ^ flip;
            }
        }
        return true;
    }
    const uint8_t* pieces[8 * kMaxDepth / 4];
    for (uint32_t row = 0; row < rows; row += 8) {  // rows are neighbours: eight at a time
        const uint8_t** piece = pieces;
        for (uint32_t r = row; r < row + 8; ++r)
            for (uint32_t c = 0; c < k; c += count)
                if (!(*piece++ = chunk_at(shared, walk.address(r, c), fault))) return false;
        widen_columns(type, pieces, chunks, values);
        for (uint32_t c = 0; c < k; ++c) {
            uint32_t* at = out + size_t(row) * row_step + size_t(c) * k_step;
            for (uint32_t r = 0; r < 8; ++r) at[r] = std::bit_cast<uint32_t>(values[8 * c + r]) ^ flip;
        }
    }
    return true;
}

void widen_tensor_row(TensorElement element, bool negate, const uint32_t* cells, uint32_t k, uint32_t* out,
                      uint32_t k_step) {
    const uint32_t flip = negate ? 0x80000000u : 0;
    using enum TensorElement;
    if (element == e2m3 || element == e3m2 || element == e2m1) {
        for (uint32_t c = 0; c < k; ++c) {
            const auto byte = static_cast<uint8_t>(cells[c / 4] >> (8 * (c % 4)));
            const float value = element == e2m1   ? f32_from_e2m1(byte >> 2 & 15)
                                : element == e2m3 ? f32_from_e2m3(byte >> 1 & 63)
                                                  : f32_from_e3m2(byte >> 1 & 63);
            out[size_t(c) * k_step] = std::bit_cast<uint32_t>(value) ^ flip;
        }
        return;
    }
    const Packed type = packed(element);
    const Widen widen = widener(type);
    float values[kMaxPacked];
    for (uint32_t c = 0, at = 0; c < k; at += 4) {
        widen(reinterpret_cast<const uint8_t*>(cells + at), values);
        for (uint32_t n = 0; n < packed_count(type); ++n, ++c)
            out[size_t(c) * k_step] = std::bit_cast<uint32_t>(values[n]) ^ flip;
    }
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

const bool have_avx2 = use_avx2();
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
