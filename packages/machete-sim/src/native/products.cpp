#include "products.hpp"

#include <algorithm>
#include <cstring>

#include "machine.hpp"

namespace machete::sim {

namespace {

constexpr uint32_t kSlot = 128;

PendingProducts& products(Warp& w) {
    if (!w.products) {
        w.products = std::make_unique<PendingProducts>();
        w.products->slots.resize(w.machine->program.register_bytes / kSlot + 4);
        w.products->snapshot.resize(w.machine->program.register_bytes);
    }
    return *w.products;
}

}  // namespace

void product_fence(Warp& w) {
    ++products(w).fences;
}

void check_product(Warp& w, const uint32_t* registers, uint32_t accumulators, uint32_t operands) {
    PendingProducts& p = products(w);
    if (!p.fences)
        throw Fault{FaultKind::pending, "the first wgmma of a warp needs wgmma.fence before it", w.live};
    for (uint32_t k = 0; k < accumulators + operands; ++k) {
        if (registers[k] >> 31 || registers[k] == kNoOperand) continue;
        const auto& slot = p.slots[registers[k] / kSlot];
        if (k >= accumulators && slot.accumulator > p.done)
            throw Fault{FaultKind::pending,
                        format("this wgmma reads A from registers that the wgmma at instruction %u still writes: "
                               "wgmma.wait_group must come first",
                               slot.pc),
                        w.live};
        // Compilers move initialisations of registers to behind the fence, where ptxas takes care of them: what counts is
        // that there is a fence since the product that used the register before.
        if (slot.fences == p.fences && std::memcmp(p.snapshot.data() + registers[k], w.storage + registers[k], kSlot) != 0)
            throw Fault{FaultKind::pending,
                        format("%s of this wgmma was written since the wgmma at instruction %u used it: wgmma.fence must "
                               "come in between",
                               k < accumulators ? "an accumulator" : "a register of A", slot.pc),
                        w.live};
    }
}

void product_issued(Warp& w, const uint32_t* registers, uint32_t accumulators, uint32_t operands, uint64_t group) {
    PendingProducts& p = products(w);
    p.issued = std::max(p.issued, group);
    for (uint32_t k = 0; k < accumulators + operands; ++k) {
        if (registers[k] >> 31 || registers[k] == kNoOperand) continue;
        auto& slot = p.slots[registers[k] / kSlot];
        (k < accumulators ? slot.accumulator : slot.operand) = group;
        slot.pc = w.pc;
        slot.fences = p.fences;
        std::memcpy(p.snapshot.data() + registers[k], w.storage + registers[k], kSlot);
    }
}

void check_registers(Warp& w) {
    const Program& program = w.machine->program;
    if (program.use_starts.size() <= w.pc + 1) return;
    const PendingProducts& p = *w.products;
    for (uint32_t n = program.use_starts[w.pc]; n < program.use_starts[w.pc + 1]; ++n) {
        const uint32_t use = program.uses[n];
        const bool writes = use >> 31;
        const auto& slot = p.slots[(use & 0x7fffffffu) / kSlot];
        if (slot.accumulator > p.done) {
            Fault fault{FaultKind::pending,
                        format("this instruction %s an accumulator of a wgmma that nothing has waited for: "
                               "wgmma.commit_group and wgmma.wait_group must come first",
                               writes ? "writes" : "reads"),
                        w.active};
            fault.related.push_back(
                {w.cta->linear, w.index, slot.pc, "the wgmma that is pending", w.mark_pc, w.mark_values});
            throw fault;
        }
        if (writes && slot.operand > p.done) {
            Fault fault{FaultKind::pending,
                        "this instruction writes a register that a pending wgmma may still read as A: "
                        "wgmma.wait_group must come first",
                        w.active};
            fault.related.push_back(
                {w.cta->linear, w.index, slot.pc, "the wgmma that is pending", w.mark_pc, w.mark_values});
            throw fault;
        }
    }
}

}  // namespace machete::sim
