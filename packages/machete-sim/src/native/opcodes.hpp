// The table of all handlers: an opcode is an index into it.
#pragma once

#include <vector>

#include "inst.hpp"

namespace machete::sim {

// The same names in the same order on every machine; register-only handlers come from the best instruction set it has.
const std::vector<NamedHandler>& opcodes();

}  // namespace machete::sim
