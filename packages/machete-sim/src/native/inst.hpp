// The instruction record and the register view that every handler works on.
// This header is included by translation units compiled for several instruction
// sets, so it holds plain data only: no inline functions of the standard library.
#pragma once

#include <cstdint>

namespace machete::sim {

// Register operands are byte offsets of 128-byte slots (32 lanes of 4 bytes; a
// 64-bit register takes two slots, a 128-bit register four: low halves first).
// The top bit selects the constant pool instead of the warp's own registers.
struct RegView {
    uint8_t* base[2];  // [0] registers of the warp, [1] constants of the program
    uint32_t* pred;    // one lane mask per predicate
    uint32_t carry;    // condition code CC.CF, one bit per lane
};

enum Flow : int {
    kNext = 0,  // go on with the next instruction
    kBranch,    // taken lanes go to Inst::imm
    kConverge,  // nothing happened: lanes that take part are elsewhere, wait for them here
    kYield,     // done, but the warp only polled: let others run
    kExit,      // the lanes of the mask are done
    kSuspend,   // done, the warp sleeps until woken (failed try_wait)
};

struct Inst;
using Handler = int (*)(RegView&, const Inst&, uint32_t mask);

constexpr uint32_t kNoOperand = 0x7fffffffu;  // absent operand or the sink `_`

struct Inst {
    Handler fn;
    int32_t guard;  // -1, or predicate * 2 + negated
    uint32_t d;     // destination
    uint32_t a, b, c, e;
    uint32_t mod;    // modifiers, meaning per handler
    uint32_t ext;    // start in Program::ext of the operand list
    uint32_t count;  // length of that list
    int64_t imm;     // branch target, address offset, …
    uint32_t flags;  // FLAG_*
    uint32_t op;     // index in the opcode table
};

// Inst::flags: width of the register operands that a memory handler sees.
enum : uint32_t {
    kFlagAddr64 = 1,   // the address register is 64 bits wide
    kFlagReg64 = 2,    // data registers are 64 bits wide
    kFlagReg16 = 4,    // data registers are 16 bits wide
    kFlagSigned = 8,   // extend with the sign
    kFlagCluster = 32,     // .shared::cluster: the address may be of another CTA
    kFlagPoll = 16,    // volatile, relaxed, acquire or release: a repeated equal result of a load is polling
};

// Inst::mod of ld and st, and bits 16 on of atom and red: MemoryOrder | ScopeLevel << 3.
constexpr uint32_t kOrderMask = 7, kScopeShift = 3, kAtomicOrderShift = 16;

// Inst::mod of floating-point handlers.
enum : uint32_t {
    kRoundMask = 3,  // 0 nearest even, 1 towards zero, 2 down, 3 up
    kFtz = 4,
    kSat = 8,
    kRelu = 16,
    kNan = 32,
    kXorSignAbs = 64,
    kSatFinite = 128,
    kRoundAway = 256,  // ties away from zero (cvt.rna)
};

struct NamedHandler {
    const char* name;
    Handler fn;
};

struct HandlerTable {
    const NamedHandler* entries;
    int count;
};

inline constexpr uint32_t kLanes = 32;

}  // namespace machete::sim
