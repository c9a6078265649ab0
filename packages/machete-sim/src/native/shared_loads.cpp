#include "shared_loads.hpp"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "machine.hpp"
#include "opcodes.hpp"

namespace machete::sim {

namespace {

constexpr uint32_t kSlot = 4 * kLanes;

bool starts_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view p) { return name.starts_with(p); });
}

// What ptxas 12.9 leaves before an mbarrier.arrive. It moves arithmetic, setp, shfl, vote, redux and mma behind it.
bool stays(std::string_view name) {
    return starts_with_any(name, {"ld.", "st.", "atom.", "ldmatrix", "stmatrix", "bulk.", "tile.", "cp.async", "prefetch",
                                  "mbarrier.", "barrier", "tcgen05.", "wgmma", "tensormap.", "clusterlaunch.", "bra",
                                  "exit", "trap", "nanosleep", "vprintf"});
}

bool copies(std::string_view name) { return starts_with_any(name, {"mov.", "pack.", "part.", "cvta.", "mark"}); }

constexpr uint32_t kWritten = 1u << 31;

// Calls f(load, whether it is written) for what an instruction depends on, and what depends on it.
template <class F>
void each_operand(Warp& w, F f) {
    const Program& p = w.machine->program;
    for (uint32_t n = p.use_starts[w.pc]; n < p.use_starts[w.pc + 1]; ++n)
        f(w.loads.registers[(p.uses[n] & ~kWritten) / kSlot], (p.uses[n] & kWritten) != 0);
    for (uint32_t n = p.predicate_starts[w.pc]; n < p.predicate_starts[w.pc + 1]; ++n)
        f(w.loads.predicates[p.predicate_uses[n] & ~kWritten], (p.predicate_uses[n] & kWritten) != 0);
}

}  // namespace

std::vector<bool> records_that_wait(const Program& program, bool strict) {
    std::vector<bool> out;
    out.reserve(program.code.size());
    for (const Inst& inst : program.code) {
        const std::string_view name = opcodes()[inst.op].name;
        out.push_back(strict ? stays(name) : !copies(name));
    }
    return out;
}

void begin_shared_load(Warp& w) {
    SharedLoads& loads = w.loads;
    loads.newest = w.machine->checker->next_time(w);
    if (loads.registers.empty()) {
        loads.registers.resize(w.machine->program.register_bytes / kSlot + 4);
        loads.predicates.resize(w.machine->program.predicates);
    }
    each_operand(w, [&](uint32_t& load, bool written) {
        if (written) load = loads.newest;
    });
}

void follow_shared_loads(Warp& w, bool executes) {
    SharedLoads& loads = w.loads;
    if (!executes) {  // the guard is known, or the lanes would not have passed
        if (w.machine->waits_for_loads[w.pc])
            loads.arrived = std::max(loads.arrived, loads.predicates[w.machine->program.code[w.pc].guard >> 1]);
        return;
    }
    uint32_t newest = 0;
    each_operand(w, [&](uint32_t load, bool written) {
        if (!written) newest = std::max(newest, load);
    });
    if (w.machine->waits_for_loads[w.pc]) loads.arrived = std::max(loads.arrived, newest);
    each_operand(w, [&](uint32_t& load, bool written) {
        if (written) load = newest;
    });
}

}  // namespace machete::sim
