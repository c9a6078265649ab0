// Tensor memory of a CTA: 128 lanes x 512 columns of 32 bits (PTX ISA 9.7.16.1), and the operations that wait in the
// queue of its tensor core.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace machete::sim {

struct Cta;
struct Warp;
class Machine;

constexpr uint32_t kTensorLanes = 128, kTensorColumns = 512;

struct TensorMemory {
    // Column by column: the 128 lanes of a column are neighbours, as the loops over rows of an accumulator want them.
    std::array<uint32_t, kTensorLanes * kTensorColumns> cells;
    std::array<uint8_t, kTensorLanes * kTensorColumns> written;
    std::array<uint16_t, kTensorColumns> owner;  // 0: free, else the first column of its allocation, plus 1
    bool relinquished = false;
    struct Waiter {  // for columns
        Warp* warp;
        uint32_t columns, shared, lane;
    };
    std::deque<Waiter> waiters;

    TensorMemory();
    uint32_t* column(uint32_t c) { return cells.data() + size_t(c) * kTensorLanes; }
    uint8_t* written_column(uint32_t c) { return written.data() + size_t(c) * kTensorLanes; }
};

// Addresses: lane in the upper half, column in the lower.
constexpr uint32_t tensor_lane(uint32_t address) { return address >> 16; }
constexpr uint32_t tensor_column(uint32_t address) { return address & 0xffffu; }

// An operation of the tensor core. Those of one CTA execute in the order in which they were issued, at any time after.
struct TensorOperation {
    Warp* warp = nullptr;
    uint32_t pc = 0, lane = 0;
    uint64_t time = 0;  // when it completes
    virtual ~TensorOperation() = default;
    virtual void execute(Machine& machine) = 0;
    virtual bool touches(uint32_t /*first*/, uint32_t /*columns*/) const { return false; }
    virtual bool only_signals() const { return false; }
    virtual uint64_t duration() const { return 1; }  // ns on the tensor core
};

TensorMemory& tensor_memory(Cta& cta);
// The columns must be allocated. `what` names the access.
void check_tensor_columns(Cta& cta, uint32_t first, uint32_t columns, uint32_t lane, const char* what);
// All tcgen05 instructions of a CTA have one .cta_group. Returns the CTAs of the group, by rank; null for a partner that
// has ended, which is an error if the instruction reaches into it.
struct TensorGroup {
    Cta* ctas[2] = {nullptr, nullptr};
    uint32_t size = 1;
};
TensorGroup tensor_group(Warp& warp, uint32_t group, uint32_t lane, bool reaches = true);

}  // namespace machete::sim
