"""The two CUDA driver calls that every run makes, through ctypes: nothing is allocated or converted per call.

A launch is described by structs that are filled in once (CUDA driver API, "Execution Control": `CUlaunchConfig`,
`CUlaunchAttribute`); launching passes their addresses. Rare calls go through `cuda.bindings`.
"""

import ctypes
import functools
from typing import Any

from machete.megakernel.abi.errors import LaunchError

_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_OVERLAPPING = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used CUDA yet


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute`: what it is, and 64 bytes of value."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


def launch_config(
    grid: int, block: int, shared_bytes: int, stream: int, *, cooperative: bool, overlapping: bool = False
) -> LaunchConfig:
    """How to launch `grid` CTAs of `block` threads.

    `cooperative`: all of them resident at a time, or none. `overlapping`: CTAs start where those of the kernel before
    have ended, and wait themselves (griddepcontrol) until all of it is done.
    """
    wanted = [_COOPERATIVE] * cooperative + [_OVERLAPPING] * overlapping
    attributes = (LaunchAttribute * max(len(wanted), 1))()
    for attribute, number in zip(attributes, wanted, strict=False):
        attribute.id, attribute.value[0] = number, 1
    first = ctypes.cast(attributes, ctypes.POINTER(LaunchAttribute))
    return LaunchConfig((grid, 1, 1), (block, 1, 1), shared_bytes, stream or None, first, len(wanted))


@functools.cache
def library() -> ctypes.CDLL:
    """The CUDA driver."""
    return ctypes.CDLL("libcuda.so.1")


def checked(result: tuple, doing: str) -> Any:
    """The values of a call through `cuda.bindings`, or a LaunchError that says which call failed and how."""
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


def make_current(device: int) -> None:
    """Make torch's context of the device current in this thread, which may not have used CUDA yet."""
    from cuda.bindings import driver

    context = checked(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
    checked(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    checked(driver.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease")


class PreparedLaunch:
    """One kernel, its parameters and its stream, ready to launch any number of times.

    Args:
        function: the kernel (`CUfunction`) as an address.
        device: index of the device that it was loaded on.
        grid, block: number of CTAs, threads of each.
        shared_bytes: dynamic shared memory of a CTA.
        stream: address of the CUDA stream.
        parameters: addresses of the kernel's parameters, which the caller keeps alive.
        cooperative: all CTAs are resident together, or the launch is refused.
        overlapping: see `launch_config`.
    """

    def __init__(
        self,
        function: int,
        device: int,
        *,
        grid: int,
        block: int,
        shared_bytes: int,
        stream: int,
        parameters: list[int],
        cooperative: bool,
        overlapping: bool = False,
    ) -> None:
        self._device = device
        self._pointers = (ctypes.c_void_p * len(parameters))(*parameters)
        self._config = launch_config(
            grid, block, shared_bytes, stream, cooperative=cooperative, overlapping=overlapping
        )
        launch = library().cuLaunchKernelEx
        self._call = functools.partial(
            launch, ctypes.byref(self._config), ctypes.c_void_p(function), ctypes.byref(self._pointers), None
        )

    def __call__(self) -> None:
        """Launch; returns before the kernel ends. The device is the calling thread's current one."""
        error = self._call()
        if error:
            self._failed(error)

    def _failed(self, error: int) -> None:
        from cuda.bindings import driver

        if error == _INVALID_CONTEXT:
            make_current(self._device)
            error = self._call()
        checked((driver.CUresult(error),), "launching the megakernel")
