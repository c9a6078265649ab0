// Packed operands of tensor cores as float32, many at a time. Exact: every 8-bit float is a float16 times a power of
// two, and so are the 6-bit and 4-bit ones, which is how processors with F16C convert them. Integers become float32 too:
// their products and the sums of one instruction (at most 2^21) are exact there.
#pragma once

#include <cstdint>

namespace machete::sim {

enum class Packed : uint8_t {
    f16, bf16, tf32, e4m3, e5m2, s8, u8,
    e2m3, e3m2,    // a byte each, in bits 0 to 5
    e2m1_high,     // a byte each, in bits 2 to 5
    e2m1_nibbles,  // 32 in 16 bytes
    e2m3_groups, e3m2_groups,  // 16 in 12 bytes, 4 of padding
    e2m1_groups,               // 16 in 8 bytes, 8 of padding
};

// Elements of 16 bytes.
constexpr uint32_t packed_count(Packed p) {
    return p == Packed::tf32 ? 4 : p == Packed::f16 || p == Packed::bf16 ? 8 : p == Packed::e2m1_nibbles ? 32 : 16;
}
constexpr uint32_t kMaxPacked = 32;
constexpr uint32_t kMaxDepth = 64;  // K of one instruction

// Widens 16 bytes to packed_count floats.
using Widen = void (*)(const uint8_t* chunk, float* out);
Widen widener(Packed p);

// Eight neighbours of 16 bytes each, to rows that are `stride` floats apart.
using WidenEight = void (*)(const uint8_t* bytes, float* out, uint32_t stride);
WidenEight eight_widener(Packed p);

// out[k][8] of eight rows, each of `chunks` pieces of 16 bytes, k up to kMaxDepth: those of row r begin at pieces[r * chunks].
void widen_columns(Packed p, const uint8_t* const* pieces, uint32_t chunks, float* out);

// Pairs of float16 as 32 lanes of two registers, and back: rounded to nearest, NaN as PTX has it.
void split_halves(const uint32_t* pairs, float* low, float* high);
void join_halves(const float* low, const float* high, uint32_t* pairs);
// The same for `count` values in the low half of a register each, in place; a multiple of 8.
void halves_to_floats(uint32_t* cells, uint32_t count);
void floats_to_halves(uint32_t* cells, uint32_t count);

// ---- one warp's m16n8 -------------------------------------------------------------------------------------------

struct WarpTile {
    alignas(32) float a[16][kMaxDepth];
    alignas(32) float b[kMaxDepth][8];
    alignas(32) float c[16][8];
};

// A and B out of fragments: a register holds 16 bytes of k of 8 rows or columns, four lanes a row.
void unpack_tile(Packed a_type, const uint32_t* const* a, int a_registers, Packed b_type, const uint32_t* const* b,
                 int b_registers, WarpTile& tile);
// c out of 4 registers of float32 or 2 of pairs of float16, and back.
void load_accumulators(const uint32_t* const* c, bool half, WarpTile& tile);
void store_accumulators(const WarpTile& tile, bool half, uint32_t* const* d);
// c += a b in order of k.
void multiply_tile(WarpTile& tile, uint32_t depth);

}  // namespace machete::sim
