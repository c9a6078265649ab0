// The inner loop of wgmma works on its accumulator fragments as they are: of an 8-row half tile, lane
// l holds row l / 4 and columns 2 * (l % 4) + {0, 1} of every group of 8 columns. So a register is an 8 x 4 block whose
// lanes are vectors, and D never leaves the register file: per k, the block takes A spread over lanes (each row's value
// four times) times B repeated over lanes (each of four columns once per row).
#include "matrix.hpp"

#include <algorithm>
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

constexpr int lanes = 32;
constexpr int max_k = 32;
constexpr int max_n = 256;

bool is_float8(Element element) { return element == Element::e4m3 || element == Element::e5m2; }

bool is_integer8(Element element) { return element == Element::s8 || element == Element::u8; }

Packed packed(Element operand) { return static_cast<Packed>(operand); }  // the same order
static_assert(static_cast<int>(Packed::u8) == static_cast<int>(Element::u8));

constexpr int size_of(Element element) {
    switch (element) {
        case Element::f16:
        case Element::bf16:
            return 2;
        case Element::tf32:
        case Element::f32:
        case Element::s32:
            return 4;
        default:
            return 1;
    }
}

// ---- the inner loop -----------------------------------------------------------------------------------------

// D for the 8 rows of a half tile: c and d hold two registers, columns {0, 2, 4, 6} and {1, 3, 5, 7}, per group.
struct HalfTile {
    const float* a;            // [k][32], each row's value in its four lanes
    const float* b;            // [2 * groups][k][4], the four columns of a register
    const uint32_t* const* c;  // null: zeros
    uint32_t* const* d;
    int k, groups;
};

void multiply_portable(const HalfTile& tile) {
    typedef float Vector __attribute__((vector_size(16)));
    constexpr int width = 4, parts = lanes / width;
    const auto load = [](const auto* from) {
        Vector value;
        std::memcpy(&value, from, sizeof value);
        return value;
    };
    for (int column = 0; column < 2 * tile.groups; ++column) {
        Vector sum[parts] = {};
        if (tile.c) {
            for (int p = 0; p < parts; ++p) sum[p] = load(tile.c[column] + width * p);
        }
        for (int k = 0; k < tile.k; ++k) {
            const Vector b = load(tile.b + (column * tile.k + k) * width);
            for (int p = 0; p < parts; ++p) sum[p] += load(tile.a + k * lanes + width * p) * b;
        }
        std::memcpy(tile.d[column], sum, sizeof sum);
    }
}

#if defined(__x86_64__)
// Vectors of 8, both registers of a group at once: 8 sums in flight hide the latency of the fused multiply-add.
__attribute__((target("avx2,fma"))) void multiply_avx2(const HalfTile& tile) {
    constexpr int width = 8, parts = lanes / width;
    for (int group = 0; group < tile.groups; ++group) {
        __m256 sum[2][parts];
        for (int e = 0; e < 2; ++e) {
            for (int p = 0; p < parts; ++p) {
                sum[e][p] = tile.c
                                ? _mm256_loadu_ps(reinterpret_cast<const float*>(tile.c[2 * group + e]) + width * p)
                                : _mm256_setzero_ps();
            }
        }
        const float* a = tile.a;
        const auto* b = reinterpret_cast<const __m128*>(tile.b) + 2 * group * tile.k;
        for (int k = 0; k < tile.k; ++k, a += lanes) {
            const __m256 even = _mm256_broadcast_ps(b + k), odd = _mm256_broadcast_ps(b + tile.k + k);
            for (int p = 0; p < parts; ++p) {
                const __m256 rows = _mm256_loadu_ps(a + width * p);
                sum[0][p] = _mm256_fmadd_ps(rows, even, sum[0][p]);
                sum[1][p] = _mm256_fmadd_ps(rows, odd, sum[1][p]);
            }
        }
        for (int e = 0; e < 2; ++e) {
            for (int p = 0; p < parts; ++p) {
                _mm256_storeu_ps(reinterpret_cast<float*>(tile.d[2 * group + e]) + width * p, sum[e][p]);
            }
        }
    }
}

__attribute__((target("avx2"))) void spread_avx2(const float* columns, int k_extent, float* out) {
    for (int k = 0; k < k_extent; ++k) {
        const __m256 rows = _mm256_loadu_ps(columns + 8 * k);
        for (int p = 0; p < 4; ++p) {
            const int low = 2 * p, high = 2 * p + 1;
            const __m256i from = _mm256_setr_epi32(low, low, low, low, high, high, high, high);
            _mm256_storeu_ps(out + k * lanes + 8 * p, _mm256_permutevar8x32_ps(rows, from));
        }
    }
}

__attribute__((target("avx2"))) void split_avx2(const float* columns, int k_extent, float* even, float* odd) {
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (int k = 0; k < k_extent; ++k) {
        const __m256 both = _mm256_permutevar8x32_ps(_mm256_loadu_ps(columns + 8 * k), order);
        _mm_storeu_ps(even + 4 * k, _mm256_castps256_ps128(both));
        _mm_storeu_ps(odd + 4 * k, _mm256_extractf128_ps(both, 1));
    }
}

const bool have_avx2 = use_avx2();
#endif

void multiply(const HalfTile& tile) {
#if defined(__x86_64__)
    if (have_avx2) return multiply_avx2(tile);
#endif
    multiply_portable(tile);
}

// ---- operands -----------------------------------------------------------------------------------------------

// A as the inner loop wants it: [half tile][k][32].
struct RowOperand {
    float values[8][max_k * lanes];

    // columns: [k][8] of the rows from first_row on.
    void store(int first_row, const float* columns, int k_extent) {
        float* out = values[first_row / 8];
#if defined(__x86_64__)
        if (have_avx2) return spread_avx2(columns, k_extent, out);
#endif
        for (int i = 0; i < 8 * k_extent; ++i) std::fill_n(out + 4 * i, 4, columns[i]);
    }
};

// B as the inner loop wants it: [column register][k][4].
struct ColumnOperand {
    alignas(16) float values[max_n / 4 * max_k * 4];

    void store(int first_column, const float* columns, int k_extent) {
        float* even = values + first_column * k_extent;
        float* odd = even + 4 * k_extent;
#if defined(__x86_64__)
        if (have_avx2) return split_avx2(columns, k_extent, even, odd);
#endif
        for (int i = 0; i < 8 * k_extent; ++i) (i % 2 ? odd : even)[i / 8 * 4 + i % 8 / 2] = columns[i];
    }
};

void negate(float* columns, int count) {
    for (int i = 0; i < count; ++i) columns[i] = -columns[i];
}

// ---- one warp's 16 rows -------------------------------------------------------------------------------------

// d = a * b + c on fragments: registers 4 * group + 2 * half + e for 32-bit accumulators, 2 * group + half for
// packed f16. c may be null (zeros) or the very registers of d.
struct WarpRows {
    const float* a_halves[2];
    const float* b;
    const uint32_t* const* c;
    uint32_t* const* d;
    int k, n;
    Element accumulator;
    bool satfinite;
};

void multiply_float16(const WarpRows& tile) {
    const int groups = tile.n / 8;
    float sums[2 * max_n / 8][lanes];
    uint32_t* registers[2 * max_n / 8];
    for (int i = 0; i < 2 * groups; ++i) registers[i] = reinterpret_cast<uint32_t*>(sums[i]);
    for (int half = 0; half < 2; ++half) {
        for (int g = 0; tile.c && g < groups; ++g) split_halves(tile.c[2 * g + half], sums[2 * g], sums[2 * g + 1]);
        multiply({tile.a_halves[half], tile.b, tile.c ? registers : nullptr, registers, tile.k, groups});
        for (int g = 0; g < groups; ++g) join_halves(sums[2 * g], sums[2 * g + 1], tile.d[2 * g + half]);
    }
}

void multiply_warp(const WarpRows& tile) {
    if (tile.accumulator == Element::f16) return multiply_float16(tile);
    const int groups = tile.n / 8;
    const bool integer = tile.accumulator == Element::s32;
    float products[2 * max_n / 8][lanes];
    const uint32_t* c[2 * max_n / 8];
    uint32_t* d[2 * max_n / 8];
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 2 * groups; ++i) {
            const int reg = i / 2 * 4 + 2 * half + i % 2;
            if (tile.c) c[i] = tile.c[reg];
            d[i] = integer ? reinterpret_cast<uint32_t*>(products[i]) : tile.d[reg];
        }
        multiply({tile.a_halves[half], tile.b, tile.c && !integer ? c : nullptr, d, tile.k, groups});
        if (!integer) continue;
        for (int i = 0; i < 2 * groups; ++i)
            add_integers(products[i], tile.c ? c[i] : nullptr, lanes, tile.satfinite,
                         tile.d[i / 2 * 4 + 2 * half + i % 2]);
    }
}

}  // namespace

void add_integers(const float* products, const uint32_t* c, int count, bool saturate, uint32_t* d) {
    for (int i = 0; i < count; ++i) {
        const auto product = static_cast<uint32_t>(static_cast<int32_t>(products[i]));
        const uint32_t before = c ? c[i] : 0, sum = product + before;
        const uint32_t limit = 0x7fffffffu + (before >> 31);
        const bool overflow = ((product ^ sum) & (before ^ sum)) >> 31;
        d[i] = saturate && overflow ? limit : sum;
    }
}

int element_bytes(Element element) { return size_of(element); }

// ---- mma.sync -----------------------------------------------------------------------------------------------

bool mma_registers(const MmaKind& kind, MmaRegisters& registers) {
    const bool sixteen = kind.a == kind.b && (kind.a == Element::f16 || kind.a == Element::bf16);
    const bool tf32 = kind.a == Element::tf32 && kind.b == Element::tf32;
    const bool float8 = is_float8(kind.a) && is_float8(kind.b);
    const bool integer8 = is_integer8(kind.a) && is_integer8(kind.b);
    bool exists = false;
    if (sixteen)
        exists =
            (kind.k == 8 || kind.k == 16) && (kind.d == Element::f32 || kind.d == kind.a) && kind.d != Element::bf16;
    if (tf32) exists = (kind.k == 4 || kind.k == 8) && kind.d == Element::f32;
    if (float8) exists = (kind.k == 16 || kind.k == 32) && (kind.d == Element::f32 || kind.d == Element::f16);
    if (integer8) exists = (kind.k == 16 || kind.k == 32) && kind.d == Element::s32;
    if (!exists || (kind.satfinite && !integer8)) return false;
    const int bytes_of_k = kind.k * element_bytes(kind.a);
    registers = {bytes_of_k / 8, bytes_of_k / 16, kind.d == Element::f16 ? 2 : 4};
    return true;
}

void mma_sync(const MmaKind& kind, const uint32_t* const* a, const uint32_t* const* b, const uint32_t* const* c,
              uint32_t* const* d) {
    MmaRegisters registers;
    mma_registers(kind, registers);
    const bool half = kind.d == Element::f16, integer = kind.d == Element::s32;
    WarpTile tile;
    unpack_tile(packed(kind.a), a, registers.a, packed(kind.b), b, registers.b, tile);
    if (integer)
        std::memset(tile.c, 0, sizeof tile.c);
    else
        load_accumulators(c, half, tile);
    multiply_tile(tile, static_cast<uint32_t>(kind.k));
    if (!integer) return store_accumulators(tile, half, d);
    float products[4][lanes];
    uint32_t sums[4][lanes];  // d may be a permutation of c's registers
    uint32_t* const into[4] = {reinterpret_cast<uint32_t*>(products[0]), reinterpret_cast<uint32_t*>(products[1]),
                               reinterpret_cast<uint32_t*>(products[2]), reinterpret_cast<uint32_t*>(products[3])};
    store_accumulators(tile, false, into);
    for (int i = 0; i < 4; ++i) add_integers(products[i], c[i], lanes, kind.satfinite, sums[i]);
    for (int i = 0; i < 4; ++i) std::memcpy(d[i], sums[i], sizeof sums[i]);
}

// ---- shared memory matrix descriptors -----------------------------------------------------------------------

bool decode_wgmma_descriptor(uint64_t bits, MatrixDescriptor& descriptor, SharedFault& fault) {
    constexpr uint64_t reserved = ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 7ull << 49 | 3ull << 62);
    if (bits & reserved) {
        fault = {SharedFault::Kind::descriptor, static_cast<uint32_t>(bits & 0x3fff) << 4,
                 "wgmma matrix descriptor has bits set that must be 0"};
        return false;
    }
    constexpr int swizzle_of[] = {0, 128, 64, 32};
    descriptor.start = static_cast<uint32_t>(bits & 0x3fff) << 4;
    descriptor.leading = static_cast<uint32_t>(bits >> 16 & 0x3fff) << 4;
    descriptor.stride = static_cast<uint32_t>(bits >> 32 & 0x3fff) << 4;
    descriptor.base_offset = static_cast<uint32_t>(bits >> 49 & 7);
    descriptor.swizzle = swizzle_of[bits >> 62];
    return true;
}

namespace {

// The 16 bytes at a shared address, or null and the fault.
const uint8_t* shared_chunk(const SharedView& shared, uint32_t address, SharedFault& fault) {
    const uint32_t offset = address - shared.base;
    if (address < shared.base || offset + 16 > shared.bytes) {
        const uint32_t first_bad = address < shared.base ? address : std::max(address, shared.base + shared.bytes);
        fault = {SharedFault::Kind::out_of_range, first_bad, "matrix operand lies outside shared memory"};
        return nullptr;
    }
    if (shared.written) {
        const uint8_t* flags = shared.written + offset;
        uint64_t words[2];
        std::memcpy(words, flags, sizeof words);
        const auto has_zero_byte = [](uint64_t w) {
            return ((w - 0x0101010101010101u) & ~w & 0x8080808080808080u) != 0;
        };
        if (has_zero_byte(words[0]) || has_zero_byte(words[1])) {
            const void* hole = std::memchr(flags, 0, 16);
            const auto index = static_cast<uint32_t>(static_cast<const uint8_t*>(hole) - flags);
            fault = {SharedFault::Kind::uninitialised, address + index, "matrix operand was never written"};
            return nullptr;
        }
    }
    return shared.data + offset;
}

// Reads a tile of `rows` x `k_extent` elements through a descriptor into an operand.
template <class Operand>
bool read_tile(uint64_t bits, Element element, bool mn_major, bool negated, int rows, int k_extent,
               const SharedView& shared, Operand& out, std::vector<uint32_t>& read, SharedFault& fault) {
    MatrixDescriptor descriptor;
    if (!decode_wgmma_descriptor(bits, descriptor, fault)) return false;
    const int bytes = size_of(element), per_chunk = 16 / bytes, chunks = k_extent / per_chunk;
    const Widen widen = widener(packed(element));
    float columns[max_k * 8];
    const uint8_t* pieces[8 * max_k];
    read.reserve(read.size() + static_cast<size_t>(rows * k_extent / per_chunk));
    const auto chunk_at = [&](int row, int k) {
        read.push_back(matrix_chunk_address(descriptor, !mn_major, bytes, static_cast<uint32_t>(row),
                                            static_cast<uint32_t>(k)));
        return shared_chunk(shared, read.back(), fault);
    };
    for (int row = 0; row < rows; row += 8) {
        if (mn_major) {  // of 16 bits: a chunk is eight rows
            for (int k = 0; k < k_extent; ++k) {
                const uint8_t* chunk = chunk_at(row, k);
                if (!chunk) return false;
                widen(chunk, columns + 8 * k);
            }
        } else {
            const uint8_t** piece = pieces;
            for (int r = row; r < row + 8; ++r)
                for (int k = 0; k < k_extent; k += per_chunk)
                    if (!(*piece++ = chunk_at(r, k))) return false;
            widen_columns(packed(element), pieces, static_cast<uint32_t>(chunks), columns);
        }
        if (negated) negate(columns, 8 * k_extent);
        out.store(row, columns, k_extent);
    }
    return true;
}

// A fragments of m16: register i holds the upper or lower 8 rows; each pair of registers 16 bytes of k.
// (PTX ISA, "Matrix Fragments for mma.m16n8k16" and its siblings: in bytes they are all alike.)
void read_fragments(const WgmmaKind& kind, const uint32_t* const* a, int first_row, RowOperand& out) {
    float columns[max_k * 8];
    for (int half = 0; half < 2; ++half) {
        const uint8_t* pieces[16];
        for (int i = 0; i < 16; ++i)
            pieces[i] = reinterpret_cast<const uint8_t*>(a[half + i % 2 * 2]) + 16 * (i / 2);
        widen_columns(packed(kind.a), pieces, 2, columns);
        if (kind.negate_a) negate(columns, 8 * kind.k);
        out.store(first_row + 8 * half, columns, kind.k);
    }
}

}  // namespace

// ---- wgmma --------------------------------------------------------------------------------------------------

int wgmma_accumulators(const WgmmaKind& kind) {
    const bool sixteen = kind.a == kind.b && (kind.a == Element::f16 || kind.a == Element::bf16) && kind.k == 16;
    const bool tf32 = kind.a == Element::tf32 && kind.b == Element::tf32 && kind.k == 8;
    const bool float8 = is_float8(kind.a) && is_float8(kind.b) && kind.k == 32;
    const bool integer8 = is_integer8(kind.a) && is_integer8(kind.b) && kind.k == 32;
    const bool bits = kind.a == Element::b1 && kind.b == Element::b1 && kind.k == 256;
    if (kind.n < 8 || kind.n > max_n || kind.n % 8) return 0;
    if ((integer8 || bits) && kind.n > 24 && kind.n % 16) return 0;
    if (!sixteen && (kind.a_mn_major || kind.b_mn_major)) return 0;
    if ((integer8 || bits) && (kind.negate_a || kind.negate_b)) return 0;
    if (kind.satfinite && !integer8) return 0;
    const bool half_sums = kind.d == Element::f16 && ((sixteen && kind.a == Element::f16) || float8);
    const bool single_sums = kind.d == Element::f32 && (sixteen || tf32 || float8);
    if (half_sums) return kind.n / 4;
    return single_sums || ((integer8 || bits) && kind.d == Element::s32) ? kind.n / 2 : 0;
}

namespace {

using BitRow = std::array<uint64_t, 4>;  // 256 elements of one bit

bool read_bits(uint64_t descriptor_bits, int rows, const SharedView& shared, BitRow* out, std::vector<uint32_t>& read,
               SharedFault& fault) {
    MatrixDescriptor descriptor;
    if (!decode_wgmma_descriptor(descriptor_bits, descriptor, fault)) return false;
    for (int row = 0; row < rows; ++row)
        for (uint32_t half = 0; half < 2; ++half) {
            read.push_back(matrix_chunk_address(descriptor, true, 1, static_cast<uint32_t>(row), 16 * half));
            const uint8_t* chunk = shared_chunk(shared, read.back(), fault);
            if (!chunk) return false;
            std::memcpy(&out[row][2 * half], chunk, 16);
        }
    return true;
}

// m64nNk256 of b1, and.popc: sums of 32 bits that wrap.
bool wgmma_bits(const WgmmaKind& kind, uint32_t* const* d, const uint32_t* const* a, uint64_t a_descriptor,
                uint64_t b_descriptor, bool scale_d, const SharedView& shared, std::vector<uint32_t>& chunks,
                SharedFault& fault) {
    std::array<BitRow, 64> rows;
    std::array<BitRow, max_n> columns;
    if (a) {
        for (int row = 0; row < 64; ++row)
            for (int half = 0; half < 2; ++half)
                std::memcpy(&rows[static_cast<size_t>(row)][2 * static_cast<size_t>(half)],
                            a[row / 16 * 4 + row / 8 % 2 + 2 * half] + row % 8 * 4, 16);
    } else if (!read_bits(a_descriptor, 64, shared, rows.data(), chunks, fault)) {
        return false;
    }
    if (!read_bits(b_descriptor, kind.n, shared, columns.data(), chunks, fault)) return false;
    const int accumulators = kind.n / 2;
    for (int warp = 0; warp < 4; ++warp)
        for (int reg = 0; reg < accumulators; ++reg)
            for (int lane = 0; lane < lanes; ++lane) {
                const BitRow& row = rows[static_cast<size_t>(16 * warp + reg / 2 % 2 * 8 + lane / 4)];
                const BitRow& column = columns[static_cast<size_t>(reg / 4 * 8 + lane % 4 * 2 + reg % 2)];
                uint32_t& sum = d[warp * accumulators + reg][lane];
                if (!scale_d) sum = 0;
                for (size_t i = 0; i < row.size(); ++i) sum += static_cast<uint32_t>(std::popcount(row[i] & column[i]));
            }
    return true;
}

}  // namespace

bool wgmma(const WgmmaKind& kind, uint32_t* const* d, const uint32_t* const* a, uint64_t a_descriptor,
           uint64_t b_descriptor, bool scale_d, const SharedView& shared, std::vector<uint32_t>& chunks,
           SharedFault& fault) {
    if (kind.a == Element::b1)
        return wgmma_bits(kind, d, a, a_descriptor, b_descriptor, scale_d, shared, chunks, fault);
    RowOperand rows;
    if (a) {
        for (int warp = 0; warp < 4; ++warp) read_fragments(kind, a + 4 * warp, 16 * warp, rows);
    } else if (!read_tile(a_descriptor, kind.a, kind.a_mn_major, kind.negate_a, 64, kind.k, shared, rows, chunks,
                          fault)) {
        return false;
    }
    ColumnOperand columns;
    if (!read_tile(b_descriptor, kind.b, kind.b_mn_major, kind.negate_b, kind.n, kind.k, shared, columns, chunks,
                   fault))
        return false;

    const int accumulators = wgmma_accumulators(kind);
    for (int warp = 0; warp < 4; ++warp) {
        uint32_t* const* registers = d + warp * accumulators;
        multiply_warp({{rows.values[2 * warp], rows.values[2 * warp + 1]},
                       columns.values,
                       scale_d ? registers : nullptr,
                       registers,
                       kind.k,
                       kind.n,
                       kind.d,
                       kind.satfinite});
    }
    return true;
}

// ---- ldmatrix, stmatrix -------------------------------------------------------------------------------------

namespace {

// Where lane l of a fragment of one 8x8 matrix finds its two elements: row l / 4, columns 2 * (l % 4) + {0, 1};
// transposed, column l / 4 and those rows.
int fragment_byte(int lane, int element, bool transposed) {
    const int major = lane / 4, minor = 2 * (lane % 4) + element;
    return transposed ? minor * 16 + major * 2 : major * 16 + minor * 2;
}

}  // namespace

void ldmatrix_unpack(int count, bool transposed, const uint8_t (*rows)[16], uint32_t* const* d) {
    for (int i = 0; i < count; ++i) {
        const uint8_t* matrix = rows[8 * i];
        for (int lane = 0; lane < lanes; ++lane) {
            uint16_t pair[2];
            for (int e = 0; e < 2; ++e) std::memcpy(&pair[e], matrix + fragment_byte(lane, e, transposed), 2);
            d[i][lane] = pack_16x2(pair[1], pair[0]);
        }
    }
}

void stmatrix_pack(int count, bool transposed, const uint32_t* const* s, uint8_t (*rows)[16]) {
    for (int i = 0; i < count; ++i) {
        uint8_t* matrix = rows[8 * i];
        for (int lane = 0; lane < lanes; ++lane) {
            const uint16_t pair[2] = {low_16(s[i][lane]), high_16(s[i][lane])};
            for (int e = 0; e < 2; ++e) std::memcpy(matrix + fragment_byte(lane, e, transposed), &pair[e], 2);
        }
    }
}

}  // namespace machete::sim
