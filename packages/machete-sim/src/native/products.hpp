// Registers of asynchronous products (wgmma): accumulators may not be touched, and A not overwritten, before
// wgmma.wait_group; what was written by other instructions needs wgmma.fence first (PTX ISA 9.7.15.7.1).
#pragma once

#include <cstdint>
#include <vector>

namespace machete::sim {

struct Warp;

struct PendingProducts {
    struct Slot {
        uint64_t accumulator = 0, operand = 0;  // group of the last product that uses the register, counted from 1
        uint32_t pc = 0;
        uint32_t fences = 0;  // how many wgmma.fence had been executed by then; 0: never used
    };
    std::vector<Slot> slots;        // one per 32-bit register
    uint64_t issued = 0, done = 0;  // groups
    uint32_t fences = 0;
    std::vector<uint8_t> snapshot;  // of registers, after the last product that used them

    bool pending() const { return issued > done; }
};

// Before a product: `registers` are the accumulators, then A.
void check_product(Warp& w, const uint32_t* registers, uint32_t accumulators, uint32_t operands);
// After it, in group `group` (counted from 1).
void product_issued(Warp& w, const uint32_t* registers, uint32_t accumulators, uint32_t operands, uint64_t group);
void product_fence(Warp& w);
// Any other instruction, while products are pending.
void check_registers(Warp& w);

}  // namespace machete::sim
