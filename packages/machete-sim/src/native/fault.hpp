// What a handler throws when the program does something wrong.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace machete::sim {

enum class FaultKind : int {
    out_of_bounds,
    misaligned,
    uninitialised,
    mbarrier,    // misuse
    barrier,     // misuse of a named barrier
    divergence,  // lanes missing at a convergent instruction
    race,        // shared memory changed under an asynchronous operation
    deadlock,
    livelock,
    trap,
    unsupported,
    descriptor,     // malformed tensor map or matrix descriptor
    proxy,          // generic and asynchronous accesses without a proxy fence
    pending,        // registers of an asynchronous product used before it was waited for
    tensor_memory,  // misuse: allocation, groups, layouts
};

// A fault with its place, as it leaves the machine.
struct LocatedFault {
    FaultKind kind;
    std::string message;
    uint32_t lanes = 0;
    uint32_t cta[3] = {0, 0, 0};
    int warp = -1;
    uint32_t pc = ~0u;
    uint32_t mark_pc = ~0u;
    std::vector<int64_t> mark_values;
    struct Waiting {  // another place: of a deadlock, one per live warp; of a race, the other access
        uint32_t cta;
        uint32_t warp;
        uint32_t pc;
        std::string what;
        uint32_t mark_pc;
        std::vector<int64_t> mark_values;
    };
    std::vector<Waiting> waiting;
};

struct Fault {
    FaultKind kind;
    std::string message;
    uint32_t lanes = 0;
    std::vector<LocatedFault::Waiting> related = {};
};

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
    char buffer[1024];
    va_list args;
    va_start(args, pattern);
    std::vsnprintf(buffer, sizeof buffer, pattern, args);
    va_end(args);
    return buffer;
}

}  // namespace machete::sim
