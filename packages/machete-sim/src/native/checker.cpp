#include "checker.hpp"

#include <algorithm>
#include <cstring>

#include "machine.hpp"

namespace machete::sim {

namespace {

// What the lanes know: `partial` is what some of them learnt since the warp last came together.
const Clock& view(const WarpClock& c, uint32_t lanes) {
    return c.partial_mask && (lanes & ~c.partial_mask) == 0 ? c.partial : c.known;
}

void tick(WarpClock& c) {
    if (++c.now == kMaxTime)
        throw Fault{FaultKind::unsupported, "a warp synchronised too often for the race checker; use check=\"memory\""};
}

uint32_t time_of(uint64_t t) {
    if (t > kMaxTime)
        throw Fault{FaultKind::unsupported, "too many asynchronous groups for the race checker; use check=\"memory\""};
    return static_cast<uint32_t>(t);
}

}  // namespace

void Checker::start_cta(Cta& cta) {
    cta.agents = kFirstAsyncAgent;
    if (cta.records.empty()) {
        cta.records.resize(cta.shared_end - cta.shared_begin + kSharedBase + 64);
    } else {
        cta.records.clear();
    }
    cta.records.begin_at(cta.rank << kRankShift);
    cta.tensor_agent = {};
    cta.tensor_commits = 0;
    cta.tensor_records.clear();
    cta.tensor_maps.clear();
    for (auto& warp : cta.warps) warp->clock = std::make_unique<WarpClock>();
}

// ---- order ---------------------------------------------------------------------------

void Checker::warp_sync(Warp& w) {
    WarpClock& c = *w.clock;
    if (c.partial_mask) {
        c.known = std::move(c.partial);
        c.partial.clear();
        c.partial_mask = 0;
    }
    c.synced = c.now;
    tick(c);
}

const Clock& Checker::release(Warp& w, uint32_t mask) {
    WarpClock& c = *w.clock;
    const bool all = (w.live & ~mask) == 0;
    WarpTime own;
    own.time = c.now;
    own.synced = all ? c.now : c.synced;
    own.mask = all ? ~0u : mask;
    std::copy(c.fenced, c.fenced + 3, own.fenced);
    own.arrived = w.loads.pending() ? w.loads.arrived : c.now;
    auto& clock = const_cast<Clock&>(view(c, mask));
    clock.set_warp(w.cta->linear, w.index, own);
    tick(c);
    return clock;
}

void Checker::acquire(Warp& w, uint32_t mask, const Clock& clock) {
    WarpClock& c = *w.clock;
    if ((w.live & ~mask) == 0) {
        c.known.join(clock);
        if (c.partial_mask) c.partial.join(clock);
        return;
    }
    if (!c.partial_mask) c.partial = c.known;
    c.partial_mask |= mask;
    c.partial.join(clock);
}

void Checker::complete(Warp& w, uint32_t mask, Agent agent, uint64_t time) {
    if (agent.index == 0 || time == 0) return;
    WarpClock& c = *w.clock;
    if ((w.live & ~mask) == 0) {
        c.known.learn_agent(agent.cta, agent.index, time_of(time));
        if (c.partial_mask) c.partial.learn_agent(agent.cta, agent.index, time_of(time));
        return;
    }
    if (!c.partial_mask) c.partial = c.known;
    c.partial_mask |= mask;
    c.partial.learn_agent(agent.cta, agent.index, time_of(time));
}

void Checker::proxy_fence(Warp& w, uint32_t mask, uint32_t spaces) {
    WarpClock& c = *w.clock;
    for (int s = 0; s < 3; ++s)
        if (spaces >> s & 1) c.fenced[s] = c.now;
    if (spaces & kProxyShared) w.loads.wait();
    tick(c);
    // What is shared concerns the CTAs of the cluster; with clusters, all that are known.
    const bool alone = w.cta->cluster->ctas.size() == 1;
    const uint32_t cta = alone ? w.cta->linear : 0, last = alone ? cta : ~0u;
    if ((w.live & ~mask) == 0) {
        c.known.fence(spaces, cta, last);
    } else {
        if (!c.partial_mask) c.partial = c.known;
        c.partial_mask |= mask;
    }
    if (c.partial_mask) c.partial.fence(spaces, cta, last);
}

uint32_t Checker::next_time(Warp& w) {
    tick(*w.clock);
    return w.clock->now;
}

void Checker::memory_fence(Warp& w, uint32_t mask, ScopeLevel scope) {
    WarpClock& c = *w.clock;
    w.loads.wait();
    if (!c.seen.empty()) {
        const Clock seen = std::move(c.seen);
        c.seen.clear();
        acquire(w, mask, seen);
    }
    c.fence = release(w, mask);
    c.fence_is_cta = scope == ScopeLevel::cta;
}

void Checker::release_at(Warp& w, uint32_t lanes, uint64_t key, MemoryOrder order, ScopeLevel scope, bool rmw) {
    WarpClock& c = *w.clock;
    const bool releases = order >= MemoryOrder::release;
    if (releases && scope != ScopeLevel::cta) w.loads.wait();
    if (!releases && c.fence.empty()) {
        if (!rmw) {
            const auto it = variables_.find(key);
            if (it != variables_.end()) variables_.erase(it);
        }
        return;
    }
    Variable& v = variables_[key];
    if (!rmw) v.any.clear(), v.inside.clear();
    const Clock& clock = releases ? release(w, lanes) : c.fence;
    if (scope == ScopeLevel::cta || (!releases && c.fence_is_cta)) {
        if (v.cta != w.cta->linear) v.inside.clear();
        v.cta = w.cta->linear;
        v.inside.join(clock);
    } else {
        v.any.join(clock);
    }
}

void Checker::acquire_at(Warp& w, uint32_t lanes, uint64_t key, MemoryOrder order, ScopeLevel scope) {
    const auto it = variables_.find(key);
    if (it == variables_.end()) return;
    const Variable& v = it->second;
    const bool inside = v.cta == w.cta->linear;
    const bool acquires = order == MemoryOrder::acquire || order == MemoryOrder::acq_rel;
    auto take = [&](const Clock& clock) {
        if (acquires) {
            acquire(w, lanes, clock);
        } else {
            w.clock->seen.join(clock);
        }
    };
    if (inside) take(v.inside);
    // An acquire at CTA scope does not synchronise with another CTA; one that is not synchronised needs no clock at all.
    if (scope != ScopeLevel::cta) take(v.any);
}

Agent Checker::tensor_agent(Cta& cta) {
    if (!cta.tensor_agent.index) cta.tensor_agent = new_agent(cta);
    return cta.tensor_agent;
}

void Checker::tensor_reads(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t lane) {
    async_shared(w, owner, address, bytes, lane, tensor_agent(*w.cta), w.cta->tensor_commits + 1, kAsyncProxy);
}

// Operations of one tensor core execute in order, so they do not conflict among themselves: all are strong.
void Checker::tensor_columns(Warp& w, Cta& owner, uint32_t first, uint32_t columns, uint32_t lane, bool writes) {
    if (owner.tensor_records.empty()) owner.tensor_records.resize(kTensorColumns * 4);
    Access a = by_agent(w, lane, tensor_agent(*w.cta), w.cta->tensor_commits + 1, kStrong | (writes ? kWrites : 0),
                        "tensor", 0);
    a.where = Access::fenced_tensor;
    range(owner.tensor_records, first * 4, uint64_t(columns) * 4, a);
}

void Checker::warp_columns(Warp& w, uint32_t first, uint32_t columns, bool writes) {
    Cta& cta = *w.cta;
    if (cta.tensor_records.empty()) cta.tensor_records.resize(kTensorColumns * 4);
    TensorAccesses& mine = w.tensor[writes];
    if (!mine.agent.index) mine.agent = new_agent(cta);
    mine.pending = true;
    Access a = by_agent(w, 0, mine.agent, mine.waits + 1, writes ? kWrites : 0, "tensor", 0);
    a.record.lanes = w.active;
    a.where = Access::fenced_tensor;
    for (uint32_t c = first; c < first + columns; ++c)
        range(cta.tensor_records, c * 4 + w.index % 4, 1, a);
}

void Checker::tensor_wait(Warp& w, bool stores) {
    TensorAccesses& mine = w.tensor[stores];
    if (!mine.pending) return;
    mine.pending = false;
    ++mine.waits;
    if (!machine_.tensor_fences) complete(w, ~0u, mine.agent, mine.waits);
}

void Checker::tensor_fence(Warp& w, uint32_t mask, bool after) {
    if (after)
        w.clock->tensor = view(*w.clock, mask);
    else
        for (const TensorAccesses& mine : w.tensor) complete(w, mask, mine.agent, mine.waits);
}

void Checker::free_columns(Warp& w, Cta& owner, uint32_t first, uint32_t columns) {
    if (owner.tensor_records.empty()) return;
    Access a = by_warp(w, w.active, kWrites, "tensor", 0);
    a.where = Access::tensor;
    range(owner.tensor_records, first * 4, uint64_t(columns) * 4, a);
    for (uint32_t c = first; c < first + columns; c += 4) owner.tensor_records.at(c * 4).clear();
}

Clock Checker::tensor_commit(Warp& w, uint32_t lane) {
    Clock known = release(w, 1u << lane);
    const Agent agent = tensor_agent(*w.cta);
    known.learn_agent(agent.cta, agent.index, time_of(++w.cta->tensor_commits));
    return known;
}

Agent Checker::new_agent(Cta& cta) {
    if (cta.agents == kMaxAgents)
        throw Fault{FaultKind::unsupported, "too many mbarriers and issuers of asynchronous copies for the race checker"};
    return {cta.linear, cta.agents++};
}

// ---- accesses ------------------------------------------------------------------------

uint32_t Checker::site(Warp& w, uint32_t lane) {
    WarpClock& c = *w.clock;
    WarpClock::CachedSite& cached = c.sites[w.pc % c.sites.size()];
    if (cached.pc != w.pc || cached.mark != c.mark) {
        cached = {w.pc, c.mark, static_cast<uint32_t>(sites_.size())};
        sites_.push_back({w.pc, c.mark, w.cta->linear, static_cast<uint16_t>(w.index), static_cast<uint16_t>(lane)});
    }
    return cached.site;
}

Checker::Access Checker::by_warp(Warp& w, uint32_t lanes, uint32_t flags, const char* memory, int space) {
    Access a{&w, {}, memory, space};
    a.record.epoch = make_epoch(w.cta->linear, w.index, w.clock->now);
    a.record.site = site(w, static_cast<uint32_t>(__builtin_ctz(lanes)));
    a.record.lanes = lanes;
    a.record.flags = static_cast<uint8_t>(flags & ~kSettles);
    a.plain = flags & kSettles;
    return a;
}

Checker::Access Checker::by_agent(Warp& w, uint32_t lane, Agent agent, uint64_t time, uint32_t flags,
                                  const char* memory, int space) {
    Access a = by_warp(w, 1u << lane, flags, memory, space);
    a.record.epoch = make_epoch(agent.cta, agent.index, time_of(time));
    return a;
}

inline bool Checker::ordered(const Access& a, const AccessRecord& earlier, uint32_t overlap) const {
    const Warp& w = *a.warp;
    if (earlier.epoch >> 28 == make_epoch(w.cta->linear, w.index, 0) >> 28) return true;  // program order of the warp
    if (a.where != Access::elsewhere)
        for (const TensorAccesses& mine : w.tensor)
            if (mine.agent.index && earlier.epoch >> 28 == make_epoch(mine.agent.cta, mine.agent.index, 0) >> 28)
                return epoch_time(earlier.epoch) <= mine.waits || earlier.epoch == a.record.epoch;
    return view(*w.clock, a.record.lanes).knows(earlier.epoch, earlier.lanes_at(overlap));
}

namespace {

bool conflict(const AccessRecord& a, const AccessRecord& b) {
    if (!((a.flags | b.flags) & kWrites)) return false;
    if (!(a.flags & b.flags & kStrong)) return true;
    return ((a.flags | b.flags) & kCtaScope) && epoch_cta(a.epoch) != epoch_cta(b.epoch);
}

}  // namespace

// The first access to [address, address + bytes) of one cell that conflicts is reported; then it takes its place.
inline void Checker::touch(ShadowCell& cell, uint64_t address, uint32_t bytes, Access& a) {
    const auto start = static_cast<uint32_t>(address & 15);
    const uint32_t mask = ((1u << bytes) - 1) << start;
    const bool writes = a.record.flags & kWrites, async = epoch_agent(a.record.epoch) >= kFirstAsyncAgent;
    const uint32_t count = cell.size();
    for (uint32_t i = 0; i < count; ++i) {  // the same access again, and none in between
        const AccessRecord& r = cell[i];
        if (r.epoch == a.record.epoch && r.flags == a.record.flags && !async && (r.bytes & mask) == mask &&
            r.lanes == a.record.lanes && r.pattern == a.record.pattern)
            return;
    }
    const auto own = a.record.epoch >> 28;
    const uint32_t synced = a.warp->clock->synced;
    for (uint32_t i = 0; i < cell.size();) {
        AccessRecord& r = cell[i];
        const uint32_t overlap = r.bytes & mask;
        if (!overlap) {
            ++i;
            continue;
        }
        const bool before = ordered(a, r, overlap);
        if (!before && conflict(a.record, r)) {
            const bool may_agree = a.plain && (r.flags & kWrites) && !(r.flags & kStrong) &&
                                   epoch_agent(r.epoch) < kFirstAsyncAgent;
            if (!may_agree) race(a, r, address, overlap);
            if (!unsettled_.host) {
                const uint64_t at = (address & ~15ull) + static_cast<uint32_t>(__builtin_ctz(overlap));
                unsettled_.access = a;
                unsettled_.earlier = r;
                unsettled_.address = address;
                unsettled_.overlap = overlap;
                unsettled_.host = a.host + at;
                unsettled_.bytes = static_cast<uint32_t>(__builtin_popcount(overlap));
                std::memcpy(unsettled_.before.data(), unsettled_.host, unsettled_.bytes);
            }
        }
        if (before && a.where == Access::fenced_tensor && machine_.tensor_fences && conflict(a.record, r))
            check_tensor_fence(a, r, address, overlap);
        // What a warp wrote through the generic proxy, and an asynchronous operation reads or overwrites.
        if ((a.record.flags & kAsyncProxy) && (r.flags & kWrites) && !(r.flags & kAsyncProxy) &&
            epoch_agent(r.epoch) < kFirstAsyncAgent && before) {
            const WarpClock& c = *a.warp->clock;
            const bool mine = r.epoch >> 28 == make_epoch(a.warp->cta->linear, a.warp->index, 0) >> 28;
            const bool visible = mine ? epoch_time(r.epoch) <= c.fenced[a.space]
                                      : view(c, a.record.lanes).fenced(r.epoch, a.space);
            if (!visible) unfenced(a, r, address, overlap);
        }
        // What a warp has loaded, and an asynchronous operation overwrites.
        if ((r.flags & kLoads) && (a.record.flags & kAsyncProxy) && writes && before) {
            const Warp& w = *a.warp;
            const bool mine = r.epoch >> 28 == make_epoch(w.cta->linear, w.index, 0) >> 28;
            const bool arrived = mine ? !w.loads.pending() || epoch_time(r.epoch) <= w.loads.arrived
                                      : view(*w.clock, a.record.lanes).arrived(r.epoch);
            if (!arrived) in_flight(a, r, address, overlap);
        }
        // Later accesses need to be ordered after this one only, where this one is ordered after that: not so if that
        // was a read and this is none, if this is atomic and that was not (later atomics conflict with that alone), or if
        // other lanes of this warp did that and have not met since.
        bool replaces = before && (writes || !(r.flags & kWrites)) && (!(a.record.flags & kStrong) || (r.flags & kStrong));
        if (replaces && r.epoch >> 28 == own && !async)
            replaces = epoch_time(r.epoch) <= synced || (r.lanes & ~a.record.lanes) == 0;
        if (replaces) {
            if (r.pattern && (overlap & -overlap) == (r.bytes & -r.bytes) && overlap != r.bytes) {
                r.lanes = r.lanes_at(r.bytes & ~overlap);  // the pattern counts from the first byte and lane
            }
            r.bytes = static_cast<uint16_t>(r.bytes & ~mask);
            if (!r.bytes) {
                cell.remove(i);
                continue;
            }
        }
        ++i;
    }
    for (uint32_t i = 0; i < cell.size(); ++i) {
        AccessRecord& r = cell[i];
        if (r.epoch != a.record.epoch || r.flags != a.record.flags || r.pattern || a.record.pattern) continue;
        if (async || r.lanes == a.record.lanes) {
            if (async && (r.bytes & mask) && writes) continue;
            r.bytes = static_cast<uint16_t>(r.bytes | mask);
            r.site = a.record.site;
            return;
        }
        if (r.bytes == mask) {
            r.lanes |= a.record.lanes;
            r.site = a.record.site;
            return;
        }
    }
    AccessRecord record = a.record;
    record.bytes = static_cast<uint16_t>(mask);
    cell.add(record);
}

template <class Memory>
void Checker::range(Memory& memory, uint64_t address, uint64_t bytes, Access& a) {
    while (bytes) {
        const auto n = static_cast<uint32_t>(std::min<uint64_t>(bytes, 16 - (address & 15)));
        touch(memory.at(address), address, n, a);
        address += n;
        bytes -= n;
    }
}

template <class Memory>
void Checker::row(Memory& memory, uint64_t address, uint32_t size, Access& a) {
    if (size >= 16 || address % 16) {  // whole cells of one lane, or lanes across cells
        for (uint32_t l = 0; l < kLanes; ++l) {
            a.record.lanes = 1u << l;
            range(memory, address + uint64_t(l) * size, size, a);
        }
        return;
    }
    const uint32_t per_cell = 16 / size, group = (1u << per_cell) - 1;
    a.record.pattern = static_cast<uint8_t>(size);
    for (uint32_t l = 0; l < kLanes; l += per_cell, address += 16) {
        a.record.lanes = group << l;
        touch(memory.at(address), address, 16, a);
    }
}

void Checker::shared(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t lanes, uint32_t flags) {
    Access a = by_warp(w, lanes, flags, "shared", 0);
    a.host = owner.shared;
    range(owner.records, address, bytes, a);
}

void Checker::global(Warp& w, uint64_t address, uint32_t bytes, uint32_t lanes, uint32_t flags) {
    Access a = by_warp(w, lanes, flags, "global", 1);
    range(global_, address, bytes, a);
}

void Checker::shared_row(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t flags) {
    Access a = by_warp(w, 1, flags, "shared", 0);
    a.host = owner.shared;
    row(owner.records, address, bytes, a);
}

void Checker::global_row(Warp& w, uint64_t address, uint32_t bytes, uint32_t flags) {
    Access a = by_warp(w, 1, flags, "global", 1);
    row(global_, address, bytes, a);
}

void Checker::async_shared(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t lane, Agent agent,
                           uint64_t time, uint32_t flags) {
    Access a = by_agent(w, lane, agent, time, flags, "shared", 0);
    range(owner.records, address, bytes, a);
}

void Checker::async_global(Warp& w, uint64_t address, uint32_t bytes, uint32_t lane, Agent agent, uint64_t time,
                           uint32_t flags) {
    Access a = by_agent(w, lane, agent, time, flags, "global", 1);
    range(global_, address, bytes, a);
}

void Checker::flat(Warp& w, FlatShadow& memory, const char* name, uint32_t address, uint32_t bytes, uint32_t lane,
                   uint32_t flags) {
    Access a = by_warp(w, 1u << lane, flags, name, 0);
    range(memory, address, bytes, a);
}

void Checker::async_flat(Warp& w, FlatShadow& memory, const char* name, uint32_t address, uint32_t bytes, uint32_t lane,
                         Agent agent, uint64_t time, uint32_t flags) {
    Access a = by_agent(w, lane, agent, time, flags, name, 0);
    range(memory, address, bytes, a);
}

void Checker::barrier_object(Warp& w, Cta& owner, uint32_t address, uint32_t lanes, uint32_t flags) {
    Access a = by_warp(w, lanes, flags, "shared", 2);
    range(owner.records, address, 8, a);
}

void Checker::barrier_object_async(Warp& w, Cta& owner, uint32_t address, uint32_t lane) {
    // The operation on the barrier is ordered by the barrier itself; what matters is that its mbarrier.init is visible.
    Access a = by_warp(w, 1u << lane, kWrites | kStrong | kAsyncProxy, "shared", 2);
    ShadowCell& cell = owner.records.at(address);
    const uint32_t mask = 255u << (address & 15);
    for (uint32_t i = 0; i < cell.size(); ++i) {
        const AccessRecord& r = cell[i];
        if (!(r.bytes & mask) || (r.flags & kStrong) || !(r.flags & kWrites)) continue;
        const bool mine = r.epoch >> 28 == make_epoch(w.cta->linear, w.index, 0) >> 28;
        if (!ordered(a, r, r.bytes & mask)) race(a, r, address, r.bytes & mask);
        const bool visible = mine ? epoch_time(r.epoch) <= w.clock->fenced[2]
                                  : view(*w.clock, 1u << lane).fenced(r.epoch, 2);
        if (!visible) unfenced(a, r, address, r.bytes & mask);
    }
}

void Checker::acquire_tensor_map(Warp& w, uint64_t address, uint32_t lane) {
    const Epoch own = make_epoch(w.cta->linear, w.index, w.clock->now);
    std::vector<AccessRecord>& records = w.cta->tensor_maps[address];
    for (const AccessRecord& r : records)  // the first one is known to all that know a later one
        if (r.epoch >> 28 == own >> 28 && (r.lanes >> lane & 1)) return;
    AccessRecord record;
    record.epoch = own;
    record.lanes = 1u << lane;
    records.push_back(record);
    tick(*w.clock);
}

void Checker::use_tensor_map(Warp& w, uint64_t address, uint32_t lane) {
    const Launch& launch = machine_.launch;
    if (address - reinterpret_cast<uint64_t>(launch.params) < launch.param_bytes) return;
    const Epoch own = make_epoch(w.cta->linear, w.index, 0) >> 28;
    const auto found = w.cta->tensor_maps.find(address);
    if (found != w.cta->tensor_maps.end())
        for (const AccessRecord& r : found->second) {
            const bool mine = r.epoch >> 28 == own;
            if (mine && (epoch_time(r.epoch) <= w.clock->synced || (r.lanes >> lane & 1))) return;
            if (view(*w.clock, 1u << lane).knows(r.epoch, r.lanes)) return;
        }
    throw Fault{FaultKind::proxy,
                format("this uses the tensor map in global memory at %#llx, which no thread of this CTA is known to have "
                       "acquired: fence.proxy.tensormap::generic.acquire of its address, and bar.warp.sync or a barrier "
                       "if another thread has the fence",
                       static_cast<unsigned long long>(address)),
                1u << lane};
}

// ---- reports -------------------------------------------------------------------------

void Checker::mark(Warp& w) {
    if (marks_.empty()) marks_.push_back({~0u, 0, 0});
    w.clock->mark = static_cast<uint32_t>(marks_.size());
    marks_.push_back(
        {w.mark_pc, static_cast<uint32_t>(values_.size()), static_cast<uint32_t>(w.mark_values.size())});
    values_.insert(values_.end(), w.mark_values.begin(), w.mark_values.end());
}

LocatedFault::Waiting Checker::place(uint32_t index) const {
    const Site& s = sites_[index];
    LocatedFault::Waiting out{s.cta, s.warp, s.pc, "", ~0u, {}};
    if (s.mark) {
        const Marked& m = marks_[s.mark];
        out.mark_pc = m.pc;
        out.mark_values.assign(values_.begin() + m.first, values_.begin() + m.first + m.count);
    }
    return out;
}

namespace {

const char* noun(const AccessRecord& r) {
    const bool async = epoch_agent(r.epoch) >= kFirstAsyncAgent || (r.flags & kAsyncProxy);
    if (async) return (r.flags & kWrites) ? "asynchronous write" : "asynchronous read";
    if (r.flags & kStrong) return (r.flags & kWrites) ? "atomic access" : "strong read";
    return (r.flags & kWrites) ? "write" : "read";
}

std::string where(const Machine& machine, const char* memory, uint64_t address) {
    if (std::string(memory) != "global") return format("%s memory at %#llx", memory, static_cast<unsigned long long>(address));
    const Region* r = machine.find_region(address);
    if (!r) return format("global memory at %#llx", static_cast<unsigned long long>(address));
    return format("global memory, byte %llu of '%s'", static_cast<unsigned long long>(address - r->begin), r->name.c_str());
}

}  // namespace

void Checker::race(const Access& a, const AccessRecord& r, uint64_t address, uint32_t overlap) {
    const uint64_t at = (address & ~15ull) + static_cast<uint32_t>(__builtin_ctz(overlap));
    const bool a_async = epoch_agent(a.record.epoch) >= kFirstAsyncAgent, r_async = epoch_agent(r.epoch) >= kFirstAsyncAgent;
    const bool r_writes = r.flags & kWrites, global = a.space == 1;
    const Clock& known = view(*a.warp->clock, a.record.lanes);
    std::string hint;
    if (a.where != Access::elsewhere && !(r.flags & kStrong)) {
        hint = format("tcgen05.%s is complete behind tcgen05.wait::%s by its warp%s, and then a barrier or mbarrier",
                      r_writes ? "st" : "ld", r_writes ? "st" : "ld",
                      machine_.tensor_fences ? ", which tcgen05.fence::before_thread_sync must follow" : "");
    } else if (a.where != Access::elsewhere) {
        hint = "the tensor core is done with what tcgen05.commit reported: wait for its mbarrier first";
    } else if (r_async) {
        if (r_writes && (r.flags & kAsyncProxy)) {
            hint = global ? "its completion is not known here: cp.async.bulk.wait_group (without .read) by the thread "
                            "that stored, and then a release that this access acquires"
                          : "nothing here has waited for the copy: wait for the phase of the mbarrier that it reports to "
                            "(if there is a wait, its parity is of another phase)";
        } else if (r_writes) {
            hint = "nothing here has waited for the copy: cp.async.wait_group or an mbarrier that it arrives at, then a "
                   "barrier if other threads read it";
        } else if (r.flags & kAsyncProxy) {
            hint = global ? "the copy may still read it: wait for its mbarrier first"
                          : "the operation may still read it: cp.async.bulk.wait_group.read (a store), wgmma.wait_group "
                            "or tcgen05.commit (a product) must come first, and be passed on to this thread";
        } else {
            hint = "the copy may still read it: cp.async.wait_group first";
        }
    } else if (known.knows(r.epoch, 0)) {
        hint = format("lanes %08x of that warp did it, but the synchronisation that this access relies on was by other lanes: "
                      "bar.warp.sync (__syncwarp) before the arrival or release",
                      r.lanes_at(overlap));
    } else if (a_async && !r_writes) {
        hint = "the memory is reused before it is released: whoever read it must arrive at an mbarrier or barrier that is "
               "waited for before this is issued";
    } else if (epoch_cta(r.epoch) != a.warp->cta->linear) {
        hint = global ? "CTAs are ordered by a release (st, red or atom.release, or a fence) that the other one acquires, "
                        "both at .gpu scope or wider"
                      : "CTAs of a cluster are ordered by barrier.cluster or an mbarrier";
    } else {
        hint = "order them with a barrier, an mbarrier, or a release and an acquire";
    }
    Fault fault{FaultKind::race,
                format("this %s of %s is not ordered after an earlier %s of the same bytes; ", noun(a.record),
                       where(machine_, a.memory, at).c_str(), noun(r)) +
                    hint,
                a.record.lanes};
    LocatedFault::Waiting other = place(r.site);
    other.what = format("the earlier %s", noun(r));
    fault.related.push_back(std::move(other));
    throw fault;
}

void Checker::check_unsettled() {
    const uint8_t* host = unsettled_.host;
    unsettled_.host = nullptr;
    if (std::memcmp(unsettled_.before.data(), host, unsettled_.bytes) != 0)
        race(unsettled_.access, unsettled_.earlier, unsettled_.address, unsettled_.overlap);
}

// Synchronisation of threads concerns tcgen05 behind a tcgen05.fence::after_thread_sync only (PTX ISA 9.7.16.6).
void Checker::check_tensor_fence(const Access& a, const AccessRecord& r, uint64_t address, uint32_t overlap) {
    const Site& earlier = sites_[r.site];
    const Warp& w = *a.warp;
    if (earlier.cta == w.cta->linear && earlier.warp == w.index) return;
    if (w.clock->tensor.knows(r.epoch, r.lanes_at(overlap))) return;
    Fault fault{FaultKind::race,
                format("this %s of tensor memory at %#llx is synchronised with an earlier %s of the same bytes, but not "
                       "tcgen05 operations; tcgen05.fence::after_thread_sync between the synchronisation and this",
                       noun(a.record), static_cast<unsigned long long>(address), noun(r)),
                a.record.lanes};
    LocatedFault::Waiting other = place(r.site);
    other.what = format("the earlier %s", noun(r));
    fault.related.push_back(std::move(other));
    throw fault;
}

void Checker::in_flight(const Access& a, const AccessRecord& r, uint64_t address, uint32_t overlap) {
    const uint64_t at = (address & ~15ull) + static_cast<uint32_t>(__builtin_ctz(overlap));
    Fault fault{FaultKind::race,
                format("load in flight when its stage was released: this %s of %s is ordered after an earlier load of the "
                       "same bytes, but nothing had waited for the load's registers before the arrival that lets this "
                       "begin, and an arrival overtakes loads; ring.release(stage, after=registers), or %s or "
                       "fence.proxy.async before the arrival",
                       noun(a.record), where(machine_, a.memory, at).c_str(),
                       machine_.launch.strict ? "a store of what depends on them" : "use them"),
                a.record.lanes};
    LocatedFault::Waiting other = place(r.site);
    other.what = "the earlier load";
    fault.related.push_back(std::move(other));
    throw fault;
}

void Checker::unfenced(const Access& a, const AccessRecord& r, uint64_t address, uint32_t overlap) {
    const uint64_t at = (address & ~15ull) + static_cast<uint32_t>(__builtin_ctz(overlap));
    const char* fence = a.space == 0   ? "fence.proxy.async.shared::cta (or fence.proxy.async)"
                        : a.space == 1 ? "fence.proxy.async.global (or fence.proxy.async)"
                                       : "fence.mbarrier_init.release.cluster (or fence.proxy.async)";
    Fault fault{
        FaultKind::proxy,
        format("this %s of %s is ordered after a write through the generic proxy, but no proxy fence makes that visible "
               "to the asynchronous proxy; %s between the write and the synchronisation, or after it",
               a.space == 2 ? "asynchronous use of an mbarrier" : noun(a.record), where(machine_, a.memory, at).c_str(),
               fence),
        a.record.lanes};
    LocatedFault::Waiting other = place(r.site);
    other.what = a.space == 2 ? "the mbarrier.init" : "the write through the generic proxy";
    fault.related.push_back(std::move(other));
    throw fault;
}

}  // namespace machete::sim
