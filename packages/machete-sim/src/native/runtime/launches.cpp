// Stands in for libcute_dsl_runtime.so, the library through which host code that CuTe DSL compiled loads images and
// launches kernels. Launches are handed to one callback; the library knows neither Python nor PTX.
//
// Symbols and their arguments are those of the CUDA runtime API, with an underscore in front (CUDA Runtime API,
// "Execution Control", "Library Management"). What is not simulated answers cudaErrorNotSupported.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "launches.hpp"

namespace machete::sim::runtime {

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotSupported = 801, kLaunchFailure = 719, kNoSimulator = 100;

struct Library {
    const uint8_t* image;
};

struct Kernel {
    const Library* library;
    std::string name;
};

// cudaLaunchAttribute: an id, and 64 bytes of value at offset 8.
struct Attribute {
    uint32_t id;
    uint32_t padding;
    uint32_t value[16];
};
static_assert(sizeof(Attribute) == 72);
constexpr uint32_t kCooperative = 2, kClusterDimension = 4;

// cudaLaunchConfig_t
struct LaunchConfig {
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t dynamic_shared;
    void* stream;
    const Attribute* attributes;
    uint32_t attribute_count;
};

LaunchCallback launcher = nullptr;
Device device{};
std::string message;

int launch(const Kernel& kernel, const LaunchConfig& config, void** args) {
    if (!launcher) return kNoSimulator;
    Launch l{};
    l.image = kernel.library->image;
    l.kernel = kernel.name.c_str();
    for (int i = 0; i < 3; ++i) l.grid[i] = config.grid[i], l.block[i] = config.block[i], l.cluster[i] = 1;
    l.dynamic_shared = config.dynamic_shared;
    l.stream = config.stream;
    l.args = args;
    for (uint32_t i = 0; i < config.attribute_count; ++i) {
        const Attribute& a = config.attributes[i];
        if (a.id == kCooperative) l.cooperative = a.value[0] != 0;
        if (a.id == kClusterDimension)
            for (int d = 0; d < 3; ++d) l.cluster[d] = a.value[d] ? a.value[d] : 1;
    }
    return launcher(&l) == 0 ? kSuccess : kLaunchFailure;
}

int device_attribute(int* value, int attribute) {
    // cudaDeviceAttr
    switch (attribute) {
    case 1: *value = 1024; return kSuccess;                 // threads of a block
    case 10: *value = 32; return kSuccess;                  // lanes of a warp
    case 16: *value = device.multiprocessors; return kSuccess;
    case 75: *value = device.major; return kSuccess;
    case 76: *value = device.minor; return kSuccess;
    case 8:                                                 // shared memory of a block, without opting in
        *value = 48 * 1024;
        return kSuccess;
    case 97: *value = device.shared_bytes; return kSuccess; // with opting in
    default: *value = 0; return kSuccess;
    }
}

}  // namespace

}  // namespace machete::sim::runtime

using namespace machete::sim::runtime;

extern "C" {

MACHETE_EXPORT void machete_sim_connect(LaunchCallback callback, const Device* d) {
    launcher = callback;
    if (d) device = *d;
}

// What the next failing call says, where its caller lets us say something.
MACHETE_EXPORT void machete_sim_set_message(const char* text) { message = text ? text : ""; }

// --- libraries and kernels

MACHETE_EXPORT int _cudaLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*,
                                        unsigned) {
    *library = new Library{static_cast<const uint8_t*>(code)};
    return kSuccess;
}
MACHETE_EXPORT int _cuLibraryLoadData(void** library, const void* code, void* a, void* b, unsigned n, void* c, void* d,
                                      unsigned m) {
    return _cudaLibraryLoadData(library, code, a, b, n, c, d, m);
}
// Kernels of a library that host code unloads may still be asked for by name in a report: handles are never freed.
MACHETE_EXPORT int _cudaLibraryUnload(void*) { return kSuccess; }
MACHETE_EXPORT int _cuLibraryUnload(void*) { return kSuccess; }
MACHETE_EXPORT int _cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
    if (!library || !name) return kInvalidValue;
    *kernel = new Kernel{static_cast<const Library*>(library), name};
    return kSuccess;
}
MACHETE_EXPORT int _cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    return _cudaLibraryGetKernel(kernel, library, name);
}
MACHETE_EXPORT int _cudaKernelSetAttributeForDevice(void*, int, int, int) { return kSuccess; }
MACHETE_EXPORT int _cudaFuncSetAttribute(void*, int, int) { return kSuccess; }
// Static shared memory is counted when the launch is checked, with the rest.
MACHETE_EXPORT int _cuKernelGetAttribute(int* value, int, void*, int) {
    *value = 0;
    return kSuccess;
}

// --- launches

MACHETE_EXPORT int _cudaLaunchKernelEx(const void* config, const void* kernel, void** args) {
    return launch(*static_cast<const Kernel*>(kernel), *static_cast<const LaunchConfig*>(config), args);
}
MACHETE_EXPORT int _cudaLaunchKernel(const void* kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by,
                                     uint32_t bz, void** args, uint64_t shared, void* stream) {
    const LaunchConfig config{{gx, gy, gz}, {bx, by, bz}, shared, stream, nullptr, 0};
    return launch(*static_cast<const Kernel*>(kernel), config, args);
}

// A function compiled for TVM-FFI keeps its library in a variable of its own; its first call loads it.
MACHETE_EXPORT int cuda_dialect_init_library_once(void** state, int (*init)(void**), int (*load)(void**, int),
                                                  void (*set_error)(const char*, const char*)) {
    if (*state) return kSuccess;
    void* library = nullptr;
    int code = init(&library);
    if (code == kSuccess && load) code = load(&library, 0);
    if (code != kSuccess) {
        set_error(kErrorKind, ("the simulator could not load the image: CUDA error " + std::to_string(code)).c_str());
        return -1;
    }
    *state = library;
    return kSuccess;
}
MACHETE_EXPORT void cuda_dialect_unload_library_once(void** state) { *state = nullptr; }

// --- the device

MACHETE_EXPORT int _cudaGetDevice(int* d) {
    *d = 0;
    return kSuccess;
}
MACHETE_EXPORT int _cuDeviceGet(int* d, int) { return _cudaGetDevice(d); }
MACHETE_EXPORT int _cudaSetDevice(int d) { return d == 0 ? kSuccess : kInvalidValue; }
MACHETE_EXPORT int _cudaGetDeviceCount(int* n) {
    *n = 1;
    return kSuccess;
}
MACHETE_EXPORT int _cudaDeviceGetAttribute(int* value, int attribute, int) { return device_attribute(value, attribute); }
MACHETE_EXPORT int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
    *n = 1;
    return kSuccess;
}

// --- streams: a launch has ended when the call returns

MACHETE_EXPORT int _cudaDeviceSynchronize() { return kSuccess; }
MACHETE_EXPORT int _cudaStreamSynchronize(void*) { return kSuccess; }
MACHETE_EXPORT int _cudaStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }

// --- memory of the device is memory of the process

MACHETE_EXPORT int _cudaMemset(void* p, int value, size_t n) {
    std::memset(p, value, n);
    return kSuccess;
}
MACHETE_EXPORT int _cudaMemsetAsync(void* p, int value, size_t n, void*) { return _cudaMemset(p, value, n); }
MACHETE_EXPORT int _cudaMemcpy(void* to, const void* from, size_t n, int) {
    std::memmove(to, from, n);
    return kSuccess;
}
MACHETE_EXPORT int _cudaMemcpyAsync(void* to, const void* from, size_t n, int kind, void*) {
    return _cudaMemcpy(to, from, n, kind);
}
// Kernels may touch the allocations of torch alone, so that an access out of bounds is found.
MACHETE_EXPORT int _cudaMalloc(void**, size_t) { return kNotSupported; }
MACHETE_EXPORT int _cudaMallocAsync(void**, size_t, void*) { return kNotSupported; }
MACHETE_EXPORT int _cudaFree(void* p) { return p ? kNotSupported : kSuccess; }
MACHETE_EXPORT int _cudaFreeAsync(void* p, void*) { return p ? kNotSupported : kSuccess; }
// Host code of the DSL writes descriptors itself.
MACHETE_EXPORT int _cuTensorMapEncodeTiled(void*, int, unsigned, void*, const uint64_t*, const uint64_t*,
                                           const uint32_t*, const uint32_t*, int, int, int, int) {
    return kNotSupported;
}

// --- errors

MACHETE_EXPORT const char* cuda_dialect_get_error_name(int) { return "a launch failed in the simulator"; }
MACHETE_EXPORT void cuda_dialect_print_on_error(int) {}  // the callback's exception says more
MACHETE_EXPORT void cuda_dialect_assert_success(int) {}

// The first argument is TVMFFIErrorSetRaisedFromCStrParts of tvm_ffi: kind, parts of the message, number of parts.
using SetRaised = void (*)(const char*, const char**, int32_t);

MACHETE_EXPORT void CuteDSLRT_TVMFFISetRaisedCudaError(SetRaised raise, int32_t code) {
    if (!raise) return;
    const std::string text = message.empty() ? "CUDA error " + std::to_string(code) + " from the simulator" : message;
    const char* parts[] = {text.c_str()};
    raise(kErrorKind, parts, 1);
}
MACHETE_EXPORT void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(SetRaised raise, int32_t code, ...) {
    CuteDSLRT_TVMFFISetRaisedCudaError(raise, code);
}

// Names that no other library exports (programs/object_code.py).
#define ALIAS(alias_name, name) MACHETE_EXPORT decltype(name) alias_name __attribute__((alias(#name)))
ALIAS(McudaLibraryLoadData, _cudaLibraryLoadData);
ALIAS(McuLibraryLoadData, _cuLibraryLoadData);
ALIAS(McudaLibraryUnload, _cudaLibraryUnload);
ALIAS(McuLibraryUnload, _cuLibraryUnload);
ALIAS(McudaLibraryGetKernel, _cudaLibraryGetKernel);
ALIAS(McuLibraryGetKernel, _cuLibraryGetKernel);
ALIAS(McudaKernelSetAttributeForDevice, _cudaKernelSetAttributeForDevice);
ALIAS(McudaFuncSetAttribute, _cudaFuncSetAttribute);
ALIAS(McuKernelGetAttribute, _cuKernelGetAttribute);
ALIAS(McudaLaunchKernelEx, _cudaLaunchKernelEx);
ALIAS(McudaLaunchKernel, _cudaLaunchKernel);
ALIAS(Muda_dialect_init_library_once, cuda_dialect_init_library_once);
ALIAS(Muda_dialect_unload_library_once, cuda_dialect_unload_library_once);
ALIAS(McudaGetDevice, _cudaGetDevice);
ALIAS(McuDeviceGet, _cuDeviceGet);
ALIAS(McudaSetDevice, _cudaSetDevice);
ALIAS(McudaGetDeviceCount, _cudaGetDeviceCount);
ALIAS(McudaDeviceGetAttribute, _cudaDeviceGetAttribute);
ALIAS(McudaOccupancyMaxActiveBlocksPerMultiprocessor, _cudaOccupancyMaxActiveBlocksPerMultiprocessor);
ALIAS(McudaDeviceSynchronize, _cudaDeviceSynchronize);
ALIAS(McudaStreamSynchronize, _cudaStreamSynchronize);
ALIAS(McudaStreamWaitEvent, _cudaStreamWaitEvent);
ALIAS(McudaMemset, _cudaMemset);
ALIAS(McudaMemsetAsync, _cudaMemsetAsync);
ALIAS(McudaMemcpy, _cudaMemcpy);
ALIAS(McudaMemcpyAsync, _cudaMemcpyAsync);
ALIAS(McudaMalloc, _cudaMalloc);
ALIAS(McudaMallocAsync, _cudaMallocAsync);
ALIAS(McudaFree, _cudaFree);
ALIAS(McudaFreeAsync, _cudaFreeAsync);
ALIAS(McuTensorMapEncodeTiled, _cuTensorMapEncodeTiled);
ALIAS(Muda_dialect_get_error_name, cuda_dialect_get_error_name);
ALIAS(Muda_dialect_print_on_error, cuda_dialect_print_on_error);
ALIAS(Muda_dialect_assert_success, cuda_dialect_assert_success);
ALIAS(MuteDSLRT_TVMFFISetRaisedCudaError, CuteDSLRT_TVMFFISetRaisedCudaError);
ALIAS(MuteDSLRT_TVMFFISetRaisedCudaLaunchError, CuteDSLRT_TVMFFISetRaisedCudaLaunchError);
#undef ALIAS

}  // extern "C"
