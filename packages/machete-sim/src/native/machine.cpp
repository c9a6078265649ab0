// Warps and the scheduler: divergence by minimum program counter, seeded fair rounds, deadlock detection.
#include "machine.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace machete::sim {

namespace {

// When nothing that another warp could be waiting for has happened: after so many rounds in which all warps polled with
// all registers unchanged it is a deadlock for certain; loops that count are given so many instructions.
constexpr uint64_t kStuckRounds = 64, kFruitlessInstructions = 20'000'000;
constexpr uint64_t kWatchRounds = 32;         // after these, polling warps are watched closely
constexpr uint64_t kBusyInstructions = 4096;  // without a poll: the warp computes, it does not wait
constexpr uint32_t kSoftWakeRounds = 1024;    // a sleeping try_wait returns false this often

uint8_t* aligned(size_t bytes) {
    void* p = nullptr;
    if (posix_memalign(&p, 4096, (bytes + 4095) / 4096 * 4096) != 0) throw std::bad_alloc();
    return static_cast<uint8_t*>(p);
}

}  // namespace

LaneCopies& Warp::lane_copies(uint32_t lane) {
    if (!copies) copies = std::make_unique<std::array<LaneCopies, 32>>();
    return (*copies)[lane];
}

Machine::Machine(const Program& p, const Launch& l) : program(p), launch(l), random{l.seed * 2 + 1} {
    ctas_per_cluster_ = l.cluster[0] * l.cluster[1] * l.cluster[2];
    total_clusters_ = uint64_t(l.grid[0]) * l.grid[1] * l.grid[2] / ctas_per_cluster_;
    warps_per_cta_ = (l.block[0] * l.block[1] * l.block[2] + 31) / 32;
    constants_ = aligned(std::max<size_t>(p.constants.size() * 8, 64));
    std::memcpy(constants_, p.constants.data(), p.constants.size() * 8);
    // Seeds differ in how long asynchronous copies take: often at once, seldom, or only when nothing else can run.
    static const uint32_t rates[] = {64, 256, 16, 2, 0};
    copy_rate_ = rates[l.seed % 5];
    if (l.races) {
        checker = std::make_unique<Checker>(*this);
        waits_for_loads = records_that_wait(p, l.strict);
    }
    for (const Inst& inst : p.code) tensor_fences |= inst.fn == tensor_fence_handler();
    if (!l.lines.empty()) recorder = std::make_unique<Recorder>(l.lines, l.max_slices);
}

Machine::~Machine() {
    auto release = [](std::vector<std::unique_ptr<Cta>>& ctas) {
        for (auto& cta : ctas)
            for (auto& warp : cta->warps) std::free(warp->storage);
    };
    release(ctas_);
    release(free_ctas_);
    std::free(constants_);
}

const Region* Machine::find_region(uint64_t address) const {
    const auto& r = launch.regions;
    auto it = std::upper_bound(r.begin(), r.end(), address, [](uint64_t a, const Region& x) { return a < x.begin; });
    while (it != r.begin())  // further back only if regions overlap, or none holds the address
        if (address < (--it)->end) return &*it;
    return nullptr;
}

// ---- CTAs ----------------------------------------------------------------------------

void Machine::start_cluster() {
    auto cluster = std::make_unique<Cluster>();
    const uint64_t linear = next_cluster_++;
    const uint64_t nx = launch.grid[0] / launch.cluster[0], ny = launch.grid[1] / launch.cluster[1];
    cluster->id[0] = static_cast<uint32_t>(linear % nx);
    cluster->id[1] = static_cast<uint32_t>(linear / nx % ny);
    cluster->id[2] = static_cast<uint32_t>(linear / nx / ny);
    cluster->live_ctas = ctas_per_cluster_;
    for (uint32_t rank = 0; rank < ctas_per_cluster_; ++rank) start_cta(*cluster, rank);
    clusters_.push_back(std::move(cluster));
}

void Machine::start_cta(Cluster& cluster, uint32_t rank) {
    std::unique_ptr<Cta> cta;
    const uint32_t shared_end = kSharedBase + (program.static_shared + 15) / 16 * 16 + launch.dynamic_shared;
    const uint32_t shared_alloc = shared_end + 64;
    auto align = [](uint8_t* p) { return p + (1024 - reinterpret_cast<uintptr_t>(p) % 1024) % 1024; };
    if (!free_ctas_.empty()) {
        cta = std::move(free_ctas_.back());
        free_ctas_.pop_back();
        for (auto& b : cta->named) b = NamedBarrier{};
        cta->mbarriers.clear();
        std::fill(cta->mbarrier_index.begin(), cta->mbarrier_index.end(), 0);
        cta->stages_in_flight = 0;
        cta->exited = false;
        cta->copies_until = 0;
        cta->tensor.reset();
        cta->tensor_group = 0;
        cta->tensor_until = 0;
    } else {
        cta = std::make_unique<Cta>();
        cta->slot = slots_++;
        cta->memory.push_back(std::make_unique<uint8_t[]>(shared_alloc + 1024));
        cta->memory.push_back(std::make_unique<uint8_t[]>(shared_alloc + 1024));
        cta->mbarrier_index.assign(shared_alloc / 8 + 1, 0);
        const size_t bytes = program.register_bytes + 4 * size_t(program.predicates) + 64;
        for (uint32_t i = 0; i < warps_per_cta_; ++i) {
            auto warp = std::make_unique<Warp>();
            warp->storage = aligned(bytes);
            warp->base[0] = warp->storage;
            warp->base[1] = constants_;
            warp->pred = reinterpret_cast<uint32_t*>(warp->storage + program.register_bytes);
            cta->warps.push_back(std::move(warp));
        }
    }
    const uint32_t window = rank << kRankShift;
    uint8_t* const shared = align(cta->memory[0].get());
    uint8_t* const shadow = align(cta->memory[1].get());
    cta->cluster = &cluster;
    cta->rank = rank;
    cta->shared = shared - window;
    cta->shadow = shadow - window;
    cta->shared_begin = window + kSharedBase;
    cta->shared_end = window + shared_end;
    cluster.ctas.push_back(cta.get());
    // Poison what a program must not rely on.
    std::memset(shared, 0xcb, shared_alloc);
    std::memset(shadow, 0, shared_alloc);
    cta->warpgroups.assign((warps_per_cta_ + 3) / 4, Warpgroup{});
    const auto& size = launch.cluster;
    cta->id[0] = cluster.id[0] * size[0] + rank % size[0];
    cta->id[1] = cluster.id[1] * size[1] + rank / size[0] % size[1];
    cta->id[2] = cluster.id[2] * size[2] + rank / size[0] / size[1];
    cta->linear = cta->id[0] + launch.grid[0] * (cta->id[1] + launch.grid[1] * cta->id[2]);
    cta->live_warps = warps_per_cta_;
    const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
    for (uint32_t i = 0; i < warps_per_cta_; ++i) {
        Warp& w = *cta->warps[i];
        uint8_t* const storage = w.storage;
        uint32_t* const pred = w.pred;
        w.~Warp();
        new (&w) Warp();
        w.storage = storage;
        w.base[0] = storage;
        w.base[1] = constants_;
        w.pred = pred;
        w.carry = 0;
        std::memset(pred, 0, 4 * size_t(program.predicates));
        pred[1] = ~0u;
        w.machine = this;
        w.cta = cta.get();
        w.index = i;
        w.time = now;
        const uint32_t n = std::min(32u, threads - 32 * i);
        w.live = n == 32 ? ~0u : (1u << n) - 1;
        w.groups.push_back({0, w.live, false, false});
        if (program.local_bytes) w.local.assign(size_t(32) * program.local_bytes, 0xcb);
        wake(w);
    }
    if (checker) checker->start_cta(*cta);
    ctas_.push_back(std::move(cta));
}

void Machine::retire_cta(Cta& cta) {
    for (const auto& copy : copies_) {
        const bool reads = copy->source == &cta && !copy->read;
        const bool told = copy->signal == &cta;
        if (!reads && !told && (copy->cta != &cta || (copy->kind == CopyKind::store && copy->read))) continue;
        const Cta& issuer = *copy->warp->cta;
        throw LocatedFault{FaultKind::race,
                           reads ? "the CTA ended while a bulk copy was still reading its shared memory"
                           : copy->kind == CopyKind::store
                               ? "the CTA ended while a bulk store was still reading its shared memory "
                                 "(cp.async.bulk.wait_group.read is missing)"
                               : "the CTA ended while an asynchronous copy into its shared memory was in flight",
                           1u << copy->lane,
                           {issuer.id[0], issuer.id[1], issuer.id[2]},
                           static_cast<int>(copy->warp->index),
                           copy->pc,
                           copy->warp->mark_pc,
                           copy->warp->mark_values,
                           {}};
    }
    tensor_check_exit(cta);
    ++stats_.retired_ctas;
    cta.exited = true;
    // Its memory stays until the whole cluster is done, so that accesses by others can be told from wrong addresses.
    if (--cta.cluster->live_ctas == 0) retire_cluster(*cta.cluster);
}

void Machine::retire_cluster(Cluster& cluster) {
    for (auto& copy : copies_)
        if (copy->warp && copy->warp->cta->cluster == &cluster)  // written later, from copy->data
            copy->cta = nullptr, copy->warp = nullptr;
    for (Cta* cta : cluster.ctas) {
        auto at = std::find_if(ctas_.begin(), ctas_.end(), [&](const auto& c) { return c.get() == cta; });
        free_ctas_.push_back(std::move(*at));
        *at = std::move(ctas_.back());
        ctas_.pop_back();
    }
    std::erase_if(clusters_, [&](const auto& c) { return c.get() == &cluster; });
    if (next_cluster_ < total_clusters_) start_cluster();
}

void Machine::wake(Warp& warp) {
    warp.wait = Wait::none;
    warp.soft = false;
    if (warp.queued) return;
    warp.queued = true;
    queue_.push_back(&warp);
}

// ---- one warp ------------------------------------------------------------------------

// Makes the group with the lowest program counter current. False if every group only polled.
bool Machine::select(Warp& w) {
    const Group* best = nullptr;
    bool deferred = false;
    for (const Group& g : w.groups) {
        deferred |= g.deferred;
        if (!g.waiting && !g.deferred && (!best || g.pc < best->pc)) best = &g;
    }
    if (!best) {
        if (!deferred) {
            std::string text = "lanes wait for each other at different instructions:";
            for (const Group& g : w.groups) text += format(" lanes %08x at instruction %u;", g.mask, g.pc);
            w.pc = w.groups.front().pc;
            throw Fault{FaultKind::divergence, text, w.groups.front().mask};
        }
        for (Group& g : w.groups) g.deferred = false;
        return false;
    }
    w.pc = best->pc;
    w.active = 0;
    for (size_t i = 0; i < w.groups.size();) {
        if (w.groups[i].pc == w.pc) {
            w.active |= w.groups[i].mask;
            w.groups[i] = w.groups.back();
            w.groups.pop_back();
        } else {
            ++i;
        }
    }
    return true;
}

void Machine::exit_lanes(Warp& w, uint32_t mask) {
    w.live &= ~mask;
    ++w.effects;
    ++progress;
    for (Group& g : w.groups) g.waiting = false;  // they may wait for fewer lanes now
}

// The warp polled without success.
void Machine::polled(Warp& w) {
    w.busy = 0;
    if (fruitless_ < kWatchRounds) return;
    const auto* p = reinterpret_cast<const uint64_t*>(w.storage);
    uint64_t h = w.pc;
    for (size_t n = (program.register_bytes + 4 * size_t(program.predicates)) / 8; n; --n, ++p)
        h = (h ^ *p) * 0x9e3779b97f4a7c15ull;
    w.stuck = h == w.poll_registers;
    w.poll_registers = h;
}

void Machine::run_warp(Warp& w, uint32_t quantum) {
    const Inst* const code = program.code.data();
    const Handler wgmma = wgmma_handler();
    uint64_t executed = 0;
    now = w.time;
    try {
        if (!select(w)) {
            w.busy = 0;
            wake(w);
            return;
        }
        for (;;) {
            const Inst& inst = code[w.pc];
            uint32_t mask = w.active;
            if (inst.guard >= 0) {
                const uint32_t p = w.pred[inst.guard >> 1];
                mask &= (inst.guard & 1) ? ~p : p;
            }
            ++executed;
            const uint64_t begin = now++;
            int flow = kNext;
            if (w.loads.pending()) follow_shared_loads(w, mask != 0);
            if (mask) {
                if (w.products && w.products->pending() && inst.fn != wgmma) check_registers(w);
                if (w.tensor[0].pending) check_loads(w);
                flow = inst.fn(w, inst, mask);
            }
            if (recorder)
                recorder->executed(w, w.pc, std::min(begin, now), now,
                                   now > begin + 1 || flow == kSuspend || flow == kYield);
            if (flow == kNext) {
                ++w.pc;
            } else {
                switch (flow) {
                    case kBranch: {
                        const uint32_t rest = w.active & ~mask;
                        if (rest) {
                            w.groups.push_back({w.pc + 1, rest, false, false});
                            w.active = mask;
                        }
                        w.pc = static_cast<uint32_t>(inst.imm);
                        break;
                    }
                    case kExit: {
                        const uint32_t rest = w.active & ~mask;
                        exit_lanes(w, mask);
                        if (rest) {
                            w.active = rest;
                            ++w.pc;
                            break;
                        }
                        if (w.groups.empty()) {
                            w.wait = Wait::exited;
                            stats_.simulated_ns = std::max(stats_.simulated_ns, clock());
                            stats_.instructions += executed;
                            Cta& cta = *w.cta;
                            --cta.live_warps;
                            named_barrier_check_exit(cta);
                            cluster_barrier_check_exit(*cta.cluster);
                            if (cta.live_warps == 0) retire_cta(cta);
                            return;
                        }
                        if (!select(w)) goto idle;
                        continue;
                    }
                    case kConverge:
                        w.groups.push_back({w.pc, w.active, true, false});
                        if (!select(w)) goto idle;
                        continue;
                    case kYield:
                    case kSuspend:
                        // A try_wait of some lanes only must not keep the others from running.
                        if (flow == kSuspend && (w.groups.empty() || !w.soft)) {
                            w.wait_pc = w.pc;
                            w.groups.push_back({w.pc + 1, w.active, false, false});
                            stats_.instructions += executed;
                            w.time = std::max(w.time, now);  // a barrier may have set it already
                            polled(w);
                            return;
                        }
                        polled(w);
                        w.wait = Wait::none;
                        w.soft = false;
                        w.groups.push_back({w.pc + 1, w.active, false, true});
                        if (!select(w)) goto idle;
                        if (executed >= quantum) goto out;
                        continue;
                    default: break;
                }
            }
            if (!w.groups.empty()) {
                bool change = false;
                for (const Group& g : w.groups) change |= g.pc == w.pc || (g.pc < w.pc && !g.waiting && !g.deferred);
                if (change) {
                    w.groups.push_back({w.pc, w.active, false, false});
                    if (!select(w)) goto idle;
                }
            }
            if (executed >= quantum) break;
        }
    out:
        w.groups.push_back({w.pc, w.active, false, false});
        stats_.instructions += executed;
        w.time = now;
        w.busy += executed;
        wake(w);
        return;
    idle:
        stats_.instructions += executed;
        w.time = now;
        w.busy = 0;
        wake(w);
    } catch (const Fault& fault) {
        stats_.instructions += executed;
        rethrow(fault, w);
    }
}

void Machine::rethrow(const Fault& fault, const Warp& w) {
    throw LocatedFault{fault.kind,
                       fault.message,
                       fault.lanes,
                       {w.cta->id[0], w.cta->id[1], w.cta->id[2]},
                       static_cast<int>(w.index),
                       w.pc,
                       w.mark_pc,
                       w.mark_values,
                       fault.related};
}

// ---- asynchronous copies -------------------------------------------------------------

void Machine::issue(std::unique_ptr<Copy> copy) {
    ++stats_.async_copies;
    ++copy->warp->effects;
    ++progress;
    uint64_t& until = copy->warp->cta->copies_until;
    until = std::max(until, now) + copy->total / kCopyBytesPerNs;
    copy->time = until + kCopyLatency;
    if (copy->kind == CopyKind::cp_async) {
        for (uint32_t l = 0; l < 32; ++l)
            if (copy->mask >> l & 1) copy->warp->lane_copies(l).async_time = copy->time;
    } else if (!copy->mbarrier) {
        auto& times = copy->warp->lane_copies(copy->lane).bulk_time;
        times.resize(copy->group + 1, times.empty() ? 0 : times.back());
        times.back() = copy->time;
    }
    if (recorder) recorder->operation(SliceKind::copy, *copy->warp, copy->pc, now, copy->time);
    copies_.push_back(std::move(copy));
}

void Machine::complete(size_t index) {
    std::unique_ptr<Copy> copy = std::move(copies_[index]);
    copies_[index] = std::move(copies_.back());
    copies_.pop_back();
    ++progress;
    const uint64_t before = now;
    now = copy->time;
    try {
        perform_copy(*this, *copy);
    } catch (const Fault& fault) {
        LocatedFault located{fault.kind, fault.message, fault.lanes, {0, 0, 0}, -1, copy->pc, ~0u, {}, fault.related};
        if (copy->warp) {
            std::copy(copy->warp->cta->id, copy->warp->cta->id + 3, located.cta);
            located.warp = static_cast<int>(copy->warp->index);
            located.mark_pc = copy->warp->mark_pc;
            located.mark_values = copy->warp->mark_values;
        }
        throw located;
    }
    stats_.simulated_ns = std::max(stats_.simulated_ns, clock());
    now = before;
}

// Lets one asynchronous operation of those in flight happen, and who waited for it go on. False if there is none.
bool Machine::complete_one() {
    if (!complete_any()) return false;
    for (size_t i = 0; i < copy_waiters_.size();) {
        if (has_copies(copy_waiters_[i].awaited, copy_waiters_[i].read_only)) {
            ++i;
            continue;
        }
        const CopyWaiter waiter = std::move(copy_waiters_[i]);
        copy_waiters_.erase(copy_waiters_.begin() + static_cast<std::ptrdiff_t>(i));
        const uint64_t before = now;
        now = waiter.warp->time;
        waiter.go_on();
        waiter.warp->time = now;
        now = before;
        wake(*waiter.warp);
    }
    return true;
}

void Machine::suspend_for_copies(CopyWaiter waiter) {
    waiter.warp->wait = Wait::copies;
    copy_waiters_.push_back(std::move(waiter));
}

bool Machine::complete_any() {
    if (!in_flight()) return false;
    const uint32_t index = random.below(static_cast<uint32_t>(copies_.size() + tensor_busy_.size()));
    if (index >= copies_.size()) {
        complete_tensor(*tensor_busy_[index - copies_.size()]);
        return true;
    }
    Copy& copy = *copies_[index];
    // A store reads first and writes later.
    if ((copy.kind == CopyKind::store || copy.kind == CopyKind::peer) && !copy.read && random.below(2)) {
        ++progress;
        try {
            perform_read(*this, copy);
        } catch (const Fault& fault) {
            throw LocatedFault{fault.kind,
                               fault.message,
                               fault.lanes,
                               {copy.warp->cta->id[0], copy.warp->cta->id[1], copy.warp->cta->id[2]},
                               static_cast<int>(copy.warp->index),
                               copy.pc,
                               copy.warp->mark_pc,
                               copy.warp->mark_values,
                               {}};
        }
        return true;
    }
    complete(index);
    return true;
}

bool Machine::has_copies(const std::function<bool(const Copy&)>& which, bool read_only) const {
    return std::any_of(copies_.begin(), copies_.end(),
                       [&](const auto& copy) { return which(*copy) && !(read_only && copy->read); });
}

void Machine::finish_copies(const std::function<bool(const Copy&)>& which, bool read_only) {
    for (size_t i = 0; i < copies_.size();) {
        if (!which(*copies_[i])) {
            ++i;
        } else if (read_only) {
            if (!copies_[i]->read) perform_read(*this, *copies_[i]);
            ++i;
        } else {
            complete(i);
        }
    }
}

// ---- the launch ----------------------------------------------------------------------

void Machine::run(const std::function<void()>& pulse) {
    const uint64_t room = launch.resident ? launch.resident / ctas_per_cluster_ : total_clusters_;
    for (uint64_t i = std::min(room, total_clusters_); i > 0; --i) start_cluster();
    uint64_t next_pulse = 0, rounds = 0, stuck_rounds = 0, last_progress = 0;
    std::vector<Warp*> round;
    while (!ctas_.empty()) {
        round.clear();
        round.swap(queue_);
        const uint64_t before = progress;
        bool all_polled = true, all_stuck = true;
        for (size_t i = 0; i < round.size(); ++i) {
            std::swap(round[i], round[i + random.below(static_cast<uint32_t>(round.size() - i))]);
            Warp& w = *round[i];
            w.queued = false;
            const uint64_t dice = random.next();
            const uint32_t quantum = (dice & 15) ? 32 + (dice >> 8 & 511) : 1 + (dice >> 8 & 7);
            run_warp(w, quantum);
            all_polled &= w.busy < kBusyInstructions;
            all_stuck &= w.stuck && w.busy == 0;
            if (random.below(256) < copy_rate_) complete_one();
            if (stats_.instructions >= next_pulse) {
                pulse();
                next_pulse = stats_.instructions + (1u << 21);
            }
            if (stats_.instructions > launch.max_instructions) {
                LocatedFault fault{FaultKind::livelock,
                                   format("the launch did not end within %llu warp instructions",
                                          static_cast<unsigned long long>(launch.max_instructions)),
                                   0,
                                   {0, 0, 0},
                                   -1,
                                   ~0u,
                                   ~0u,
                                   {},
                                   {}};
                describe_warps(fault);
                throw fault;
            }
        }
        if (progress != before || !all_polled) {
            fruitless_ = stuck_rounds = 0;
            last_progress = stats_.instructions;
        } else if (in_flight()) {
            complete_one();
        } else {
            ++fruitless_;
            stuck_rounds = all_stuck && fruitless_ > kWatchRounds + 1 ? stuck_rounds + 1 : 0;
            if (fruitless_ > kWatchRounds)  // a warp that counts on its own is known by then
                skew_ += std::min<uint64_t>(1000ull << std::min<uint64_t>(fruitless_ / 8, 20), 1000000000ull);
        }
        const bool due = ++rounds % kSoftWakeRounds == 0;
        if (due) complete_one();  // however late a copy is, it does land while others are busy
        if (queue_.empty() || due) {
            while (queue_.empty() && complete_one()) {
            }
            bool any = !queue_.empty();
            if (queue_.empty() || due)
                for (auto& cta : ctas_)
                    for (auto& warp : cta->warps)
                        if (warp->wait == Wait::mbarrier && warp->soft) {
                            wake(*warp);
                            any = true;
                        }
            if (!any && !ctas_.empty()) deadlock();
        }
        if (stuck_rounds > kStuckRounds || (fruitless_ && stats_.instructions - last_progress > kFruitlessInstructions))
            deadlock();
    }
    while (complete_one()) {
    }
}

namespace {

std::string describe_mbarrier(const Cta& cta, uint32_t address, uint64_t parity) {
    const uint16_t slot = cta.mbarrier_slot(address);
    if (!slot) return format("waits for the mbarrier at shared %#x", address);
    const Mbarrier& b = cta.mbarriers[slot - 1];
    return format(
        "waits for phase parity %u of the mbarrier at shared %#x, which is in phase %llu (parity %u): "
        "%u of %u arrivals and %lld bytes are missing",
        static_cast<unsigned>(parity), address, static_cast<unsigned long long>(b.phase),
        static_cast<unsigned>(b.phase & 1), b.pending, b.expected, static_cast<long long>(b.tx));
}

LocatedFault::Waiting describe(const Warp& warp) {
    const Cta& cta = *warp.cta;
    const uint32_t pc = warp.groups.empty() ? warp.pc : warp.groups.front().pc;
    LocatedFault::Waiting entry{cta.linear, warp.index, pc, "runs", warp.mark_pc, warp.mark_values};
    if (warp.wait != Wait::none) entry.pc = warp.wait_pc;
    switch (warp.wait) {
        case Wait::named_barrier: {
            const NamedBarrier& b = cta.named[warp.wait_detail];
            entry.what =
                format("waits at named barrier %u: %u of %u threads arrived", warp.wait_detail, b.arrived, b.expected);
            break;
        }
        case Wait::cluster:
            entry.what = format("waits at barrier.cluster: %u of %u warps of the cluster arrived",
                                cta.cluster->arrived, cta.cluster->live_warps());
            break;
        case Wait::tensor_memory:
            entry.what = format("waits for %u columns of tensor memory to be free", warp.wait_detail);
            break;
        case Wait::copies: entry.what = "waits for its copies"; break;
        case Wait::warpgroup: entry.what = "waits for the other warps of its warpgroup at a wgmma instruction"; break;
        default:
            if (warp.poll_pc == ~0u || warp.poll_effects != warp.effects) break;
            entry.pc = warp.poll_pc;
            entry.what = warp.poll_mbarrier ? describe_mbarrier(cta, warp.poll_mbarrier, warp.poll_parity)
                                            : "polls memory that does not change";
    }
    return entry;
}

}  // namespace

void Machine::describe_warps(LocatedFault& fault) const {
    for (const auto& cta : ctas_)
        for (const auto& warp : cta->warps)
            if (warp->wait != Wait::exited) fault.waiting.push_back(describe(*warp));
}

void Machine::deadlock() {
    LocatedFault fault{FaultKind::deadlock, "no warp can make progress", 0, {0, 0, 0}, -1, ~0u, ~0u, {}, {}};
    describe_warps(fault);
    throw fault;
}

}  // namespace machete::sim
