// Happens-before as vector clocks: what a warp, a barrier or a released memory location knows to have happened.
//
// A component of a clock is a warp, or an asynchronous agent of a CTA: an mbarrier (its time is the number of complete
// phases), or the bulk, cp.async, wgmma or tcgen05 groups of one issuer (its time is the number of complete groups).
// Components are kept per CTA in blocks that clocks share until one of them learns something new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace machete::sim {

// A point in the life of a component: CTA (24 bits), agent (12), time (28). Agents from kFirstAsyncAgent on are not
// warps.
using Epoch = uint64_t;
constexpr uint32_t kFirstAsyncAgent = 64, kMaxAgents = 4096, kMaxTime = (1u << 28) - 1;

constexpr Epoch make_epoch(uint32_t cta, uint32_t agent, uint32_t time) {
    return Epoch(cta) << 40 | Epoch(agent) << 28 | time;
}
constexpr uint32_t epoch_cta(Epoch e) { return static_cast<uint32_t>(e >> 40); }
constexpr uint32_t epoch_agent(Epoch e) { return static_cast<uint32_t>(e >> 28) & (kMaxAgents - 1); }
constexpr uint32_t epoch_time(Epoch e) { return static_cast<uint32_t>(e) & kMaxTime; }

enum ProxySpace : uint32_t { kProxyShared = 1, kProxyGlobal = 2, kProxyBarriers = 4 };

// What is known of a warp: all that its lanes did until `synced`, and what the lanes of `mask` did until `time`. What
// they did through the generic proxy until `fenced[s]` is visible to the asynchronous proxy too.
struct WarpTime {
    uint32_t time = 0, synced = 0, mask = 0;
    uint32_t fenced[3] = {0, 0, 0};  // shared, global, mbarrier objects
    uint32_t arrived = 0;            // what its loads from shared memory until then return is decided

    bool knows(uint32_t t, uint32_t lanes) const { return t <= synced || (t <= time && (lanes & ~mask) == 0); }
    bool join(const WarpTime& other);
};

struct ClockBlock {
    uint32_t references = 0;
    std::vector<WarpTime> warps;
    std::vector<uint32_t> agents;
};

class Clock {
public:
    Clock() = default;
    Clock(const Clock& other);
    Clock(Clock&& other) noexcept : entries_(std::move(other.entries_)) { other.entries_.clear(); }
    Clock& operator=(Clock other) noexcept {
        entries_.swap(other.entries_);
        return *this;
    }
    ~Clock() { clear(); }

    void clear();
    bool empty() const { return entries_.empty(); }

    // Learns all that the other knows. True if that was something new.
    bool join(const Clock& other);
    bool knows(Epoch epoch, uint32_t lanes) const;
    // Whether a generic access that is known is visible to the asynchronous proxy. space: 0 shared, 1 global, 2 mbarrier
    bool fenced(Epoch epoch, int space) const;
    // Whether a load from shared memory that is known had arrived in its registers.
    bool arrived(Epoch epoch) const;
    void learn_agent(uint32_t cta, uint32_t agent, uint32_t time);
    void set_warp(uint32_t cta, uint32_t warp, const WarpTime& time);  // instead of what it was
    // fence.proxy.async: all that is known is fenced. spaces: ProxySpace bits; what is not global concerns `cta` alone,
    // or the CTAs from `cta` to `last` of its cluster.
    void fence(uint32_t spaces, uint32_t cta, uint32_t last);

private:
    struct Entry {
        uint32_t cta;
        ClockBlock* block;
    };
    std::vector<Entry> entries_;  // by CTA

    size_t find(uint32_t cta) const;
    ClockBlock& own(size_t index);  // not shared
    ClockBlock& at(uint32_t cta);
    static void release(ClockBlock* block);
};

}  // namespace machete::sim
