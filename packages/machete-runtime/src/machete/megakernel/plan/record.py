"""Where an op's run-time data lies in its record: the bytes that device code reads it from.

A record is a table of little-endian fields, each at a multiple of 8 bytes, padded to a multiple of 16. Its
layout follows from the op's kind; its contents are data, packed anew whenever tensors or scalars are bound.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo

FIELD_BYTES = 8
RECORD_ALIGNMENT = 16
_FORMATS = {torch.int32: "i", torch.int64: "q", torch.float32: "f"}


@dataclass(frozen=True)
class TensorLayout:
    """What code knows about a tensor when it is compiled.

    Attributes:
        dtype: of its elements.
        dims: one name for each axis.
        unit_inner: innermost neighbours are adjacent.
        alignment: power of two, at most 16, that divides the address and all outer strides, in bytes.
    """

    dtype: torch.dtype
    dims: tuple[str, ...]
    unit_inner: bool
    alignment: int

    @classmethod
    def of(cls, info: TensorInfo, dims: tuple[str, ...]) -> TensorLayout:
        """The layout of a tensor."""
        return cls(info.dtype, dims, info.unit_inner, info.alignment)


@dataclass(frozen=True)
class RecordLayout:
    """Fields of a record, in order.

    - `extent_<D>`: int32, for every dim; `tiles_<D>`: int32, number of tiles, for every tiled dim.
    - `ptr_<tensor>`: int64 address; `stride_<tensor>_<axis>`: int64, in elements, but for a unit innermost one.
    - `tma_<tensor>`: int64 address of its descriptor, where it has one.
    - `scalar_<name>`: in the scalar's own dtype.
    """

    fields: tuple[tuple[str, str], ...]  # (name, struct format)

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, TensorLayout],
        dims: tuple[str, ...],
        tile: tuple[str, ...],
        scalars: Mapping[str, torch.dtype],
        descriptors: Mapping[str, object],
    ) -> RecordLayout:
        """The record of a kind."""
        fields = [(f"extent_{dim}", "i") for dim in dims] + [(f"tiles_{dim}", "i") for dim in tile]
        for name, tensor in tensors.items():
            fields.append((f"ptr_{name}", "q"))
            strided = len(tensor.dims) - tensor.unit_inner
            fields += [(f"stride_{name}_{axis}", "q") for axis in range(strided)]
            if name in descriptors:
                fields.append((f"tma_{name}", "q"))
        fields += [(f"scalar_{name}", _FORMATS[dtype]) for name, dtype in scalars.items()]
        return cls(tuple(fields))

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return -(-len(self.fields) * FIELD_BYTES // RECORD_ALIGNMENT) * RECORD_ALIGNMENT

    def offset(self, name: str) -> int:
        """Byte offset of a field in the record."""
        return next(i for i, (field, _) in enumerate(self.fields) if field == name) * FIELD_BYTES

    def values(self, op: ScheduledOp, tma: Mapping[str, int]) -> dict[str, int | float]:
        """Field name to value, for an op of this kind; `tma` maps tensors to addresses of descriptors."""
        known: dict[str, int | float] = {f"extent_{dim}": extent for dim, extent in op.extents.items()}
        known |= {f"tiles_{dim}": n for dim, n in zip(op.op.declaration.tile, op.tiles, strict=True)}
        for name, info in op.infos.items():
            known[f"ptr_{name}"] = info.address
            known |= {f"stride_{name}_{axis}": stride for axis, stride in enumerate(info.strides)}
        known |= {f"tma_{name}": address for name, address in tma.items()}
        known |= {f"scalar_{name}": value for name, value in op.scalars.items()}
        return {name: known[name] for name, _ in self.fields}

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The record's bytes. Every field needs its value."""
        record = bytearray(self.size)
        for position, (name, format_) in enumerate(self.fields):
            struct.pack_into("<" + format_, record, position * FIELD_BYTES, values[name])
        return bytes(record)
