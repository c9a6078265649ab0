// The descriptor's layout is not documented. It was read off cuTensorMapEncodeTiled of driver 580.159 and of the CuTe
// DSL's host code, which agree (64-bit words q0.., bit numbers within a word):
//
//   q0        global address
//   q1 4-6    rank - 1             q1 7-10   data type           q1 11-12  interleave: 0 none, 1 16 B, 2 32 B
//   q1 13-14  swizzle: 0 none, 1 32 B, 2 64 B, 3 128 B           q1 15     fill out-of-bounds elements with NaN
//   q1 16     tf32                 q1 17-18  L2 promotion        q1 19     swizzle atom of 32 B
//   q1 1, 21  set by the DSL alone, 1 always and 21 for tensors of 128 KiB and more: taken for hints
//   q1 32-63, q2, q3 0-31          strides 1..4 / 16, low 32 bits each; q3 32-47: their upper 4 bits each
//   q4, q5, q6 0-31                dims - 1, 32 bits each
//   q6 32-46                       element strides - 1, 3 bits each
//   q6 56-63, q7 0-31              box - 1, 8 bits each
//
// The second half belongs to the driver; the hardware does not read it.
#include "tensormap.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace machete::sim {

namespace {

constexpr int float32_flushed = 8;  // FLOAT32_FTZ
constexpr int packed_4bit = 11;     // 16U4_ALIGN8B: two elements a byte, no gaps
constexpr int padded_4bit = 12, padded_6bit = 13;  // 16U4_ALIGN16B, 16U6_ALIGN16B
// u8, u16, u32, s32, u64, s64, f16, f32, f32 flushed, f64, bf16, 4-bit, padded 4-bit, padded 6-bit
constexpr int type_bits[] = {8, 16, 32, 32, 64, 64, 16, 32, 32, 64, 16, 4, 4, 6};

constexpr uint64_t nan_fill_bit = 1ull << 15;
constexpr uint64_t tf32_bit = 1ull << 16;
constexpr uint64_t atom_bit = 1ull << 19;
constexpr uint64_t hint_bits = 3ull << 17 | 1ull << 1 | 1ull << 21;
constexpr uint64_t field_bits = 0x7ff0 | nan_fill_bit | tf32_bit | atom_bit;  // bits 4..14 and the flags

uint64_t bits(uint64_t word, int low, int count) { return word >> low & ((1ull << count) - 1); }

bool refuse(std::string& error, std::string reason) {
    error = std::move(reason);
    return false;
}

// In shared memory, where a padded element takes a byte.
uint32_t row_bytes(const TensorMap& map) {
    return map.padded ? map.box[0] : map.box[0] * static_cast<uint32_t>(map.elem_bits) / 8;
}

uint32_t box_count(const TensorMap& map, int i) { return (map.box[i] + map.elem_stride[i] - 1) / map.elem_stride[i]; }

}  // namespace

bool decode_tensormap(const uint8_t raw[128], TensorMap& map, std::string& error) {
    uint64_t q[8];
    std::memcpy(q, raw, sizeof q);
    const uint64_t low = q[1] & 0xffffffffu;

    if (q[0] == 0) return refuse(error, "tensor map: global address is null (not a tensor map?)");
    if (low & ~(field_bits | hint_bits)) return refuse(error, "tensor map: unknown bits set in its second word");
    if (q[3] >> 48 || bits(q[6], 47, 9) || q[7] >> 32) return refuse(error, "tensor map: reserved bits set");
    if (bits(low, 11, 2)) return refuse(error, "tensor map: interleaved layouts are not simulated");
    if (low & nan_fill_bit) return refuse(error, "tensor map: NaN fill of out-of-bounds elements is not simulated");

    map = TensorMap{};
    map.rank = static_cast<int>(bits(low, 4, 3)) + 1;
    if (map.rank > 5) return refuse(error, "tensor map: rank " + std::to_string(map.rank) + " is more than 5");
    map.dtype = static_cast<int>(bits(low, 7, 4));
    map.tf32 = low & tf32_bit;
    if (map.dtype > padded_6bit || map.dtype == float32_flushed || (map.tf32 && map.dtype != 7)) {
        return refuse(error, "tensor map: data type code " + std::to_string(map.dtype) +
                                 (low & tf32_bit ? " with tf32" : "") + " is not simulated");
    }
    map.elem_bits = type_bits[map.dtype];
    map.swizzle = static_cast<int>(bits(low, 13, 2));
    map.swizzle = map.swizzle ? 16 << map.swizzle : 0;
    map.padded = map.dtype == padded_4bit || map.dtype == padded_6bit;
    map.swizzle_atom = low & atom_bit ? 32 : 16;
    if (map.swizzle_atom == 32 && map.swizzle != 128)
        return refuse(error, "tensor map: swizzle atoms of 32 bytes belong to the swizzle of 128 bytes");
    map.base = q[0];

    const uint64_t stride_low[4] = {q[1] >> 32, q[2] & 0xffffffffu, q[2] >> 32, q[3] & 0xffffffffu};
    const uint64_t dim_less_one[5] = {q[4] & 0xffffffffu, q[4] >> 32, q[5] & 0xffffffffu, q[5] >> 32,
                                      q[6] & 0xffffffffu};
    map.stride[0] = static_cast<uint64_t>(map.elem_bits) / 8;
    for (int i = 0; i < map.rank; ++i) {
        map.dim[i] = dim_less_one[i] + 1;
        map.elem_stride[i] = static_cast<uint32_t>(bits(q[6], 32 + 3 * i, 3)) + 1;
        map.box[i] = raw[55 + i] + 1u;
        if (i > 0) map.stride[i] = (stride_low[i - 1] | bits(q[3], 32 + 4 * (i - 1), 4) << 32) * 16;
    }
    return true;
}

void encode_tensormap(const TensorMap& map, uint8_t raw[128]) {
    uint64_t q[8] = {};
    q[0] = map.base;
    const auto swizzle_code =
        map.swizzle ? static_cast<uint64_t>(std::countr_zero(static_cast<unsigned>(map.swizzle))) - 4 : 0;
    q[1] = (map.tf32 ? tf32_bit : 0) | (map.swizzle_atom == 32 ? atom_bit : 0) |
           static_cast<uint64_t>(map.rank - 1) << 4 | static_cast<uint64_t>(map.dtype) << 7 | swizzle_code << 13;
    uint64_t stride_low[4] = {}, dim_less_one[5] = {};
    for (int i = 0; i < map.rank; ++i) {
        dim_less_one[i] = map.dim[i] - 1;
        q[6] |= static_cast<uint64_t>(map.elem_stride[i] - 1) << (32 + 3 * i);
        if (i == 0) continue;
        stride_low[i - 1] = map.stride[i] / 16 & 0xffffffffu;
        q[3] |= (map.stride[i] / 16 >> 32 & 0xf) << (32 + 4 * (i - 1));
    }
    q[1] |= stride_low[0] << 32;
    q[2] = stride_low[1] | stride_low[2] << 32;
    q[3] |= stride_low[3];
    q[4] = dim_less_one[0] | dim_less_one[1] << 32;
    q[5] = dim_less_one[2] | dim_less_one[3] << 32;
    q[6] |= dim_less_one[4];
    std::memset(raw, 0, 128);
    std::memcpy(raw, q, sizeof q);
    for (int i = 0; i < map.rank; ++i) raw[55 + i] = static_cast<uint8_t>(map.box[i] - 1);
}

bool check_tma(const TensorMap& map, TileCopy copy, const int32_t* coords, uint32_t shared_base, std::string& error) {
    if (map.base % 16) return refuse(error, "the tensor's global address is not a multiple of 16 bytes");
    if (map.padded && (map.base % 32 || map.dim[0] % 128 || coords[0] % 128 || map.box[0] != 128))
        return refuse(error, "padded 4-bit and 6-bit elements need an address that is a multiple of 32 bytes, a box of "
                             "128 elements, and an extent and a coordinate that are multiples of 128");
    if (row_bytes(map) % 16 || map.box[0] * static_cast<uint32_t>(map.elem_bits) % 8) {
        return refuse(error, "the box's innermost dimension (" + std::to_string(map.box[0]) + " elements of " +
                                 std::to_string(map.elem_bits) + " bits) is not a multiple of 16 bytes");
    }
    if (map.swizzle && row_bytes(map) > static_cast<uint32_t>(map.swizzle)) {
        return refuse(error, "the box's innermost dimension (" + std::to_string(row_bytes(map)) +
                                 " bytes) is longer than its swizzle of " + std::to_string(map.swizzle) + " bytes");
    }
    if (shared_base % 128) return refuse(error, "the shared memory address is not a multiple of 128 bytes");
    if (static_cast<int64_t>(coords[0]) * map.elem_bits % 128) {
        return refuse(error, "the innermost coordinate " + std::to_string(coords[0]) + " (elements of " +
                                 std::to_string(map.elem_bits) + " bits) is not a multiple of 16 bytes");
    }
    if (copy == TileCopy::store && *std::min_element(coords, coords + map.rank) < 0) {
        return refuse(error, "a store has a negative coordinate");
    }
    return true;
}

uint32_t tile_bytes(const TensorMap& map) {
    uint32_t bytes = map.box[0] * static_cast<uint32_t>(map.elem_bits) / 8;
    for (int i = 1; i < map.rank; ++i) bytes *= box_count(map, i);
    return bytes;
}

namespace {

// Length of the run from `address` on that the swizzle leaves contiguous: a line of 128 bytes has one phase, and
// XOR with it keeps blocks of its lowest set bit together.
uint32_t contiguous_run(uint32_t address, int swizzle, int atom) {
    if (!swizzle) return UINT32_MAX;
    if (atom == 32) return 32 - address % 32;
    const uint32_t line_end = 128 - address % 128;
    const uint32_t phase = address >> 7 & (static_cast<uint32_t>(swizzle) / 16 - 1);
    if (!phase) return line_end;
    const uint32_t block = 16u << std::countr_zero(phase);
    return std::min(line_end, block - address % block);
}

}  // namespace

void tile_chunks(const TensorMap& map, TileCopy copy, const int32_t* coords, uint32_t shared_base,
                 std::vector<TileChunk>& out) {
    const uint32_t bytes = row_bytes(map), pitch = std::max(bytes, static_cast<uint32_t>(map.swizzle));
    const auto bytes_of = [&](int64_t elements) { return elements * map.elem_bits / 8; };
    // The part of a row that is inside the tensor, in bytes from the row's start.
    const int64_t first = std::clamp<int64_t>(bytes_of(-static_cast<int64_t>(coords[0])), 0, bytes);
    int64_t last = std::clamp<int64_t>(bytes_of(static_cast<int64_t>(map.dim[0]) - coords[0]), first, bytes);
    if (copy == TileCopy::store) last = (last + 15) / 16 * 16;

    uint32_t index[5] = {};  // of the row in the box; index[0] is unused
    for (uint32_t row_start = shared_base;; row_start += pitch) {
        bool inside = true;
        uint64_t global = map.base + static_cast<uint64_t>(bytes_of(coords[0]));
        for (int i = 1; i < map.rank; ++i) {
            const int64_t c = coords[i] + static_cast<int64_t>(index[i]) * map.elem_stride[i];
            inside = inside && c >= 0 && c < static_cast<int64_t>(map.dim[i]);
            global += static_cast<uint64_t>(c) * map.stride[i];
        }
        const auto piece = [&](uint32_t begin, uint32_t end, bool oob) {
            while (begin < end) {
                const uint32_t at = row_start + begin;
                const uint32_t length =
                    std::min(end - begin, contiguous_run(at, map.swizzle, map.swizzle_atom));
                out.push_back({global + begin, swizzle_address(at, map.swizzle, map.swizzle_atom), length, oob});
                begin += length;
            }
        };
        if (map.padded) {  // the extent is a multiple of the box: a row is inside or not
            const bool row_inside = inside && coords[0] >= 0 && static_cast<uint64_t>(coords[0]) < map.dim[0];
            const auto packed = static_cast<uint32_t>(map.elem_bits) * 2;
            for (uint32_t unit = 0; unit < bytes; unit += 16) {
                const uint32_t at = swizzle_address(row_start + unit, map.swizzle, map.swizzle_atom);
                out.push_back({global + unit / 16 * packed, at, packed, !row_inside});
                out.push_back({0, at + packed, 16 - packed, true});
            }
        } else {
            const auto low = static_cast<uint32_t>(inside ? first : bytes),
                       high = static_cast<uint32_t>(inside ? last : bytes);
            piece(0, low, true);
            piece(low, high, false);
            piece(high, bytes, true);
        }

        int i = 1;
        while (i < map.rank && ++index[i] == box_count(map, i)) index[i++] = 0;
        if (i == map.rank) return;
    }
}

}  // namespace machete::sim
