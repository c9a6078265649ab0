// Loads and stores of all state spaces (PTX ISA 9.7.9.8 to 9.7.9.12), with bounds, alignment and initialisation checks.
#include <algorithm>
#include <cstring>

#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {

// Finds the region that holds [address, address + bytes) and returns a host pointer.
uint8_t* global_range(Machine& machine, const Region*& hint, uint64_t address, uint64_t bytes, bool write,
                      uint32_t lane, const char* what) {
    const Region* r = hint;
    if (!r || address < r->begin || address + bytes > r->end) {
        r = machine.find_region(address);
        if (!r || address + bytes > r->end) {
            const Region* near = nullptr;
            uint64_t best = ~0ull;
            for (const Region& x : machine.launch.regions) {
                const uint64_t gap = address < x.begin ? x.begin - address : address >= x.end ? address - x.end + 1 : 0;
                if (gap < best) best = gap, near = &x;
            }
            std::string text =
                format("%s of %llu bytes at global address %#llx, outside of all memory of the launch", what,
                       static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address));
            if (near) {
                const auto size = static_cast<unsigned long long>(near->end - near->begin);
                if (address >= near->begin && address < near->end)
                    text += format("; it starts at byte %llu of '%s' and runs past its end (%llu bytes)",
                                   static_cast<unsigned long long>(address - near->begin), near->name.c_str(), size);
                else if (address >= near->end)
                    text += format("; nearest is '%s' (%llu bytes), which ends %llu bytes before it",
                                   near->name.c_str(), size, static_cast<unsigned long long>(address - near->end));
                else
                    text += format("; nearest is '%s' (%llu bytes), which starts %llu bytes after it",
                                   near->name.c_str(), size, static_cast<unsigned long long>(near->begin - address));
            }
            throw Fault{FaultKind::out_of_bounds, text, 1u << lane};
        }
        hint = r;
    }
    if (write && !r->writable)
        throw Fault{
            FaultKind::out_of_bounds,
            format("%s of %llu bytes at global address %#llx: '%s' is read-only", what,
                   static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address), r->name.c_str()),
            1u << lane};
    return reinterpret_cast<uint8_t*>(address);
}

void uninitialised(const Cta& cta, const Machine& machine, uint32_t address, uint32_t bytes, uint32_t lane,
                   const char* what) {
    uint32_t bad = address;
    while (bad < address + bytes && cta.shadow[bad] == 1) ++bad;
    if (cta.mbarrier_slot(bad) && cta.mbarriers[cta.mbarrier_slot(bad) - 1].valid)
        throw Fault{FaultKind::mbarrier, format("%s of shared memory at %#x, which holds an mbarrier", what, bad),
                    1u << lane};
    for (const auto& copy : machine.copies()) {
        if (copy->cta != &cta || copy->kind == CopyKind::store) continue;
        for (const TileChunk& c : copy->chunks)
            if (bad >= c.shared && bad < c.shared + c.bytes)
                throw Fault{FaultKind::uninitialised,
                            format("%s of shared memory at %#x while an asynchronous copy into it is in flight "
                                   "(issued at instruction %u; nothing waited for it)",
                                   what, bad, copy->pc),
                            1u << lane};
    }
    throw Fault{FaultKind::uninitialised, format("%s of shared memory at %#x, which was never written", what, bad),
                1u << lane};
}

namespace {

enum Space { kGlobal, kShared, kLocal, kParam, kCluster };

struct Addresses {
    alignas(64) uint64_t a[kLanes];
};

inline void addresses(RegView& w, const Inst& i, Addresses& out) {
    const auto offset = static_cast<uint64_t>(i.imm);
    if (i.flags & kFlagAddr64) {
        auto* p = lanes<uint64_t>(w, i.a);
        for (uint32_t l = 0; l < kLanes; ++l) out.a[l] = p[l] + offset;
    } else {
        auto* p = lanes<uint32_t>(w, i.a);
        for (uint32_t l = 0; l < kLanes; ++l) out.a[l] = p[l] + offset;
    }
}

[[noreturn]] void misaligned(uint64_t address, uint32_t bytes, uint32_t lane, const char* space, const char* what) {
    throw Fault{FaultKind::misaligned,
                format("%s of %u bytes at %s address %#llx, which is not a multiple of %u", what, bytes, space,
                       static_cast<unsigned long long>(address), bytes),
                1u << lane};
}

// What the lanes of an access have in common.
struct Extent {
    uint64_t low = ~0ull, high = 0, all = 0;
    bool contiguous = false;  // all lanes, one after the other
};

Extent extent_of(const Addresses& addr, uint32_t mask, uint32_t bytes) {
    Extent e;
    if (mask == ~0u) {
        uint64_t gaps = 0;
        for (uint32_t l = 0; l < kLanes; ++l) {
            const uint64_t a = addr.a[l];
            e.low = a < e.low ? a : e.low;
            e.high = a > e.high ? a : e.high;
            e.all |= a;
            gaps |= a - addr.a[0] - uint64_t(l) * bytes;
        }
        e.contiguous = gaps == 0;
        return e;
    }
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t a = addr.a[l];
        e.low = a < e.low ? a : e.low;
        e.high = a > e.high ? a : e.high;
        e.all |= a;
    }
    return e;
}

// Whether all of n shadow bytes are 1.
bool written(const uint8_t* shadow, uint32_t n) {
    uint64_t wrong = 0;
    for (; n >= 8; n -= 8, shadow += 8) {
        uint64_t v;
        std::memcpy(&v, shadow, 8);
        wrong |= v ^ 0x0101010101010101ull;
    }
    for (; n; --n, ++shadow) wrong |= *shadow ^ 1u;
    return wrong == 0;
}

// What the race checker is told of the order of an access.
template <Space S>
uint32_t access_flags(const Inst& i, bool write) {
    uint32_t flags = write ? kWrites | kSettles : S == kGlobal ? 0 : kLoads;
    if (i.mod & kOrderMask) flags |= kStrong | ((i.mod >> kScopeShift & 3) == 0 ? kCtaScope : 0);
    return flags;
}

template <Space S>
void check_races(Warp& w, const Inst& i, const Addresses& addr, uint32_t mask, uint32_t bytes, bool write,
                 bool contiguous) {
    Checker& checker = *w.machine->checker;
    const uint32_t flags = access_flags<S>(i, write);
    if (contiguous) {
        if constexpr (S == kShared) {
            checker.shared_row(w, *w.cta, static_cast<uint32_t>(addr.a[0]), bytes, flags);
        } else {
            checker.global_row(w, addr.a[0], bytes, flags);
        }
    } else {
        while (mask) {  // lanes with one address make one access
            const uint32_t l = first_lane(mask);
            uint32_t same = 0;
            for (uint32_t m = mask; m; m &= m - 1)
                if (addr.a[first_lane(m)] == addr.a[l]) same |= 1u << first_lane(m);
            if constexpr (S == kShared) {
                checker.shared(w, *w.cta, static_cast<uint32_t>(addr.a[l]), bytes, same, flags);
            } else {
                checker.global(w, addr.a[l], bytes, same, flags);
            }
            mask &= ~same;
        }
    }
}

// Acquire and release through memory, after the access has been checked.
template <Space S>
void synchronise(Warp& w, const Inst& i, const Addresses& addr, uint32_t mask, bool write) {
    const auto order = static_cast<MemoryOrder>(i.mod & kOrderMask);
    const auto scope = static_cast<ScopeLevel>(i.mod >> kScopeShift & 3);
    uint64_t last = ~0ull;
    for (; mask; mask &= mask - 1) {
        const uint32_t l = first_lane(mask);
        const uint64_t key = addr.a[l] + (S == kShared ? reinterpret_cast<uint64_t>(w.cta->shared) : 0);
        if (key == last) continue;
        last = key;
        uint32_t same = 0;
        for (uint32_t m = mask; m; m &= m - 1)
            if (addr.a[first_lane(m)] == addr.a[l]) same |= 1u << first_lane(m);
        if (write) {
            w.machine->checker->release_at(w, same, key, order, scope, false);
        } else {
            w.machine->checker->acquire_at(w, same, key, order, scope);
        }
    }
}

// Host addresses of an access by the lanes of the mask; checked.
template <Space S, bool Write>
void resolve(Warp& w, const Inst& i, Addresses& addr, uint32_t mask, uint32_t bytes) {
    const char* what = Write ? "store" : "load";
    const Extent e = extent_of(addr, mask, bytes);
    const uint64_t lo = e.low, hi = e.high, all = e.all;
    static const char* const names[] = {"global", "shared", "local", "param", "shared"};
    if (all & (bytes - 1))
        for (uint32_t l = 0; l < kLanes; ++l)
            if ((mask >> l & 1) && (addr.a[l] & (bytes - 1))) misaligned(addr.a[l], bytes, l, names[S], what);
    if constexpr (S == kGlobal) {
        const Region* r = w.region;
        if (!r || lo < r->begin || hi + bytes > r->end || (Write && !r->writable))
            for (uint32_t l = 0; l < kLanes; ++l)
                if (mask >> l & 1) global_range(*w.machine, w.region, addr.a[l], bytes, Write, l, what);
        if (w.clock && (Write || !w.region || w.region->writable)) {
            check_races<S>(w, i, addr, mask, bytes, Write, e.contiguous);
            if (i.mod & kOrderMask) synchronise<S>(w, i, addr, mask, Write);
        }
    } else if constexpr (S == kShared) {
        Cta& cta = *w.cta;
        if (lo < cta.shared_begin || hi + bytes > cta.shared_end)
            for (uint32_t l = 0; l < kLanes; ++l)
                if (mask >> l & 1) check_shared(cta, addr.a[l], bytes, l, what);
        if (w.clock) {
            if (!Write) begin_shared_load(w);
            check_races<S>(w, i, addr, mask, bytes, Write, e.contiguous);
            if (i.mod & kOrderMask) synchronise<S>(w, i, addr, mask, Write);
        }
        const auto host = reinterpret_cast<uint64_t>(cta.shared);
        if (e.contiguous) {
            uint8_t* s = cta.shadow + lo;
            bool good = true;
            if constexpr (Write) {
                std::memset(s, 1, size_t(kLanes) * bytes);
            } else {
                good = written(s, kLanes * bytes);
            }
            if (good) {
                for (uint32_t l = 0; l < kLanes; ++l) addr.a[l] += host;
                return;
            }
        }
        for (uint32_t l = 0; l < kLanes; ++l) {
            if (!(mask >> l & 1)) continue;
            const auto a = static_cast<uint32_t>(addr.a[l]);
            uint8_t* s = cta.shadow + a;
            if constexpr (Write) {
                std::memset(s, 1, bytes);
            } else {
                if (!written(s, bytes)) uninitialised(cta, *w.machine, a, bytes, l, what);
            }
            addr.a[l] += host;
        }
    } else if constexpr (S == kCluster) {
        if (w.clock && !Write) begin_shared_load(w);
        for (uint32_t l = 0; l < kLanes; ++l) {
            if (!(mask >> l & 1)) continue;
            const auto a = static_cast<uint32_t>(addr.a[l]);
            Cta& cta = shared_owner(w, a, l, what);
            check_shared(cta, a, bytes, l, what);
            if (w.clock) w.machine->checker->shared(w, cta, a, bytes, 1u << l, access_flags<S>(i, Write));
            if constexpr (Write) {
                std::memset(cta.shadow + a, 1, bytes);
            } else {
                if (!written(cta.shadow + a, bytes)) uninitialised(cta, *w.machine, a, bytes, l, what);
            }
            addr.a[l] = reinterpret_cast<uint64_t>(cta.shared) + a;
        }
        if (w.clock && (i.mod & kOrderMask)) synchronise<S>(w, i, addr, mask, Write);
    } else if constexpr (S == kLocal) {
        const uint32_t size = w.machine->program.local_bytes;
        for (uint32_t l = 0; l < kLanes; ++l) {
            if (!(mask >> l & 1)) continue;
            if (addr.a[l] + bytes > size)
                throw Fault{FaultKind::out_of_bounds,
                            format("%s of %u bytes at local address %#llx; a thread has %u bytes", what, bytes,
                                   static_cast<unsigned long long>(addr.a[l]), size),
                            1u << l};
            addr.a[l] = reinterpret_cast<uint64_t>(w.local.data() + size_t(l) * size + addr.a[l]);
        }
    } else {
        const Launch& launch = w.machine->launch;
        for (uint32_t l = 0; l < kLanes; ++l) {
            if (!(mask >> l & 1)) continue;
            if (Write || addr.a[l] + bytes > launch.param_bytes)
                throw Fault{FaultKind::out_of_bounds,
                            format("%s of %u bytes at parameter offset %llu; the parameters have %u bytes", what, bytes,
                                   static_cast<unsigned long long>(addr.a[l]), launch.param_bytes),
                            1u << l};
            addr.a[l] = reinterpret_cast<uint64_t>(launch.params + addr.a[l]);
        }
    }
}

template <class F>
inline void each(uint32_t mask, F f) {
    if (mask == ~0u) {
        for (uint32_t l = 0; l < kLanes; ++l) f(l);
    } else {
        for (uint32_t l = 0; l < kLanes; ++l)
            if (mask >> l & 1) f(l);
    }
}

template <class T>
inline T read(uint64_t address) {
    T v;
    std::memcpy(&v, reinterpret_cast<const void*>(address), sizeof v);
    return v;
}
template <class T>
inline void write(uint64_t address, T v) {
    std::memcpy(reinterpret_cast<void*>(address), &v, sizeof v);
}

struct Wide {
    uint64_t lo, hi;
};

// Loads element k of every lane into one register. T: unsigned type of the element's size.
template <class T>
void load_element(RegView& w, const Inst& i, uint32_t reg, const Addresses& addr, uint32_t k, uint32_t mask) {
    if (reg == kNoOperand) return;
    const uint64_t offset = uint64_t(k) * sizeof(T);
    if constexpr (sizeof(T) == 16) {
        auto* d = lanes<uint64_t>(w, reg);
        each(mask, [&](uint32_t l) {
            const Wide v = read<Wide>(addr.a[l] + offset);
            d[l] = v.lo;
            d[kLanes + l] = v.hi;
        });
    } else if (i.flags & kFlagReg64) {
        using S = std::make_signed_t<T>;
        auto* d = lanes<uint64_t>(w, reg);
        const bool sign = i.flags & kFlagSigned;
        each(mask, [&](uint32_t l) {
            const T v = read<T>(addr.a[l] + offset);
            d[l] = sign ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<S>(v))) : uint64_t(v);
        });
    } else if constexpr (sizeof(T) >= 4) {
        auto* d = lanes<uint32_t>(w, reg);
        each(mask, [&](uint32_t l) { d[l] = static_cast<uint32_t>(read<T>(addr.a[l] + offset)); });
    } else {
        using S = std::make_signed_t<T>;
        auto* d = lanes<uint32_t>(w, reg);
        const bool sign = i.flags & kFlagSigned;
        const uint32_t keep = (i.flags & kFlagReg16) ? 0xffffu : ~0u;
        each(mask, [&](uint32_t l) {
            const T v = read<T>(addr.a[l] + offset);
            d[l] = (sign ? static_cast<uint32_t>(static_cast<int32_t>(static_cast<S>(v))) : static_cast<uint32_t>(v)) &
                   keep;
        });
    }
}

// A load that returns the same value again, while the warp did nothing others can see, is polling.
bool polls(Warp& w, uint32_t mask, const Addresses& addr, uint32_t bytes) {
    uint64_t h = mask, place = mask, seen_at = 0;
    const auto& writes = w.machine->seen_at;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        uint64_t v = 0;
        std::memcpy(&v, reinterpret_cast<const void*>(addr.a[l]), bytes < 8 ? bytes : 8);
        h = (h ^ v ^ addr.a[l]) * 0x9e3779b97f4a7c15ull;
        place = (place ^ addr.a[l]) * 0x9e3779b97f4a7c15ull;
        const auto write = writes.find(addr.a[l]);
        if (write != writes.end()) seen_at = std::max(seen_at, write->second);
    }
    const bool retried = w.poll_pc == w.pc && w.poll_effects == w.effects && w.poll_place == place;
    const bool again = retried && w.poll_value == h;
    if (!again) {
        if (retried) {
            if (w.machine->recorder) w.machine->recorder->rewind(w, w.poll_time);
            w.machine->now = w.poll_time;
        }
        w.machine->not_before(seen_at);
        w.poll_time = w.machine->now;
        w.poll_place = place;
    }
    w.poll_pc = w.pc;
    w.poll_value = h;
    w.poll_effects = w.effects;
    w.poll_mbarrier = 0;
    return again;
}

template <class T>
int load_resolved(Warp& w, const Inst& i, uint32_t mask, const Addresses& addr) {
    if (i.count == 0) {
        load_element<T>(w, i, i.d, addr, 0, mask);
    } else {
        const uint32_t* regs = w.machine->program.ext.data() + i.ext;
        for (uint32_t k = 0; k < i.count; ++k) load_element<T>(w, i, regs[k], addr, k, mask);
    }
    return kNext;
}

template <class T>
void store_element(RegView& w, const Inst& i, uint32_t reg, const Addresses& addr, uint32_t k, uint32_t mask) {
    const uint64_t offset = uint64_t(k) * sizeof(T);
    if constexpr (sizeof(T) == 16) {
        auto* s = lanes<uint64_t>(w, reg);
        each(mask, [&](uint32_t l) { write(addr.a[l] + offset, Wide{s[l], s[kLanes + l]}); });
    } else if (i.flags & kFlagReg64) {
        auto* s = lanes<uint64_t>(w, reg);
        each(mask, [&](uint32_t l) { write(addr.a[l] + offset, static_cast<T>(s[l])); });
    } else {
        auto* s = lanes<uint32_t>(w, reg);
        each(mask, [&](uint32_t l) { write(addr.a[l] + offset, static_cast<T>(s[l])); });
    }
}

// Lanes of one store that write the same bytes must write the same value: which of them stays is not defined.
template <class T>
void lanes_agree(Warp& w, const Inst& i, uint32_t mask, const Addresses& addr) {
    if (!(mask & (mask - 1))) return;
    const uint32_t* regs = w.machine->program.ext.data() + i.ext;
    const uint32_t count = i.count ? i.count : 1;
    for (uint32_t k = 0; k < count; ++k) {
        const uint32_t reg = i.count ? regs[k] : i.d;
        const uint8_t* base = w.base[reg >> 31] + (reg & 0x7fffffffu);
        each(mask, [&](uint32_t l) {
            T stored;
            if constexpr (sizeof(T) == 16) {
                const auto* s = reinterpret_cast<const uint64_t*>(base);
                stored = T{s[l], s[kLanes + l]};
            } else if (i.flags & kFlagReg64) {
                stored = static_cast<T>(reinterpret_cast<const uint64_t*>(base)[l]);
            } else {
                stored = static_cast<T>(reinterpret_cast<const uint32_t*>(base)[l]);
            }
            if (std::memcmp(&stored, reinterpret_cast<const void*>(addr.a[l] + uint64_t(k) * sizeof(T)), sizeof(T)) == 0)
                return;
            throw Fault{FaultKind::race,
                        format("lane %u and another lane of this store write different values to the same bytes; which "
                               "of them stays is not defined: let one lane write, or use an atomic",
                               l),
                        1u << l};
        });
    }
}

template <class T>
int store_resolved(Warp& w, const Inst& i, uint32_t mask, const Addresses& addr) {
    ++w.effects;
    ++w.machine->progress;
    if (i.count == 0) {
        store_element<T>(w, i, i.d, addr, 0, mask);
    } else {
        const uint32_t* regs = w.machine->program.ext.data() + i.ext;
        for (uint32_t k = 0; k < i.count; ++k) store_element<T>(w, i, regs[k], addr, k, mask);
    }
    if (w.clock) {
        w.machine->checker->settle();
        if (!(i.mod & kOrderMask)) lanes_agree<T>(w, i, mask, addr);
    }
    return kNext;
}

inline uint32_t access_bytes(const Inst& i, uint32_t element) { return element * (i.count ? i.count : 1); }

template <class T, Space S>
int ld(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    Addresses addr;
    addresses(r, i, addr);
    const uint32_t bytes = access_bytes(i, sizeof(T));
    resolve<S, false>(w, i, addr, mask, bytes);
    load_resolved<T>(w, i, mask, addr);
    return (i.flags & kFlagPoll) && polls(w, mask, addr, bytes) ? kYield : kNext;
}

template <class T, Space S>
int st(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    Addresses addr;
    addresses(r, i, addr);
    const uint32_t bytes = access_bytes(i, sizeof(T));
    resolve<S, true>(w, i, addr, mask, bytes);
    if (S == kGlobal && (i.flags & kFlagPoll)) {
        Machine& machine = *w.machine;
        each(mask, [&](uint32_t l) { machine.seen_at[addr.a[l]] = machine.now + kSignalLatency; });
    }
    return store_resolved<T>(w, i, mask, addr);
}

// Generic addresses: every lane goes to the space its window says.
struct Split {
    uint32_t shared = 0, cluster = 0, local = 0, global = 0;
};
Split split(const Cta& cta, Addresses& addr, uint32_t mask) {
    Split s;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        const uint64_t top = addr.a[l] >> 32;
        if (top == kSharedWindow >> 32) {
            addr.a[l] &= 0xffffffffu;
            (addr.a[l] >> kRankShift == cta.rank ? s.shared : s.cluster) |= 1u << l;
        } else if (top == kLocalWindow >> 32) {
            s.local |= 1u << l;
            addr.a[l] &= 0xffffffffu;
        } else {
            s.global |= 1u << l;
        }
    }
    return s;
}

template <class T>
int load_generic(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    Addresses addr;
    addresses(r, i, addr);
    const uint32_t bytes = access_bytes(i, sizeof(T));
    const Split s = split(*w.cta, addr, mask);
    if (s.global) resolve<kGlobal, false>(w, i, addr, s.global, bytes);
    if (s.shared) resolve<kShared, false>(w, i, addr, s.shared, bytes);
    if (s.cluster) resolve<kCluster, false>(w, i, addr, s.cluster, bytes);
    if (s.local) resolve<kLocal, false>(w, i, addr, s.local, bytes);
    load_resolved<T>(w, i, mask, addr);
    return (i.flags & kFlagPoll) && polls(w, mask, addr, bytes) ? kYield : kNext;
}
template <class T>
int store_generic(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    Addresses addr;
    addresses(r, i, addr);
    const uint32_t bytes = access_bytes(i, sizeof(T));
    const Split s = split(*w.cta, addr, mask);
    if (s.global) resolve<kGlobal, true>(w, i, addr, s.global, bytes);
    if (s.shared) resolve<kShared, true>(w, i, addr, s.shared, bytes);
    if (s.cluster) resolve<kCluster, true>(w, i, addr, s.cluster, bytes);
    if (s.local) resolve<kLocal, true>(w, i, addr, s.local, bytes);
    return store_resolved<T>(w, i, mask, addr);
}

// cvta: between windows. imm is the window; d and a are 64 bits wide.
int to_generic(RegView& w, const Inst& i, uint32_t m) {
    const auto window = static_cast<uint64_t>(i.imm);
    auto* d = lanes<uint64_t>(w, i.d);
    if (i.flags & kFlagAddr64) {
        auto* a = lanes<uint64_t>(w, i.a);
        write_lanes(d, m, [&](uint32_t l) { return a[l] | window; });
    } else {
        auto* a = lanes<uint32_t>(w, i.a);
        write_lanes(d, m, [&](uint32_t l) { return uint64_t(a[l]) | window; });
    }
    return kNext;
}
int from_generic(RegView& w, const Inst& i, uint32_t m) {
    auto* a = lanes<uint64_t>(w, i.a);
    write_lanes(lanes<uint64_t>(w, i.d), m, [&](uint32_t l) { return a[l] & 0xffffffffull; });
    return kNext;
}
// Parameters are host memory of the launch.
int param_to_generic(RegView& r, const Inst& i, uint32_t m) {
    const auto base = reinterpret_cast<uint64_t>(warp_of(r).machine->launch.params);
    auto* a = lanes<uint64_t>(r, i.a);
    write_lanes(lanes<uint64_t>(r, i.d), m, [&](uint32_t l) { return a[l] + base; });
    return kNext;
}
int param_from_generic(RegView& r, const Inst& i, uint32_t m) {
    const auto base = reinterpret_cast<uint64_t>(warp_of(r).machine->launch.params);
    auto* a = lanes<uint64_t>(r, i.a);
    write_lanes(lanes<uint64_t>(r, i.d), m, [&](uint32_t l) { return a[l] - base; });
    return kNext;
}
int is_space(RegView& r, const Inst& i, uint32_t m) {  // mod: 0 global, 1 shared::cta, 2 local, 3 param, 4 cluster
    const Warp& w = warp_of(r);
    const Launch& launch = w.machine->launch;
    const auto params = reinterpret_cast<uint64_t>(launch.params);
    const uint64_t own = kSharedWindow | uint64_t(w.cta->rank) << kRankShift;
    auto* a = lanes<uint64_t>(r, i.a);
    uint32_t v = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
        const bool shared = a[l] >> 32 == kSharedWindow >> 32, local = a[l] >> 32 == kLocalWindow >> 32;
        bool in = false;
        switch (i.mod) {
            case 0: in = !shared && !local; break;
            case 1: in = a[l] >> kRankShift == own >> kRankShift; break;
            case 2: in = local; break;
            case 3: in = a[l] - params < launch.param_bytes; break;
            default: in = shared; break;
        }
        v |= uint32_t(in) << l;
    }
    write_pred(r, i.d, m, v);
    return kNext;
}

#define WIDTHS(NAME, FN, ...)                                                                                         \
    {NAME ".8", FN<uint8_t __VA_OPT__(, ) __VA_ARGS__>}, {NAME ".16", FN<uint16_t __VA_OPT__(, ) __VA_ARGS__>},       \
        {NAME ".32", FN<uint32_t __VA_OPT__(, ) __VA_ARGS__>}, {NAME ".64", FN<uint64_t __VA_OPT__(, ) __VA_ARGS__>}, \
    {                                                                                                                 \
        NAME ".128", FN<Wide __VA_OPT__(, ) __VA_ARGS__>                                                              \
    }

const NamedHandler table[] = {
    WIDTHS("ld.global", ld, kGlobal),      WIDTHS("ld.shared", ld, kShared),
    WIDTHS("ld.cluster", ld, kCluster),    WIDTHS("st.cluster", st, kCluster),
    WIDTHS("ld.local", ld, kLocal),        WIDTHS("ld.param", ld, kParam),
    WIDTHS("ld.generic", load_generic),    WIDTHS("st.global", st, kGlobal),
    WIDTHS("st.shared", st, kShared),      WIDTHS("st.local", st, kLocal),
    WIDTHS("st.generic", store_generic),   {"cvta.window", to_generic},
    {"cvta.to.window", from_generic},      {"cvta.param", param_to_generic},
    {"cvta.to.param", param_from_generic}, {"isspacep", is_space},
};

}  // namespace

HandlerTable memory_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
