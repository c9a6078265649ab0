// wgmma.mma_async (PTX ISA 9.7.15).
//
// The four warps of a warpgroup meet at the instruction, which is computed at once. What the hardware may still be
// reading until wgmma.wait_group is checked there: a checksum of the operands in shared memory is taken when the
// instruction is issued, and must be the same when the group completes. So data that comes too late is a read of
// uninitialised memory, and data that is overwritten too early is a race.
#include <algorithm>
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "matrix.hpp"

namespace machete::sim {
namespace {

// imm: a | b << 8 | d << 16 | k << 24 | n << 32 | trans-a << 44 | trans-b << 45 | neg-a << 46 | neg-b << 47 | sat << 48
WgmmaKind decode(const Inst& i) {
    const auto v = static_cast<uint64_t>(i.imm);
    WgmmaKind kind;
    kind.a = static_cast<Element>(v & 255);
    kind.b = static_cast<Element>(v >> 8 & 255);
    kind.d = static_cast<Element>(v >> 16 & 255);
    kind.k = kind.a == Element::b1 ? 256 : static_cast<int>(v >> 24 & 255);
    kind.n = static_cast<int>(v >> 32 & 0xfff);
    kind.a_mn_major = v >> 44 & 1;
    kind.b_mn_major = v >> 45 & 1;
    kind.negate_a = v >> 46 & 1;
    kind.negate_b = v >> 47 & 1;
    kind.satfinite = v >> 48 & 1;
    return kind;
}

uint64_t sum(const Cta& cta, const std::vector<uint32_t>& chunks) {
    return checksum_of_chunks(cta.shared + (cta.rank << kRankShift), chunks);
}

[[noreturn]] void refuse(const SharedFault& fault, uint32_t mask) {
    static const FaultKind kinds[] = {FaultKind::unsupported, FaultKind::descriptor, FaultKind::misaligned,
                                      FaultKind::out_of_bounds, FaultKind::uninitialised};
    throw Fault{kinds[static_cast<int>(fault.kind)], fault.message, mask};
}

// The four warps of a group wait for the last of them. False: not all are here.
bool meet(Warp& w, uint32_t mask, const char* what) {
    Cta& cta = *w.cta;
    Warpgroup& group = cta.warpgroups[w.index / 4];
    const uint32_t first = w.index / 4 * 4;
    if (first + 4 > cta.warps.size())
        throw Fault{FaultKind::divergence, std::string(what) + " needs a whole warpgroup of four warps", mask};
    if (group.arrived == 0) group.pc = w.pc;
    if (group.pc != w.pc)
        throw Fault{
            FaultKind::divergence,
            format("the warps of one warpgroup execute different wgmma instructions (%u and %u)", group.pc, w.pc),
            mask};
    group.arrived |= 1u << (w.index - first);
    w.wait = Wait::warpgroup;
    if (group.arrived != 15) return false;
    group.arrived = 0;
    for (uint32_t k = 0; k < 4; ++k) w.machine->wake(*cta.warps[first + k]);
    return true;
}

// ext: accumulators, then 4 registers of A, if it is in registers; a, b = descriptors; c = scale-d predicate; mod 1: A
// in registers
int multiply(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    Machine& machine = *w.machine;
    ++machine.progress;
    if (!meet(w, mask, "wgmma")) return kSuspend;
    Cta& cta = *w.cta;
    const WgmmaKind kind = decode(i);
    const uint32_t n = static_cast<uint32_t>(wgmma_accumulators(kind)), first = w.index / 4 * 4;
    const bool a_in_registers = i.mod & 1;
    const uint32_t* ext = machine.program.ext.data() + i.ext;
    uint32_t* d[4 * 128];
    const uint32_t* a[16];
    const uint64_t a_bits = a_in_registers ? 0 : lanes<uint64_t>(w, i.a)[0], b_bits = lanes<uint64_t>(w, i.b)[0];
    const uint32_t scale = w.pred[i.c];
    for (uint32_t k = 0; k < 4; ++k) {
        Warp& other = *cta.warps[first + k];
        if (lanes<uint64_t>(other, i.b)[0] != b_bits || (!a_in_registers && lanes<uint64_t>(other, i.a)[0] != a_bits))
            throw Fault{FaultKind::descriptor,
                        "the warps of one warpgroup give different matrix descriptors to one wgmma", mask};
        for (uint32_t l = 0; l < kLanes; ++l)
            if (lanes<uint64_t>(other, i.b)[l] != b_bits ||
                (!a_in_registers && lanes<uint64_t>(other, i.a)[l] != a_bits))
                throw Fault{FaultKind::descriptor, "the lanes of a warp give different matrix descriptors to one wgmma",
                            1u << l};
        if (other.pred[i.c] != scale || (scale != 0 && scale != ~0u))
            throw Fault{FaultKind::divergence, "scale-d of one wgmma differs between threads", mask};
        for (uint32_t m = 0; m < n; ++m) d[k * n + m] = lanes<uint32_t>(other, ext[m]);
        if (a_in_registers)
            for (uint32_t m = 0; m < 4; ++m) a[4 * k + m] = lanes<uint32_t>(other, ext[n + m]);
    }
    const SharedView shared{cta.shared + cta.shared_begin, kSharedBase, cta.shared_end - cta.shared_begin,
                            cta.shadow + cta.shared_begin};
    if (machine.checker)
        for (uint32_t k = 0; k < 4; ++k) check_product(*cta.warps[first + k], ext, n, a_in_registers ? 4 : 0);
    std::vector<uint32_t> chunks;
    SharedFault fault;
    if (!wgmma(kind, d, a_in_registers ? a : nullptr, a_bits, b_bits, scale != 0, shared, chunks, fault)) {
        if (fault.kind == SharedFault::Kind::uninitialised)
            uninitialised(cta, machine, fault.address + (cta.rank << kRankShift), 1, first_lane(mask), "wgmma read");
        refuse(fault, mask);
    }
    ++machine.stats().matrix_instructions;
    Warpgroup& group = cta.warpgroups[w.index / 4];
    WgmmaOperand pending{group.committed, 0, w.pc, machine.now, std::move(chunks)};
    if (Checker* checker = machine.checker.get()) {
        if (!group.agent.index) group.agent = checker->new_agent(cta);
        for (const uint32_t address : pending.chunks)
            checker->async_shared(w, cta, address + (cta.rank << kRankShift), 16, first_lane(mask), group.agent, group.committed + 1, kAsyncProxy);
        for (uint32_t k = 0; k < 4; ++k)
            product_issued(*cta.warps[first + k], ext, n, a_in_registers ? 4 : 0, group.committed + 1);
    }
    pending.checksum = sum(cta, pending.chunks);
    group.pending.push_back(std::move(pending));
    return kSuspend;  // woken already
}

// Commit and wait concern each warp alone; the group's bookkeeping follows its first warp.
int commit(RegView& r, const Inst&, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    ++w.products_committed;
    if (w.index % 4 == 0) ++w.cta->warpgroups[w.index / 4].committed;
    return kNext;
}

int wait(RegView& r, const Inst& i, uint32_t mask) {  // imm: groups that may stay pending
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    Cta& cta = *w.cta;
    Warpgroup& group = cta.warpgroups[w.index / 4];
    const auto keep = static_cast<uint64_t>(i.imm);
    if (w.clock && w.products_committed > keep) {
        w.machine->checker->complete(w, mask, group.agent, w.products_committed - keep);
        if (w.products) w.products->done = std::max(w.products->done, w.products_committed - keep);
    }
    if (w.index % 4 != 0) return kNext;
    for (const WgmmaOperand& op : group.pending) {
        if (op.group + keep >= group.committed) continue;
        if (sum(cta, op.chunks) != op.checksum)
            throw Fault{
                FaultKind::race,
                format("shared memory that the wgmma at instruction %u reads was overwritten before this wait", op.pc),
                mask};
    }
    if (w.machine->recorder)
        for (const WgmmaOperand& op : group.pending)
            if (op.group + keep < group.committed)
                w.machine->recorder->operation(SliceKind::product, w, op.pc, op.issued, w.machine->now);
    std::erase_if(group.pending, [&](const WgmmaOperand& op) { return op.group + keep < group.committed; });
    return kNext;
}

// wgmma.fence orders accesses to registers before the products that follow.
int fence(RegView& r, const Inst&, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    if (w.clock) product_fence(w);
    return kNext;
}

const NamedHandler table[] = {{"wgmma.fence", fence}, {"wgmma", multiply}, {"wgmma.commit", commit}, {"wgmma.wait", wait}};

}  // namespace

Handler wgmma_handler() { return multiply; }

HandlerTable wgmma_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
