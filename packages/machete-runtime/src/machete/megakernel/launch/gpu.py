"""Load a cubin and launch it: the CUDA driver, nothing of the DSL."""

import ctypes
import threading
from typing import Any

import torch

from machete.megakernel.abi.errors import LaunchError

from .artefact import Artefact

_modules: dict[tuple[int, bytes], tuple[Any, Any]] = {}
_lock = threading.Lock()


def checked(result: tuple, doing: str) -> Any:
    """The values of a driver call, or a LaunchError that says which call failed and how."""
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(error)
        _, text = driver.cuGetErrorString(error)
        raise LaunchError(
            what=f"{name.decode()}: {text.decode()}",
            where=doing,
            why="the CUDA driver refused the call",
            fix="if other kernels hold SMs of the device, lower num_sms; otherwise report this message",
        )
    return values[0] if len(values) == 1 else values


def _function(artefact: Artefact, device: int) -> Any:
    """The kernel, loaded once per device."""
    from cuda.bindings import driver

    key = (device, artefact.cubin)
    with _lock:
        if key not in _modules:
            module = checked(driver.cuModuleLoadData(artefact.cubin), f"loading {artefact.entry}")
            function = checked(driver.cuModuleGetFunction(module, artefact.entry.encode()), "cuModuleGetFunction")
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(
                driver.cuFuncSetAttribute(function, attribute, artefact.shared_bytes),
                f"asking for {artefact.shared_bytes} bytes of shared memory",
            )
            _modules[key] = (module, function)
        return _modules[key][1]


class GpuLauncher:
    """One kernel ready to launch with fixed parameters on one device; launching does no allocation.

    `parameters` are the kernel's arguments as (value, bytes), in order.
    """

    def __init__(
        self, artefact: Artefact, device: torch.device, num_sms: int, parameters: list[tuple[int, int]]
    ) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._device = device
        with torch.cuda.device(device):
            self._function = _function(artefact, device.index)
        types = {4: ctypes.c_uint32, 8: ctypes.c_uint64}
        self._values = [types[size](value) for value, size in parameters]
        self._pointers = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, self._values))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = num_sms, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = artefact.threads, 1, 1
        config.sharedMemBytes = artefact.shared_bytes
        cooperative = driver.CUlaunchAttribute()
        cooperative.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        cooperative.value.cooperative = 1  # all CTAs are resident together, or the launch is refused
        config.attrs, config.numAttrs = [cooperative], 1
        self._config = config

    def launch(self, stream: int) -> None:
        """Launch on a CUDA stream (its address); returns before the kernel ends."""
        self._config.hStream = self._driver.CUstream(stream)
        address = ctypes.addressof(self._pointers)
        with torch.cuda.device(self._device):
            checked(
                self._driver.cuLaunchKernelEx(self._config, self._function, address, 0),
                "launching the megakernel",
            )
