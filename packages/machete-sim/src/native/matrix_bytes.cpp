// ldmatrix and stmatrix of 8-bit elements, and of 4-bit and 6-bit ones that become bytes (PTX ISA 9.7.14.5.15,
// 9.7.14.5.16).
#include <cstring>

#include "converge.hpp"
#include "lanes.hpp"
#include "machine.hpp"
#include "shared_address.hpp"

namespace machete::sim {
namespace {

// The 16 bytes at lane `l`'s address.
uint8_t* row_at(Warp& w, const Inst& i, uint32_t l, bool write, const char* what) {
    Cta& cta = *w.cta;
    const uint32_t address = shared_address(w, i, i.a, l, static_cast<uint64_t>(i.imm));
    check_shared(cta, address, 16, l, what);
    if (address % 16)
        throw Fault{FaultKind::misaligned,
                    format("%s row at shared %#x, which is not a multiple of 16", what, address), 1u << l};
    for (uint32_t k = 0; !write && k < 16; ++k)
        if (cta.shadow[address + k] != 1) uninitialised(cta, *w.machine, address, 16, l, what);
    if (w.clock) w.machine->checker->shared(w, cta, address, 16, 1u << l, write ? kWrites : kLoads);
    if (write) std::memset(cta.shadow + address, 1, 16);
    return cta.shared + address;
}

// ext: registers; a = row addresses; mod = registers | transposed m16n16 << 8 | bits of packed elements or 0 << 12
int load(RegView& r, const Inst& i, uint32_t mask) {
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    const uint32_t count = i.mod & 255, expand = i.mod >> 12 & 15;
    const bool transposed = i.mod >> 8 & 1;
    if (w.clock) begin_shared_load(w);
    uint8_t rows[32][16];
    for (uint32_t l = 0; l < 8 * count; ++l) {
        const uint8_t* row = row_at(w, i, l, false, "ldmatrix");
        if (!expand) {
            std::memcpy(rows[l], row, 16);
            continue;
        }
        for (uint32_t n = 0; n < 16; ++n) {
            uint16_t pair;
            std::memcpy(&pair, row + expand * n / 8, 2);
            rows[l][n] = static_cast<uint8_t>(pair >> (expand * n % 8) & ((1u << expand) - 1));
        }
    }
    for (uint32_t k = 0; k < count; ++k) {
        uint32_t* d = lanes<uint32_t>(w, w.machine->program.ext[i.ext + k]);
        for (uint32_t l = 0; l < kLanes; ++l) {
            uint8_t bytes[4];
            for (uint32_t e = 0; e < 4; ++e)
                bytes[e] = transposed ? rows[k / 2 * 16 + l % 4 * 4 + e][l / 4 + k % 2 * 8]
                                      : rows[8 * k + l / 4][l % 4 * 4 + e];
            std::memcpy(&d[l], bytes, 4);
        }
    }
    return kNext;
}

int store(RegView& r, const Inst& i, uint32_t mask) {  // ext: registers; a = row addresses; mod = registers
    Warp& w = warp_of(r);
    if (const int flow = converge_all(w, mask)) return flow;
    uint8_t rows[32][16];
    for (uint32_t k = 0; k < i.mod; ++k) {
        const uint32_t* s = lanes<uint32_t>(w, w.machine->program.ext[i.ext + k]);
        for (uint32_t l = 0; l < kLanes; ++l)
            for (uint32_t e = 0; e < 4; ++e)
                rows[8 * k + l % 4 * 2 + e % 2][l / 4 + e / 2 * 8] = static_cast<uint8_t>(s[l] >> (8 * e));
    }
    for (uint32_t l = 0; l < 8 * i.mod; ++l) std::memcpy(row_at(w, i, l, true, "stmatrix"), rows[l], 16);
    ++w.effects;
    ++w.machine->progress;
    return kNext;
}

const NamedHandler table[] = {{"ldmatrix.bytes", load}, {"stmatrix.bytes", store}};

}  // namespace

HandlerTable matrix_bytes_handlers() { return {table, static_cast<int>(sizeof(table) / sizeof(table[0]))}; }

}  // namespace machete::sim
