// One inner loop serves mma.sync and wgmma, because their accumulator fragments are alike: of an 8-row half tile, lane
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

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace machete::sim {

namespace {

constexpr int lanes = 32;
constexpr int max_k = 32;
constexpr int max_n = 256;
constexpr uint32_t sign_bit = 0x80000000u;

bool is_float8(Element element) { return element == Element::e4m3 || element == Element::e5m2; }

bool is_integer8(Element element) { return element == Element::s8 || element == Element::u8; }

// The float32 or int32 bits of a packed operand element.
template <Element element>
uint32_t widen(const uint8_t* packed) {
    if constexpr (element == Element::f16 || element == Element::bf16) {
        uint16_t bits;
        std::memcpy(&bits, packed, 2);
        return std::bit_cast<uint32_t>(element == Element::f16 ? f32_from_f16(bits) : f32_from_bf16(bits));
    } else if constexpr (element == Element::tf32) {
        uint32_t bits;
        std::memcpy(&bits, packed, 4);
        return std::bit_cast<uint32_t>(f32_from_tf32(bits));
    } else if constexpr (element == Element::e4m3) {
        return std::bit_cast<uint32_t>(f32_from_e4m3(*packed));
    } else if constexpr (element == Element::e5m2) {
        return std::bit_cast<uint32_t>(f32_from_e5m2(*packed));
    } else if constexpr (element == Element::s8) {
        return static_cast<uint32_t>(static_cast<int8_t>(*packed));
    } else {
        static_assert(element == Element::u8);
        return *packed;
    }
}

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

// Calls function.operator()<element>() for an operand type, so that loops over elements are compiled for each.
template <class Function>
bool with_operand(Element element, Function function) {
    switch (element) {
        case Element::f16:
            return function.template operator()<Element::f16>();
        case Element::bf16:
            return function.template operator()<Element::bf16>();
        case Element::tf32:
            return function.template operator()<Element::tf32>();
        case Element::e4m3:
            return function.template operator()<Element::e4m3>();
        case Element::e5m2:
            return function.template operator()<Element::e5m2>();
        case Element::s8:
            return function.template operator()<Element::s8>();
        case Element::u8:
            return function.template operator()<Element::u8>();
        case Element::f32:
        case Element::s32:
            return false;  // accumulators, never an operand
    }
    return false;
}

// ---- the inner loop -----------------------------------------------------------------------------------------

// D for the 8 rows of a half tile: c and d hold two registers, columns {0, 2, 4, 6} and {1, 3, 5, 7}, per group.
struct HalfTile {
    const uint32_t* a;         // [k][32], each row's value in its four lanes
    const uint32_t* b;         // [2 * groups][k][4], the four columns of a register
    const uint32_t* const* c;  // null: zeros
    uint32_t* const* d;
    int k, groups;
};

// Portable vectors of 4, and the only way for integers.
template <class Scalar>
void multiply_portable(const HalfTile& tile) {
    typedef Scalar Vector __attribute__((vector_size(16)));
    constexpr int width = 4, parts = lanes / width;
    const auto load = [](const uint32_t* from) {
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
        const auto* a = reinterpret_cast<const float*>(tile.a);
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

const bool have_avx2 = use_avx2();
#endif

void multiply(const HalfTile& tile, bool integer) {
    if (integer) return multiply_portable<uint32_t>(tile);  // unsigned: products and sums wrap as the hardware's do
#if defined(__x86_64__)
    if (have_avx2) return multiply_avx2(tile);
#endif
    multiply_portable<float>(tile);
}

// ---- operands -----------------------------------------------------------------------------------------------

// A as the inner loop wants it: [half tile][k][32].
template <int halves>
struct RowOperand {
    static constexpr int k_step = lanes;
    uint32_t values[halves][max_k * lanes];

    uint32_t* at(int row, int k) { return &values[row / 8][k * lanes + row % 8 * 4]; }
    static void store(uint32_t* at, uint32_t value) { std::fill_n(at, 4, value); }
};

// B as the inner loop wants it: [column register][k][4]. Its k extent is part of the layout.
template <int columns>
struct ColumnOperand {
    static constexpr int k_step = 4;
    explicit ColumnOperand(int k_extent) : k_extent(k_extent) {}
    const int k_extent;
    alignas(16) uint32_t values[columns / 4 * max_k * 4];

    uint32_t* at(int column, int k) {
        const int reg = column / 8 * 2 + column % 2;
        return &values[(reg * k_extent + k) * 4 + column % 8 / 2];
    }
    static void store(uint32_t* at, uint32_t value) { *at = value; }
};

// A fragment register holds, per lane, 4 bytes of k of row (or column) first_row + lane / 4.
template <Element element, class Operand>
void unpack_register(const uint32_t* reg, int first_row, int first_k, Operand& out) {
    constexpr int per_lane = 4 / size_of(element);
    uint8_t packed[4 * lanes];
    uint32_t values[per_lane * lanes];
    std::memcpy(packed, reg, sizeof packed);
    for (int i = 0; i < per_lane * lanes; ++i) values[i] = widen<element>(packed + i * size_of(element));
    for (int row = 0; row < 8; ++row) {
        uint32_t* at = out.at(first_row + row, first_k);
        for (int k = 0; k < 4 * per_lane; ++k) out.store(at + k * out.k_step, values[row * 4 * per_lane + k]);
    }
}

// A fragments of m16: register i holds the upper or lower 8 rows; each pair of registers 16 bytes of k.
// (PTX ISA, "Matrix Fragments for mma.m16n8k16" and its siblings: in bytes they are all alike.)
template <int halves>
void unpack_a(Element element, const uint32_t* const* a, int registers, int first_row, RowOperand<halves>& out) {
    with_operand(element, [&]<Element e>() {
        for (int i = 0; i < registers; ++i) {
            unpack_register<e>(a[i], first_row + 8 * (i % 2), i / 2 * 16 / size_of(e), out);
        }
        return true;
    });
}

// B fragments of n8: register i holds 16 bytes of k.
void unpack_b(Element element, const uint32_t* const* b, int registers, ColumnOperand<8>& out) {
    with_operand(element, [&]<Element e>() {
        for (int i = 0; i < registers; ++i) unpack_register<e>(b[i], 0, i * 16 / size_of(e), out);
        return true;
    });
}

// ---- one warp's 16 rows -------------------------------------------------------------------------------------

// d = a * b + c on fragments: registers 4 * group + 2 * half + e for 32-bit accumulators, 2 * group + half for
// packed f16. c may be null (zeros) or the very registers of d.
struct WarpTile {
    const uint32_t* a_halves[2];
    const uint32_t* b;
    const uint32_t* const* c;
    uint32_t* const* d;
    int k, n;
    Element accumulator;
    bool satfinite;
};

uint32_t saturated_sum(uint32_t product, uint32_t c) {
    const int64_t sum = static_cast<int64_t>(static_cast<int32_t>(product)) + static_cast<int32_t>(c);
    return static_cast<uint32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
}

void multiply_float16(const WarpTile& tile) {
    const int groups = tile.n / 8;
    uint32_t sums[2 * max_n / 8][lanes];
    uint32_t* registers[2 * max_n / 8];
    for (int i = 0; i < 2 * groups; ++i) registers[i] = sums[i];
    for (int half = 0; half < 2; ++half) {
        for (int g = 0; tile.c && g < groups; ++g) {
            for (int lane = 0; lane < lanes; ++lane) {
                const uint32_t pair = tile.c[2 * g + half][lane];
                sums[2 * g][lane] = std::bit_cast<uint32_t>(f32_from_f16(low_16(pair)));
                sums[2 * g + 1][lane] = std::bit_cast<uint32_t>(f32_from_f16(high_16(pair)));
            }
        }
        multiply({tile.a_halves[half], tile.b, tile.c ? registers : nullptr, registers, tile.k, groups}, false);
        for (int g = 0; g < groups; ++g) {
            for (int lane = 0; lane < lanes; ++lane) {
                tile.d[2 * g + half][lane] = pack_16x2(f16_from_f32(std::bit_cast<float>(sums[2 * g + 1][lane])),
                                                       f16_from_f32(std::bit_cast<float>(sums[2 * g][lane])));
            }
        }
    }
}

void multiply_warp(const WarpTile& tile) {
    if (tile.accumulator == Element::f16) return multiply_float16(tile);
    const int groups = tile.n / 8;
    const bool integer = tile.accumulator == Element::s32;
    uint32_t products[2 * max_n / 8][lanes];
    const uint32_t* c[2 * max_n / 8];
    uint32_t* d[2 * max_n / 8];
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 2 * groups; ++i) {
            const int reg = i / 2 * 4 + 2 * half + i % 2;
            if (tile.c) c[i] = tile.c[reg];
            d[i] = tile.satfinite ? products[i] : tile.d[reg];
        }
        // The clamp applies to the whole sum; the products alone cannot overflow 32 bits.
        const bool start_from_c = tile.c && !tile.satfinite;
        multiply({tile.a_halves[half], tile.b, start_from_c ? c : nullptr, d, tile.k, groups}, integer);
        if (!tile.satfinite) continue;
        for (int i = 0; i < 2 * groups; ++i) {
            uint32_t* out = tile.d[i / 2 * 4 + 2 * half + i % 2];
            for (int lane = 0; lane < lanes; ++lane)
                out[lane] = saturated_sum(products[i][lane], tile.c ? c[i][lane] : 0);
        }
    }
}

}  // namespace

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
    RowOperand<2> rows;
    unpack_a(kind.a, a, registers.a, 0, rows);
    ColumnOperand<8> columns(kind.k);
    unpack_b(kind.b, b, registers.b, columns);
    // d may be a permutation of c's registers.
    uint32_t start[4][lanes];
    for (int i = 0; i < registers.d; ++i) std::memcpy(start[i], c[i], sizeof start[i]);
    const uint32_t* const starts[4] = {start[0], start[1], start[2], start[3]};
    multiply_warp({{rows.values[0], rows.values[1]}, columns.values, starts, d, kind.k, 8, kind.d, kind.satfinite});
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

uint32_t matrix_chunk_address(const MatrixDescriptor& descriptor, bool k_major, int element_bytes, uint32_t row,
                              uint32_t k) {
    const uint32_t bytes = static_cast<uint32_t>(element_bytes), width = static_cast<uint32_t>(descriptor.swizzle);
    const uint32_t leading = descriptor.leading, stride = descriptor.stride;
    uint32_t offset;
    if (k_major) {
        // Core matrices of 8 rows x 16 bytes; a swizzled row holds width / 16 of them side by side.
        const uint32_t across = k * bytes;
        offset = width ? row / 8 * stride + row % 8 * width + across
                       : row / 8 * stride + row % 8 * 16 + across / 16 * leading;
    } else {
        // Core matrices of 8 k x 16 bytes of rows; with atoms of 32 bytes, 4 k.
        const uint32_t across = row * bytes, group = descriptor.atom == 32 ? 4 : 8;
        offset = width ? across / width * leading + across % width + k / group * stride + k % group * width
                       : across / 16 * stride + k / 8 * leading + k % 8 * 16;
    }
    const uint32_t address = descriptor.start + offset;
    const auto atom = static_cast<uint32_t>(descriptor.atom);
    const uint32_t phase_mask = width ? width / atom - 1 : 0;
    return address ^ (((address >> 7) - descriptor.base_offset) & phase_mask) * atom;
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
template <Element element, class Operand>
bool read_elements(const MatrixDescriptor& descriptor, bool mn_major, bool negate, int rows, int k_extent,
                   const SharedView& shared, Operand& out, SharedFault& fault) {
    constexpr int per_chunk = 16 / size_of(element);
    const int row_step = mn_major ? per_chunk : 1, k_step = mn_major ? 1 : per_chunk;
    const uint32_t flip = negate ? sign_bit : 0;
    uint32_t values[per_chunk];
    for (int row = 0; row < rows; row += row_step) {
        for (int k = 0; k < k_extent; k += k_step) {
            const uint32_t address = matrix_chunk_address(descriptor, !mn_major, size_of(element),
                                                          static_cast<uint32_t>(row), static_cast<uint32_t>(k));
            const uint8_t* chunk = shared_chunk(shared, address, fault);
            if (!chunk) return false;
            for (int e = 0; e < per_chunk; ++e) values[e] = widen<element>(chunk + e * size_of(element)) ^ flip;
            if (mn_major) {
                for (int e = 0; e < per_chunk; ++e) out.store(out.at(row + e, k), values[e]);
            } else {
                uint32_t* at = out.at(row, k);
                for (int e = 0; e < per_chunk; ++e) out.store(at + e * out.k_step, values[e]);
            }
        }
    }
    return true;
}

template <class Operand>
bool read_tile(uint64_t bits, Element element, bool mn_major, bool negate, int rows, int k_extent,
               const SharedView& shared, Operand& out, SharedFault& fault) {
    MatrixDescriptor descriptor;
    if (!decode_wgmma_descriptor(bits, descriptor, fault)) return false;
    return with_operand(element, [&]<Element e>() {
        return read_elements<e>(descriptor, mn_major, negate, rows, k_extent, shared, out, fault);
    });
}

}  // namespace

// ---- wgmma --------------------------------------------------------------------------------------------------

int wgmma_accumulators(const WgmmaKind& kind) {
    const bool sixteen = kind.a == kind.b && (kind.a == Element::f16 || kind.a == Element::bf16) && kind.k == 16;
    const bool tf32 = kind.a == Element::tf32 && kind.b == Element::tf32 && kind.k == 8;
    const bool float8 = is_float8(kind.a) && is_float8(kind.b) && kind.k == 32;
    const bool integer8 = is_integer8(kind.a) && is_integer8(kind.b) && kind.k == 32;
    if (kind.n < 8 || kind.n > max_n || kind.n % 8) return 0;
    if (integer8 && kind.n > 24 && kind.n % 16) return 0;
    if (!sixteen && (kind.a_mn_major || kind.b_mn_major)) return 0;
    if (integer8 && (kind.negate_a || kind.negate_b)) return 0;
    if (kind.satfinite && !integer8) return 0;
    const bool half_sums = kind.d == Element::f16 && ((sixteen && kind.a == Element::f16) || float8);
    const bool single_sums = kind.d == Element::f32 && (sixteen || tf32 || float8);
    if (half_sums) return kind.n / 4;
    return single_sums || (integer8 && kind.d == Element::s32) ? kind.n / 2 : 0;
}

bool wgmma(const WgmmaKind& kind, uint32_t* const* d, const uint32_t* const* a, uint64_t a_descriptor,
           uint64_t b_descriptor, bool scale_d, const SharedView& shared, SharedFault& fault) {
    RowOperand<8> rows;
    if (a) {
        for (int warp = 0; warp < 4; ++warp) unpack_a(kind.a, a + 4 * warp, 4, 16 * warp, rows);
        if (kind.negate_a) {
            for (auto& half : rows.values) {
                for (int i = 0; i < kind.k * lanes; ++i) half[i] ^= sign_bit;
            }
        }
    } else if (!read_tile(a_descriptor, kind.a, kind.a_mn_major, kind.negate_a, 64, kind.k, shared, rows, fault)) {
        return false;
    }
    ColumnOperand<max_n> columns(kind.k);
    if (!read_tile(b_descriptor, kind.b, kind.b_mn_major, kind.negate_b, kind.n, kind.k, shared, columns, fault))
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
