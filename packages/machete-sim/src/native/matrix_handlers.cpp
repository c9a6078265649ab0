// ldmatrix, stmatrix, movmatrix and mma.sync (PTX ISA 9.7.14).
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "matrix.hpp"
#include "shared_address.hpp"

namespace machete::sim {
namespace {

// ext: registers; a = row addresses; mod = matrices | transposed << 8
int load(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    Cta& cta = *w.cta;
    const uint32_t count = i.mod & 255;
    if (w.clock) begin_shared_load(w);
    alignas(16) uint8_t rows[32][16];
    for (uint32_t l = 0; l < 8 * count; ++l) {
        const uint32_t address = shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm));
        check_shared(cta, address, 16, l, "ldmatrix");
        if (address % 16)
            throw Fault{FaultKind::misaligned,
                        format("ldmatrix row at shared %#x, which is not a multiple of 16", address), 1u << l};
        for (uint32_t k = 0; k < 16; ++k)
            if (cta.shadow[address + k] != 1) uninitialised(cta, *w.machine, address, 16, l, "ldmatrix");
        if (w.clock) w.machine->checker->shared(w, cta, address, 16, 1u << l, kLoads);
        std::memcpy(rows[l], cta.shared + address, 16);
    }
    uint32_t* d[4] = {};
    for (uint32_t k = 0; k < count; ++k) d[k] = lanes<uint32_t>(w, w.machine->program.ext[i.ext + k]);
    ldmatrix_unpack(static_cast<int>(count), i.mod >> 8, rows, d);
    return kNext;
}

int store(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    Cta& cta = *w.cta;
    const uint32_t count = i.mod & 255;
    alignas(16) uint8_t rows[32][16];
    const uint32_t* s[4] = {};
    for (uint32_t k = 0; k < count; ++k) s[k] = lanes<uint32_t>(w, w.machine->program.ext[i.ext + k]);
    stmatrix_pack(static_cast<int>(count), i.mod >> 8, s, rows);
    for (uint32_t l = 0; l < 8 * count; ++l) {
        const uint32_t address = shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm));
        check_shared(cta, address, 16, l, "stmatrix");
        if (address % 16)
            throw Fault{FaultKind::misaligned,
                        format("stmatrix row at shared %#x, which is not a multiple of 16", address), 1u << l};
        if (w.clock) w.machine->checker->shared(w, cta, address, 16, 1u << l, kWrites);
        std::memcpy(cta.shared + address, rows[l], 16);
        std::memset(cta.shadow + address, 1, 16);
    }
    ++w.effects;
    ++w.machine->progress;
    return kNext;
}

int transpose(RegView& r, const Inst& i, uint32_t mask) {  // movmatrix: d, a
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    alignas(16) uint8_t rows[8][16];
    const uint32_t* s[1] = {lanes<uint32_t>(w, i.a)};
    uint32_t* d[1] = {lanes<uint32_t>(w, i.d)};
    stmatrix_pack(1, false, s, rows);
    ldmatrix_unpack(1, true, rows, d);
    return kNext;
}

// ext: d, a, b, c registers; imm: element types and k, see decode
MmaKind decode(const Inst& i) {
    MmaKind kind;
    const auto v = static_cast<uint64_t>(i.imm);
    kind.a = static_cast<Element>(v & 255);
    kind.b = static_cast<Element>(v >> 8 & 255);
    kind.d = static_cast<Element>(v >> 16 & 255);
    kind.k = static_cast<int>(v >> 24 & 0xffff);
    kind.satfinite = v >> 40 & 1;
    return kind;
}

int mma(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const MmaKind kind = decode(i);
    MmaRegisters n;
    if (!mma_registers(kind, n)) throw Fault{FaultKind::unsupported, "this mma.sync does not exist", mask};
    uint32_t* registers[32];
    for (uint32_t k = 0; k < i.count; ++k) registers[k] = lanes<uint32_t>(w, w.machine->program.ext[i.ext + k]);
    const uint32_t* const* in = registers;
    mma_sync(kind, in + n.d, in + n.d + n.a, in + n.d + n.a + n.b, registers);
    ++w.machine->stats().matrix_instructions;
    return kNext;
}

const NamedHandler table[] = {{"ldmatrix", load}, {"stmatrix", store}, {"movmatrix", transpose}, {"mma", mma}};

}  // namespace

HandlerTable matrix_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
