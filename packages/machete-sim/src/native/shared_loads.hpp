// Loads from shared memory that are on their way to registers: an mbarrier.arrive does not wait for them, so that a copy
// into the memory that it releases may be there first (docs/decisions/0017).
#pragma once

#include <cstdint>
#include <vector>

namespace machete::sim {

struct Program;
struct Warp;

// Of a warp, with the race checker only. Loads are known by their time (WarpClock::now), and come back in order.
struct SharedLoads {
    uint32_t newest = 0, arrived = 0;  // the last one issued; the last one that something has waited for
    // The newest load that the value depends on, for each 32 bits of registers, and for each predicate.
    std::vector<uint32_t> registers, predicates;

    bool pending() const { return newest > arrived; }
    void wait() { arrived = newest; }
};

// For each record, whether the loads on which its operands depend have arrived when it is done. With `strict` only where
// ptxas cannot move it behind an arrival: accesses to memory, branches, and what has such a predicate. Else any that
// computes; copies of registers never do.
std::vector<bool> records_that_wait(const Program& program, bool strict);

// A load of this warp's instruction begins: what the checker is told of next is part of it.
void begin_shared_load(Warp& warp);
// Before an instruction, while loads are pending; `executes`: for some lanes its guard holds.
void follow_shared_loads(Warp& warp, bool executes);

}  // namespace machete::sim
