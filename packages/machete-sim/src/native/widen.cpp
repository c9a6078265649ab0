#include "widen.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "numbers.hpp"
#include "opcodes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define MACHETE_SIM_AVX2 __attribute__((target("avx2,fma,f16c,bmi2")))
#endif

namespace machete::sim {

namespace {

constexpr uint32_t lanes = 32;

// ---- portable -----------------------------------------------------------------------------------------------

// Element n of a chunk.
template <Packed p>
float element(const uint8_t* chunk, uint32_t n) {
    using enum Packed;
    if constexpr (p == f16 || p == bf16) {
        uint16_t bits;
        std::memcpy(&bits, chunk + 2 * n, 2);
        return p == f16 ? f32_from_f16(bits) : f32_from_bf16(bits);
    } else if constexpr (p == tf32) {
        uint32_t bits;
        std::memcpy(&bits, chunk + 4 * n, 4);
        return f32_from_tf32(bits);
    } else if constexpr (p == e2m1_nibbles || p == e2m1_groups) {
        return f32_from_e2m1(static_cast<uint8_t>(chunk[n / 2] >> (4 * (n % 2)) & 15));
    } else if constexpr (p == e2m3_groups || p == e3m2_groups) {
        uint16_t pair;
        std::memcpy(&pair, chunk + 6 * n / 8, 2);
        const auto code = static_cast<uint8_t>(pair >> (6 * n % 8) & 63);
        return p == e2m3_groups ? f32_from_e2m3(code) : f32_from_e3m2(code);
    } else {
        const uint8_t byte = chunk[n];
        if constexpr (p == e4m3) return f32_from_e4m3(byte);
        if constexpr (p == e5m2) return f32_from_e5m2(byte);
        if constexpr (p == s8) return static_cast<float>(static_cast<int8_t>(byte));
        if constexpr (p == u8) return static_cast<float>(byte);
        if constexpr (p == e2m3) return f32_from_e2m3(byte & 63);
        if constexpr (p == e3m2) return f32_from_e3m2(byte & 63);
        if constexpr (p == e2m1_high) return f32_from_e2m1(byte >> 2 & 15);
    }
}

template <Packed p>
void widen_portable(const uint8_t* chunk, float* out) {
    for (uint32_t n = 0; n < packed_count(p); ++n) out[n] = element<p>(chunk, n);
}

template <Packed p>
void eight_portable(const uint8_t* bytes, float* out, uint32_t stride) {
    for (uint32_t r = 0; r < 8; ++r) widen_portable<p>(bytes + 16 * r, out + size_t(r) * stride);
}

template <Packed p>
void pieces_portable(const uint8_t* const* pieces, uint32_t chunks, float* out, uint32_t stride) {
    for (uint32_t r = 0; r < 8; ++r, out += stride)
        for (uint32_t c = 0; c < chunks; ++c) widen_portable<p>(*pieces++, out + c * packed_count(p));
}

#if defined(__x86_64__)

const bool have_avx2 = use_avx2() && __builtin_cpu_supports("f16c");

// ---- AVX2 and F16C ------------------------------------------------------------------------------------------

MACHETE_SIM_AVX2 inline __m256 canonical(__m256 v) {  // NaN as PTX has it
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

// 16 bytes as 16 float16 with `bits` of each as sign and magnitude, times a power of two.
template <int sign, int magnitude, int sign_shift, int shift>
MACHETE_SIM_AVX2 inline void through_f16(__m128i bytes, float scale, float* out) {
    const __m256i v = _mm256_cvtepu8_epi16(bytes);
    const __m256i halves = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(sign)), sign_shift),
                                           _mm256_slli_epi16(_mm256_and_si256(v, _mm256_set1_epi16(magnitude)), shift));
    const __m256 factor = _mm256_set1_ps(scale);
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), factor));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), factor));
}

MACHETE_SIM_AVX2 inline void nibbles(__m128i codes, float* out) { through_f16<8, 7, 12, 9>(codes, 0x1p14f, out); }

template <Packed p>
MACHETE_SIM_AVX2 inline void widen_avx2(const uint8_t* chunk, float* out) {
    using enum Packed;
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(chunk));
    if constexpr (p == f16) {
        _mm256_storeu_ps(out, canonical(_mm256_cvtph_ps(bytes)));
    } else if constexpr (p == bf16) {
        _mm256_storeu_ps(out, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bytes), 16)));
    } else if constexpr (p == tf32) {
        _mm_storeu_ps(out, _mm_castsi128_ps(_mm_and_si128(bytes, _mm_set1_epi32(static_cast<int>(0xffffe000u)))));
    } else if constexpr (p == e4m3) {
        through_f16<0x80, 0x7f, 8, 7>(bytes, 256, out);
        for (int h = 0; h < 2; ++h) {  // all ones is NaN, not 480
            const __m256 v = _mm256_loadu_ps(out + 8 * h), size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
            const __m256 all = _mm256_cmp_ps(size, _mm256_set1_ps(480), _CMP_EQ_OQ);
            _mm256_storeu_ps(out + 8 * h,
                             _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)), all));
        }
    } else if constexpr (p == e5m2) {
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
        _mm256_storeu_ps(out, canonical(_mm256_cvtph_ps(_mm256_castsi256_si128(halves))));
        _mm256_storeu_ps(out + 8, canonical(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))));
    } else if constexpr (p == s8 || p == u8) {
        const __m128i high = _mm_srli_si128(bytes, 8);
        const __m256i low_words = p == s8 ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
        const __m256i high_words = p == s8 ? _mm256_cvtepi8_epi32(high) : _mm256_cvtepu8_epi32(high);
        _mm256_storeu_ps(out, _mm256_cvtepi32_ps(low_words));
        _mm256_storeu_ps(out + 8, _mm256_cvtepi32_ps(high_words));
    } else if constexpr (p == e2m3) {
        through_f16<32, 31, 10, 7>(bytes, 0x1p14f, out);
    } else if constexpr (p == e3m2) {
        through_f16<32, 31, 10, 8>(bytes, 0x1p12f, out);
    } else if constexpr (p == e2m1_high) {
        through_f16<32, 28, 10, 7>(bytes, 0x1p14f, out);
    } else if constexpr (p == e2m1_nibbles || p == e2m1_groups) {
        const __m128i mask = _mm_set1_epi8(15), low = _mm_and_si128(bytes, mask);
        const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
        nibbles(_mm_unpacklo_epi8(low, high), out);
        if constexpr (p == e2m1_nibbles) nibbles(_mm_unpackhi_epi8(low, high), out + 16);
    } else {
        static_assert(p == e2m3_groups || p == e3m2_groups);
        uint64_t low, high;
        std::memcpy(&low, chunk, 8);
        std::memcpy(&high, chunk + 6, 8);
        constexpr uint64_t every = 0x3f3f3f3f3f3f3f3full;
        const __m128i codes = _mm_set_epi64x(static_cast<int64_t>(_pdep_u64(high, every)),
                                             static_cast<int64_t>(_pdep_u64(low, every)));
        if constexpr (p == e2m3_groups)
            through_f16<32, 31, 10, 7>(codes, 0x1p14f, out);
        else
            through_f16<32, 31, 10, 8>(codes, 0x1p12f, out);
    }
}

template <Packed p>
MACHETE_SIM_AVX2 void eight_avx2(const uint8_t* bytes, float* out, uint32_t stride) {
    for (uint32_t r = 0; r < 8; ++r) widen_avx2<p>(bytes + 16 * r, out + size_t(r) * stride);
}

template <Packed p>
MACHETE_SIM_AVX2 void pieces_avx2(const uint8_t* const* pieces, uint32_t chunks, float* out, uint32_t stride) {
    for (uint32_t r = 0; r < 8; ++r, out += stride)
        for (uint32_t c = 0; c < chunks; ++c) widen_avx2<p>(*pieces++, out + c * packed_count(p));
}

// Eight rows that are `stride` floats apart, as out[8][8] with rows and columns exchanged.
MACHETE_SIM_AVX2 inline void transpose_avx2(const float* rows, uint32_t stride, float* out) {
    __m256 v[8], t[8];
    for (int r = 0; r < 8; ++r) v[r] = _mm256_loadu_ps(rows + size_t(r) * stride);
    for (int r = 0; r < 8; r += 2) {
        t[r] = _mm256_unpacklo_ps(v[r], v[r + 1]);
        t[r + 1] = _mm256_unpackhi_ps(v[r], v[r + 1]);
    }
    for (int q = 0; q < 8; q += 4) {
        v[q] = _mm256_shuffle_ps(t[q], t[q + 2], 0x44);
        v[q + 1] = _mm256_shuffle_ps(t[q], t[q + 2], 0xee);
        v[q + 2] = _mm256_shuffle_ps(t[q + 1], t[q + 3], 0x44);
        v[q + 3] = _mm256_shuffle_ps(t[q + 1], t[q + 3], 0xee);
    }
    for (int r = 0; r < 4; ++r) {
        _mm256_storeu_ps(out + 8 * r, _mm256_permute2f128_ps(v[r], v[r + 4], 0x20));
        _mm256_storeu_ps(out + 8 * (r + 4), _mm256_permute2f128_ps(v[r], v[r + 4], 0x31));
    }
}

// Eight neighbours of four tf32 each, as out[4][8]: at once, since loads of what smaller stores wrote are slow.
MACHETE_SIM_AVX2 void tf32_columns_avx2(const uint32_t* bits, float* out) {
    __m128 v[2][4];
    for (int r = 0; r < 8; ++r) v[r / 4][r % 4] = _mm_loadu_ps(reinterpret_cast<const float*>(bits + 4 * r));
    for (auto& quarter : v) _MM_TRANSPOSE4_PS(quarter[0], quarter[1], quarter[2], quarter[3]);
    const __m256 kept = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffffe000u)));
    for (int k = 0; k < 4; ++k) _mm256_storeu_ps(out + 8 * k, _mm256_and_ps(_mm256_set_m128(v[1][k], v[0][k]), kept));
}

MACHETE_SIM_AVX2 inline __m128i rounded_halves(__m256 v) {
    const __m128i halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    return _mm_blendv_epi8(halves, _mm_set1_epi16(0x7fff), narrow);
}

MACHETE_SIM_AVX2 inline __m128i low_words(__m256i v) {  // of eight registers
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

MACHETE_SIM_AVX2 void split_halves_avx2(const uint32_t* pairs, float* low, float* high) {
    for (uint32_t l = 0; l < lanes; l += 8) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs + l));
        const __m256i first = _mm256_and_si256(v, _mm256_set1_epi32(0xffff)), second = _mm256_srli_epi32(v, 16);
        _mm256_storeu_ps(low + l, canonical(_mm256_cvtph_ps(low_words(first))));
        _mm256_storeu_ps(high + l, canonical(_mm256_cvtph_ps(low_words(second))));
    }
}

MACHETE_SIM_AVX2 void join_halves_avx2(const float* low, const float* high, uint32_t* pairs) {
    for (uint32_t l = 0; l < lanes; l += 8) {
        const __m256i first = _mm256_cvtepu16_epi32(rounded_halves(_mm256_loadu_ps(low + l)));
        const __m256i second = _mm256_cvtepu16_epi32(rounded_halves(_mm256_loadu_ps(high + l)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + l),
                            _mm256_or_si256(first, _mm256_slli_epi32(second, 16)));
    }
}

MACHETE_SIM_AVX2 void halves_to_floats_avx2(uint32_t* cells, uint32_t count) {
    for (uint32_t n = 0; n < count; n += 8) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cells + n));
        const __m256 wide = _mm256_cvtph_ps(low_words(_mm256_and_si256(v, _mm256_set1_epi32(0xffff))));
        _mm256_storeu_ps(reinterpret_cast<float*>(cells + n), canonical(wide));
    }
}

MACHETE_SIM_AVX2 void floats_to_halves_avx2(uint32_t* cells, uint32_t count) {
    for (uint32_t n = 0; n < count; n += 8) {
        const __m128i halves = rounded_halves(_mm256_loadu_ps(reinterpret_cast<const float*>(cells + n)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(cells + n), _mm256_cvtepu16_epi32(halves));
    }
}

MACHETE_SIM_AVX2 void load_accumulators_avx2(const uint32_t* const* c, WarpTile& tile) {
    for (int row = 0; row < 16; ++row) {
        const __m128 even = _mm_loadu_ps(reinterpret_cast<const float*>(c[row / 8 * 2]) + row % 8 * 4);
        const __m128 odd = _mm_loadu_ps(reinterpret_cast<const float*>(c[row / 8 * 2 + 1]) + row % 8 * 4);
        _mm256_store_ps(tile.c[row], _mm256_set_m128(_mm_unpackhi_ps(even, odd), _mm_unpacklo_ps(even, odd)));
    }
}

MACHETE_SIM_AVX2 void store_accumulators_avx2(const WarpTile& tile, uint32_t* const* d) {
    for (int row = 0; row < 16; ++row) {
        const __m128 low = _mm_load_ps(tile.c[row]), high = _mm_load_ps(tile.c[row] + 4);
        _mm_storeu_ps(reinterpret_cast<float*>(d[row / 8 * 2]) + row % 8 * 4, _mm_shuffle_ps(low, high, 0x88));
        _mm_storeu_ps(reinterpret_cast<float*>(d[row / 8 * 2 + 1]) + row % 8 * 4, _mm_shuffle_ps(low, high, 0xdd));
    }
}

MACHETE_SIM_AVX2 void store_halves_avx2(const WarpTile& tile, uint32_t* const* d) {
    for (int row = 0; row < 16; ++row)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(d[row / 8] + row % 8 * 4),
                         rounded_halves(_mm256_load_ps(tile.c[row])));
}

MACHETE_SIM_AVX2 void multiply_tile_avx2(WarpTile& t, uint32_t depth) {
    for (uint32_t first = 0; first < 16; first += 8) {
        __m256 sum[8];
        for (uint32_t r = 0; r < 8; ++r) sum[r] = _mm256_load_ps(t.c[first + r]);
        for (uint32_t k = 0; k < depth; ++k) {
            const __m256 b = _mm256_load_ps(t.b[k]);
            for (uint32_t r = 0; r < 8; ++r)
                sum[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(&t.a[first + r][k]), b, sum[r]);
        }
        for (uint32_t r = 0; r < 8; ++r) _mm256_store_ps(t.c[first + r], sum[r]);
    }
}

#define MACHETE_SIM_TRY_AVX2(call) \
    if (have_avx2) return call
#else
#define MACHETE_SIM_TRY_AVX2(call)
#endif

struct Wideners {
    Widen one;
    WidenEight eight;
    void (*pieces)(const uint8_t* const* pieces, uint32_t chunks, float* out, uint32_t stride);
};

template <Packed p>
Wideners choose() {
    MACHETE_SIM_TRY_AVX2((Wideners{widen_avx2<p>, eight_avx2<p>, pieces_avx2<p>}));
    return {widen_portable<p>, eight_portable<p>, pieces_portable<p>};
}

const Wideners& wideners(Packed p) {
    using enum Packed;
    static const Wideners table[] = {choose<f16>(),         choose<bf16>(),         choose<tf32>(),
                                     choose<e4m3>(),        choose<e5m2>(),         choose<s8>(),
                                     choose<u8>(),          choose<e2m3>(),         choose<e3m2>(),
                                     choose<e2m1_high>(),   choose<e2m1_nibbles>(), choose<e2m3_groups>(),
                                     choose<e3m2_groups>(), choose<e2m1_groups>()};
    return table[static_cast<int>(p)];
}

void transpose(const float* rows, uint32_t stride, float* out) {
    MACHETE_SIM_TRY_AVX2(transpose_avx2(rows, stride, out));
    for (uint32_t r = 0; r < 8; ++r)
        for (uint32_t k = 0; k < 8; ++k) out[8 * k + r] = rows[size_t(r) * stride + k];
}

void transpose_rows(const float* rows, uint32_t stride, uint32_t depth, float* out) {
    uint32_t k = 0;
    for (; k + 8 <= depth; k += 8) transpose(rows + k, stride, out + 8 * k);
    for (; k < depth; ++k)
        for (uint32_t r = 0; r < 8; ++r) out[8 * k + r] = rows[size_t(r) * stride + k];
}

}  // namespace

Widen widener(Packed p) { return wideners(p).one; }
WidenEight eight_widener(Packed p) { return wideners(p).eight; }

void widen_columns(Packed p, const uint8_t* const* pieces, uint32_t chunks, float* out) {
    float rows[8][kMaxDepth];
    wideners(p).pieces(pieces, chunks, rows[0], kMaxDepth);
    transpose_rows(rows[0], kMaxDepth, chunks * packed_count(p), out);
}

void split_halves(const uint32_t* pairs, float* low, float* high) {
    MACHETE_SIM_TRY_AVX2(split_halves_avx2(pairs, low, high));
    for (uint32_t l = 0; l < lanes; ++l) {
        low[l] = f32_from_f16(low_16(pairs[l]));
        high[l] = f32_from_f16(high_16(pairs[l]));
    }
}

void join_halves(const float* low, const float* high, uint32_t* pairs) {
    MACHETE_SIM_TRY_AVX2(join_halves_avx2(low, high, pairs));
    for (uint32_t l = 0; l < lanes; ++l) pairs[l] = pack_16x2(f16_from_f32(high[l]), f16_from_f32(low[l]));
}

void halves_to_floats(uint32_t* cells, uint32_t count) {
    MACHETE_SIM_TRY_AVX2(halves_to_floats_avx2(cells, count));
    for (uint32_t n = 0; n < count; ++n) cells[n] = std::bit_cast<uint32_t>(f32_from_f16(low_16(cells[n])));
}

void floats_to_halves(uint32_t* cells, uint32_t count) {
    MACHETE_SIM_TRY_AVX2(floats_to_halves_avx2(cells, count));
    for (uint32_t n = 0; n < count; ++n) cells[n] = f16_from_f32(std::bit_cast<float>(cells[n]));
}

// ---- one warp's m16n8 -------------------------------------------------------------------------------------------

void unpack_tile(Packed a_type, const uint32_t* const* a, int a_registers, Packed b_type, const uint32_t* const* b,
                 int b_registers, WarpTile& tile) {
    const WidenEight widen_a = eight_widener(a_type), widen_b = eight_widener(b_type);
    const uint32_t a_count = packed_count(a_type), b_count = packed_count(b_type);
    for (int i = 0; i < a_registers; ++i)
        widen_a(reinterpret_cast<const uint8_t*>(a[i]), tile.a[8 * (i % 2)] + static_cast<uint32_t>(i / 2) * a_count,
                kMaxDepth);
#if defined(__x86_64__)
    if (have_avx2 && b_type == Packed::tf32) {
        for (int i = 0; i < b_registers; ++i) tf32_columns_avx2(b[i], tile.b[4 * i]);
        return;
    }
#endif
    alignas(32) float rows[8][kMaxDepth];
    for (int i = 0; i < b_registers; ++i)
        widen_b(reinterpret_cast<const uint8_t*>(b[i]), rows[0] + static_cast<uint32_t>(i) * b_count, kMaxDepth);
    transpose_rows(rows[0], kMaxDepth, static_cast<uint32_t>(b_registers) * b_count, tile.b[0]);
}

void load_accumulators(const uint32_t* const* c, bool half, WarpTile& tile) {
    if (half) {
        const Widen widen = widener(Packed::f16);
        for (int row = 0; row < 16; ++row)
            widen(reinterpret_cast<const uint8_t*>(c[row / 8] + row % 8 * 4), tile.c[row]);
        return;
    }
    MACHETE_SIM_TRY_AVX2(load_accumulators_avx2(c, tile));
    for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t l = 0; l < lanes; ++l)
            tile.c[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2] = std::bit_cast<float>(c[n][l]);
}

void store_accumulators(const WarpTile& tile, bool half, uint32_t* const* d) {
    if (half) {
        MACHETE_SIM_TRY_AVX2(store_halves_avx2(tile, d));
        for (uint32_t row = 0; row < 16; ++row)
            for (uint32_t n = 0; n < 4; ++n)
                d[row / 8][row % 8 * 4 + n] =
                    pack_16x2(f16_from_f32(tile.c[row][2 * n + 1]), f16_from_f32(tile.c[row][2 * n]));
        return;
    }
    MACHETE_SIM_TRY_AVX2(store_accumulators_avx2(tile, d));
    for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t l = 0; l < lanes; ++l)
            d[n][l] = std::bit_cast<uint32_t>(tile.c[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2]);
}

void multiply_tile(WarpTile& t, uint32_t depth) {
    MACHETE_SIM_TRY_AVX2(multiply_tile_avx2(t, depth));
    for (uint32_t row = 0; row < 16; ++row)
        for (uint32_t k = 0; k < depth; ++k)
            for (uint32_t n = 0; n < 8; ++n) t.c[row][n] += t.a[row][k] * t.b[k][n];
}

}  // namespace machete::sim
