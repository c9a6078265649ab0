// st.async and red.async: stores and reductions of registers into shared memory of a CTA of the cluster, reported to an
// mbarrier there (PTX ISA 9.7.9.12, 9.7.13.8).
#include <cstring>

#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {
namespace {

// ext: dst, mbarrier, values …; imm: bit n is set if entry n is 64 bits wide; mod: 0, or 1 | op << 8 | type << 16 of a
// reduction; flags: kFlagReg64 if the values are 64 bits wide
int store(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    const uint32_t size = (i.flags & kFlagReg64) ? 8 : 4, bytes = size * (i.count - 2);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t dst = to_shared(address_value(w, ext[0], i.imm & 1, l), l);
        const uint32_t mbarrier = to_shared(address_value(w, ext[1], i.imm >> 1 & 1, l), l);
        if (dst % bytes)
            throw Fault{FaultKind::misaligned,
                        format("asynchronous store of %u bytes at shared %#x, which is not a multiple of %u", bytes,
                               dst, bytes),
                        1u << l};
        Cta& cta = shared_owner(w, dst, l, "asynchronous store");
        if (mbarrier >> kRankShift != cta.rank)
            throw Fault{FaultKind::mbarrier,
                        "the destination and the mbarrier of an asynchronous store are in different CTAs", 1u << l};
        auto copy = std::make_unique<Copy>();
        copy->kind = CopyKind::inline_store;
        copy->cta = &cta;
        copy->lane = l;
        copy->chunks = {TileChunk{0, dst, bytes, false}};
        copy->total = bytes;
        copy->read = true;
        copy->reduce = (i.mod & 1) ? static_cast<int>(i.mod >> 8 & 255) : -1;
        copy->reduce_type = static_cast<int>(i.mod >> 16 & 255);
        copy->data.resize(bytes);
        for (uint32_t k = 2; k < i.count; ++k) {
            const uint64_t value = size == 8 ? lanes<uint64_t>(w, ext[k])[l] : lanes<uint32_t>(w, ext[k])[l];
            std::memcpy(copy->data.data() + size_t(k - 2) * size, &value, size);
        }
        issue_to_shared(w, std::move(copy), cta, mbarrier);
    }
    return kNext;
}

const NamedHandler table[] = {{"st.async", store}};

}  // namespace

HandlerTable store_async_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
