"""Which tensors lie on the simulated device.

Device memory is memory of the process: a storage of a CPU tensor that was *placed*. All views of a storage share it, so
a view of a tensor on the device is on the device, wherever it was made.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..launch import Region


class DeviceMemory:
    """The placed storages that are alive."""

    def __init__(self) -> None:
        self._placed: dict[int, tuple[weakref.ref[torch.UntypedStorage], str]] = {}

    def place(self, tensor: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            storage = storage_of(tensor)
            if storage is None or storage._cdata in self._placed:
                return
            key = storage._cdata
            name = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            self._placed[key] = (weakref.ref(storage, lambda _: self._placed.pop(key, None)), name)

    def withdraw(self, tensor: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            storage = storage_of(tensor)
            if storage is not None:
                self._placed.pop(storage._cdata, None)

    def holds(self, tensor: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            storage = storage_of(tensor)
            return storage is not None and storage._cdata in self._placed

    def regions(self) -> list[Region]:
        """What a kernel may touch, now."""
        with torch._C.DisableTorchFunction():
            return [
                Region(storage.data_ptr(), storage.nbytes(), name)
                for reference, name in list(self._placed.values())
                if (storage := reference()) is not None and storage.nbytes()
            ]


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None for tensors without one: sparse, or of functorch."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory; 0 without a storage."""
    with torch._C.DisableTorchFunction():
        storage = storage_of(tensor)
        return 0 if storage is None else int(storage._cdata)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
