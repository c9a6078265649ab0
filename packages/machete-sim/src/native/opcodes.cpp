#include "opcodes.hpp"

#include <cstdlib>

#include "alu.hpp"
#include "machine.hpp"

namespace machete::sim {

bool use_avx2() {
#if defined(MACHETE_SIM_X86)
    static const bool chosen = !std::getenv("MACHETE_SIM_NO_AVX2") && __builtin_cpu_supports("avx2") &&
                               __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    return chosen;
#else
    return false;
#endif
}

namespace {

std::vector<NamedHandler> build() {
    std::vector<NamedHandler> all;
    auto add = [&](HandlerTable t) { all.insert(all.end(), t.entries, t.entries + t.count); };
#define MACHETE_SIM_ADD(suffix)                                                                                 \
    add(alu_integer_##suffix()), add(alu_move_##suffix()), add(alu_float_##suffix()), add(alu_half_##suffix()), \
        add(alu_compare_##suffix()), add(alu_convert_##suffix())
#if defined(MACHETE_SIM_X86)
    if (use_avx2()) {
        MACHETE_SIM_ADD(avx2);
    } else {
        MACHETE_SIM_ADD(base);
    }
#else
    MACHETE_SIM_ADD(base);
#endif
    add(memory_handlers());
    add(atomic_handlers());
    add(control_handlers());
    add(barrier_handlers());
    add(cluster_handlers());
    add(store_async_handlers());
    add(tensor_memory_handlers());
    add(tcgen05_handlers());
    add(tensormap_replace_handlers());
    add(cluster_launch_handlers());
    add(print_handlers());
    add(block_matrix_handlers());
    add(matrix_bytes_handlers());
    add(mbarrier_handlers());
    add(bulk_copy_handlers());
    add(async_copy_handlers());
    add(narrow_convert_handlers());
    add(matrix_handlers());
    add(wgmma_handlers());
    return all;
}

}  // namespace

const std::vector<NamedHandler>& opcodes() {
    static const std::vector<NamedHandler> table = build();
    return table;
}

}  // namespace machete::sim
