// Memory of the simulated device is CPU memory. To whoever asks torch through DLPack it is presented as kDLCUDA.
//
// torch hands out its DLPack functions as a table (`torch.Tensor.__dlpack_c_exchange_api__`), and consumers keep the
// address of that table. So the entries of the table are replaced, and put back, not the table.
#include <cstdint>
#include <cstring>

#include "launches.hpp"

namespace machete::sim::runtime {

namespace {

// dlpack.h, version 1
struct DLDevice {
    int32_t type;
    int32_t id;
};
constexpr int32_t kDLCPU = 1, kDLCUDA = 2;

struct DLTensor {
    void* data;
    DLDevice device;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void* manager_ctx;
    void (*deleter)(DLManagedTensorVersioned*);
    uint64_t flags;
    DLTensor tensor;
};

struct ExchangeAPI {
    uint32_t major, minor;
    void* previous;
    int (*allocate)(DLTensor*, DLManagedTensorVersioned**, void*, void (*)(void*, const char*, const char*));
    int (*managed_from_object)(void*, DLManagedTensorVersioned**);
    int (*managed_to_object)(DLManagedTensorVersioned*, void**);
    int (*tensor_from_object)(void*, DLTensor*);
    int (*current_stream)(int32_t, int32_t, void**);
};

// Is this Python object a tensor on the simulated device?  /  From now on it is.
using OnDevice = int (*)(void* object);
using Place = void (*)(void* object);

ExchangeAPI* table = nullptr;
ExchangeAPI original;
OnDevice on_device = nullptr;
Place place = nullptr;

int allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
             void (*set_error)(void*, const char*, const char*)) {
    if (prototype->device.type != kDLCUDA) return original.allocate(prototype, out, context, set_error);
    set_error(context, "NotImplementedError",
              "machete.sim: memory that a TVM-FFI function allocates on the device is not simulated; "
              "pass tensors for the results");
    return -1;
}

int managed_from_object(void* object, DLManagedTensorVersioned** out) {
    const int code = original.managed_from_object(object, out);
    if (code == 0 && on_device(object)) (*out)->tensor.device = {kDLCUDA, 0};
    return code;
}

int managed_to_object(DLManagedTensorVersioned* tensor, void** object) {
    const bool cuda = tensor->tensor.device.type == kDLCUDA;
    if (cuda) tensor->tensor.device = {kDLCPU, 0};
    const int code = original.managed_to_object(tensor, object);
    if (code == 0 && cuda) place(*object);
    return code;
}

int tensor_from_object(void* object, DLTensor* out) {
    const int code = original.tensor_from_object(object, out);
    if (code == 0 && on_device(object)) out->device = {kDLCUDA, 0};
    return code;
}

int current_stream(int32_t type, int32_t id, void** stream) {
    if (type != kDLCUDA) return original.current_stream(type, id, stream);
    *stream = nullptr;
    return 0;
}

}  // namespace

}  // namespace machete::sim::runtime

using namespace machete::sim::runtime;

extern "C" {

// 0 if the table is of a version whose layout is known.
MACHETE_EXPORT int machete_sim_present(void* exchange_api, OnDevice is_on_device, Place place_object) {
    auto* api = static_cast<ExchangeAPI*>(exchange_api);
    if (api->major != 1 || table) return -1;
    table = api;
    original = *api;
    on_device = is_on_device;
    place = place_object;
    api->allocate = allocate;
    api->managed_from_object = managed_from_object;
    api->managed_to_object = managed_to_object;
    if (original.tensor_from_object) api->tensor_from_object = tensor_from_object;
    api->current_stream = current_stream;
    return 0;
}

MACHETE_EXPORT void machete_sim_withdraw() {
    if (table) *table = original;
    table = nullptr;
}

// The same for a capsule of `__dlpack__`: a DLManagedTensor, which begins with the tensor, or a versioned one.
MACHETE_EXPORT void machete_sim_claim_capsule(void* managed, int versioned) {
    auto* tensor = versioned ? &static_cast<DLManagedTensorVersioned*>(managed)->tensor : static_cast<DLTensor*>(managed);
    tensor->device = {kDLCUDA, 0};
}

}  // extern "C"
