"""Who reads a value that an op of a list has written, and whether anybody could miss it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from machete.megakernel import ScheduledOp

#: A tensor as an op sees it (`ScheduledOp.infos`).
Info = Any


def reads(op: ScheduledOp) -> Iterator[tuple[str, Info]]:
    """Name and info of each tensor that the op reads."""
    return ((name, op.infos[name]) for name in op.op.declaration.reads)


def writes(op: ScheduledOp) -> Iterator[tuple[str, Info]]:
    """Name and info of each tensor that the op writes."""
    return ((name, op.infos[name]) for name in op.op.declaration.writes)


def view_key(info: Info) -> tuple[Any, ...]:
    """Equal for two infos if they are the same elements in the same order; dims of extent 1 do not count."""
    dims = tuple((extent, stride) for extent, stride in zip(info.shape, info.strides, strict=True) if extent != 1)
    return info.device, info.address, info.dtype, dims


def same_elements(one: Info, other: Info) -> bool:
    """Whether both are the same elements of the same memory, whatever their ranks."""
    return view_key(one) == view_key(other)


class Temporaries:
    """Tensors whose contents nobody needs when the ops have run."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._dense: list[tuple[torch.device, int, int]] = []
        self._views: set[tuple[Any, ...]] = set()
        for tensor in tensors:
            shape, strides = tuple(tensor.shape), tensor.stride()
            reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1
            if tensor.numel() == reach:
                begin = tensor.data_ptr()
                self._dense.append((tensor.device, begin, begin + reach * tensor.element_size()))
            dims = tuple((extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1)
            self._views.add((tensor.device, tensor.data_ptr(), tensor.dtype, dims))

    def cover(self, info: Info) -> bool:
        """Whether the info is one of them, or lies within a contiguous one."""
        begin, end = info.span
        inside = any(device == info.device and first <= begin and end <= last for device, first, last in self._dense)
        return inside or view_key(info) in self._views


def sole_reader(ops: Sequence[ScheduledOp], index: int, name: str, temporaries: Temporaries) -> int | None:
    """The one op that reads what op `index` writes to tensor `name`, if the value is not missed otherwise.

    None if no op reads it, or several do, or if it is still there after the last op and is no temporary. A part of it
    that is overwritten counts as missed: then it takes more than a look at whole values.
    """
    value = ops[index].infos[name]
    if value.is_empty:
        return None
    reader = None
    for later in range(index + 1, len(ops)):
        if any(info.overlaps(value) for _, info in reads(ops[later])):
            if reader is not None:
                return None
            reader = later
        for _, info in writes(ops[later]):
            if info.overlaps(value):
                return reader if _covers(info, value) else None
    return reader if temporaries.cover(value) else None


def _covers(info: Info, value: Info) -> bool:
    """Whether every byte of `value` belongs to `info`."""
    (begin, end), (first, last) = info.span, value.span
    is_dense = info.nbytes == end - begin
    return same_elements(info, value) or (is_dense and begin <= first and last <= end)


def unchanged(ops: Sequence[ScheduledOp], first: int, last: int, infos: Iterable[Info]) -> bool:
    """Whether no op between `first` and `last` (neither included) writes to any of the infos."""
    infos = list(infos)
    return not any(
        written.overlaps(info) for op in ops[first + 1 : last] for _, written in writes(op) for info in infos
    )
