// tensormap.replace and tensormap.cp_fenceproxy (PTX ISA 9.7.9.28): tensor maps edited by the kernel. The fields' places
// in the 128 bytes are those of tensormap.cpp.
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {
namespace {

enum Field {
    kGlobalAddress,
    kRank,
    kBoxDim,
    kGlobalDim,
    kGlobalStride,
    kElementStride,
    kElementType,
    kInterleave,
    kSwizzle,
    kFill,
    kSwizzleAtom,
};

void put(uint64_t* q, int word, int low, int count, uint64_t value) {
    const uint64_t field = ((1ull << count) - 1) << low;
    q[word] = (q[word] & ~field) | (value << low & field);
}

// PTX's numbers of element types to the hardware's, tf32 in bit 16.
constexpr uint32_t element_types[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 7 | 1 << 9, 8 | 1 << 9, 11, 12, 13};

void replace(uint64_t* q, uint32_t field, uint32_t ordinal, uint64_t value, uint32_t lane) {
    const auto check = [&](bool ok, const char* what) {
        if (!ok)
            throw Fault{FaultKind::descriptor,
                        format("tensormap.replace with a %s of %llu", what, static_cast<unsigned long long>(value)),
                        1u << lane};
    };
    const int n = static_cast<int>(ordinal);
    switch (field) {
        case kGlobalAddress: q[0] = value; break;
        case kRank:
            check(value < 5, "rank - 1");
            put(q, 1, 4, 3, value);
            break;
        case kBoxDim:
            check(value >= 1 && value <= 256, "box dimension");
            reinterpret_cast<uint8_t*>(q)[55 + n] = static_cast<uint8_t>(value - 1);
            break;
        case kGlobalDim:
            check(value >= 1, "dimension");
            put(q, 4 + n / 2, n % 2 * 32, 32, value - 1);
            break;
        case kGlobalStride:
            check(value % 16 == 0 && value >> 40 == 0, "stride");
            put(q, 1 + (n + 1) / 2, (n + 1) % 2 * 32, 32, value / 16);
            put(q, 3, 32 + 4 * n, 4, value / 16 >> 32);
            break;
        case kElementStride:
            check(value >= 1 && value <= 8, "element stride");
            put(q, 6, 32 + 3 * n, 3, value - 1);
            break;
        case kElementType:
            put(q, 1, 7, 4, element_types[value] & 15);
            put(q, 1, 16, 1, element_types[value] >> 9);
            break;
        case kInterleave: put(q, 1, 11, 2, value); break;
        case kSwizzle: put(q, 1, 13, 2, value); break;
        case kFill: put(q, 1, 15, 1, value); break;
        default: put(q, 1, 19, 2, value); break;
    }
}

// a = address, b = new value or none; mod = field | ordinal << 4 | in shared memory << 8 | literal value << 16;
// flags: kFlagReg64 if the new value is 64 bits wide
int edit(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t address = address_value(w, i.a, i.flags & kFlagAddr64, l) + static_cast<uint64_t>(i.imm);
        if (address % 128 && !(i.mod >> 8 & 1 ? false : address % 64 == 0))
            throw Fault{FaultKind::misaligned,
                        format("tensor map at %#llx, not aligned", static_cast<unsigned long long>(address)), 1u << l};
        uint8_t* map;
        if (i.mod >> 8 & 1) {
            const uint32_t at = to_shared(address, l);
            check_shared(*w.cta, at, 128, l, "tensormap.replace");
            for (uint32_t k = 0; k < 64; ++k)
                if (w.cta->shadow[at + k] != 1)
                    uninitialised(*w.cta, *w.machine, at, 64, l, "tensormap.replace");
            map = w.cta->shared + at;
        } else {
            map = global_range(*w.machine, w.region, address, 128, true, l, "tensormap.replace");
        }
        uint64_t q[16];
        std::memcpy(q, map, sizeof q);
        const uint64_t value = i.b == kNoOperand        ? i.mod >> 16
                               : (i.flags & kFlagReg64) ? lanes<uint64_t>(w, i.b)[l]
                                                        : lanes<uint32_t>(w, i.b)[l];
        replace(q, i.mod & 15, i.mod >> 4 & 15, value, l);
        std::memcpy(map, q, sizeof q);
    }
    ++w.effects;
    ++w.machine->progress;
    return kNext;
}

// The warp copies a tensor map from shared to global memory. ext: dst64, src; imm: bit n is set if entry n is 64 bits wide
int copy(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    const uint32_t l = first_lane(mask);
    const uint64_t dst = address_value(w, ext[0], i.imm & 1, l);
    const uint32_t src = to_shared(address_value(w, ext[1], i.imm >> 1 & 1, l), l);
    check_shared(*w.cta, src, 128, l, "tensormap.cp_fenceproxy");
    for (uint32_t k = 0; k < 64; ++k)
        if (w.cta->shadow[src + k] != 1) uninitialised(*w.cta, *w.machine, src, 64, l, "tensormap.cp_fenceproxy");
    if (dst % 64 || src % 128)
        throw Fault{FaultKind::misaligned,
                    format("tensor map copied from shared %#x to %#llx: not aligned", src,
                           static_cast<unsigned long long>(dst)),
                    1u << l};
    std::memcpy(global_range(*w.machine, w.region, dst, 128, true, l, "tensormap.cp_fenceproxy"), w.cta->shared + src,
                128);
    ++w.effects;
    ++w.machine->progress;
    return kNext;
}

const NamedHandler table[] = {{"tensormap.replace", edit}, {"tensormap.copy", copy}};

}  // namespace

HandlerTable tensormap_replace_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
