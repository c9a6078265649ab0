// The table of all handlers: an opcode is an index into it.
#pragma once

#include <vector>

#include "inst.hpp"

namespace machete::sim {

// Whether AVX2 and FMA are used: decided once for the process. MACHETE_SIM_NO_AVX2 in the environment says no.
bool use_avx2();

// The same names in the same order on every machine; register-only handlers come from the best instruction set it has.
const std::vector<NamedHandler>& opcodes();

}  // namespace machete::sim
