// cp.async of single threads (PTX ISA 9.7.9.24).
#include <array>
#include <cstring>
#include <utility>

#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {
namespace {

// ext: dst, src64, source bytes or none, ignore-src predicate or none; mod = copied bytes (4, 8, 16)
int copy(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    Machine& machine = *w.machine;
    Cta& cta = *w.cta;
    const uint32_t* ext = machine.program.ext.data() + i.ext;
    const uint32_t bytes = i.mod;
    std::unique_ptr<Copy> open;
    // Lanes that copy the same to the same place write one value: no race, as of lanes of one store.
    std::array<std::pair<uint32_t, uint64_t>, kLanes> done;
    uint32_t count = 0;
    const auto repeats = [&](uint32_t dst, uint64_t src) {
        for (uint32_t k = 0; k < count; ++k)
            if (done[k] == std::pair{dst, src}) return true;
        done[count++] = {dst, src};
        return false;
    };
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t dst = to_shared(address_value(w, ext[0], i.imm & 1, l), l);
        const uint64_t src = address_value(w, ext[1], i.imm >> 1 & 1, l);
        uint32_t n = ext[2] == kNoOperand ? bytes : lanes<uint32_t>(w, ext[2])[l];
        if (ext[3] != kNoOperand && (w.pred[ext[3]] >> l & 1)) n = 0;
        if (n > bytes)
            throw Fault{FaultKind::out_of_bounds, format("cp.async of %u bytes is given %u", bytes, n), 1u << l};
        if (dst % bytes || (n && src % bytes))
            throw Fault{FaultKind::misaligned,
                        format("cp.async of %u bytes from %#llx to shared %#x", bytes,
                               static_cast<unsigned long long>(src), dst),
                        1u << l};
        check_shared(cta, dst, bytes, l, "cp.async");
        if (n) global_range(machine, w.region, src, n, false, l, "cp.async");
        std::memset(cta.shadow + dst, 0, bytes);
        const uint64_t group = w.lane_copies(l).async_committed;
        if (open && open->group != group) machine.issue(std::move(open));
        if (!open) {
            open = std::make_unique<Copy>();
            open->kind = CopyKind::cp_async;
            open->cta = &cta;
            open->warp = &w;
            open->pc = w.pc;
            open->lane = l;
            open->group = group;
        }
        open->mask |= 1u << l;
        open->total += bytes;
        if (n) open->chunks.push_back({src, dst, n, false});
        if (n < bytes) open->chunks.push_back({0, dst + n, bytes - n, true});
        machine.stats().bytes_loaded += n;
        if (Checker* checker = machine.checker.get()) {
            if (!w.async_groups.index) w.async_groups = checker->new_agent(cta);
            if (!repeats(dst, src)) checker->async_shared(w, cta, dst, bytes, l, w.async_groups, group + 1, kWrites);
            if (n) checker->async_global(w, src, n, l, w.async_groups, group + 1, 0);
        }
    }
    if (open) machine.issue(std::move(open));
    return kNext;
}

int commit(RegView& r, const Inst&, uint32_t mask) {
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l)
        if (mask >> l & 1) ++w.lane_copies(l).async_committed;
    return kNext;
}

void finish(Warp& w, uint32_t lane, uint64_t below) {
    w.machine->not_before(w.lane_copies(lane).async_time);
    w.machine->finish_copies(
        [&](const Copy& c) {
            return c.kind == CopyKind::cp_async && c.warp == &w && (c.mask >> lane & 1) && c.group < below;
        },
        false);
}

int wait(RegView& r, const Inst& i, uint32_t mask) {  // imm = groups that may stay pending; mod 1: wait_all
    Warp& w = warp_of(r);
    const auto keep = static_cast<uint64_t>(i.imm);
    uint64_t last = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t committed = w.lane_copies(l).async_committed;
        const uint64_t below = (i.mod & 1) ? committed + 1 : committed > keep ? committed - keep : 0;
        finish(w, l, below);
        if (w.clock && (below != last || l == first_lane(mask))) {
            uint32_t same = 0;
            for (uint32_t k = 0; k < kLanes; ++k)
                if ((mask >> k & 1) && w.lane_copies(k).async_committed == committed) same |= 1u << k;
            w.machine->checker->complete(w, same, w.async_groups, below);
        }
        last = below;
    }
    return kNext;
}

// cp.async.mbarrier.arrive: the arrival comes when the thread's copies have landed. They land here.
int arrive(RegView& r, const Inst& i, uint32_t mask) {  // a = mbarrier; mod 1: noinc
    Warp& w = warp_of(r);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        Mbarrier& b = mbarrier_at(*w.cta, shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm)), l);
        finish(w, l, ~0ull);
        if (w.clock && w.async_groups.index)
            b.arrived.learn_agent(w.async_groups.cta, w.async_groups.index,
                                  static_cast<uint32_t>(w.lane_copies(l).async_committed + 1));
        if (i.mod & 1) mbarrier_arrive(*w.machine, *w.cta, b, 1, l);
    }
    ++w.effects;
    return kNext;
}

const NamedHandler table[] = {
    {"cp.async", copy},
    {"cp.async.commit", commit},
    {"cp.async.wait", wait},
    {"cp.async.arrive", arrive},
};

}  // namespace

HandlerTable async_copy_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
