"""The native stand-in for libcute_dsl_runtime.so (src/native/runtime), as Python sees it."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import SimulationError
from .device import Device

# The DSL takes a library for its runtime by this name.
FILE_NAME = "libcute_dsl_runtime.so"

# What it exports of the DSL's own.
FUNCTIONS = (
    "CuteDSLRT_TVMFFISetRaisedCudaError",
    "CuteDSLRT_TVMFFISetRaisedCudaLaunchError",
    "_cuDeviceGet",
    "_cuKernelGetAttribute",
    "_cuLibraryGetKernel",
    "_cuLibraryLoadData",
    "_cuLibraryUnload",
    "_cuTensorMapEncodeTiled",
    "_cudaDeviceGetAttribute",
    "_cudaDeviceSynchronize",
    "_cudaFree",
    "_cudaFreeAsync",
    "_cudaFuncSetAttribute",
    "_cudaGetDevice",
    "_cudaGetDeviceCount",
    "_cudaKernelSetAttributeForDevice",
    "_cudaLaunchKernel",
    "_cudaLaunchKernelEx",
    "_cudaLibraryGetKernel",
    "_cudaLibraryLoadData",
    "_cudaLibraryUnload",
    "_cudaMalloc",
    "_cudaMallocAsync",
    "_cudaMemcpy",
    "_cudaMemcpyAsync",
    "_cudaMemset",
    "_cudaMemsetAsync",
    "_cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "_cudaSetDevice",
    "_cudaStreamSynchronize",
    "_cudaStreamWaitEvent",
    "cuda_dialect_assert_success",
    "cuda_dialect_get_error_name",
    "cuda_dialect_init_library_once",
    "cuda_dialect_print_on_error",
    "cuda_dialect_unload_library_once",
)


class LaunchRecord(ctypes.Structure):
    """`Launch` of launches.hpp."""

    _fields_ = (
        ("image", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("cooperative", ctypes.c_uint32),
        ("dynamic_shared", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
    )


class DeviceRecord(ctypes.Structure):
    """`Device` of launches.hpp."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("major", "minor", "multiprocessors", "shared_bytes"))


_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LaunchRecord))
_ON_DEVICE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object)
_PLACE = ctypes.CFUNCTYPE(None, ctypes.py_object)


@dataclass(frozen=True)
class Launch:
    """A launch as the program asked for it. image: address of the loaded image; args: addresses of the arguments."""

    image: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    cooperative: bool
    dynamic_shared: int
    args: Any  # pointer to pointers; how many there are, the kernel knows


class RuntimeLibrary:
    """One connection: launches go to `run`, and torch's tensors are presented by DLPack as `on_device` says."""

    def __init__(self, device: Device, run: Callable[[Launch], None]) -> None:
        self.library = _library()
        self.path = path()
        self._run = run
        self._error: BaseException | None = None
        # ctypes does not keep callbacks alive.
        self._callbacks: list[Any] = [_LAUNCH(self._launched)]
        major, minor = device.capability
        self._device = DeviceRecord(major, minor, device.sms, device.shared_bytes)
        self._presenting = False

    def addresses(self) -> dict[str, int]:
        """Where the functions of the DSL's runtime are, by name."""
        found = {name: ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value for name in FUNCTIONS}
        return {name: address for name, address in found.items() if address is not None}

    def connect(self) -> None:
        self.library.machete_sim_connect(self._callbacks[0], ctypes.byref(self._device))

    def present(self, exchange_api: int, on_device: Callable[[Any], bool], place: Callable[[Any], None]) -> None:
        """Replace the functions in torch's table of DLPack functions at this address."""
        self._callbacks += [_ON_DEVICE(lambda tensor: int(on_device(tensor))), _PLACE(place)]
        if self.library.machete_sim_present(exchange_api, *self._callbacks[1:]) != 0:
            raise SimulationError("torch's DLPack exchange API has a version that machete-sim does not know")
        self._presenting = True

    def disconnect(self) -> None:
        if self._presenting:
            self.library.machete_sim_withdraw()
        self.library.machete_sim_connect(_LAUNCH(), None)

    def claim_capsule(self, capsule: Any) -> Any:
        """A DLPack capsule of CPU memory, as one of memory of the device."""
        for name, versioned in ((b"dltensor", 0), (b"dltensor_versioned", 1)):
            if _is_valid(capsule, name):
                self.library.machete_sim_claim_capsule(_pointer(capsule, name), versioned)
                return capsule
        raise SimulationError("not a DLPack capsule, or one that was consumed")

    def error(self) -> BaseException | None:
        """What the last failing launch raised, once."""
        error, self._error = self._error, None
        return error

    def _launched(self, record: Any) -> int:
        r = record.contents
        try:
            self._run(
                Launch(
                    image=r.image,
                    kernel=r.kernel.decode(),
                    grid=tuple(r.grid),
                    block=tuple(r.block),
                    cluster=tuple(r.cluster),
                    cooperative=bool(r.cooperative),
                    dynamic_shared=r.dynamic_shared,
                    args=r.args,
                )
            )
        except BaseException as error:  # it goes through native code as a number, and is raised again behind it
            self._error = error
            self.library.machete_sim_set_message(str(error).encode())
            return 1
        return 0


def path() -> Path:
    """Where the library lies: with the native interpreter. Raises SimulationError."""
    found = Path(_core.__file__).parent / "lib" / FILE_NAME
    if not found.exists():
        raise SimulationError(f"{found} is missing: the installation of machete-sim is incomplete; reinstall it")
    return found


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(path()))
    library.machete_sim_connect.argtypes = [_LAUNCH, ctypes.c_void_p]
    library.machete_sim_connect.restype = None
    library.machete_sim_set_message.argtypes = [ctypes.c_char_p]
    library.machete_sim_set_message.restype = None
    library.machete_sim_present.argtypes = [ctypes.c_void_p, _ON_DEVICE, _PLACE]
    library.machete_sim_withdraw.restype = None
    library.machete_sim_claim_capsule.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.machete_sim_claim_capsule.restype = None
    return library


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def exchange_api_address(capsule: Any) -> int:
    """The address in a `__dlpack_c_exchange_api__`."""
    return int(_pointer(capsule, b"dlpack_exchange_api"))
