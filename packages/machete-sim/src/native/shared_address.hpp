// Operands that name shared memory: a 32-bit shared address, or a 64-bit one (shared or generic).
#pragma once

#include "machine.hpp"

namespace machete::sim {

inline void check_shared(const Cta& cta, uint64_t address, uint64_t bytes, uint32_t lane, const char* what) {
    if (address >= kSharedBase && address + bytes <= cta.shared_end) return;
    throw Fault{FaultKind::out_of_bounds,
                format("%s of %llu bytes at shared address %#llx; this CTA has %#x to %#x", what,
                       static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address), kSharedBase,
                       cta.shared_end),
                1u << lane};
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
