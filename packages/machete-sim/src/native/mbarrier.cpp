// mbarrier objects (PTX ISA 9.7.13.15). The simulator keeps their state outside of shared memory; the eight bytes
// count as not written, so that an ordinary access to a live barrier is an error.
#include <algorithm>
#include <cstring>

#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {

namespace {

constexpr uint32_t kMaxCount = (1u << 20) - 1;
constexpr int64_t kMaxTx = (1 << 20) - 1;

void complete_phase_if_done(Machine& machine, Mbarrier& b) {
    if (b.pending != 0 || b.tx != 0) return;
    b.pending = b.expected;
    b.completed_at = b.arrived_at;
    ++b.phase;
    if (machine.checker) {
        b.done.join(b.arrived);
        b.arrived.clear();
    }
    for (Warp* waiter : b.waiters)
        if (waiter->wait == Wait::mbarrier && waiter->wait_detail == b.address) machine.wake(*waiter);
    b.waiters.clear();
}

uint64_t state_of(const Mbarrier& b) { return b.phase << 20 | b.pending; }

void expect_tx(Machine& machine, Mbarrier& b, int64_t bytes, uint32_t lane) {
    b.tx += bytes;
    b.arrived_at = std::max(b.arrived_at, machine.now);
    ++machine.progress;
    if (b.tx > kMaxTx || b.tx < -kMaxTx)
        throw Fault{FaultKind::mbarrier,
                    format("the mbarrier at shared %#x overflows: %lld bytes are expected (the limit is %lld)",
                           b.address, static_cast<long long>(b.tx), static_cast<long long>(kMaxTx)),
                    1u << lane};
}

}  // namespace

Mbarrier& mbarrier_at(Cta& cta, uint32_t address, uint32_t lane) {
    check_shared(cta, address, 8, lane, "mbarrier operation");
    if (address % 8)
        throw Fault{FaultKind::misaligned, format("mbarrier at shared %#x, which is not a multiple of 8", address),
                    1u << lane};
    const uint16_t slot = cta.mbarrier_slot(address);
    if (!slot || !cta.mbarriers[slot - 1].valid)
        throw Fault{FaultKind::mbarrier, format("there is no initialised mbarrier at shared %#x", address), 1u << lane};
    uint64_t shadow;
    std::memcpy(&shadow, cta.shadow + address, 8);
    if (shadow != 0)
        throw Fault{FaultKind::mbarrier, format("the mbarrier at shared %#x was overwritten by a store", address),
                    1u << lane};
    return cta.mbarriers[slot - 1];
}

void mbarrier_arrive(Machine& machine, Cta&, Mbarrier& b, uint32_t count, uint32_t lane) {
    if (count == 0 || count > kMaxCount)
        throw Fault{FaultKind::mbarrier, format("arrival count %u is not in 1 to %u", count, kMaxCount), 1u << lane};
    if (count > b.pending)
        throw Fault{
            FaultKind::mbarrier,
            format("too many arrivals at the mbarrier at shared %#x: %u arrive, but phase %llu waits for %u of %u "
                   "(and %lld bytes)",
                   b.address, count, static_cast<unsigned long long>(b.phase), b.pending, b.expected,
                   static_cast<long long>(b.tx)),
            1u << lane};
    b.pending -= count;
    b.arrived_at = std::max(b.arrived_at, machine.now);
    ++machine.progress;
    complete_phase_if_done(machine, b);
}

void mbarrier_complete_tx(Machine& machine, Cta&, Mbarrier& b, int64_t bytes, uint32_t lane) {
    expect_tx(machine, b, -bytes, lane);
    complete_phase_if_done(machine, b);
}

void mbarrier_copy_issued(Machine& machine, Cta& cta, uint32_t address) {
    Mbarrier& b = cta.mbarriers[cta.mbarrier_slot(address) - 1];
    if (b.copies++ == 0 && ++cta.stages_in_flight > machine.stats().max_stages_in_flight)
        machine.stats().max_stages_in_flight = cta.stages_in_flight;
}

void mbarrier_copy_done(Machine& machine, Cta& cta, uint32_t address, uint32_t bytes, uint32_t lane, uint64_t phase) {
    const uint16_t slot = cta.mbarrier_slot(address);
    if (!slot || !cta.mbarriers[slot - 1].valid)
        throw Fault{FaultKind::mbarrier,
                    format("an asynchronous copy completes, but its mbarrier at shared %#x was invalidated", address),
                    1u << lane};
    Mbarrier& b = cta.mbarriers[slot - 1];
    if (machine.checker && b.phase != phase)
        throw Fault{FaultKind::mbarrier,
                    format("this copy of %u bytes was issued in phase %llu of the mbarrier at shared %#x but completes in "
                           "phase %llu: that phase did not wait for its bytes (expect_tx is missing, late or too small)",
                           bytes, static_cast<unsigned long long>(phase), address,
                           static_cast<unsigned long long>(b.phase)),
                    1u << lane};
    if (--b.copies == 0) --cta.stages_in_flight;
    mbarrier_complete_tx(machine, cta, b, bytes, lane);
}

namespace {

// Whether a warp sleeps at this barrier: those that gave up may still be in its list.
bool awaited(const Mbarrier& b) {
    return std::any_of(b.waiters.begin(), b.waiters.end(),
                       [&](const Warp* w) { return w->wait == Wait::mbarrier && w->wait_detail == b.address; });
}

template <class F>
int each_lane(RegView& r, const Inst& i, uint32_t mask, F f) {
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (mask >> l & 1) {
            const uint32_t address = shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm));
            f(w, shared_owner(w, i, address, l, "mbarrier operation"), address, l);
        }
    ++w.effects;
    ++w.machine->progress;
    return kNext;
}

void write_state(Warp& w, const Inst& i, uint32_t l, uint64_t state) {
    if (i.d != kNoOperand) lanes<uint64_t>(w, i.d)[l] = state;
}

// The checker's view of an operation on a barrier by some lanes: one access for each barrier.
template <class F>
void each_barrier(Warp& w, const Inst& i, uint32_t mask, F f) {
    while (mask) {
        const uint32_t address = shared_address(w, i, i.a, first_lane(mask), static_cast<uint64_t>(i.imm));
        uint32_t same = 0;
        for (uint32_t m = mask; m; m &= m - 1) {
            const uint32_t l = first_lane(m);
            if (shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm)) == address) same |= 1u << l;
        }
        f(address, same);
        mask &= ~same;
    }
}

void used(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (!w.clock) return;
    each_barrier(w, i, mask, [&](uint32_t address, uint32_t same) {
        Cta& cta = shared_owner(w, i, address, first_lane(same), "mbarrier operation");
        mbarrier_at(cta, address, first_lane(same));
        w.machine->checker->barrier_object(w, cta, address, same, kWrites | kStrong);
    });
}

int init(RegView& r, const Inst& i, uint32_t mask) {  // a = address, b = count
    return each_lane(r, i, mask, [&](Warp& w, Cta& cta, uint32_t address, uint32_t l) {
        check_shared(cta, address, 8, l, "mbarrier.init");
        if (address % 8)
            throw Fault{FaultKind::misaligned, format("mbarrier at shared %#x, which is not a multiple of 8", address),
                        1u << l};
        const uint32_t count = lanes<uint32_t>(w, i.b)[l];
        if (count == 0 || count > kMaxCount)
            throw Fault{FaultKind::mbarrier, format("mbarrier.init with count %u, not in 1 to %u", count, kMaxCount),
                        1u << l};
        uint16_t& slot = cta.mbarrier_slot(address);
        if (!slot) {
            cta.mbarriers.emplace_back();
            slot = static_cast<uint16_t>(cta.mbarriers.size());
        }
        Mbarrier& b = cta.mbarriers[slot - 1];
        uint64_t shadow;
        std::memcpy(&shadow, cta.shadow + address, 8);
        if (b.valid && shadow == 0 && (b.pending != b.expected || b.tx != 0 || b.copies || awaited(b)))
            throw Fault{
                FaultKind::mbarrier,
                format("mbarrier.init of the mbarrier at shared %#x while it is in use (phase %llu waits for %u of %u "
                       "arrivals and %lld bytes)",
                       address, static_cast<unsigned long long>(b.phase), b.pending, b.expected,
                       static_cast<long long>(b.tx)),
                1u << l};
        if (w.machine->checker) {
            if (b.valid && shadow == 0)
                throw Fault{FaultKind::mbarrier,
                            format("mbarrier.init of a valid mbarrier at shared %#x: mbarrier.inval must come first",
                                   address),
                            1u << l};
            w.machine->checker->barrier_object(w, cta, address, 1u << l, kWrites);
        }
        b = Mbarrier{};
        if (w.machine->checker) b.agent = w.machine->checker->new_agent(cta);
        b.address = address;
        b.valid = true;
        b.expected = b.pending = count;
        std::memset(cta.shadow + address, 0, 8);
        std::memset(cta.shared + address, 0xee, 8);
    });
}

int inval(RegView& r, const Inst& i, uint32_t mask) {
    return each_lane(r, i, mask, [&](Warp& w, Cta& cta, uint32_t address, uint32_t l) {
        Mbarrier& b = mbarrier_at(cta, address, l);
        if (b.copies || awaited(b))
            throw Fault{FaultKind::mbarrier,
                        format("mbarrier.inval of the mbarrier at shared %#x while it is in use", address), 1u << l};
        if (w.clock) w.machine->checker->barrier_object(w, cta, address, 1u << l, kWrites);
        b.valid = false;
    });
}

int expect(RegView& r, const Inst& i, uint32_t mask) {  // a = address, b = bytes
    used(r, i, mask);
    return each_lane(r, i, mask, [&](Warp& w, Cta& cta, uint32_t address, uint32_t l) {
        expect_tx(*w.machine, mbarrier_at(cta, address, l), lanes<uint32_t>(w, i.b)[l], l);
    });
}

int complete(RegView& r, const Inst& i, uint32_t mask) {
    used(r, i, mask);
    return each_lane(r, i, mask, [&](Warp& w, Cta& cta, uint32_t address, uint32_t l) {
        mbarrier_complete_tx(*w.machine, cta, mbarrier_at(cta, address, l), lanes<uint32_t>(w, i.b)[l], l);
    });
}

// a = address, b = count or bytes, d = state; mod bit 0 expect_tx, bit 1 drop, bit 2 noComplete, bit 3 relaxed, bit 4 released to a cluster
int arrive(RegView& r, const Inst& i, uint32_t mask) {
    used(r, i, mask);
    if (i.mod & 16) warp_of(r).loads.wait();  // ptxas puts a membar before it
    const Clock* known = nullptr;
    if (Warp& w = warp_of(r); w.clock) known = (i.mod & 8) ? &w.clock->fence : &w.machine->checker->release(w, mask);
    const Mbarrier* last = nullptr;
    uint64_t last_phase = 0;
    return each_lane(r, i, mask, [&](Warp& w, Cta& cta, uint32_t address, uint32_t l) {
        Mbarrier& b = mbarrier_at(cta, address, l);
        if (known && (&b != last || b.phase != last_phase)) {
            b.arrived.join(*known);
            last = &b;
            last_phase = b.phase;
        }
        const uint64_t state = state_of(b);
        const uint32_t operand = i.b == kNoOperand ? 1 : lanes<uint32_t>(w, i.b)[l];
        if (i.mod & 1) expect_tx(*w.machine, b, operand, l);
        const uint32_t count = (i.mod & 1) ? 1 : operand;
        if (i.mod & 2) {
            if (count > b.expected)
                throw Fault{FaultKind::mbarrier,
                            format("arrive_drop of %u at the mbarrier at shared %#x, which expects %u", count, address,
                                   b.expected),
                            1u << l};
            b.expected -= count;
        }
        if ((i.mod & 4) && count >= b.pending && b.tx == 0)
            throw Fault{FaultKind::mbarrier,
                        format("arrive.noComplete completes the phase of the mbarrier at shared %#x", address),
                        1u << l};
        mbarrier_arrive(*w.machine, cta, b, count, l);
        write_state(w, i, l, state);
    });
}

// a = address, b = state (64 bits) or parity; d = predicate; mod bit 0: parity, bit 1: try (sleeps), bit 2: relaxed
int wait(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    uint32_t done = 0, blocking = 0, first = ~0u;
    uint64_t wanted = 0, completed_at = 0;
    const bool again = w.poll_pc == w.pc && w.poll_effects == w.effects && w.poll_mbarrier;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t address = shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm));
        const Mbarrier& b = mbarrier_at(*w.cta, address, l);
        bool ok;
        uint64_t parity;
        if (i.mod & 1) {
            parity = lanes<uint32_t>(w, i.b)[l];
            if (parity > 1)
                throw Fault{FaultKind::mbarrier,
                            format("phase parity %llu is neither 0 nor 1", static_cast<unsigned long long>(parity)),
                            1u << l};
            ok = (b.phase & 1) != parity;
        } else {
            const uint64_t phase = lanes<uint64_t>(w, i.b)[l] >> 20;
            parity = phase & 1;
            if (phase > b.phase)
                throw Fault{FaultKind::mbarrier, "this state is not of the current or an earlier phase", 1u << l};
            ok = b.phase > phase;
        }
        done |= uint32_t(ok) << l;
        if (ok) completed_at = std::max(completed_at, b.completed_at);
        if (!ok && first == ~0u) first = l, blocking = address, wanted = parity;
    }
    write_pred(w, i.d, mask, done);
    if (w.clock) {
        Checker& checker = *w.machine->checker;
        each_barrier(w, i, mask, [&](uint32_t address, uint32_t same) {
            checker.barrier_object(w, *w.cta, address, same, kStrong);
            const Mbarrier& b = mbarrier_at(*w.cta, address, first_lane(same));
            if (!(same & done) || i.mod & 4) return;
            checker.acquire(w, same & done, b.done);
            checker.complete(w, same & done, b.agent, b.phase);
        });
    }
    if (first == ~0u) {
        if (again) {
            if (w.machine->recorder) w.machine->recorder->rewind(w, w.poll_time);
            w.machine->now = w.poll_time;
            w.poll_pc = ~0u;  // the next wait at this place begins anew
        }
        w.machine->not_before(completed_at);
        return kNext;
    }
    if (!again) w.poll_time = w.machine->now;
    w.poll_pc = w.pc;
    w.poll_mbarrier = blocking;
    w.poll_parity = wanted;
    w.poll_effects = w.effects;
    w.poll_value = 0;
    if (!(i.mod & 2)) return kYield;
    if (done) return kNext;  // some lanes may go on
    w.wait = Wait::mbarrier;
    w.wait_detail = blocking;
    w.soft = true;
    if (w.groups.empty()) {
        auto& waiters = w.cta->mbarriers[w.cta->mbarrier_slot(blocking) - 1].waiters;
        if (std::find(waiters.begin(), waiters.end(), &w) == waiters.end()) waiters.push_back(&w);
    }
    return kSuspend;
}

int pending_count(RegView& r, const Inst& i, uint32_t mask) {  // d = count of state a
    auto* a = lanes<uint64_t>(r, i.a);
    write_lanes(lanes<uint32_t>(r, i.d), mask, [&](uint32_t l) { return static_cast<uint32_t>(a[l] & kMaxCount); });
    return kNext;
}

const NamedHandler table[] = {
    {"mbarrier.init", init},
    {"mbarrier.inval", inval},
    {"mbarrier.expect_tx", expect},
    {"mbarrier.complete_tx", complete},
    {"mbarrier.arrive", arrive},
    {"mbarrier.wait", wait},
    {"mbarrier.pending_count", pending_count},
};

}  // namespace

HandlerTable mbarrier_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
