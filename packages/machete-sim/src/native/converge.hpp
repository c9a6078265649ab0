// Instructions with .sync: all member lanes execute them together.
#pragma once

#include "machine.hpp"

namespace machete::sim {

// kNext if the lanes of `members` that still live are here, kConverge if some are still elsewhere. `promised`: PTX
// says that memory accesses of the lanes are ordered by it, and not only that the lanes wait for each other.
inline int converge(Warp& w, uint32_t mask, uint32_t members, bool promised = false) {
    const uint32_t missing = members & w.live & ~mask;
    if (missing == 0) {
        if (w.clock && (mask & (mask - 1)) && (promised || !w.machine->launch.strict))
            w.machine->checker->warp_sync(w);
        return kNext;
    }
    if (missing & w.active)
        throw Fault{
            FaultKind::divergence,
            format("lanes %08x are members of this instruction but skip it by their predicate", missing & w.active),
            missing & w.active};
    return kConverge;
}

// The member mask is a register: it may differ between lanes.
inline int converge(Warp& w, uint32_t mask, const uint32_t* members, bool promised = false) {
    uint32_t all = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        if (!(members[l] >> l & 1))
            throw Fault{FaultKind::divergence, format("lane %u is not in its own member mask %08x", l, members[l]),
                        1u << l};
        all |= members[l];
    }
    return converge(w, mask, all, promised);
}

// .aligned: every living lane of the warp.
inline int converge_all(Warp& w, uint32_t mask, bool promised = false) { return converge(w, mask, w.live, promised); }

}  // namespace machete::sim
