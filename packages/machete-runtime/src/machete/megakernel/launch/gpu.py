"""Load a cubin and prepare launches: the CUDA driver, nothing of the DSL."""

import ctypes
import threading
from typing import Any

import torch

from .artefact import Artefact
from .driver import PreparedLaunch, checked, make_current

_modules: dict[tuple[int, bytes], tuple[Any, Any]] = {}
_lock = threading.Lock()


def load(code: bytes, entry: str, shared_bytes: int, device: int) -> int:
    """The kernel `entry` of a cubin or of PTX, as an address; loaded once per device, and never unloaded."""
    from cuda.bindings import driver

    with _lock, torch.cuda.device(device):
        make_current(device)
        if (device, code) not in _modules:
            module = checked(driver.cuModuleLoadData(code), f"loading {entry}")
            function = checked(driver.cuModuleGetFunction(module, entry.encode()), "cuModuleGetFunction")
            if shared_bytes:
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                asking = f"asking for {shared_bytes} bytes of shared memory"
                checked(driver.cuFuncSetAttribute(function, attribute, shared_bytes), asking)
            _modules[device, code] = (module, function)
        return int(_modules[device, code][1])


class Parameters:
    """Kernel parameters in memory of their own, which launches point to."""

    def __init__(self, values: list[tuple[int, int]]) -> None:
        """`values` are (value, bytes), in order."""
        types = {4: ctypes.c_uint32, 8: ctypes.c_uint64}
        self._values = [types[size](value) for value, size in values]
        self.addresses = [ctypes.addressof(value) for value in self._values]


def prepare(artefact: Artefact, device: int, num_sms: int, parameters: Parameters, stream: int) -> PreparedLaunch:
    """The persistent kernel on `num_sms` SMs, with all its CTAs resident or not at all, unless it is programmatic."""
    return PreparedLaunch(
        load(artefact.cubin, artefact.entry, artefact.shared_bytes, device),
        device,
        grid=num_sms,
        block=artefact.threads,
        shared_bytes=artefact.shared_bytes,
        stream=stream,
        parameters=parameters.addresses,
        cooperative=not artefact.programmatic,
        overlapping=True,
    )
