// Named barriers of a CTA (PTX ISA 9.7.13.1).
#include <algorithm>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"

namespace machete::sim {
namespace {

enum Action { kSync, kArrive, kPopc, kAll, kAny };

void finish(Machine& machine, NamedBarrier& barrier) {
    for (const auto& waiter : barrier.waiters) {
        Warp& w = *waiter.warp;
        if (machine.checker) machine.checker->acquire(w, waiter.mask, barrier.arrivals);
        const Inst& i = *waiter.inst;
        switch (i.mod & 255) {
            case kPopc: {
                const uint32_t n = barrier.count;
                write_lanes(lanes<uint32_t>(w, i.d), waiter.mask, [&](uint32_t) { return n; });
                break;
            }
            case kAll: write_pred(w, i.d, waiter.mask, barrier.count == barrier.threads ? ~0u : 0u); break;
            case kAny: write_pred(w, i.d, waiter.mask, barrier.count ? ~0u : 0u); break;
            default: break;
        }
        w.time = std::max(w.time, barrier.time);
        machine.wake(w);
    }
    barrier = NamedBarrier{};
}

// a = barrier, b = threads or none, c = predicate of red (mod bit 8 negates it), d = result
int named(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask, true)) return flow;
    Machine& machine = *w.machine;
    Cta& cta = *w.cta;
    const uint32_t first = first_lane(mask), id = lanes<uint32_t>(w, i.a)[first];
    if (id >= cta.named.size())
        throw Fault{FaultKind::barrier, format("barrier %u does not exist (0 to 15 do)", id), mask};
    NamedBarrier& b = cta.named[id];
    const bool whole = i.b == kNoOperand;
    const uint32_t expected = whole ? 32 * cta.live_warps : lanes<uint32_t>(w, i.b)[first];
    if (!whole && (expected == 0 || expected % 32))
        throw Fault{FaultKind::barrier,
                    format("barrier %u is given %u threads, which is not a multiple of 32", id, expected), mask};
    if (!whole && expected > 32 * cta.warps.size())
        throw Fault{FaultKind::barrier,
                    format("barrier %u waits for %u threads, the CTA has %zu", id, expected, 32 * cta.warps.size()),
                    mask};
    if (b.arrived && (b.whole != whole || (!whole && b.expected != expected)))
        throw Fault{
            FaultKind::barrier,
            format("barrier %u is used with %u threads while others wait at it with %u", id, expected, b.expected),
            mask};
    // A warp may arrive, and then wait: the hardware counts threads. (An epilogue's storing warp does.)
    if ((b.warps >> w.index & 1) && (i.mod & 255) == kArrive)
        throw Fault{FaultKind::barrier, format("this warp arrives at barrier %u a second time before it completes", id),
                    mask};
    b.whole = whole;
    b.expected = expected;
    b.arrived += 32;
    b.time = std::max(b.time, machine.now);
    b.warps |= 1ull << w.index;
    // PTX has memory accesses performed for the threads that meet; in SASS the barrier does not wait for loads.
    if (machine.checker && !machine.launch.strict) w.loads.wait();
    if (machine.checker) b.arrivals.join(machine.checker->release(w, mask));
    ++w.effects;
    ++machine.progress;
    const uint32_t action = i.mod & 255;
    if (action >= kPopc) {
        const uint32_t p = ((i.mod & 256) ? ~w.pred[i.c] : w.pred[i.c]) & mask;
        b.count += static_cast<uint32_t>(__builtin_popcount(p));
        b.threads += static_cast<uint32_t>(__builtin_popcount(mask));
    }
    if (action != kArrive) {
        b.waiters.push_back({&w, &i, mask});
        w.wait = Wait::named_barrier;
        w.wait_detail = id;
    }
    if (b.arrived < b.expected) return action == kArrive ? kNext : kSuspend;
    const bool self = action != kArrive;
    finish(machine, b);
    return self ? kSuspend : kNext;  // woken already: goes on in the next round
}

const NamedHandler table[] = {
    {"barrier", named},
};

}  // namespace

// Threads that have exited no longer count for barriers of the whole CTA.
void Machine::named_barrier_check_exit(Cta& cta) {
    for (NamedBarrier& b : cta.named) {
        if (!b.arrived || !b.whole) continue;
        b.expected = 32 * cta.live_warps;
        if (b.arrived >= b.expected) finish(*this, b);
    }
}

HandlerTable barrier_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
