// atom and red (PTX ISA 9.7.13.6 to 9.7.13.8), and the arithmetic of cp.reduce.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "lanes.hpp"
#include "machine.hpp"
#include "numbers.hpp"
#include "shared_address.hpp"

namespace machete::sim {

namespace {

enum AtomicOp { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kCas, kInc, kDec };
enum AtomicType { kU32, kS32, kU64, kS64, kB32, kB64, kF32, kF64, kF16, kBF16, kF16x2, kBF16x2, kB16, kB128 };

template <class T>
T integer(int op, T old, T x) {
    switch (op) {
        case kAdd: return static_cast<T>(old + x);
        case kMin: return old < x ? old : x;
        case kMax: return old > x ? old : x;
        case kAnd: return old & x;
        case kOr: return old | x;
        case kXor: return old ^ x;
        case kExch: return x;
        case kInc: return old >= x ? T(0) : static_cast<T>(old + 1);
        default: return old == 0 || old > x ? x : static_cast<T>(old - 1);  // kDec
    }
}

template <class T>
T floating(int op, T old, T x) {
    switch (op) {
        case kAdd: return old + x;
        case kMin: return old != old ? x : x != x ? old : std::fmin(old, x);
        case kMax: return old != old ? x : x != x ? old : std::fmax(old, x);
        default: return x;
    }
}

uint16_t half(int op, uint32_t old, uint32_t x) {
    return f16_from_f32(floating(op, f32_from_f16(static_cast<uint16_t>(old)), f32_from_f16(static_cast<uint16_t>(x))));
}
uint16_t bfloat(int op, uint32_t old, uint32_t x) {
    return bf16_from_f32(
        floating(op, f32_from_bf16(static_cast<uint16_t>(old)), f32_from_bf16(static_cast<uint16_t>(x))));
}

}  // namespace

uint64_t apply_atomic(int op, int type, uint64_t old, uint64_t x) {
    const auto o32 = static_cast<uint32_t>(old), x32 = static_cast<uint32_t>(x);
    switch (type) {
        case kU32:
        case kB32: return integer<uint32_t>(op, o32, x32);
        case kS32:
            if (op == kAdd) return o32 + x32;
            return static_cast<uint32_t>(integer<int32_t>(op, static_cast<int32_t>(o32), static_cast<int32_t>(x32)));
        case kU64:
        case kB64: return integer<uint64_t>(op, old, x);
        case kS64:
            if (op == kAdd) return old + x;
            return static_cast<uint64_t>(integer<int64_t>(op, static_cast<int64_t>(old), static_cast<int64_t>(x)));
        case kF32: return bits<uint32_t>(floating(op, bits<float>(o32), bits<float>(x32)));
        case kF64: return bits<uint64_t>(floating(op, bits<double>(old), bits<double>(x)));
        case kF16: return half(op, o32, x32);
        case kBF16: return bfloat(op, o32, x32);
        case kF16x2: return half(op, o32, x32) | uint32_t(half(op, o32 >> 16, x32 >> 16)) << 16;
        case kBF16x2: return bfloat(op, o32, x32) | uint32_t(bfloat(op, o32 >> 16, x32 >> 16)) << 16;
        default: return x;  // kB16 and kB128 do not come here
    }
}

namespace {

// Inst: a address, b operand, c second operand of cas, d old value or none; mod = op | type << 8 | order << 16, see inst.hpp.
// Vectors: ext lists `count` destinations, then `count` operands.
enum Space { kGlobal, kShared, kGeneric };

template <class T>
uint64_t folded(T value) {
    if constexpr (sizeof(T) == 16) return static_cast<uint64_t>(value) ^ (static_cast<uint64_t>(value >> 64) * 3);
    return static_cast<uint64_t>(value);
}

template <class T, Space S>
int atomic(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    Machine& machine = *w.machine;
    const int op = static_cast<int>(i.mod & 255), type = static_cast<int>(i.mod >> 8 & 255);
    const uint32_t n = i.count ? i.count : 1;
    const uint32_t* ext = machine.program.ext.data() + i.ext;
    const auto bytes = static_cast<uint32_t>(sizeof(T)) * n;
    using Value = std::conditional_t<sizeof(T) == 16, T, uint64_t>;
    auto value = [&](uint32_t reg, uint32_t l) -> Value {
        if constexpr (sizeof(T) == 16) {
            auto* v = lanes<uint64_t>(w, reg);
            return Value(v[kLanes + l]) << 64 | v[l];
        } else {
            return sizeof(T) == 8 ? lanes<uint64_t>(w, reg)[l] : lanes<uint32_t>(w, reg)[l];
        }
    };
    const auto order = static_cast<MemoryOrder>(i.mod >> kAtomicOrderShift & kOrderMask);
    const auto scope = static_cast<ScopeLevel>(i.mod >> (kAtomicOrderShift + kScopeShift) & 3);
    const uint32_t flags = kWrites | kStrong | (scope == ScopeLevel::cta ? kCtaScope : 0);
    bool changed = false;
    uint64_t seen = mask, returned_at = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
        if (!(mask >> l & 1)) continue;
        uint64_t address = ((i.flags & kFlagAddr64) ? lanes<uint64_t>(w, i.a)[l] : lanes<uint32_t>(w, i.a)[l]) +
                           static_cast<uint64_t>(i.imm);
        bool in_shared = S == kShared;
        if (S == kGeneric && address >> 32 == kSharedWindow >> 32) in_shared = true, address &= 0xffffffffu;
        if (address % bytes)
            throw Fault{FaultKind::misaligned,
                        format("atomic of %u bytes at %s address %#llx, which is not a multiple of %u", bytes,
                               in_shared ? "shared" : "global", static_cast<unsigned long long>(address), bytes),
                        1u << l};
        uint8_t* p;
        if (in_shared) {
            Cta& cta = S == kShared && !(i.flags & kFlagCluster) ? *w.cta : shared_owner(w, address, l, "atomic");
            check_shared(cta, address, bytes, l, "atomic");
            for (uint32_t k = 0; k < bytes; ++k)
                if (cta.shadow[address + k] != 1)
                    uninitialised(cta, machine, static_cast<uint32_t>(address), bytes, l, "atomic");
            p = cta.shared + address;
            if (w.clock) machine.checker->shared(w, cta, static_cast<uint32_t>(address), bytes, 1u << l, flags);
        } else {
            p = global_range(machine, w.region, address, bytes, true, l, "atomic");
            returned_at = machine.now + kSignalLatency;
            uint64_t& seen_at = machine.seen_at[address];
            seen_at = std::max(seen_at, returned_at);
            if (w.clock) machine.checker->global(w, address, bytes, 1u << l, flags);
        }
        if (w.clock) {
            const auto key = reinterpret_cast<uint64_t>(p);
            machine.checker->acquire_at(w, 1u << l, key, order, scope);
            machine.checker->release_at(w, 1u << l, key, order, scope, true);
        }
        for (uint32_t k = 0; k < n; ++k, p += sizeof(T)) {
            T old, next;
            std::memcpy(&old, p, sizeof old);
            const Value x = value(n > 1 ? ext[n + k] : i.b, l);
            if (op == kCas) {
                next = old == static_cast<T>(x) ? static_cast<T>(value(i.c, l)) : old;
            } else if constexpr (sizeof(T) == 16) {
                next = x;  // exch
            } else {
                next = static_cast<T>(apply_atomic(op, type, old, x));
            }
            std::memcpy(p, &next, sizeof next);
            changed |= next != old;
            seen = (seen ^ folded(old) ^ address) * 0x9e3779b97f4a7c15ull;
            const uint32_t d = n > 1 ? ext[k] : i.d;
            if (d == kNoOperand) continue;
            if constexpr (sizeof(T) == 16) {
                lanes<uint64_t>(w, d)[l] = static_cast<uint64_t>(old);
                lanes<uint64_t>(w, d)[kLanes + l] = static_cast<uint64_t>(old >> 64);
            } else if constexpr (sizeof(T) == 8) {
                lanes<uint64_t>(w, d)[l] = old;
            } else {
                lanes<uint32_t>(w, d)[l] = old;
            }
        }
    }
    if (n > 1 || i.d != kNoOperand) machine.not_before(returned_at);  // the old value comes back
    if (changed) {
        ++w.effects;
        ++machine.progress;
        return kNext;
    }
    const bool again = w.poll_pc == w.pc && w.poll_value == seen && w.poll_effects == w.effects;
    w.poll_pc = w.pc;
    w.poll_value = seen;
    w.poll_effects = w.effects;
    w.poll_mbarrier = 0;
    return again ? kYield : kNext;
}

#define SPACES(NAME, T)                                                                     \
    {"atom.global." NAME, atomic<T, kGlobal>}, {"atom.shared." NAME, atomic<T, kShared>}, { \
        "atom.generic." NAME, atomic<T, kGeneric>                                           \
    }

const NamedHandler table[] = {SPACES("16", uint16_t), SPACES("32", uint32_t), SPACES("64", uint64_t),
                              SPACES("128", unsigned __int128)};

}  // namespace

HandlerTable atomic_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
