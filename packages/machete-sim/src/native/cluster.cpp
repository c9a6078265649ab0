// Clusters of CTAs: shared memory of one another (PTX ISA 5.1.6.3), and barrier.cluster (9.7.13.4).
#include <algorithm>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {

uint32_t Cluster::live_warps() const {
    uint32_t n = 0;
    for (const Cta* cta : ctas) n += cta->live_warps;
    return n;
}

void outside_shared(const Cta& cta, uint64_t address, uint64_t bytes, uint32_t lane, const char* what) {
    std::string text = format("%s of %llu bytes at shared address %#llx; ", what,
                              static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address));
    const uint64_t rank = address >> kRankShift;
    if (rank != cta.rank && rank < cta.cluster->ctas.size())
        text += format("it is in CTA %u of the cluster, this is CTA %u: only .shared::cluster reaches it",
                       static_cast<uint32_t>(rank), cta.rank);
    else
        text += format("this CTA has %#x to %#x", cta.shared_begin, cta.shared_end);
    throw Fault{FaultKind::out_of_bounds, text, 1u << lane};
}

Cta& shared_peer(const Warp& w, uint64_t address, uint32_t lane, const char* what) {
    const Cluster& cluster = *w.cta->cluster;
    const uint64_t rank = address >> kRankShift;
    if (rank >= cluster.ctas.size())
        throw Fault{FaultKind::out_of_bounds,
                    format("%s at shared address %#llx, of CTA %llu; the cluster has %zu", what,
                           static_cast<unsigned long long>(address), static_cast<unsigned long long>(rank),
                           cluster.ctas.size()),
                    1u << lane};
    Cta& cta = *cluster.ctas[rank];
    if (cta.exited)
        throw Fault{FaultKind::race,
                    format("%s at shared address %#llx: CTA %llu of the cluster has already ended "
                           "(a barrier.cluster before its end is missing)",
                           what, static_cast<unsigned long long>(address), static_cast<unsigned long long>(rank)),
                    1u << lane};
    return cta;
}

namespace {

void complete_barrier(Machine& machine, Cluster& cluster) {
    cluster.arrived = 0;
    ++cluster.phase;
    cluster.done.join(cluster.arrivals);
    cluster.arrivals.clear();
    if (machine.checker)
        for (Warp* waiter : cluster.waiters) machine.checker->acquire(*waiter, waiter->live, cluster.done);
    cluster.completed_at = cluster.arrived_at;
    for (Warp* waiter : cluster.waiters) {
        waiter->time = std::max(waiter->time, cluster.completed_at);
        machine.wake(*waiter);
    }
    cluster.waiters.clear();
}

int arrive(RegView& r, const Inst& i, uint32_t mask) {  // mod 1: relaxed
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask, true)) return flow;
    if (w.cluster_arrived)
        throw Fault{FaultKind::barrier, "barrier.cluster.arrive twice without barrier.cluster.wait", mask};
    Cluster& cluster = *w.cta->cluster;
    w.cluster_arrived = true;
    if (w.clock && !(i.mod & 1)) w.loads.wait();
    if (w.clock) cluster.arrivals.join((i.mod & 1) ? w.clock->fence : w.machine->checker->release(w, mask));
    w.cluster_phase = cluster.phase;
    cluster.arrived_at = std::max(cluster.arrived_at, w.machine->now);
    ++w.effects;
    ++w.machine->progress;
    if (++cluster.arrived >= cluster.live_warps()) complete_barrier(*w.machine, cluster);
    return kNext;
}

int wait(RegView& r, const Inst&, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask, true)) return flow;
    if (!w.cluster_arrived)
        throw Fault{FaultKind::barrier, "barrier.cluster.wait without barrier.cluster.arrive", mask};
    w.cluster_arrived = false;
    Cluster& cluster = *w.cta->cluster;
    if (cluster.phase != w.cluster_phase) {
        if (w.clock) w.machine->checker->acquire(w, mask, cluster.done);
        w.machine->not_before(cluster.completed_at);
        return kNext;
    }
    w.wait = Wait::cluster;
    cluster.waiters.push_back(&w);
    return kSuspend;
}

// mapa d, a, b: the address in CTA b that corresponds to a. Generic addresses (64 bits) keep their window. Lanes may
// compute addresses of CTAs that do not exist; only their use is an error.
int map_address(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* rank = lanes<uint32_t>(w, i.b);
    const bool wide = i.flags & kFlagReg64;
    constexpr uint64_t offset_bits = (1u << kRankShift) - 1;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t address = wide ? lanes<uint64_t>(w, i.a)[l] : lanes<uint32_t>(w, i.a)[l];
        const uint64_t window = (i.flags & kFlagCluster) ? 0 : kSharedWindow;
        if (address >> 32 != window >> 32 || (address & 0xffffffffu) >> kRankShift >= kMaxClusterSize)
            throw Fault{FaultKind::out_of_bounds,
                        format("mapa of %#llx, which is not an address in shared memory",
                               static_cast<unsigned long long>(address)),
                        1u << l};
        const uint64_t mapped = window | uint64_t(rank[l] & 255u) << kRankShift | (address & offset_bits);
        if (wide) {
            lanes<uint64_t>(w, i.d)[l] = mapped;
        } else {
            lanes<uint32_t>(w, i.d)[l] = static_cast<uint32_t>(mapped);
        }
    }
    return kNext;
}

int rank_of(RegView& r, const Inst& i, uint32_t mask) {  // getctarank d, a
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t address = (i.flags & kFlagReg64) ? lanes<uint64_t>(w, i.a)[l] : lanes<uint32_t>(w, i.a)[l];
        lanes<uint32_t>(w, i.d)[l] = to_shared(address, l) >> kRankShift;
    }
    return kNext;
}

// The shared address of a variable: its offset, in this CTA.
int own_address(RegView& r, const Inst& i, uint32_t mask) {
    const uint32_t address = static_cast<uint32_t>(i.imm) + (warp_of(r).cta->rank << kRankShift);
    if (i.flags & kFlagReg64) {
        write_lanes(lanes<uint64_t>(r, i.d), mask, [&](uint32_t) { return uint64_t(address); });
    } else {
        write_lanes(lanes<uint32_t>(r, i.d), mask, [&](uint32_t) { return address; });
    }
    return kNext;
}

const NamedHandler table[] = {
    {"barrier.cluster.arrive", arrive}, {"barrier.cluster.wait", wait}, {"mapa", map_address},
    {"getctarank", rank_of},            {"mov.shared", own_address},
};

}  // namespace

// Threads that have exited no longer count.
void Machine::cluster_barrier_check_exit(Cluster& cluster) {
    if (cluster.arrived && cluster.arrived >= cluster.live_warps()) complete_barrier(*this, cluster);
}

HandlerTable cluster_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
