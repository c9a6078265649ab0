// The simulated machine: CTAs, warps, shared memory, barriers, asynchronous copies, and the scheduler.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checker.hpp"
#include "fault.hpp"
#include "inst.hpp"
#include "products.hpp"
#include "recorder.hpp"
#include "shared_loads.hpp"
#include "tensor_memory.hpp"
#include "tensormap.hpp"

namespace machete::sim {

struct Cta;
struct Cluster;
struct Warp;
class Machine;

// Shared addresses below this belong to the system (CUDA reserves 1 KB per CTA since sm_90).
constexpr uint32_t kSharedBase = 1024;
// A shared address holds the rank of its CTA in the cluster above these bits, so that .shared::cta is a window of
// .shared::cluster, as on hardware: kernels find the leader of a pair of CTAs by clearing the lowest bit of the rank.
constexpr uint32_t kRankShift = 24;
constexpr uint32_t kMaxClusterSize = 16;
// Windows of generic addresses. Their low 32 bits are zero, so cvta.to is a truncation.
constexpr uint64_t kSharedWindow = 1ull << 60;
constexpr uint64_t kLocalWindow = 1ull << 61;

// Simulated time, in ns. Every warp has a time of its own: an instruction takes one ns, and whoever waits goes on no
// earlier than what it waited for. It orders what happens, and shows what runs side by side; it is no model of a card.
constexpr uint64_t kCopyLatency = 500;    // of asynchronous copies
constexpr uint64_t kCopyBytesPerNs = 32;  // of one CTA, all its copies together
constexpr uint64_t kSignalLatency = 500;  // until others see an atomic, or an ordered store, to global memory
constexpr uint64_t kTensorOpsPerNs = 4096;  // multiply-adds of the tensor core of one CTA

struct Region {
    uint64_t begin = 0, end = 0;
    std::string name;
    bool writable = true;
};

struct Program {
    std::vector<Inst> code;
    std::vector<uint32_t> ext;        // operand lists
    std::vector<uint64_t> constants;  // broadcast values, 64-byte aligned copy is made by the machine
    // Registers that a record reads, and writes (top bit): record i has uses[use_starts[i]] to uses[use_starts[i + 1]].
    std::vector<uint32_t> use_starts, uses;
    std::vector<uint32_t> predicate_starts, predicate_uses;  // likewise
    uint32_t register_bytes = 0;
    uint32_t predicates = 2;     // 0 is always false, 1 always true
    uint32_t static_shared = 0;  // bytes after kSharedBase
    uint32_t local_bytes = 0;    // per lane
};

struct Launch {
    std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1}, cluster{1, 1, 1};  // cluster: CTAs
    uint32_t dynamic_shared = 0;
    uint32_t resident = 0;  // CTAs at a time; 0: the whole grid
    uint64_t seed = 0;
    uint64_t max_instructions = 0;
    bool races = false;  // the happens-before checker runs
    bool strict = false;  // and lets bar.warp.sync alone order the lanes of a warp
    std::vector<uint32_t> lines;  // for Recorder, which runs if there are some
    uint64_t max_slices = 0;
    std::vector<Region> regions;
    const uint8_t* params = nullptr;
    uint32_t param_bytes = 0;
};

struct Statistics {
    uint64_t instructions = 0;
    uint64_t retired_ctas = 0;
    uint64_t async_copies = 0, bytes_loaded = 0, bytes_stored = 0;
    uint64_t matrix_instructions = 0;
    uint32_t max_stages_in_flight = 0;
    uint64_t simulated_ns = 0;
};

struct Random {  // splitmix64
    uint64_t state;
    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
};

// ---- barriers ------------------------------------------------------------------------

struct Mbarrier {  // PTX ISA 9.7.13.15
    uint32_t address = 0;
    bool valid = false;
    uint32_t expected = 0;  // arrivals of the next phases
    uint32_t pending = 0;   // arrivals still missing in this one
    int64_t tx = 0;         // bytes still expected
    uint64_t phase = 0;
    uint64_t arrived_at = 0, completed_at = 0;  // time of the last arrival, and of the last phase
    uint32_t copies = 0;  // asynchronous copies that will report here
    Clock arrived;  // what those who arrived in this phase know
    Clock done;     // in the phases before
    Agent agent;    // its time is the number of complete phases
    std::vector<Warp*> waiters;
};

struct NamedBarrier {       // PTX ISA 9.7.13.1
    uint32_t expected = 0;  // threads
    uint32_t arrived = 0;   // 0: idle
    bool whole = false;     // the whole CTA
    uint64_t time = 0;      // of the last arrival
    uint64_t warps = 0;     // that have arrived
    struct Waiter {
        Warp* warp;
        const Inst* inst;
        uint32_t mask;
    };
    std::vector<Waiter> waiters;
    uint32_t count = 0;    // of true predicates, for bar.red
    uint32_t threads = 0;  // that gave a predicate
    Clock arrivals;        // what those who arrived know
};

// ---- asynchronous copies -------------------------------------------------------------

// peer: from shared memory of one CTA to that of another in the cluster. inline_store: values of registers (st.async).
enum class CopyKind : uint8_t { load, store, cp_async, peer, inline_store };

struct Copy {
    CopyKind kind = CopyKind::load;
    Cta* cta = nullptr;  // whose shared memory is written, or read by a store
    Warp* warp = nullptr;
    uint32_t pc = 0, lane = 0;
    std::vector<TileChunk> chunks;
    Cta* source = nullptr;                 // peer: whose shared memory is read
    std::vector<TileChunk> source_chunks;  // peer: where
    Cta* signal = nullptr;                 // whose mbarrier is told: cta, or the other one of its pair
    uint32_t total = 0;     // bytes
    uint64_t time = 0;      // when it completes
    uint32_t mbarrier = 0;  // shared address; 0: bulk group
    uint64_t group = 0;     // of the issuing thread
    bool read = false;      // a store has read its source
    uint64_t checksum = 0;  // of a store's source when it was issued
    bool tf32 = false;      // a load rounds float32 to tf32
    int reduce = -1;        // AtomicOp of cp.reduce, or -1
    int reduce_type = 0;
    std::vector<uint8_t> data;  // what a store or peer copy has read, or an inline_store carries
    uint32_t mask = 0;          // cp.async: lanes
    uint64_t phase = 0;         // of the mbarrier when it was issued
};

// ---- warps ---------------------------------------------------------------------------

struct Group {  // lanes of a warp that are at the same instruction
    uint32_t pc = 0, mask = 0;
    bool waiting = false;   // for other lanes, at a convergent instruction
    bool deferred = false;  // polled; others of the warp go first
};

enum class Wait : uint8_t { none, named_barrier, mbarrier, cluster, warpgroup, tensor_memory, copies, exited };

struct LaneCopies {                // groups of one thread
    uint64_t bulk_committed = 0;   // bulk groups so far
    uint64_t async_committed = 0;  // cp.async groups so far
    std::vector<uint64_t> bulk_time;  // for each bulk group, when it is complete
    uint64_t async_time = 0;          // when the last cp.async has landed
    Agent reads, writes;           // of the bulk groups, for the checker
};

struct Warp : RegView {
    Machine* machine = nullptr;
    Cta* cta = nullptr;
    uint32_t index = 0;  // in the CTA
    uint32_t live = 0, active = 0, pc = 0;
    std::vector<Group> groups;  // without the current one while it runs
    Wait wait = Wait::none;
    uint32_t wait_detail = 0;  // barrier id or mbarrier address
    uint32_t wait_pc = 0;
    bool queued = false;
    uint64_t time = 0;        // while it does not run; then it is Machine::now
    uint64_t poll_time = 0;   // when it began to poll: trying in vain takes no time
    uint64_t poll_place = 0;  // checksum of the addresses it polls
    bool soft = false;       // sleeps in a try_wait that may also time out
    uint64_t busy = 0;       // instructions since it last polled or slept
    uint64_t effects = 0;    // stores, arrivals, …: what others could have seen
    uint32_t poll_pc = ~0u;  // last load that could be polling, and what it saw
    uint64_t poll_value = 0, poll_effects = ~0ull;
    uint64_t poll_registers = 0;  // checksum of all registers, taken when nothing happens for long
    bool stuck = false;           // polled again with all registers as before
    uint32_t poll_mbarrier = 0;   // address, if it was a failed test_wait or try_wait
    uint64_t poll_parity = 0;
    const Region* region = nullptr;  // last one hit
    uint32_t mark_pc = ~0u;
    std::vector<int64_t> mark_values;
    std::vector<uint8_t> local;  // 32 * local_bytes
    std::unique_ptr<std::array<LaneCopies, 32>> copies;
    uint64_t cluster_phase = 0;
    bool cluster_arrived = false;
    std::unique_ptr<WarpClock> clock;  // with the race checker only
    std::unique_ptr<PendingProducts> products;
    TensorAccesses tensor[2];  // ld, st; for the checker
    std::vector<bool> loading;  // 32-bit registers that a tcgen05.ld may still write
    SharedLoads loads;          // for the checker
    Agent async_groups;                // of cp.async, for the checker
    uint64_t products_committed = 0;   // wgmma groups
    uint8_t* storage = nullptr;

    LaneCopies& lane_copies(uint32_t lane);
};

struct WgmmaOperand {  // a pending read of shared memory
    uint64_t group;
    uint64_t checksum;
    uint32_t pc;
    uint64_t issued;               // ns
    std::vector<uint32_t> chunks;  // addresses of 16 bytes
};

struct Warpgroup {
    uint32_t arrived = 0;  // warps at the current wgmma
    uint32_t pc = 0;
    uint64_t committed = 0;
    std::vector<WgmmaOperand> pending;
    Agent agent;  // of the groups, for the checker
};

struct Cta {
    uint32_t id[3] = {0, 0, 0};
    uint32_t linear = 0;
    uint32_t slot = 0;          // which of the resident CTAs: %smid
    Cluster* cluster = nullptr;
    uint32_t rank = 0;          // in the cluster
    bool exited = false;        // all warps have, others of the cluster have not
    uint8_t* shared = nullptr;  // byte at shared address 0, were it this CTA's: addresses hold the rank
    uint8_t* shadow = nullptr;  // 1: written by something that has completed
    uint32_t shared_begin = 0, shared_end = 0;
    std::vector<std::unique_ptr<uint8_t[]>> memory;
    std::vector<std::unique_ptr<Warp>> warps;
    std::array<NamedBarrier, 16> named;
    std::vector<Mbarrier> mbarriers;
    std::vector<uint16_t> mbarrier_index;  // shared address / 8, without the rank -> index + 1
    std::vector<Warpgroup> warpgroups;
    uint32_t stages_in_flight = 0;  // mbarriers with copies under way
    uint64_t copies_until = 0;      // when the copies issued so far have gone through
    uint32_t live_warps = 0;
    FlatShadow records;                  // accesses to shared memory, for the checker
    uint32_t agents = kFirstAsyncAgent;  // that have been given out
    std::unique_ptr<TensorMemory> tensor;  // once it is used
    std::deque<std::unique_ptr<TensorOperation>> tensor_queue;
    uint64_t tensor_until = 0;  // when the operations issued so far have completed
    // For the checker: the tensor core's queue, its time being the number of commits; accesses to tensor memory, a byte
    // for the 32 lanes of a warp in a column.
    Agent tensor_agent;
    uint64_t tensor_commits = 0;
    FlatShadow tensor_records;
    std::unordered_map<uint64_t, std::vector<AccessRecord>> tensor_maps;  // address -> who has acquired it
    uint32_t tensor_group = 0;  // .cta_group of its tcgen05 instructions; 0: none so far

    uint16_t& mbarrier_slot(uint32_t address) { return mbarrier_index[(address & ((1u << kRankShift) - 1)) / 8]; }
    uint16_t mbarrier_slot(uint32_t address) const { return mbarrier_index[(address & ((1u << kRankShift) - 1)) / 8]; }
};

struct Cluster {
    std::vector<Cta*> ctas;           // by rank
    uint32_t id[3] = {0, 0, 0};       // %clusterid
    uint32_t live_ctas = 0;
    uint32_t arrived = 0;             // warps at barrier.cluster
    uint64_t phase = 0;               // of barrier.cluster
    uint64_t arrived_at = 0, completed_at = 0;  // time of the last arrival there, and of the last phase
    std::vector<Warp*> waiters;
    Clock arrivals, done;             // of barrier.cluster, for the checker
    uint32_t live_warps() const;
};

// ---- the machine ---------------------------------------------------------------------

// A warp that waits for copies of its own. `go_on`: what happens to it when none of those `awaited` is left.
struct CopyWaiter {
    Warp* warp;
    std::function<bool(const Copy&)> awaited;
    bool read_only;  // only their reads are awaited
    std::function<void()> go_on;
};

class Machine {
public:
    Machine(const Program& program, const Launch& launch);
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    // Executes the launch. Calls `pulse` now and then; it may throw to stop.
    void run(const std::function<void()>& pulse);
    const Statistics& statistics() const { return stats_; }

    // Used by the handlers.
    const Program& program;
    const Launch& launch;
    Random random;
    std::unique_ptr<Checker> checker;  // if the launch asks for it
    std::unique_ptr<Recorder> recorder;  // likewise
    // The program has a tcgen05.fence: it is held to what PTX asks of tcgen05. No program of the CuTe DSL has one; in those,
    // as in what ptxas makes of them, the first use of a register waits for the tcgen05.ld that writes it.
    bool tensor_fences = false;
    std::vector<bool> waits_for_loads;  // for each record: records_that_wait
    std::string printed;    // by printf
    uint64_t progress = 0;  // bumped by whatever another warp could be waiting for

    uint64_t now = 0;  // time of the warp, or the copy, that runs
    std::unordered_map<uint64_t, uint64_t> seen_at;  // global address -> when others see its last ordered write

    uint64_t clock() const { return now + skew_; }
    void not_before(uint64_t time) {
        if (now < time) now = time;
    }
    Statistics& stats() { return stats_; }
    uint32_t slots() const { return slots_; }
    const Region* find_region(uint64_t address) const;
    void wake(Warp& warp);
    void issue(std::unique_ptr<Copy> copy);
    void issue_tensor(Warp& warp, std::unique_ptr<TensorOperation> operation);
    void finish_copies(const std::function<bool(const Copy&)>& which, bool read_only);
    bool has_copies(const std::function<bool(const Copy&)>& which, bool read_only) const;
    // Whether a warp that waits for copies is kept waiting until they complete by themselves: else they do at once.
    bool copies_are_late() { return random.below(256) >= copy_rate_; }
    void suspend_for_copies(CopyWaiter waiter);
    const std::vector<std::unique_ptr<Copy>>& copies() const { return copies_; }
    void named_barrier_check_exit(Cta& cta);
    bool cancel_cluster(std::array<uint32_t, 3>& first);  // %ctaid of its first CTA, if one was not launched yet
    void cluster_barrier_check_exit(Cluster& cluster);

private:
    void start_cluster();
    void start_cta(Cluster& cluster, uint32_t rank);
    void retire_cta(Cta& cta);
    void retire_cluster(Cluster& cluster);
    void run_warp(Warp& warp, uint32_t quantum);
    bool select(Warp& warp);
    void polled(Warp& warp);
    void exit_lanes(Warp& warp, uint32_t mask);
    bool in_flight() const { return !copies_.empty() || !tensor_busy_.empty(); }
    bool complete_one();
    bool complete_any();
    void complete_tensor(Cta& cta);
    void tensor_check_exit(Cta& cta);
    void complete(size_t index);
    [[noreturn]] void deadlock();
    void describe_warps(LocatedFault& fault) const;
    [[noreturn]] void rethrow(const Fault& fault, const Warp& warp);

    Statistics stats_;
    uint64_t fruitless_ = 0;  // rounds in which nothing happened that another warp could wait for
    uint64_t skew_ = 0;       // simulated time that passed while all warps slept
    uint64_t next_cluster_ = 0, total_clusters_ = 0;
    uint32_t ctas_per_cluster_ = 1, warps_per_cta_ = 0, slots_ = 0;
    uint32_t copy_rate_ = 64;  // chance in 256 that a copy completes after a quantum
    std::vector<CopyWaiter> copy_waiters_;
    std::vector<std::unique_ptr<Cta>> ctas_;
    std::vector<std::unique_ptr<Cta>> free_ctas_;
    std::vector<std::unique_ptr<Cluster>> clusters_;
    std::vector<Warp*> queue_;
    std::vector<std::unique_ptr<Copy>> copies_;
    std::vector<Cta*> tensor_busy_;  // have operations in their queues
    uint8_t* constants_ = nullptr;
};

inline Warp& warp_of(RegView& view) { return static_cast<Warp&>(view); }
inline uint32_t first_lane(uint32_t mask) { return static_cast<uint32_t>(__builtin_ctz(mask)); }
uint64_t checksum(const Cta& cta, const std::vector<TileChunk>& chunks);

// mbarriers (mbarrier.cpp)
Mbarrier& mbarrier_at(Cta& cta, uint32_t address, uint32_t lane);
void mbarrier_arrive(Machine& machine, Cta& cta, Mbarrier& barrier, uint32_t count, uint32_t lane);
void mbarrier_complete_tx(Machine& machine, Cta& cta, Mbarrier& barrier, int64_t bytes, uint32_t lane);
void mbarrier_copy_issued(Machine& machine, Cta& cta, uint32_t address);
void mbarrier_copy_done(Machine& machine, Cta& cta, uint32_t address, uint32_t bytes, uint32_t lane, uint64_t phase);

// copies (bulk_copy.cpp)
void perform_read(Machine& machine, Copy& copy);
void perform_copy(Machine& machine, Copy& copy);
void issue_to_shared(Warp& warp, std::unique_ptr<Copy> copy, Cta& signal, uint32_t mbarrier);

// clusters (cluster.cpp)
Cta& shared_peer(const Warp& w, uint64_t address, uint32_t lane, const char* what);
[[noreturn]] void outside_shared(const Cta& cta, uint64_t address, uint64_t bytes, uint32_t lane, const char* what);

// memory (memory.cpp)
uint8_t* global_range(Machine& machine, const Region*& hint, uint64_t address, uint64_t bytes, bool write,
                      uint32_t lane, const char* what);
uint64_t apply_atomic(int op, int type, uint64_t old, uint64_t operand);
[[noreturn]] void uninitialised(const Cta& cta, const Machine& machine, uint32_t address, uint32_t bytes, uint32_t lane,
                                const char* what);

HandlerTable memory_handlers();
HandlerTable atomic_handlers();
HandlerTable control_handlers();
HandlerTable barrier_handlers();
HandlerTable cluster_handlers();
HandlerTable store_async_handlers();
HandlerTable tensor_memory_handlers();
HandlerTable tcgen05_handlers();
HandlerTable tensormap_replace_handlers();
HandlerTable cluster_launch_handlers();
HandlerTable print_handlers();
HandlerTable block_matrix_handlers();
HandlerTable matrix_bytes_handlers();
HandlerTable mbarrier_handlers();
HandlerTable bulk_copy_handlers();
HandlerTable async_copy_handlers();
HandlerTable matrix_handlers();
HandlerTable wgmma_handlers();
Handler wgmma_handler();  // of the product itself
Handler tensor_fence_handler();
void check_loads(Warp& warp);  // before an instruction, while a tcgen05.ld of the warp is pending
HandlerTable narrow_convert_handlers();

}  // namespace machete::sim
