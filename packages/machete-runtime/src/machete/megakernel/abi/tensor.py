"""What planning knows about a tensor: dtype, shape, strides, where it lies; never its contents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from machete.megakernel.abi.footprint import Footprint

#: Dtypes that device code reads and writes.
DTYPES: tuple[torch.dtype, ...] = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,  # one byte each
)

#: What bulk copies and TMA need of addresses and strides, in bytes, and the widest vector access
#: (PTX ISA, "cp.async.bulk"; CUDA driver API, "cuTensorMapEncodeTiled").
BULK_ALIGNMENT = 16


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype without its module: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as an op sees it.

    Attributes:
        name: what the op calls it.
        dtype: of its elements.
        shape: extents, outermost first.
        strides: in elements, one for each dim.
        address: byte address of the first element.
        device: with its index, if it has one.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: torch.device

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> TensorInfo:
        """The info of a dense tensor of any shape and strides."""
        return cls(name, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr(), tensor.device)

    def __str__(self) -> str:
        return f"{self.name}: {dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize

    @property
    def is_empty(self) -> bool:
        """Whether there is no element at all."""
        return 0 in self.shape

    @cached_property
    def footprint(self) -> Footprint:
        """The bytes it touches."""
        strides = tuple(stride * self.itemsize for stride in self.strides)
        return Footprint(self.address, self.shape, strides, self.itemsize)

    @property
    def span(self) -> tuple[int, int]:
        """First byte touched, and the one after the last; empty for no elements."""
        return self.footprint.span

    def self_overlapping(self) -> bool:
        """Whether two elements share a byte (see `Footprint.self_overlapping`)."""
        return self.footprint.self_overlapping()

    def overlaps(self, other: TensorInfo) -> bool:
        """Whether some byte belongs to both: maybe yes when unsure, never wrongly no."""
        return self.device == other.device and self.footprint.overlaps(other.footprint)

    def same_view(self, other: TensorInfo) -> bool:
        """Whether both are the same elements of the same memory, with the same dtype."""
        return self.device == other.device and self.dtype == other.dtype and self.footprint.same_memory(other.footprint)

    @property
    def unit_inner(self) -> bool:
        """Whether innermost neighbours are adjacent in memory (or there are none)."""
        return not self.shape or self.shape[-1] <= 1 or self.strides[-1] == 1

    @property
    def outer_strides(self) -> tuple[tuple[int, int], ...]:
        """(dim, stride in bytes) of the dims that a step along changes the alignment of the address."""
        last = len(self.shape) - 1
        return tuple(
            (dim, stride * self.itemsize)
            for dim, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True))
            if extent > 1 and not (dim == last and self.unit_inner)
        )

    @property
    def alignment(self) -> int:
        """The largest power of two, at most 16, that divides the address and all outer strides, in bytes."""
        return common_alignment([self.address, *(stride for _, stride in self.outer_strides)])


def common_alignment(numbers: Iterable[int]) -> int:
    """The largest power of two, at most 16, that divides all the numbers."""
    bits = BULK_ALIGNMENT
    for number in numbers:
        bits |= number
    return bits & -bits
