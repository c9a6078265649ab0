"""Everything that stands in for a GPU while a simulated one is active, in one place.

`install` replaces probes of torch, of cuda.bindings and of the DSL that would ask a driver, and undoes each
replacement when its ExitStack closes. What a program computes is not replaced: kernels are compiled by the DSL,
launched by the host code that it compiled, and executed from their PTX.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cuda.bindings.driver as driver
import cuda.bindings.runtime as runtime
import platformdirs
import torch
from torch.overrides import _get_current_function_mode_stack

from .device import Device
from .images import Images
from .object_code import redirect
from .runtime_library import FUNCTIONS, RuntimeLibrary, exchange_api_address

if TYPE_CHECKING:
    from .tensors import PlacementMode

_MISSING = object()
# Packages that keep compiled functions on disk without the architecture in the key: (module, its attribute, variable).
_FUNCTION_CACHES = (
    ("quack.cache", "CACHE_DIR", "QUACK_CACHE_DIR"),
    ("flash_attn.cute.cache_utils", "CUTE_DSL_CACHE_DIR", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"),
)
ERROR_KIND = "machete.sim"  # kErrorKind of launches.hpp


@dataclass
class Simulated:
    """What the stand-ins speak for."""

    device: Device
    images: Images
    library: RuntimeLibrary
    placement: PlacementMode
    recording: list[Callable[[], None]] | None = None  # what a graph captures, while it does


class Replacements:
    """Attributes, items and environment variables that are put back, last first."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self._undo = undo

    def undo(self, action: Callable[[], Any]) -> None:
        self._undo.callback(action)

    def attribute(self, owner: Any, name: str, value: Any) -> Any:
        """Returns what it was."""
        own = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else getattr(owner, name)
        before = getattr(owner, name, None)

        def restore() -> None:
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        setattr(owner, name, value)
        self._undo.callback(restore)
        return before

    def attributes(self, owner: Any, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.attribute(owner, name, value)

    def item(self, mapping: Any, key: Any, value: Any) -> None:
        before = mapping.get(key, _MISSING)
        mapping[key] = value
        self._undo.callback(lambda: mapping.pop(key, None) if before is _MISSING else mapping.__setitem__(key, before))


def install(simulated: Simulated, undo: contextlib.ExitStack) -> None:
    replace = Replacements(undo)
    _function_caches(replace, simulated.device)
    _torch(replace, simulated)
    _torch_cuda(replace, simulated)
    _cuda_bindings(replace, simulated.device)
    _dsl(replace, simulated)
    _tvm_ffi(replace, simulated)


def _function_caches(replace: Replacements, device: Device) -> None:
    for module, attribute, variable in _FUNCTION_CACHES:
        if variable in os.environ:
            continue
        folder = platformdirs.user_cache_path("machete-sim") / module.partition(".")[0] / device.arch
        replace.item(os.environ, variable, str(folder))
        if module in sys.modules:
            replace.attribute(sys.modules[module], attribute, str(folder))


# --- torch


def _torch(replace: Replacements, simulated: Simulated) -> None:
    claims = simulated.placement.claims
    claims.claim_capsule = simulated.library.claim_capsule
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is not None:
        memory = simulated.placement.memory
        simulated.library.present(exchange_api_address(capsule), memory.holds, memory.place)

    # Below `backward`, torch takes the mode off; a package's autograd.Function asks its gradients for their device.
    run_backward: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def backward(*args: Any, **kwargs: Any) -> Any:
        if claims in _get_current_function_mode_stack():
            return run_backward(*args, **kwargs)
        with claims:
            return run_backward(*args, **kwargs)

    replace.attribute(torch.autograd, "_engine_run_backward", backward)

    def set_default_device(device: Any) -> None:
        claims.default_device = None if device is None else torch.device(device)

    replace.attribute(torch, "set_default_device", set_default_device)
    # Code for CUDA cannot be generated here; what would be compiled runs as it is written.
    replace.attribute(
        torch, "compile", lambda model=None, **_: model if model is not None else lambda function: function
    )

    host_generator: Any = torch.Generator

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return host_generator.__new__(cls, "cpu" if torch.device(device).type == "cuda" else device)

    replace.attribute(torch, "Generator", Generator)


class Stream:
    """A stream of the simulated device. Work is done when the call that asks for it returns."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0
    priority = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cuda", 0)

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    """A moment. Times between events are of this process, not of a GPU."""

    cuda_event = 0

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.moment = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return max((end.moment - self.moment) * 1e3, 1e-3)

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


def _torch_cuda(replace: Replacements, simulated: Simulated) -> None:
    device = simulated.device
    stream = Stream()

    class CUDAGraph:
        """What was launched, and what torch computed, between its begin and its end."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.steps: list[Callable[[], None]] = []

        def capture_begin(self, *_: Any, **__: Any) -> None:
            self.steps = simulated.recording = []
            simulated.placement.trace = _record_operator(simulated)

        def capture_end(self) -> None:
            simulated.recording = simulated.placement.trace = None

        def replay(self) -> None:
            for step in self.steps:
                step()

        def reset(self) -> None:
            self.steps = []

        def pool(self) -> tuple[int, int]:
            return (0, 0)

    @contextlib.contextmanager
    def graph(cuda_graph: CUDAGraph, *_: Any, **__: Any) -> Iterator[None]:
        cuda_graph.capture_begin()
        try:
            yield
        finally:
            cuda_graph.capture_end()

    properties = types.SimpleNamespace(
        name=device.name,
        major=device.capability[0],
        minor=device.capability[1],
        multi_processor_count=device.sms,
        total_memory=8 << 30,
        L2_cache_size=device.l2_bytes,
        warp_size=32,
        max_threads_per_multi_processor=2048 if device.capability[0] < 12 else 1536,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=device.shared_bytes,
        shared_memory_per_multiprocessor=device.shared_bytes + 1024,
        is_integrated=0,
        is_multi_gpu_board=0,
    )
    # A function of its own for each name: torch's compiler keeps tables of them.
    answers: dict[str, Any] = {name: (lambda *_, **__: None) for name in _CUDA_DOES_NOTHING}
    answers |= {name: (lambda *_, **__: 0) for name in _CUDA_ZERO}
    answers |= {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: device.capability,
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: device.name,
        "get_arch_list": lambda: [device.arch],
        "mem_get_info": lambda *_: (properties.total_memory, properties.total_memory),
        "memory_stats": lambda *_: {},
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": lambda *_: contextlib.nullcontext(),
        "device": lambda *_: contextlib.nullcontext(),
        "device_of": lambda *_: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, 0),
        "is_current_stream_capturing": lambda: simulated.recording is not None,
        "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
        "manual_seed_all": lambda seed: torch.default_generator.manual_seed(seed),
    }
    replace.attributes(torch.cuda, answers)
    replace.attribute(torch._C, "_cuda_getCurrentRawStream", lambda *_: 0)


_CUDA_DOES_NOTHING = (
    "_lazy_init", "init", "synchronize", "set_device", "set_stream", "empty_cache", "ipc_collect",
    "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats", "set_sync_debug_mode",
)  # fmt: skip
_CUDA_ZERO = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def _record_operator(simulated: Simulated) -> Callable[[Callable[[], Any], Any], None]:
    """Replayed, an operator of torch writes its results where the captured ones were."""
    from .memory import tensors_in

    def record(run: Callable[[], Any], result: Any) -> None:
        results = list(tensors_in(result))

        def step() -> None:
            for old, new in zip(results, tensors_in(run()), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        if simulated.recording is not None:
            simulated.recording.append(step)

    return record


# --- the driver, as cuda.bindings shows it


def _cuda_bindings(replace: Replacements, device: Device) -> None:
    done = driver.CUresult.CUDA_SUCCESS
    attribute = driver.CUdevice_attribute
    attributes = {
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: device.capability[0],
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: device.capability[1],
        attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: device.sms,
        attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: device.l2_bytes,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: 48 << 10,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: device.shared_bytes,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: device.shared_bytes + 1024,
        attribute.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 1024,
        attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE: 32,
        attribute.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: 1,
    }
    events: dict[int, float] = {}

    def create_event(*_: Any) -> tuple[Any, Any]:
        events[len(events) + 1] = time.perf_counter()
        return done, driver.CUevent(len(events))

    def record_event(event: Any, *_: Any) -> tuple[Any]:
        events[int(event)] = time.perf_counter()
        return (done,)

    def elapsed(start: Any, end: Any) -> tuple[Any, float]:
        return done, max((events[int(end)] - events[int(start)]) * 1e3, 1e-3)

    def value(which: Any, *_: Any) -> tuple[Any, int]:
        return done, attributes.get(attribute(int(which)), 0)

    good = lambda *_: (done,)  # noqa: E731
    replace.attributes(
        driver,
        {
            "cuInit": good,
            "cuDriverGetVersion": lambda: (done, 13000),
            "cuDeviceGetCount": lambda: (done, 1),
            "cuDeviceGet": lambda ordinal: (done, driver.CUdevice(ordinal)),
            "cuDeviceGetName": lambda size, _: (done, device.name.encode()[:size]),
            "cuDeviceTotalMem": lambda _: (done, 8 << 30),
            "cuDeviceGetAttribute": value,
            "cuDevicePrimaryCtxRetain": lambda _: (done, driver.CUcontext(0)),
            "cuDevicePrimaryCtxRelease": good,
            "cuCtxGetCurrent": lambda: (done, driver.CUcontext(0)),
            "cuCtxSetCurrent": good,
            "cuCtxGetDevice": lambda: (done, driver.CUdevice(0)),
            "cuCtxSynchronize": good,
            "cuStreamCreate": lambda *_: (done, driver.CUstream(0)),
            "cuStreamDestroy": good,
            "cuStreamSynchronize": good,
            "cuEventCreate": create_event,
            "cuEventRecord": record_event,
            "cuEventSynchronize": good,
            "cuEventElapsedTime": elapsed,
            "cuEventDestroy": good,
        },
    )
    fine = runtime.cudaError_t.cudaSuccess
    nice = lambda *_: (fine,)  # noqa: E731
    replace.attributes(
        runtime,
        {
            "cudaGetDeviceCount": lambda: (fine, 1),
            "cudaGetDevice": lambda: (fine, 0),
            "cudaSetDevice": nice,
            "cudaDeviceSynchronize": nice,
            "cudaDeviceGetAttribute": lambda which, _=0: (fine, value(which)[1]),
            "cudaStreamCreate": lambda: (fine, runtime.cudaStream_t(0)),
            "cudaStreamDestroy": nice,
            "cudaStreamSynchronize": nice,
            "cudaGetLastError": nice,
            "cudaPeekAtLastError": nice,
            # Names the DSL asks for when it reports an error that was no simulator's.
            "cudaGetErrorName": lambda error: (fine, error.name.encode()),
        },
    )


# --- the DSL


def _dsl(replace: Replacements, simulated: Simulated) -> None:
    import cutlass
    import cutlass.cute.testing
    import cutlass.testing
    from cutlass._mlir._mlir_libs._cutlass_ir import _execution_engine
    from cutlass.base_dsl import compiler, dsl, env_manager, jit_executor
    from cutlass.base_dsl.export import external_binary_module
    from cutlass.cutlass_dsl import cuda_jit_executor
    from cutlass.utils.hardware_info import HardwareInfo

    device, library = simulated.device, str(simulated.library.path)
    replace.item(os.environ, "CUTE_DSL_LIBS", library)
    replace.item(os.environ, "CUTE_DSL_ARCH", device.arch)
    # A function from the DSL's own cache on disk is one whose PTX is not known.
    replace.item(os.environ, "CUTE_DSL_DISABLE_FILE_CACHING", "1")
    replace.item(os.environ, "CUTE_DSL_LINEINFO", "1")  # reports name lines of Python
    for read in vars(env_manager).values():  # the DSL remembers what it read
        if hasattr(read, "cache_clear"):
            read.cache_clear()
            replace.undo(read.cache_clear)
    for instance in dsl.DSLSingletonMeta._instances.values():  # made before the variables were set
        replace.attribute(instance.envar, "shared_libs", library)
        replace.attribute(instance.envar, "disable_file_caching", True)
        replace.attribute(instance.envar, "lineinfo", True)
        replace.attribute(instance.envar, "_arch", device.arch)
        replace.attribute(instance, "jit_cache", type(instance.jit_cache)(max_elems=instance.envar.jit_cache_max_elems))

    compile_module = dsl.BaseDSL._compile_or_jit_module

    def compile_and_register(self: Any, module: Any, pipeline: str, *args: Any) -> Any:
        with tempfile.TemporaryDirectory(prefix="machete-sim-") as folder:
            result = compile_module(self, module, _dumping(pipeline, Path(folder)), *args)
            _register(simulated.images, pipeline, Path(folder))
        return result

    replace.attribute(dsl.BaseDSL, "_compile_or_jit_module", compile_and_register)

    # Whatever other libraries of the process export: host code calls the stand-in's functions.
    jit = compiler.Compiler.jit

    def register_and_jit(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = jit(self, *args, **kwargs)
        for name, address in simulated.library.addresses().items():
            engine.raw_register_runtime(name, ctypes.c_void_p(address))
        return engine

    replace.attribute(compiler.Compiler, "jit", register_and_jit)
    load_object = _execution_engine.BinaryExecutionEngine

    def redirect_and_load(code: bytes, *args: Any) -> Any:
        return load_object(redirect(code, FUNCTIONS) if code else code, *args)

    replace.attribute(_execution_engine, "BinaryExecutionEngine", redirect_and_load)
    provider = external_binary_module.ExternalBinaryModule.load_provider
    replace.attribute(provider, "execution_engine_constructor", redirect_and_load)

    run_compiled = jit_executor.JitExecutor.run_compiled_program

    def run(self: Any, arguments: Any) -> Any:
        try:
            return run_compiled(self, arguments)
        except Exception:
            error = simulated.library.error()
            if error is None:
                raise
        raise error  # says more than the number of a CUDA error

    replace.attribute(jit_executor.JitExecutor, "run_compiled_program", run)

    # Handles of images are ours: nobody may give them to the real driver, after the context least of all.
    load = cuda_jit_executor.CudaDialectJitCompiledFunction._load_cuda_library
    replace.attribute(
        cuda_jit_executor.CudaDialectJitCompiledFunction, "_load_cuda_library", lambda self: (load(self), [])[1]
    )
    replace.attribute(
        HardwareInfo,
        "get_max_active_clusters",
        lambda self, cluster_size, stream=None: max(1, device.sms // cluster_size),
    )
    replace.attribute(cutlass.testing, "benchmark", _benchmark)
    replace.attribute(cutlass.testing, "_benchmark_for_autotune", _benchmark_for_autotune)
    replace.attribute(cutlass.cute.testing, "benchmark", _benchmark)


_DUMPS = {"ptx": "dump-ptx-path", "cubin": "dump-cubin-path"}


def _dumping(pipeline: str, folder: Path) -> str:
    """The DSL's pipeline, with PTX and machine code kept."""
    added = "".join(f" {option}='{folder}/image'" for option in _DUMPS.values() if f"{option}=" not in pipeline)
    return pipeline.replace("cubin-format=bin", f"cubin-format=bin{added}")


def _register(images: Images, pipeline: str, folder: Path) -> None:
    """Bind what a compilation wrote. The program may have asked for the files itself, under names of its own."""
    found: dict[str, Path] = {}
    for kind, option in _DUMPS.items():
        match = re.search(rf"{option}='?([^' }}]+)", pipeline)
        stem = Path(match[1]) if match else folder / "image"
        files = sorted(stem.parent.glob(f"{stem.name}*.{kind}"))
        if files:
            found[kind] = files[-1]
    if len(found) == 2:  # none if the function launches no kernel
        images.register(found["cubin"].read_bytes(), found["ptx"].read_bytes().rstrip(b"\0").decode())


def _benchmark(callable: Any, *, kernel_arguments: Any = None, workspace_generator: Any = None, **_: Any) -> float:  # noqa: A002
    """Run once; microseconds of this process."""
    workspace = workspace_generator() if workspace_generator is not None else kernel_arguments
    start = time.perf_counter()
    callable(*workspace.args, **workspace.kwargs)
    return (time.perf_counter() - start) * 1e6


def _benchmark_for_autotune(callable: Any, *args: Any, **options: Any) -> float:  # noqa: A002
    names = {"warmup_iterations", "iterations", "use_cold_l2", "print_verbose", "current_stream"}
    start = time.perf_counter()
    callable(*args, **{name: value for name, value in options.items() if name not in names})
    return (time.perf_counter() - start) * 1e6


# --- TVM-FFI, if it is installed


def _tvm_ffi(replace: Replacements, simulated: Simulated) -> None:
    if importlib.util.find_spec("tvm_ffi") is None:
        return
    import tvm_ffi

    class Raised(RuntimeError):
        """TVM-FFI makes an exception out of a kind and a message; here, it is the one that was caught."""

        def __new__(cls, message: str) -> Any:
            return simulated.library.error() or RuntimeError(message)

    replace.item(tvm_ffi.core.ERROR_NAME_TO_TYPE, ERROR_KIND, Raised)
