// The happens-before checker: every access to shared and global memory must be ordered after those that it conflicts
// with, and visible across proxies (PTX ISA 8, memory consistency model). docs/decisions/0012 says what the model is.
//
// The handlers call it, if there is one (Machine::checker), after their own checks and before they act:
// - synchronisation publishes what a warp knows (`release`) and takes over what others have published (`acquire`);
// - asynchronous operations get an agent, a component of the clocks whose time is the number of complete groups or
//   phases: accesses are recorded when the operation is issued, under the time that a wait will learn (`complete`).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "fault.hpp"
#include "shadow.hpp"

namespace machete::sim {

struct Cta;
struct Warp;
struct Mbarrier;
class Machine;

// Scopes of atomics and fences, as in Inst::mod.
enum class ScopeLevel : uint32_t { cta, cluster, gpu, sys };
enum class MemoryOrder : uint32_t { weak, relaxed, acquire, release, acq_rel };

// What a warp knows, in Warp::clock.
struct WarpClock {
    uint32_t now = 1, synced = 0;  // time of its accesses; those until `synced` are known to all of its lanes
    uint32_t fenced[3] = {0, 0, 0};
    Clock known;            // by every lane
    Clock partial;          // by the lanes of partial_mask; includes `known`
    uint32_t partial_mask = 0;
    Clock fence;            // published by relaxed writes: what was known at the last fence
    bool fence_is_cta = false;
    Clock seen;             // by relaxed reads; known from the next fence on
    Clock tensor;           // what was known at the last tcgen05.fence::after_thread_sync
    uint32_t mark = 0;      // in Checker::marks
    struct CachedSite {
        uint32_t pc = ~0u, mark = ~0u, site = 0;
    };
    std::array<CachedSite, 64> sites;
};

struct Agent {
    uint32_t cta = 0, index = 0;  // index 0: none
};

// tcgen05.ld or .st of a warp: its time is the number of waits for them.
struct TensorAccesses {
    Agent agent;
    uint32_t waits = 0;
    bool pending = false;
};

class Checker {
public:
    explicit Checker(Machine& machine) : machine_(machine) {}

    void start_cta(Cta& cta);

    // ---- order

    // All lanes of the mask know what each of them did.
    void warp_sync(Warp& w);
    // What the lanes of the mask know, for a barrier or another object to hold. Later accesses are not part of it.
    const Clock& release(Warp& w, uint32_t mask);
    void acquire(Warp& w, uint32_t mask, const Clock& clock);
    void proxy_fence(Warp& w, uint32_t mask, uint32_t spaces);  // ProxySpace bits
    void memory_fence(Warp& w, uint32_t mask, ScopeLevel scope);
    // Begins a new time of the warp, and returns it.
    uint32_t next_time(Warp& w);

    // Synchronisation through memory, `key` being the host address; `rmw`: an atomic continues the sequence of releases, a store begins a new one.
    void release_at(Warp& w, uint32_t lanes, uint64_t key, MemoryOrder order, ScopeLevel scope, bool rmw);
    void acquire_at(Warp& w, uint32_t lanes, uint64_t key, MemoryOrder order, ScopeLevel scope);

    // ---- asynchronous agents

    Agent new_agent(Cta& cta);
    // The lanes know that all of the agent is done until `time`.
    void complete(Warp& w, uint32_t mask, Agent agent, uint64_t time);

    // ---- the tensor core of a CTA (tcgen05): operations execute in order, and are complete with the next commit

    // An operation issued by this lane reads shared memory, or columns of tensor memory.
    void tensor_reads(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t lane);
    void tensor_columns(Warp& w, Cta& owner, uint32_t first, uint32_t columns, uint32_t lane, bool writes);
    // tcgen05.ld and .st: the lanes that this warp may access. They are asynchronous until the wait for them.
    void warp_columns(Warp& w, uint32_t first, uint32_t columns, bool writes);
    void tensor_wait(Warp& w, bool stores);
    void tensor_fence(Warp& w, uint32_t mask, bool after);
    void free_columns(Warp& w, Cta& owner, uint32_t first, uint32_t columns);
    // What the mbarrier of a tcgen05.commit passes on.
    Clock tensor_commit(Warp& w, uint32_t lane);

    // ---- accesses

    // By a warp, some lanes: [address, address + bytes) of shared memory of `owner`, or of global memory.
    void shared(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t lanes, uint32_t flags);
    void global(Warp& w, uint64_t address, uint32_t bytes, uint32_t lanes, uint32_t flags);
    // By all 32 lanes, one after the other.
    void shared_row(Warp& w, Cta& owner, uint32_t address, uint32_t bytes_per_lane, uint32_t flags);
    void global_row(Warp& w, uint64_t address, uint32_t bytes_per_lane, uint32_t flags);
    // By an asynchronous operation that `lane` issues and that is complete at `time` of the agent.
    void async_shared(Warp& w, Cta& owner, uint32_t address, uint32_t bytes, uint32_t lane, Agent agent, uint64_t time,
                      uint32_t flags);
    void async_global(Warp& w, uint64_t address, uint32_t bytes, uint32_t lane, Agent agent, uint64_t time,
                      uint32_t flags);
    // Any flat memory: tensor memory is one.
    void flat(Warp& w, FlatShadow& memory, const char* name, uint32_t address, uint32_t bytes, uint32_t lane,
              uint32_t flags);
    void async_flat(Warp& w, FlatShadow& memory, const char* name, uint32_t address, uint32_t bytes, uint32_t lane,
                    Agent agent, uint64_t time, uint32_t flags);

    // mbarrier.init and .inval write a barrier, all else operates on it; TMA operates on it through its own proxy.
    void barrier_object(Warp& w, Cta& owner, uint32_t address, uint32_t lanes, uint32_t flags);
    void barrier_object_async(Warp& w, Cta& owner, uint32_t address, uint32_t lane);

    // A store calls this when it is done: writes of what was there already are no race with the write before.
    void settle() {
        if (unsettled_.host) check_unsettled();
    }

    // Tensor maps in global memory: fence.proxy.tensormap acquires one; whoever uses it must know of that.
    void acquire_tensor_map(Warp& w, uint64_t address, uint32_t lane);
    void use_tensor_map(Warp& w, uint64_t address, uint32_t lane);

    // ---- places

    void mark(Warp& w);  // the warp has passed a mark
    LocatedFault::Waiting place(uint32_t site) const;

private:
    struct Site {
        uint32_t pc, mark, cta;
        uint16_t warp, lane;
    };
    struct Marked {
        uint32_t pc, first, count;
    };
    struct Variable {  // of synchronisation
        Clock any, inside;
        uint32_t cta = ~0u;  // that `inside` concerns
    };
    struct Access {
        Warp* warp;
        AccessRecord record;  // without bytes
        const char* memory;
        int space;  // of Clock::fenced
        const uint8_t* host = nullptr;  // of address 0; what a plain store writes is compared with what is there
        bool plain = false;             // a store by a warp, followed by settle()
        enum : uint8_t { elsewhere, tensor, fenced_tensor } where = elsewhere;  // fenced: tcgen05.fence concerns it
    };
    struct Unsettled {
        Access access{};
        AccessRecord earlier;
        uint64_t address = 0;
        uint32_t overlap = 0;
        const uint8_t* host = nullptr;
        uint32_t bytes = 0;
        std::array<uint8_t, 16> before{};
    };

    void check_unsettled();

    Machine& machine_;
    Unsettled unsettled_;
    PagedShadow global_;
    std::vector<Site> sites_;
    std::vector<Marked> marks_;
    std::vector<int64_t> values_;
    std::unordered_map<uint64_t, Variable> variables_;

    Agent tensor_agent(Cta& cta);
    uint32_t site(Warp& w, uint32_t lane);
    Access by_warp(Warp& w, uint32_t lanes, uint32_t flags, const char* memory, int space);
    Access by_agent(Warp& w, uint32_t lane, Agent agent, uint64_t time, uint32_t flags, const char* memory, int space);
    bool ordered(const Access& a, const AccessRecord& earlier, uint32_t overlap) const;
    void touch(ShadowCell& cell, uint64_t address, uint32_t bytes, Access& a);
    template <class Memory>
    void range(Memory& memory, uint64_t address, uint64_t bytes, Access& a);
    template <class Memory>
    void row(Memory& memory, uint64_t address, uint32_t bytes_per_lane, Access& a);
    [[noreturn]] void race(const Access& a, const AccessRecord& earlier, uint64_t address, uint32_t overlap);
    void check_tensor_fence(const Access& a, const AccessRecord& earlier, uint64_t address, uint32_t overlap);
    [[noreturn]] void in_flight(const Access& a, const AccessRecord& earlier, uint64_t address, uint32_t overlap);
    [[noreturn]] void unfenced(const Access& a, const AccessRecord& earlier, uint64_t address, uint32_t overlap);
};

}  // namespace machete::sim
