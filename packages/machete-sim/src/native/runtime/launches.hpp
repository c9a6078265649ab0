// What the stand-in for libcute_dsl_runtime.so and machete.sim.programs agree on (programs/runtime_library.py).
#pragma once

#include <cstdint>

#define MACHETE_EXPORT __attribute__((visibility("default")))

namespace machete::sim::runtime {

struct Launch {
    const uint8_t* image;  // as it was loaded: a fat binary
    const char* kernel;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t cluster[3];
    uint32_t cooperative;
    uint64_t dynamic_shared;
    void* stream;
    void** args;  // one pointer for each parameter of the kernel
};

struct Device {
    int32_t major, minor, multiprocessors, shared_bytes;
};

// 0: the kernel ran.
using LaunchCallback = int (*)(const Launch*);

// The kind of the errors that TVM-FFI raises for us; programs/errors.py turns them into what the callback caught.
inline constexpr const char* kErrorKind = "machete.sim";

}  // namespace machete::sim::runtime
