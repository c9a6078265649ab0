// Operands that name shared memory: a 32-bit shared address, or a 64-bit one (shared or generic).
#pragma once

#include "machine.hpp"

namespace machete::sim {

// All of the access must lie in the shared memory of `cta`.
inline void check_shared(const Cta& cta, uint64_t address, uint64_t bytes, uint32_t lane, const char* what) {
    if (address >= cta.shared_begin && address + bytes <= cta.shared_end) return;
    outside_shared(cta, address, bytes, lane, what);
}

// The CTA of the cluster whose shared memory `address` names.
inline Cta& shared_owner(const Warp& w, uint64_t address, uint32_t lane, const char* what) {
    return address >> kRankShift == w.cta->rank ? *w.cta : shared_peer(w, address, lane, what);
}

// The same for an operand of an instruction: other CTAs are out of reach without .shared::cluster.
inline Cta& shared_owner(const Warp& w, const Inst& i, uint64_t address, uint32_t lane, const char* what) {
    if (!(i.flags & kFlagCluster)) {
        check_shared(*w.cta, address, 1, lane, what);
        return *w.cta;
    }
    return shared_owner(w, address, lane, what);
}

// Value of an address register: flags say whether it is 64 bits wide.
inline uint64_t address_value(const Warp& w, uint32_t operand, bool wide, uint32_t lane) {
    const uint8_t* p = w.base[operand >> 31] + (operand & 0x7fffffffu);
    return wide ? reinterpret_cast<const uint64_t*>(p)[lane] : reinterpret_cast<const uint32_t*>(p)[lane];
}

inline uint32_t to_shared(uint64_t value, uint32_t lane) {
    if (value >> 32 == kSharedWindow >> 32) value &= 0xffffffffu;
    if (value >> 32)
        throw Fault{FaultKind::out_of_bounds,
                    format("%#llx is not an address in shared memory", static_cast<unsigned long long>(value)),
                    1u << lane};
    return static_cast<uint32_t>(value);
}

inline uint32_t shared_address(const Warp& w, const Inst& i, uint32_t operand, uint32_t lane, uint64_t offset) {
    return to_shared(address_value(w, operand, i.flags & kFlagAddr64, lane) + offset, lane);
}

}  // namespace machete::sim
