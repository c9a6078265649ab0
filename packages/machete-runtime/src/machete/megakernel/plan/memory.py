"""The memory that ops access, without absolute addresses.

Bytes that are connected through overlapping tensors form a *region*; an access is a footprint within a region.
So a plan says which ops conflict and yet is the same value wherever the tensors happen to lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from machete.megakernel.abi.footprint import Footprint
from machete.megakernel.abi.scheduled import ScheduledOp


@dataclass(frozen=True)
class Access:
    """One tensor of one op.

    Attributes:
        tensor: what the op calls it.
        region: the memory that it lies in.
        footprint: its bytes; addresses count from the region's first byte.
        reads, writes: what the op does with it.
        loaded: the op may read it ahead of its dependencies: `load` names it, or `early` does.
        stored: `store` names it, which writes through the asynchronous proxy.
    """

    tensor: str
    region: int
    footprint: Footprint
    reads: bool
    writes: bool
    loaded: bool
    stored: bool


def accesses_of(ops: Sequence[ScheduledOp]) -> tuple[tuple[Access, ...], ...]:
    """Accesses of each op. Tensors without elements, and ops without tiles, touch no memory."""
    infos = [
        (index, info) for index, op in enumerate(ops) if op.num_tiles for info in op.infos.values() if not info.is_empty
    ]
    begins: list[int] = []  # of connected bytes, ascending
    area_of: dict[tuple[int, str], int] = {}
    end = -1
    for index, info in sorted(infos, key=lambda item: item[1].span):
        first, after = info.span
        if first >= end:
            begins.append(first)
        end = max(end, after)
        area_of[index, info.name] = len(begins) - 1

    numbers: dict[int, int] = {}  # areas, numbered in the order of first use
    accesses: list[list[Access]] = [[] for _ in ops]
    for index, info in infos:
        declaration = ops[index].op.declaration
        area = area_of[index, info.name]
        accesses[index].append(
            Access(
                tensor=info.name,
                region=numbers.setdefault(area, len(numbers)),
                footprint=replace(info.footprint, address=info.address - begins[area]),
                reads=declaration.tensors[info.name].is_read,
                writes=declaration.tensors[info.name].is_written,
                loaded=info.name in declaration.read_ahead,
                stored=declaration.tensors[info.name].is_written and info.name in declaration.named_by("store"),
            )
        )
    return tuple(map(tuple, accesses))
