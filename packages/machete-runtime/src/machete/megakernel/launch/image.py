"""The data of a launch as the host knows it: the records of all ops, then the TMA descriptors.

Both are tables of 8-byte words, so that whatever changes between runs is a set of words. Nothing in the image depends
on where a copy of it lies: addresses of descriptors count from its first byte, and addresses of temporaries from
`temporaries.ARENA`; every copy on a device adds its own (see `state.LaunchState`).
"""

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from machete.megakernel.abi.scheduled import ScheduledOp
from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.abi.tma import TmaBox
from machete.megakernel.plan.plan import Plan

from .tensormap import DESCRIPTOR_BYTES

WORD = 8
_DESCRIPTOR_WORDS = DESCRIPTOR_BYTES // WORD
_DEFINED_WORDS = 8  # of a descriptor

Encode = Callable[[TensorInfo, TmaBox], np.ndarray]


class Image:
    """Words of all records and descriptors of `ops`, planned as `plan`.

    `encode` writes descriptors. It gets `address`, some memory of the device, for every tensor, so that tensors of one
    layout are encoded once; word 0 is their own address.

    Attributes:
        words: uint64, the current data.
        num_descriptors: how many there are, behind the records.
        descriptor_begin: byte offset of the first one.
        descriptor_fields: positions (in words) of the record fields that hold a descriptor's byte offset.
    """

    def __init__(self, plan: Plan, ops: Sequence[ScheduledOp], encode: Encode, address: int) -> None:
        self._address = address
        self._encode = functools.lru_cache(maxsize=4096)(encode)  # layers of a model have tensors of the same layouts
        self._kinds = [plan.kinds[kind] for kind in plan.kind_of_op]
        fields = [[name for name, _ in kind.record.fields] for kind in plan.kinds]
        self._fields = [{name: i for i, name in enumerate(names)} for names in fields]
        self._kind_of_op = plan.kind_of_op
        self._record_words = plan.shared.record_bytes // WORD
        rows = [(index, name) for index, kind in enumerate(self._kinds) for name in kind.descriptors]
        records = len(ops) * self._record_words
        first = -(-records // _DESCRIPTOR_WORDS) * _DESCRIPTOR_WORDS
        self._descriptor = {use: first + row * _DESCRIPTOR_WORDS for row, use in enumerate(rows)}
        self.num_descriptors, self.descriptor_begin = len(rows), first * WORD
        self.words = np.zeros(first + len(rows) * _DESCRIPTOR_WORDS, dtype=np.uint64)
        for index, op in enumerate(ops):
            kind = self._kinds[index]
            places = {name: self._descriptor[index, name] * WORD for name in kind.descriptors}
            packed = np.frombuffer(kind.record.pack(kind.record.values(op, places)), dtype=np.uint64)
            self.words[index * self._record_words :][: len(packed)] = packed
        for index, name in rows:
            self.encode(index, name, ops[index].infos[name])
            self.words[self._descriptor[index, name]] = ops[index].infos[name].address
        self.descriptor_fields = np.array([self.field(i, f"tma_{name}") for i, name in rows], dtype=np.int64)

    def field(self, index: int, name: str) -> int:
        """Position of a field in the record of op `index`."""
        return index * self._record_words + self._fields[self._kind_of_op[index]][name]

    def addresses(self, index: int, name: str) -> list[int]:
        """Positions of the words that hold the address of tensor `name` of op `index`."""
        pointer = self.field(index, f"ptr_{name}")
        return [pointer, self._descriptor[index, name]] if (index, name) in self._descriptor else [pointer]

    def encode(self, index: int, name: str, info: TensorInfo) -> list[int]:
        """Write the tensor's descriptor, but for its address. Returns the positions written; none if it has none."""
        first = self._descriptor.get((index, name))
        if first is None:
            return []
        box = self._kinds[index].descriptors[name]
        # A descriptor cannot describe zero elements; nothing is copied from such a tensor.
        info = replace(info, name="", address=self._address, shape=tuple(max(1, extent) for extent in info.shape))
        self.words[first + 1 : first + _DESCRIPTOR_WORDS] = self._encode(info, box)[1:]
        return list(range(first + 1, first + _DEFINED_WORDS))


def word_of(value: int | float, dtype: torch.dtype) -> int:
    """A scalar as its field holds it: in the lowest bytes of a word."""
    if dtype.is_floating_point:
        return int.from_bytes(struct.pack("<f", value), "little")
    return int(value) & ((1 << (8 * dtype.itemsize)) - 1)


def value_of(word: int, dtype: torch.dtype) -> int | float:
    """The scalar that a field with this word holds."""
    if dtype.is_floating_point:
        return float(struct.unpack("<f", (word & 0xFFFFFFFF).to_bytes(4, "little"))[0])
    bits = 8 * dtype.itemsize
    value = word & ((1 << bits) - 1)
    return value - (1 << bits) if value >> (bits - 1) else value
