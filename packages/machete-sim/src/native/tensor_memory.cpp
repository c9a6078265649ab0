// tcgen05.alloc, dealloc, relinquish_alloc_permit, ld and st (PTX ISA 9.7.16.7, 9.7.16.8).
#include "tensor_memory.hpp"

#include <algorithm>
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {

TensorMemory::TensorMemory() {
    cells.fill(0xcbcbcbcbu);  // poison what a program must not rely on
    written.fill(0);
    owner.fill(0);
}

TensorMemory& tensor_memory(Cta& cta) {
    if (!cta.tensor) cta.tensor = std::make_unique<TensorMemory>();
    return *cta.tensor;
}

void check_tensor_columns(Cta& cta, uint32_t first, uint32_t columns, uint32_t lane, const char* what) {
    const TensorMemory& memory = tensor_memory(cta);
    if (first + columns > kTensorColumns)
        throw Fault{FaultKind::out_of_bounds,
                    format("%s of tensor memory columns %u to %u; there are %u", what, first, first + columns - 1,
                           kTensorColumns),
                    1u << lane};
    for (uint32_t c = first; c < first + columns; ++c)
        if (!memory.owner[c])
            throw Fault{FaultKind::out_of_bounds,
                        format("%s of tensor memory columns %u to %u: column %u is not allocated", what, first,
                               first + columns - 1, c),
                        1u << lane};
}

TensorGroup tensor_group(Warp& w, uint32_t group, uint32_t lane, bool reaches) {
    Cta& cta = *w.cta;
    if (cta.tensor_group && cta.tensor_group != group)
        throw Fault{FaultKind::tensor_memory,
                    format("cta_group::%u after cta_group::%u: all tcgen05 instructions of a kernel have one group",
                           group, cta.tensor_group),
                    1u << lane};
    cta.tensor_group = group;
    TensorGroup out;
    out.size = group;
    if (group == 1) {
        out.ctas[0] = &cta;
        return out;
    }
    const Cluster& cluster = *cta.cluster;
    if (cluster.ctas.size() % 2)
        throw Fault{FaultKind::tensor_memory,
                    format("cta_group::2 in a cluster of %zu CTAs: it needs pairs", cluster.ctas.size()), 1u << lane};
    for (uint32_t k = 0; k < 2; ++k) {
        out.ctas[k] = cluster.ctas[(cta.rank & ~1u) + k];
        if (!out.ctas[k]->exited) continue;
        out.ctas[k] = nullptr;
        if (reaches)
            throw Fault{FaultKind::race, "a tcgen05 instruction of cta_group::2, but the other CTA has already ended",
                        1u << lane};
    }
    return out;
}

namespace {

uint32_t same(const Warp& w, uint32_t operand, uint32_t mask, const char* what) {
    const uint32_t* values = lanes<uint32_t>(const_cast<Warp&>(w), operand);
    const uint32_t value = values[first_lane(mask)];
    for (uint32_t l = 0; l < kLanes; ++l)
        if ((mask >> l & 1) && values[l] != value)
            throw Fault{FaultKind::divergence, format("the lanes of a warp give different values for %s", what), mask};
    return value;
}

// First fit. False if there is no room.
bool allocate(Cta& cta, uint32_t columns, uint32_t& first) {
    TensorMemory& memory = tensor_memory(cta);
    for (first = 0; first + columns <= kTensorColumns; first += 32) {
        const auto begin = memory.owner.begin() + first;
        if (std::any_of(begin, begin + columns, [](uint16_t o) { return o != 0; })) continue;
        std::fill(begin, begin + columns, static_cast<uint16_t>(first + 1));
        for (uint32_t c = first; c < first + columns; ++c) {
            std::memset(memory.written_column(c), 0, kTensorLanes);
            std::fill_n(memory.column(c), kTensorLanes, 0xcbcbcbcbu);
        }
        return true;
    }
    return false;
}

void store_address(Cta& cta, uint32_t shared, uint32_t column) {
    std::memcpy(cta.shared + shared, &column, 4);
    std::memset(cta.shadow + shared, 1, 4);
}

void check_count(uint32_t columns, uint32_t mask) {
    if (columns < 32 || columns > kTensorColumns || (columns & (columns - 1)))
        throw Fault{FaultKind::tensor_memory, format("%u columns; 32, 64, 128, 256 or 512 can be allocated", columns),
                    mask};
}

// a = shared address of the result, b = columns; mod = cta_group
int alloc(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const uint32_t l = first_lane(mask);
    tensor_group(w, i.mod, l, false);
    Cta& cta = *w.cta;
    const uint32_t columns = same(w, i.b, mask, "the number of columns");
    check_count(columns, mask);
    const uint32_t shared = shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm));
    check_shared(cta, shared, 4, l, "tcgen05.alloc");
    if (shared % 4)
        throw Fault{FaultKind::misaligned, format("tcgen05.alloc writes to shared %#x, not a multiple of 4", shared),
                    mask};
    if (tensor_memory(cta).relinquished)
        throw Fault{FaultKind::tensor_memory, "tcgen05.alloc after tcgen05.relinquish_alloc_permit", mask};
    if (w.clock) w.machine->checker->shared(w, cta, shared, 4, 1u << l, kWrites);
    ++w.effects;
    ++w.machine->progress;
    uint32_t first;
    if (allocate(cta, columns, first)) {
        store_address(cta, shared, first);
        return kNext;
    }
    tensor_memory(cta).waiters.push_back({&w, columns, shared, l});
    w.wait = Wait::tensor_memory;
    w.wait_detail = columns;
    return kSuspend;
}

// a = address, b = columns; mod = cta_group
int dealloc(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const TensorGroup group = tensor_group(w, i.mod, first_lane(mask), false);
    Cta& cta = *w.cta;
    const uint32_t address = same(w, i.a, mask, "the address"), columns = same(w, i.b, mask, "the number of columns");
    check_count(columns, mask);
    TensorMemory& memory = tensor_memory(cta);
    const uint32_t first = tensor_column(address);
    bool whole = tensor_lane(address) == 0 && first + columns <= kTensorColumns;
    for (uint32_t c = first; whole && c < first + columns; ++c) whole = memory.owner[c] == first + 1;
    if (whole && first + columns < kTensorColumns) whole = memory.owner[first + columns] != first + 1;
    if (!whole)
        throw Fault{FaultKind::tensor_memory,
                    format("tcgen05.dealloc of %u columns at %#x, which is not what was allocated there", columns,
                           address),
                    mask};
    for (uint32_t k = 0; k < group.size; ++k) {
        if (!group.ctas[k]) continue;
        for (const auto& operation : group.ctas[k]->tensor_queue)
            if (operation->touches(first, columns))
                throw Fault{FaultKind::race,
                            format("tcgen05.dealloc while the operation at instruction %u on these columns has not "
                                   "completed",
                                   operation->pc),
                            mask};
    }
    if (w.clock) w.machine->checker->free_columns(w, cta, first, columns);
    std::fill_n(memory.owner.begin() + first, columns, uint16_t(0));
    ++w.effects;
    ++w.machine->progress;
    while (!memory.waiters.empty()) {
        const TensorMemory::Waiter waiter = memory.waiters.front();
        uint32_t at;
        if (!allocate(cta, waiter.columns, at)) break;
        store_address(cta, waiter.shared, at);
        memory.waiters.pop_front();
        waiter.warp->time = std::max(waiter.warp->time, w.machine->now);
        w.machine->wake(*waiter.warp);
    }
    return kNext;
}

int relinquish(RegView& r, const Inst& i, uint32_t mask) {  // mod = cta_group
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    tensor_group(w, i.mod, first_lane(mask), false);
    tensor_memory(*w.cta).relinquished = true;
    return kNext;
}

// ---- ld and st -----------------------------------------------------------------------------------------------

enum Shape { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

// Where register `reg` of a thread is: lane below the address's, column in 32-bit units before unpacking.
struct Cell {
    uint32_t lane, column;
};
Cell cell(Shape shape, uint32_t reg, uint32_t thread) {
    switch (shape) {
        case k32x32b: return {thread, reg};
        case k16x64b: return {thread / 4 + 8 * (thread % 2), 2 * reg + thread / 2 % 2};
        case k16x128b: return {thread / 4 + 8 * (reg % 2), 4 * (reg / 2) + thread % 4};
        case k16x256b: return {thread / 4 + 8 * (reg / 2 % 2), 8 * (reg / 4) + 2 * (thread % 4) + reg % 2};
        default: return {thread % 16, reg};  // the second half is further right
    }
}

// a = address, ext = registers; mod = shape | packed << 8; imm = offset of the second half of 16x32bx2, address offset
// << 32
struct Access {
    Warp& w;
    const Inst& i;
    const Shape shape;
    const bool packed;
    const uint32_t half;
    uint32_t lane, column;  // of the address
    TensorMemory& memory;

    Access(Warp& warp, const Inst& inst, uint32_t mask, const char* what, bool writes)
        : w(warp),
          i(inst),
          shape(static_cast<Shape>(inst.mod & 255)),
          packed(inst.mod >> 8 & 1),
          half(static_cast<uint32_t>(inst.imm)),
          memory(tensor_memory(*warp.cta)) {
        const uint32_t address = same(w, i.a, mask, "the address") + static_cast<uint32_t>(i.imm >> 32);
        lane = tensor_lane(address);
        column = tensor_column(address);
        const uint32_t own = w.index % 4 * 32;
        // A warp reaches its own subpartition only; kernels that leave the subpartition out of the address get it.
        if (lane < 32) lane += own;
        if (lane != own && (shape == k32x32b || lane != own + 16))
            throw Fault{FaultKind::out_of_bounds,
                        format("%s at lane %u of tensor memory: warp %u may access lanes %u to %u only", what, lane,
                               w.index, own, own + 31),
                        mask};
        const uint32_t width = packed ? 2 : 1, last = cell(shape, i.count - 1, kLanes - 1).column;
        const uint32_t columns = (last + 1) * width;
        check_tensor_columns(*w.cta, column, columns, first_lane(mask), what);
        if (shape == k16x32bx2) check_tensor_columns(*w.cta, column + half, columns, first_lane(mask), what);
        if (w.clock) {
            w.machine->checker->warp_columns(w, column, columns, writes);
            if (shape == k16x32bx2) w.machine->checker->warp_columns(w, column + half, columns, writes);
        }
    }

    // Calls f(register, thread, lane, column, upper column or none) for every cell.
    template <class F>
    void each(F f) const {
        for (uint32_t reg = 0; reg < i.count; ++reg)
            for (uint32_t thread = 0; thread < kLanes; ++thread) {
                const Cell c = cell(shape, reg, thread);
                const uint32_t shift = shape == k16x32bx2 && thread >= 16 ? half : 0;
                f(reg, thread, lane + c.lane, column + shift + c.column * (packed ? 2 : 1));
            }
    }
};

int load(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const Access access(w, i, mask, "tcgen05.ld", false);
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    TensorMemory& memory = access.memory;
    if (w.clock) {
        if (w.loading.empty()) w.loading.resize(w.machine->program.register_bytes / (4 * kLanes) + 4);
        for (uint32_t reg = 0; reg < i.count; ++reg)
            if (ext[reg] != kNoOperand) w.loading[ext[reg] / (4 * kLanes)] = true;
    }
    auto unwritten = [&](uint32_t lane, uint32_t column, uint32_t thread) {
        throw Fault{FaultKind::uninitialised,
                    format("tcgen05.ld of tensor memory lane %u column %u, which was never written (or the operation "
                           "that writes it has not completed)",
                           lane, column),
                    1u << thread};
    };
    if (access.shape == k32x32b && !access.packed) {
        for (uint32_t reg = 0; reg < i.count; ++reg) {
            const uint32_t column = access.column + reg;
            const uint8_t* written = memory.written_column(column) + access.lane;
            for (uint32_t l = 0; l < kLanes; ++l)
                if (!written[l]) unwritten(access.lane + l, column, l);
            if (ext[reg] != kNoOperand)
                std::memcpy(lanes<uint32_t>(w, ext[reg]), memory.column(column) + access.lane, 4 * kLanes);
        }
        return kNext;
    }
    access.each([&](uint32_t reg, uint32_t thread, uint32_t lane, uint32_t column) {
        if (!memory.written_column(column)[lane]) unwritten(lane, column, thread);
        uint32_t value = memory.column(column)[lane];
        if (access.packed) {
            if (!memory.written_column(column + 1)[lane]) unwritten(lane, column + 1, thread);
            value = (value & 0xffffu) | memory.column(column + 1)[lane] << 16;
        }
        if (ext[reg] != kNoOperand) lanes<uint32_t>(w, ext[reg])[thread] = value;
    });
    return kNext;
}

int store(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const Access access(w, i, mask, "tcgen05.st", true);
    const uint32_t* ext = w.machine->program.ext.data() + i.ext;
    TensorMemory& memory = access.memory;
    ++w.effects;
    ++w.machine->progress;
    access.each([&](uint32_t reg, uint32_t thread, uint32_t lane, uint32_t column) {
        const uint32_t value = lanes<uint32_t>(w, ext[reg])[thread];
        memory.column(column)[lane] = access.packed ? value & 0xffffu : value;
        memory.written_column(column)[lane] = 1;
        if (!access.packed) return;
        memory.column(column + 1)[lane] = value >> 16;
        memory.written_column(column + 1)[lane] = 1;
    });
    return kNext;
}

// The values are there when ld and st are issued; the checker knows what may not be relied on before the wait.
void waited(Warp& w, bool stores) {
    w.machine->checker->tensor_wait(w, stores);
    if (!stores) std::fill(w.loading.begin(), w.loading.end(), false);
}

int wait(RegView& r, const Inst& i, uint32_t mask) {  // mod: for st
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    if (w.clock) waited(w, i.mod);
    return kNext;
}

int fence(RegView& r, const Inst& i, uint32_t mask) {  // mod: after_thread_sync
    Warp& w = warp_of(r);
    if (w.clock) w.machine->checker->tensor_fence(w, mask, i.mod);
    return kNext;
}

const NamedHandler table[] = {
    {"tcgen05.alloc", alloc}, {"tcgen05.dealloc", dealloc}, {"tcgen05.relinquish", relinquish},
    {"tcgen05.ld", load},     {"tcgen05.st", store},        {"tcgen05.wait", wait},
    {"tcgen05.fence", fence},
};

}  // namespace

Handler tensor_fence_handler() { return fence; }

void check_loads(Warp& w) {
    const Program& program = w.machine->program;
    if (program.use_starts.size() <= w.pc + 1) return;
    for (uint32_t n = program.use_starts[w.pc]; n < program.use_starts[w.pc + 1]; ++n) {
        if (!w.loading[(program.uses[n] & 0x7fffffffu) / (4 * kLanes)]) continue;
        if (w.machine->tensor_fences)
            throw Fault{FaultKind::pending,
                        format("this instruction %s a register that a tcgen05.ld may still write; tcgen05.wait::ld must "
                               "come first",
                               program.uses[n] >> 31 ? "writes" : "reads"),
                        w.active};
        return waited(w, false);
    }
}

HandlerTable tensor_memory_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
