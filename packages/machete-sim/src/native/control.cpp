// Control flow, special registers, and communication inside a warp (PTX ISA 9.7.12, 10, 9.7.9.6, 9.7.13.9
// to 9.7.13.13).
#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"

namespace machete::sim {
namespace {

int bra(RegView&, const Inst&, uint32_t) { return kBranch; }
int exit_(RegView&, const Inst&, uint32_t) { return kExit; }
int nop(RegView&, const Inst&, uint32_t) { return kNext; }
int trap(RegView&, const Inst& i, uint32_t mask) {
    throw Fault{FaultKind::trap, i.mod ? "brkpt was executed" : "trap was executed", mask};
}
int sleep(RegView& r, const Inst&, uint32_t) {
    Warp& w = warp_of(r);
    if (w.poll_effects != w.effects) {
        w.poll_pc = w.pc;
        w.poll_value = 0;
        w.poll_effects = w.effects;
        w.poll_mbarrier = 0;
    }
    return kYield;
}

// Remembers where the warp is: registers in ext, values of the first active lane.
int mark(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t l = first_lane(mask);
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    w.mark_pc = w.pc;
    w.mark_values.clear();
    for (uint32_t k = 0; k < i.count; k += 2)  // pairs: register, 1 if it is 64 bits wide
        w.mark_values.push_back(ext[k + 1] ? static_cast<int64_t>(lanes<uint64_t>(w, ext[k])[l])
                                           : static_cast<int64_t>(lanes<int32_t>(w, ext[k])[l]));
    if (w.clock) w.machine->checker->mark(w);
    return kNext;
}

// mod: proxies made visible (ProxySpace) | 8 for a memory fence, of scope << 4
int fence(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (!w.clock) return kNext;
    Checker& checker = *w.machine->checker;
    if (i.mod & 7) checker.proxy_fence(w, mask, i.mod & 7);
    if (i.mod & 8) checker.memory_fence(w, mask, static_cast<ScopeLevel>(i.mod >> 4 & 3));
    return kNext;
}

int acquire_tensor_map(RegView& r, const Inst& i, uint32_t mask) {  // a = address
    Warp& w = warp_of(r);
    if (!w.clock || !w.machine->launch.strict) return kNext;
    for (uint32_t m = mask; m; m &= m - 1)
        w.machine->checker->acquire_tensor_map(w, lanes<uint64_t>(w, i.a)[first_lane(m)], first_lane(m));
    return kNext;
}

enum SpecialRegister {
    kTidX,
    kTidY,
    kTidZ,
    kNtidX,
    kNtidY,
    kNtidZ,
    kCtaidX,
    kCtaidY,
    kCtaidZ,
    kNctaidX,
    kNctaidY,
    kNctaidZ,
    kLaneid,
    kWarpid,
    kNwarpid,
    kSmid,
    kNsmid,
    kGridid,
    kLanemaskEq,
    kLanemaskLe,
    kLanemaskLt,
    kLanemaskGe,
    kLanemaskGt,
    kClock,
    kClockHi,
    kGlobaltimer,
    kGlobaltimerHi,
    kDynamicSmem,
    kTotalSmem,
    kClusterCtaidX,
    kClusterCtaidY,
    kClusterCtaidZ,
    kClusterNctaidX,
    kClusterNctaidY,
    kClusterNctaidZ,
    kClusteridX,
    kClusteridY,
    kClusteridZ,
    kNclusteridX,
    kNclusteridY,
    kNclusteridZ,
    kClusterCtarank,
    kClusterNctarank,
};

int special(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const Launch& launch = w.machine->launch;
    const auto& b = launch.block;
    auto set = [&](auto f) {
        if (i.flags & kFlagReg64) {
            write_lanes(lanes<uint64_t>(w, i.d), mask, [&](uint32_t l) { return static_cast<uint64_t>(f(l)); });
        } else {
            write_lanes(lanes<uint32_t>(w, i.d), mask, [&](uint32_t l) { return static_cast<uint32_t>(f(l)); });
        }
    };
    const uint32_t first = 32 * w.index;
    auto all = [&](uint64_t v) { set([v](uint32_t) { return v; }); };
    const uint64_t now = w.machine->clock();
    switch (i.mod) {
        case kTidX: set([&](uint32_t l) { return (first + l) % b[0]; }); break;
        case kTidY: set([&](uint32_t l) { return (first + l) / b[0] % b[1]; }); break;
        case kTidZ: set([&](uint32_t l) { return (first + l) / b[0] / b[1]; }); break;
        case kNtidX:
        case kNtidY:
        case kNtidZ: all(b[i.mod - kNtidX]); break;
        case kCtaidX:
        case kCtaidY:
        case kCtaidZ: all(w.cta->id[i.mod - kCtaidX]); break;
        case kNctaidX:
        case kNctaidY:
        case kNctaidZ: all(launch.grid[i.mod - kNctaidX]); break;
        case kLaneid: set([](uint32_t l) { return l; }); break;
        case kWarpid: all(w.index); break;
        case kNwarpid: all(w.cta->warps.size()); break;
        case kSmid: all(w.cta->slot); break;
        case kNsmid: all(w.machine->slots()); break;
        case kGridid: all(1); break;
        case kLanemaskEq: set([](uint32_t l) { return 1u << l; }); break;
        case kLanemaskLe: set([](uint32_t l) { return (2u << l) - 1; }); break;
        case kLanemaskLt: set([](uint32_t l) { return (1u << l) - 1; }); break;
        case kLanemaskGe: set([](uint32_t l) { return ~((1u << l) - 1); }); break;
        case kLanemaskGt: set([](uint32_t l) { return ~((2u << l) - 1); }); break;
        case kClock:
        case kGlobaltimer: all(now); break;
        case kClockHi:
        case kGlobaltimerHi: all(now >> 32); break;
        case kDynamicSmem: all(launch.dynamic_shared); break;
        case kTotalSmem: all(w.cta->shared_end - w.cta->shared_begin); break;
        case kClusterCtaidX:
        case kClusterCtaidY:
        case kClusterCtaidZ: {
            const uint32_t axis = i.mod - kClusterCtaidX;
            all(w.cta->id[axis] % launch.cluster[axis]);
            break;
        }
        case kClusterNctaidX:
        case kClusterNctaidY:
        case kClusterNctaidZ: all(launch.cluster[i.mod - kClusterNctaidX]); break;
        case kClusteridX:
        case kClusteridY:
        case kClusteridZ: all(w.cta->cluster->id[i.mod - kClusteridX]); break;
        case kNclusteridX:
        case kNclusteridY:
        case kNclusteridZ: {
            const uint32_t axis = i.mod - kNclusteridX;
            all(launch.grid[axis] / launch.cluster[axis]);
            break;
        }
        case kClusterCtarank: all(w.cta->rank); break;
        case kClusterNctarank: all(w.cta->cluster->ctas.size()); break;
        default: throw Fault{FaultKind::unsupported, "special register", mask};
    }
    return kNext;
}

// ---- exchange between lanes ----------------------------------------------------------

// shfl.sync d|p, a, b, c, members: d, e = predicate, a, b, c; mod: 0 up, 1 down, 2 bfly, 3 idx; ext[0] = members
int shuffle(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* members = lanes<uint32_t>(w, w.machine->program.ext[i.ext]);
    if (const int flow = converge(w, mask, members)) return flow;
    const uint32_t* a = lanes<uint32_t>(w, i.a);
    const uint32_t* b = lanes<uint32_t>(w, i.b);
    const uint32_t* c = lanes<uint32_t>(w, i.c);
    alignas(64) uint32_t result[kLanes];
    uint32_t valid = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
        result[l] = 0;
        if (!(mask >> l & 1)) continue;
        const uint32_t bound = c[l] & 31, segment = c[l] >> 8 & 31, step = b[l] & 31;
        const int high = static_cast<int>((l & segment) | (bound & ~segment)), low = static_cast<int>(l & segment);
        int j;
        bool ok;
        switch (i.mod) {
            case 0:
                j = static_cast<int>(l) - static_cast<int>(step);
                ok = j >= high;
                break;
            case 1:
                j = static_cast<int>(l + step);
                ok = j <= high;
                break;
            case 2:
                j = static_cast<int>(l ^ step);
                ok = j <= high;
                break;
            default:
                j = low | static_cast<int>(step & ~segment);
                ok = j <= high;
                break;
        }
        if (!ok) j = static_cast<int>(l);
        if (!(mask >> j & 1))
            throw Fault{FaultKind::divergence, format("shfl.sync reads lane %d, which does not take part", j), 1u << l};
        result[l] = a[j];
        valid |= uint32_t(ok) << l;
    }
    if (i.d != kNoOperand) write_lanes(lanes<uint32_t>(w, i.d), mask, [&](uint32_t l) { return result[l]; });
    write_pred(w, i.e, mask, valid);
    return kNext;
}

// vote.sync: a = predicate (mod bit 8 negates), b = members; mod: 0 all, 1 any, 2 uni, 3 ballot
int vote(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* members = lanes<uint32_t>(w, i.b);
    if (const int flow = converge(w, mask, members)) return flow;
    const uint32_t p = (i.mod & 256) ? ~w.pred[i.a] : w.pred[i.a];
    uint32_t out = 0;
    alignas(64) uint32_t ballot[kLanes] = {};
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t in = members[l] & mask, yes = p & in;
        ballot[l] = yes;
        bool v = false;
        if ((i.mod & 255) == 0) v = yes == in;
        if ((i.mod & 255) == 1) v = yes != 0;
        if ((i.mod & 255) == 2) v = yes == in || yes == 0;
        out |= uint32_t(v) << l;
    }
    if ((i.mod & 255) == 3) {
        write_lanes(lanes<uint32_t>(w, i.d), mask, [&](uint32_t l) { return ballot[l]; });
    } else {
        write_pred(w, i.d, mask, out);
    }
    return kNext;
}

// match.sync: d, e = predicate of .all, a = value, b = members; mod bit 0: all
template <class V>
int match(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* members = lanes<uint32_t>(w, i.b);
    if (const int flow = converge(w, mask, members)) return flow;
    const V* a = lanes<V>(w, i.a);
    alignas(64) uint32_t same[kLanes] = {};
    uint32_t all = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t in = members[l] & mask;
        for (uint32_t k = 0; k < kLanes; ++k)
            if ((in >> k & 1) && a[k] == a[l]) same[l] |= 1u << k;
        if (i.mod & 1) {
            if (same[l] == in)
                all |= 1u << l;
            else
                same[l] = 0;
        }
    }
    if (i.d != kNoOperand) write_lanes(lanes<uint32_t>(w, i.d), mask, [&](uint32_t l) { return same[l]; });
    if (i.mod & 1) write_pred(w, i.e, mask, all);
    return kNext;
}

// redux.sync: d, a, b = members; mod: op | type << 8 as for atomics; .f32: bit 16 abs, bit 17 NaN
int reduce(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* members = lanes<uint32_t>(w, i.b);
    if (const int flow = converge(w, mask, members)) return flow;
    const uint32_t* a = lanes<uint32_t>(w, i.a);
    alignas(64) uint32_t out[kLanes] = {};
    const int op = static_cast<int>(i.mod & 255), type = static_cast<int>(i.mod >> 8 & 255);
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint32_t in = members[l] & mask;
        bool first = true, nan = false;
        uint64_t v = 0;
        for (uint32_t k = 0; k < kLanes; ++k) {
            if (!(in >> k & 1)) continue;
            const uint32_t x = (i.mod & 1u << 16) ? a[k] & 0x7fffffffu : a[k];
            nan |= (i.mod & 1u << 17) && (x & 0x7fffffffu) > 0x7f800000u;
            v = first ? x : apply_atomic(op, type, v, x);
            first = false;
        }
        out[l] = nan ? 0x7fffffffu : static_cast<uint32_t>(v);
    }
    write_lanes(lanes<uint32_t>(w, i.d), mask, [&](uint32_t l) { return out[l]; });
    return kNext;
}

// elect.sync d|e, a = members: the lowest lane leads
int elect(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    const uint32_t* members = lanes<uint32_t>(w, i.a);
    if (const int flow = converge(w, mask, members)) return flow;
    const uint32_t leader = first_lane(members[first_lane(mask)] & mask);
    if (i.d != kNoOperand) write_lanes(lanes<uint32_t>(w, i.d), mask, [&](uint32_t) { return leader; });
    write_pred(w, i.e, mask, 1u << leader);
    return kNext;
}

int active_mask(RegView& r, const Inst& i, uint32_t mask) {
    const uint32_t active = warp_of(r).active;
    write_lanes(lanes<uint32_t>(r, i.d), mask, [&](uint32_t) { return active; });
    return kNext;
}

int warp_sync(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    return converge(w, mask, lanes<uint32_t>(w, i.a), true);
}

const NamedHandler table[] = {
    {"bra", bra},
    {"exit", exit_},
    {"nop", nop},
    {"trap", trap},
    {"nanosleep", sleep},
    {"mark", mark},
    {"fence", fence},
    {"fence.tensormap", acquire_tensor_map},
    {"mov.special", special},
    {"shfl", shuffle},
    {"vote", vote},
    {"match.b32", match<uint32_t>},
    {"match.b64", match<uint64_t>},
    {"redux", reduce},
    {"elect", elect},
    {"activemask", active_mask},
    {"bar.warp.sync", warp_sync},
};

}  // namespace

HandlerTable control_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
