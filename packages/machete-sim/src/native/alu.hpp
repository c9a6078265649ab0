// Tables of the handlers that touch registers only. Each is compiled for several
// instruction sets; MACHETE_SIM_VARIANT is the suffix of the one being compiled.
#pragma once

#include "inst.hpp"

#define MACHETE_SIM_JOIN2(a, b) a##_##b
#define MACHETE_SIM_JOIN(a, b) MACHETE_SIM_JOIN2(a, b)
#define VARIANT(name) MACHETE_SIM_JOIN(alu_##name, MACHETE_SIM_VARIANT)

namespace machete::sim {

#define MACHETE_SIM_DECLARE(suffix)      \
    HandlerTable alu_integer_##suffix(); \
    HandlerTable alu_move_##suffix();    \
    HandlerTable alu_float_##suffix();   \
    HandlerTable alu_half_##suffix();    \
    HandlerTable alu_compare_##suffix(); \
    HandlerTable alu_convert_##suffix();

MACHETE_SIM_DECLARE(base)
MACHETE_SIM_DECLARE(avx2)

}  // namespace machete::sim
