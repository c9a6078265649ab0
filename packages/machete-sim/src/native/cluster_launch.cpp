// clusterlaunchcontrol: a running cluster takes over the work of one that has not been launched (PTX ISA 9.7.13.17).
//
// The 16 bytes of a response are opaque to the program; here they are four words: 1 if a cluster was cancelled, and the
// %ctaid of its first CTA.
#include <cstring>

#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {

bool Machine::cancel_cluster(std::array<uint32_t, 3>& first) {
    if (next_cluster_ >= total_clusters_) return false;
    const uint64_t linear = next_cluster_++;
    const uint64_t nx = launch.grid[0] / launch.cluster[0], ny = launch.grid[1] / launch.cluster[1];
    first = {static_cast<uint32_t>(linear % nx) * launch.cluster[0],
             static_cast<uint32_t>(linear / nx % ny) * launch.cluster[1],
             static_cast<uint32_t>(linear / nx / ny) * launch.cluster[2]};
    return true;
}

namespace {

// ext: response, mbarrier; imm: bit n is set if entry n is 64 bits wide; mod 1: to all CTAs of the cluster
int try_cancel(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    constexpr uint32_t offset_bits = (1u << kRankShift) - 1;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t dst = to_shared(address_value(w, ext[0], i.imm & 1, l), l);
        const uint32_t mbarrier = to_shared(address_value(w, ext[1], i.imm >> 1 & 1, l), l);
        check_shared(*w.cta, dst, 16, l, "clusterlaunchcontrol.try_cancel");
        check_shared(*w.cta, mbarrier, 8, l, "mbarrier of clusterlaunchcontrol.try_cancel");
        if (dst % 16)
            throw Fault{FaultKind::misaligned,
                        format("clusterlaunchcontrol.try_cancel writes to shared %#x, not a multiple of 16", dst),
                        1u << l};
        std::array<uint32_t, 3> first{};
        const uint32_t cancelled = w.machine->cancel_cluster(first);
        const uint32_t response[4] = {cancelled, first[0], first[1], first[2]};
        for (Cta* cta : w.cta->cluster->ctas) {
            if (!(i.mod & 1) && cta != w.cta) continue;
            const uint32_t window = cta->rank << kRankShift;
            auto copy = std::make_unique<Copy>();
            copy->kind = CopyKind::inline_store;
            copy->cta = &shared_owner(w, window, l, "clusterlaunchcontrol.try_cancel");
            copy->lane = l;
            copy->chunks = {TileChunk{0, (dst & offset_bits) | window, 16, false}};
            copy->total = 16;
            copy->read = true;
            copy->data.assign(reinterpret_cast<const uint8_t*>(response),
                              reinterpret_cast<const uint8_t*>(response) + 16);
            issue_to_shared(w, std::move(copy), *cta, (mbarrier & offset_bits) | window);
        }
    }
    return kNext;
}

int is_cancelled(RegView& r, const Inst& i, uint32_t mask) {  // d = predicate, a = 128-bit response
    const uint64_t* a = lanes<uint64_t>(r, i.a);
    uint32_t value = 0;
    for (uint32_t l = 0; l < kLanes; ++l) value |= uint32_t(a[l] & 1) << l;
    write_pred(r, i.d, mask, value);
    return kNext;
}

int first_ctaid(RegView& r, const Inst& i, uint32_t mask) {  // d, a; mod = axis, 3: a fourth word that means nothing
    const uint64_t* a = lanes<uint64_t>(r, i.a);
    // Of a response that cancelled nothing the result is undefined, but kernels ask before they know.
    write_lanes(lanes<uint32_t>(r, i.d), mask, [&](uint32_t l) {
        if (!(a[l] & 1)) return 0xcbcbcbcbu;
        switch (i.mod) {
            case 0: return static_cast<uint32_t>(a[l] >> 32);
            case 1: return static_cast<uint32_t>(a[kLanes + l]);
            case 2: return static_cast<uint32_t>(a[kLanes + l] >> 32);
            default: return 0u;
        }
    });
    return kNext;
}

const NamedHandler table[] = {
    {"clusterlaunch.try_cancel", try_cancel},
    {"clusterlaunch.is_cancelled", is_cancelled},
    {"clusterlaunch.first_ctaid", first_ctaid},
};

}  // namespace

HandlerTable cluster_launch_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
