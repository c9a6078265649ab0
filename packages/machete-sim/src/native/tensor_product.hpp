// The arithmetic of tcgen05.mma: operand tiles out of shared and tensor memory, and D += A B (PTX ISA 9.7.16.10).
//
// Pure functions. As for wgmma, products are exact and are added in order of k, each sum rounded to float32; the tensor
// core aligns and truncates instead, so results agree within tolerance. Scale factors multiply the operands. Products of
// 8-bit integers are sums of at most 2^21 in one instruction: float32 holds them exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "matrix.hpp"

namespace machete::sim {

enum class TensorElement : uint8_t { f16, bf16, tf32, e4m3, e5m2, e2m3, e3m2, e2m1, e2m1_packed, s8, u8 };

constexpr int tensor_element_bits(TensorElement e) {  // in the containers of shared memory
    switch (e) {
        case TensorElement::f16:
        case TensorElement::bf16: return 16;
        case TensorElement::tf32: return 32;
        case TensorElement::e2m1_packed: return 4;
        default: return 8;
    }
}

// The 64-bit shared-memory descriptor of tcgen05 (PTX ISA 9.7.16.4.1). False if a bit is not what it must be.
bool decode_tensor_descriptor(uint64_t bits, MatrixDescriptor& descriptor, SharedFault& fault);

// The tile's 16-byte chunks, one address each; for checks of what is read. False if the descriptor is malformed.
bool tensor_tile_chunks(uint64_t descriptor, TensorElement element, bool mn_major, uint32_t rows, uint32_t k,
                        std::vector<uint32_t>& out, SharedFault& fault);

// Reads rows x k elements as bits of float32 into out[row * row_step + k * k_step].
bool read_tensor_tile(uint64_t descriptor, TensorElement element, bool mn_major, bool negate, uint32_t rows, uint32_t k,
                      const SharedView& shared, uint32_t* out, uint32_t row_step, uint32_t k_step, SharedFault& fault);

// The k elements of one row that tensor memory holds in 32-bit cells; e2m3, e3m2 and e2m1 are in the middle of a byte.
void widen_tensor_row(TensorElement element, bool negate, const uint32_t* cells, uint32_t k, uint32_t* out,
                      uint32_t k_step);

// d[n][row] (+)= sum over k of a[k][row] * b[n][k] for 16 rows a block: a is [k][a_rows], b is [n][k], d's columns are
// d_step cells apart. rows and n are multiples of 16 and 4.
struct TensorProduct {
    const uint32_t* a;
    uint32_t a_rows;
    const uint32_t* b;
    uint32_t k;
    uint32_t* d;
    uint32_t d_step;
    uint32_t rows, n;
    bool accumulate;
};
void multiply_tensor(const TensorProduct& product);

}  // namespace machete::sim
