// TMA tensor maps: the 128-byte hardware descriptor, and the pieces of memory one tile copy touches.
//
// Pure functions: no simulator state, no Python. Errors come back as a sentence in `error`, so that the caller
// can add the warp, the instruction and the source line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace machete::sim {

// A tiled-mode tensor map (CUDA driver API, cuTensorMapEncodeTiled). Index 0 is the innermost dimension.
struct TensorMap {
    int rank = 0;                  // 1..5
    uint64_t base = 0;             // global address of element (0, 0, ...)
    uint64_t dim[5] = {};          // extent in elements
    uint64_t stride[5] = {};       // bytes; stride[0] is the element size (0 for the packed 4-bit type)
    uint32_t box[5] = {};          // tile extent in elements, before elem_stride divides it
    uint32_t elem_stride[5] = {};  // traversal stride in elements, 1..8; the hardware takes [0] as 1
    int elem_bits = 0;             // 4, 6, 8, 16, 32 or 64, in global memory
    int dtype = 0;                 // hardware data type code, see tensormap.cpp
    int swizzle = 0;               // bytes: 0, 32, 64 or 128
    int swizzle_atom = 16;         // bytes that stay together: 16 or 32
    bool padded = false;           // 4-bit and 6-bit elements: 16 of them take 16 bytes of shared memory, padding last
    bool tf32 = false;             // float32 elements that loads round to tf32
};

// Decodes the hardware format. False, with a reason, for anything this simulator does not execute exactly: im2col and
// interleaved layouts, swizzle atoms of 64 bytes, NaN fill, flushed float32, bits nobody has explained.
bool decode_tensormap(const uint8_t raw[128], TensorMap& map, std::string& error);

// The inverse of decode_tensormap for every map it accepts. Performance hints (L2 promotion) are written as 0.
void encode_tensormap(const TensorMap& map, uint8_t raw[128]);

enum class TileCopy : uint8_t { load, store };  // store: reductions too

// Whether a tile copy of this map at `coords` (map.rank elements, innermost first) to or from `shared_base` may be
// issued at all: the limits of cp.async.bulk.tensor (PTX ISA "Tensors") and of cuTensorMapEncodeTiled, and two that
// are measured: an H200 raises "illegal instruction" for an innermost coordinate that is not a multiple of 16 bytes,
// and for any negative coordinate of a store.
bool check_tma(const TensorMap& map, TileCopy copy, const int32_t* coords, uint32_t shared_base, std::string& error);

// What a load reports to its mbarrier: the bytes of the whole box, those out of bounds included, padding not.
uint32_t tile_bytes(const TensorMap& map);

// A piece of a tile that is contiguous in global and in shared memory, no longer than one row of the box.
struct TileChunk {
    uint64_t global;  // meaningless when oob
    uint32_t shared;  // absolute shared address, swizzle applied
    uint32_t bytes;
    bool oob;  // loads fill it with zeros, stores skip it; also padding between rows of 16 elements
};

// Appends the pieces of the tile at `coords` to `out`, in order of the box, innermost dimension first. Measured on an
// H200:
// - a row of the box takes its own bytes in shared memory or, if that is more, the swizzle's; the rest is padding
//   that no copy touches;
// - loads fill with zeros from the first element out of bounds on, but stores write whole 16-byte units: where the
//   innermost extent is not a multiple of 16 bytes, they overwrite up to 15 bytes behind it. Those are not oob here.
// Requires check_tma.
void tile_chunks(const TensorMap& map, TileCopy copy, const int32_t* coords, uint32_t shared_base,
                 std::vector<TileChunk>& out);

// The swizzle of shared memory: address bits 4.. are XORed with bits 7.., as many as the swizzle has. It depends on
// the absolute shared address, never on the start of the tile. `swizzle` is 0, 32, 64 or 128 bytes.
inline uint32_t swizzle_address(uint32_t address, int swizzle, int atom = 16) {
    const uint32_t phase_mask = swizzle ? static_cast<uint32_t>(swizzle / atom) - 1 : 0;
    return address ^ (((address >> 7) & phase_mask) * static_cast<uint32_t>(atom));
}

}  // namespace machete::sim
