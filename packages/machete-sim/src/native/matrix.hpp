// Tensor-core instructions: mma.sync, wgmma, ldmatrix, stmatrix (PTX ISA "Warp Level Matrix Instructions" and
// "Asynchronous Warpgroup Level Matrix Instructions").
//
// Pure functions over registers and shared memory. A register is given as a pointer to its 32 lanes, so operands
// need not be neighbours in the register file: `const uint32_t* const* a` is a[register][lane].
//
// Arithmetic, the same on every host: operands are widened exactly; the float32 accumulator starts as C and takes the
// products in order of k, each product exact (at most 22 significant bits), each addition rounded to nearest even. As
// products are exact, a fused multiply-add changes nothing unless a bf16 or tf32 product overflows or becomes
// subnormal in float32. float16 accumulators are float32 inside one instruction and rounded once at its end. Tensor
// cores align and truncate the products of one step instead: results agree within tolerance, not bit by bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace machete::sim {

enum class Element : uint8_t { f16, bf16, tf32, e4m3, e5m2, s8, u8, f32, s32, b1 };

// Bytes of one element in memory (tf32 takes 4; of b1, of eight).
int element_bytes(Element element);

// Shared memory as one CTA sees it: addresses base .. base + bytes.
struct SharedView {
    const uint8_t* data = nullptr;  // byte at address `base`
    uint32_t base = 0;
    uint32_t bytes = 0;
    const uint8_t* written = nullptr;  // one flag per byte, nonzero once written; null: reads are not checked
};

// Why an access is refused; `address` is the first bad byte.
struct SharedFault {
    enum class Kind : uint8_t { none, descriptor, misaligned, out_of_range, uninitialised };
    Kind kind = Kind::none;
    uint32_t address = 0;
    std::string message;
};

// Of 16 bytes at each of these addresses, whose order counts. The products do not wait for each other.
inline uint64_t checksum_of_chunks(const uint8_t* shared, const std::vector<uint32_t>& addresses) {
    uint64_t sum = 0, key = 0;
    for (const uint32_t address : addresses) {
        uint64_t v[2];
        std::memcpy(v, shared + address, 16);
        key += 0x9e3779b97f4a7c15ull;
        const auto product = static_cast<unsigned __int128>(v[0] ^ key) * (v[1] ^ ~key);
        sum += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    return sum;
}

// ---- mma.sync -----------------------------------------------------------------------------------------------

// mma.sync.aligned.m16n8k{k}.row.col.{d}.{a}.{b}.{d}; `satfinite` is the integer form's clamp.
struct MmaKind {
    int k = 0;
    Element a = Element::f16, b = Element::f16, d = Element::f32;
    bool satfinite = false;
};

// 32-bit registers per lane; c has as many as d.
struct MmaRegisters {
    int a = 0, b = 0, d = 0;
};

// False if the combination is not an mma.sync that exists and is executed here. For decoders. The accepted ones are
// k 8, 16 f16 (d f16, f32) and bf16 (d f32); k 4, 8 tf32; k 16, 32 e4m3/e5m2 in any mix (d f16, f32) and s8/u8 in
// any mix (d s32).
bool mma_registers(const MmaKind& kind, MmaRegisters& registers);

// d = a * b + c for a kind that mma_registers accepts. d may be the same registers as a, b or c.
void mma_sync(const MmaKind& kind, const uint32_t* const* a, const uint32_t* const* b, const uint32_t* const* c,
              uint32_t* const* d);

// d = products + c, or the nearest that 32 bits hold. Products of 8-bit integers that one instruction adds up are exact
// in float32. c may be null (zeros).
void add_integers(const float* products, const uint32_t* c, int count, bool saturate, uint32_t* d);

// ---- shared memory matrix descriptors -----------------------------------------------------------------------

// A descriptor after decoding, in bytes. The layout rules are common to wgmma and tcgen05; the bit positions are not,
// so each has its own decoder.
struct MatrixDescriptor {
    uint32_t start = 0;    // shared address
    uint32_t leading = 0;  // leading dimension byte offset
    uint32_t stride = 0;   // stride dimension byte offset
    uint32_t base_offset =
        0;            // 0..7: row of the swizzle pattern, in units of 128 bytes, where address bits 7..9 start from
    int swizzle = 0;  // bytes: 0, 32, 64 or 128
    int atom = 16;    // bytes that the swizzle keeps together: 16, or 32 for tcgen05
};

// wgmma's 64-bit descriptor. False if a bit that must be 0 is set.
bool decode_wgmma_descriptor(uint64_t bits, MatrixDescriptor& descriptor, SharedFault& fault);

// Shared address of the 16 bytes that hold element (row, k) and its neighbours. Row counts M (or N). K-major: the
// 16 bytes run along k, which must be a multiple of 16 / element size; else along the rows, likewise. Both the
// "no swizzle" core matrices and the swizzled layouts.
inline uint32_t matrix_chunk_address(const MatrixDescriptor& descriptor, bool k_major, int element_bytes, uint32_t row,
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

// ---- wgmma --------------------------------------------------------------------------------------------------

// wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b}
struct WgmmaKind {
    int n = 0, k = 0;
    Element a = Element::f16, b = Element::f16, d = Element::f32;
    bool a_mn_major = false, b_mn_major = false;  // imm-trans-a, imm-trans-b (16-bit types only)
    bool negate_a = false, negate_b = false;      // imm-scale-a, imm-scale-b equal to -1
    bool satfinite = false;                       // integer form
};

// Accumulator registers per lane of each of the 4 warps (A in registers is always 4 per lane), or 0 if the
// combination does not exist: n a multiple of 8 up to 256 (integers: 8, 16, 24, 32, 48, ...), k 16 f16/bf16, 8 tf32,
// 32 e4m3/e5m2/s8/u8, 256 b1.
int wgmma_accumulators(const WgmmaKind& kind);

// d = a * b + (scale_d ? d : 0) (of b1: how many bits a and b have in common) for the 4 warps of a warpgroup. Register i of warp w is d[w * accumulators + i]; A
// comes from registers a[w * 4 + i] if `a` is not null, else from `a_descriptor`. Reads all operands before it writes
// d. Appends the addresses of the 16 bytes each that it read. False, with the fault, if a descriptor is malformed or names bytes that are out of range or were never written.
bool wgmma(const WgmmaKind& kind, uint32_t* const* d, const uint32_t* const* a, uint64_t a_descriptor,
           uint64_t b_descriptor, bool scale_d, const SharedView& shared, std::vector<uint32_t>& chunks,
           SharedFault& fault);

// ---- ldmatrix, stmatrix -------------------------------------------------------------------------------------

// The 8x8 matrices of 16-bit elements of ldmatrix/stmatrix .m8n8.x{count}: row r of matrix i is the 16 bytes at the
// address that lane 8 * i + r supplies (16-byte aligned; lanes from 8 * count on are ignored). The caller moves the
// rows; these two shuffle them to and from registers. `rows` is [8 * count][16].
void ldmatrix_unpack(int count, bool transposed, const uint8_t (*rows)[16], uint32_t* const* d);
void stmatrix_pack(int count, bool transposed, const uint32_t* const* s, uint8_t (*rows)[16]);

}  // namespace machete::sim
