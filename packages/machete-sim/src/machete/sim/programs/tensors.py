"""CPU tensors that say they are CUDA tensors (docs/decisions/0011).

Two modes of torch do it, while the context is active. `ClaimMode` sees calls in Python: `device="cuda"` becomes the CPU
and the result is *placed* on the device, `.to("cpu")` copies back, and a placed tensor answers `device`, `is_cuda` and
`__dlpack__` as one of device 0. `PlacementMode` sees operators below autograd: what an operator makes out of placed
tensors is placed too, so gradients and temporaries of C++ are; operators that a package registered for CUDA alone run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import SimulationError
from .memory import DeviceMemory, storage_key, tensors_in
from .scaled_product import block_scaled_product, is_block_scaled

CUDA = torch.device("cuda", 0)
# torch implements these for the CPU. Operators of every other namespace are of packages, written for CUDA tensors.
_BUILT_IN = frozenset({"aten", "prims", "prim", "_c10d_functional", "quantized", "mkldnn", "profiler", "inductor"})
_CUDA_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def on_cuda(device: Any) -> bool | None:
    """Whether a `device=` names the simulated GPU. None: it names no device."""
    if device is None or isinstance(device, bool):
        return None
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type == "cuda" and found.index not in (None, 0):
        raise SimulationError(f"{found}: one GPU is simulated, cuda:0")
    return found.type == "cuda"


class PlacementMode(TorchDispatchMode):
    """Results of operators on placed tensors are placed. `trace`, if set, is told of each operator."""

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__()
        self.memory = memory
        self.claims = ClaimMode(memory)
        self.trace: Callable[[Callable[[], Any], Any], None] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch's compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        if not any(map(self.memory.holds, inputs)):
            return func(*args, **kwargs)
        of_package = func.namespace not in _BUILT_IN
        if is_block_scaled(func, args):
            func = block_scaled_product
        result = self._run_package(func, args, kwargs) if of_package else func(*args, **kwargs)
        shared = {storage_key(tensor) for tensor in inputs}
        for tensor in tensors_in(result):
            if storage_key(tensor) not in shared:
                self.memory.place(tensor)
        if self.trace is not None and not of_package:  # the operators inside a package's are told of themselves
            self.trace(lambda: func(*args, **kwargs), result)
        return result

    def _run_package(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Its Python body asks tensors for their device, and calls torch: under both modes again.
        with self, self.claims:
            return func.redispatch(_CUDA_KEY, *args, **kwargs)


class ClaimMode(TorchFunctionMode):
    """Answers for placed tensors, and makes `device="cuda"` work."""

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__()
        self.memory = memory
        self.default_device: torch.device | None = None
        self.claim_capsule: Callable[[Any], Any] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(self, func, *args, **kwargs)
        device = kwargs.get("device")
        if device is None and self.default_device is not None and func in _device_constructors():
            device = self.default_device
        wanted = on_cuda(device)
        if wanted is None:
            return func(*args, **kwargs)
        if wanted:
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return self._settle(func(*args, **kwargs), wanted, [*tensors_in(args), *tensors_in(kwargs)])

    def _settle(self, result: Any, on_device: bool, inputs: list[torch.Tensor]) -> Any:
        """A result, on the device or off it; a copy if it shares memory with something that stays where it is."""
        if not isinstance(result, torch.Tensor):
            return result
        if self.memory.holds(result) != on_device:
            if storage_key(result) in {storage_key(tensor) for tensor in inputs}:
                result = result.clone()
            (self.memory.place if on_device else self.memory.withdraw)(result)
        return result


# --- what placed tensors answer: (mode, function, arguments of the call)


def _device(mode: ClaimMode, func: Any, tensor: torch.Tensor) -> torch.device:
    return CUDA if mode.memory.holds(tensor) else func(tensor)


def _is_cuda(mode: ClaimMode, func: Any, tensor: torch.Tensor) -> bool:
    return mode.memory.holds(tensor) or func(tensor)


def _is_cpu(mode: ClaimMode, func: Any, tensor: torch.Tensor) -> bool:
    return not mode.memory.holds(tensor) and func(tensor)


def _get_device(mode: ClaimMode, func: Any, tensor: torch.Tensor) -> int:
    return 0 if mode.memory.holds(tensor) else func(tensor)


def _to(mode: ClaimMode, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    values = list(args)
    wanted: bool | None = None
    if values and isinstance(values[0], torch.Tensor):  # to(other)
        wanted = mode.memory.holds(values[0])
    elif values and isinstance(values[0], str | int | torch.device):
        wanted = on_cuda(values[0])
        values[0] = "cpu" if wanted else values[0]
    elif kwargs.get("device") is not None:
        wanted = on_cuda(kwargs["device"])
        kwargs["device"] = "cpu" if wanted else kwargs["device"]
    result = func(tensor, *values, **kwargs)
    return result if wanted is None else mode._settle(result, wanted, [tensor])


def _cuda(mode: ClaimMode, func: Any, tensor: torch.Tensor, device: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    on_cuda(device)  # another GPU is refused
    return mode._settle(tensor, True, [tensor])


def _cpu(mode: ClaimMode, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return mode._settle(func(tensor, *args, **kwargs), False, [tensor])


def _numpy(mode: ClaimMode, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if mode.memory.holds(tensor):
        raise TypeError("can't convert a tensor on cuda:0 to numpy; copy it to the host first, with .cpu()")
    return func(tensor, *args, **kwargs)


def _same(mode: ClaimMode, func: Any, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return tensor


def _nothing(mode: ClaimMode, func: Any, *_: Any, **__: Any) -> None:
    return None


def _dlpack(mode: ClaimMode, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not mode.memory.holds(tensor) or mode.claim_capsule is None:
        return func(tensor, *args, **kwargs)
    kwargs.pop("stream", None)
    kwargs.pop("dl_device", None)
    return mode.claim_capsule(func(tensor, **kwargs))


def _dlpack_device(mode: ClaimMode, func: Any, tensor: torch.Tensor) -> tuple[Any, int]:
    if mode.memory.holds(tensor):
        return torch.utils.dlpack.DLDeviceType.kDLCUDA, 0
    device: tuple[Any, int] = func(tensor)
    return device


_T = torch.Tensor
_ANSWERS: dict[Any, Callable[..., Any]] = {
    _T.device.__get__: _device,
    _T.is_cuda.__get__: _is_cuda,  # type: ignore[attr-defined]
    _T.is_cpu.__get__: _is_cpu,  # type: ignore[attr-defined]
    _T.get_device: _get_device,
    _T.to: _to,
    _T.cuda: _cuda,
    _T.cpu: _cpu,
    _T.numpy: _numpy,
    _T.__array__: _numpy,
    _T.pin_memory: _same,
    _T.record_stream: _nothing,
    _T.__dlpack__: _dlpack,
    _T.__dlpack_device__: _dlpack_device,
}
