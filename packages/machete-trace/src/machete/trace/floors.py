"""What a graph cannot be faster than: its bytes at the speed of the memory, its FLOPs at that of the tensor cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from machete.megakernel.tooling import RATES

if TYPE_CHECKING:
    from machete.megakernel import Plan


@dataclass(frozen=True)
class Floor:
    """Of an op, or of a whole graph. Times in µs, with all SMs of the plan, at the rates of the plan's cost model.

    Attributes:
        nbytes: memory that is read, and memory that is written, each byte once.
        flops: on tensor cores.
    """

    nbytes: int
    flops: float
    bytes_us: float
    flops_us: float

    @property
    def us(self) -> float:
        """The larger of both."""
        return max(self.bytes_us, self.flops_us)


def floors(plan: Plan) -> tuple[list[Floor], Floor]:
    """(of each op, of the graph). A graph's bytes count once, however many ops read them."""
    rates = RATES[plan.target.name]
    whole: dict[tuple[object, ...], int] = {}
    each = []

    def floor(nbytes: int, flops: float) -> Floor:
        speed = plan.num_sms
        return Floor(nbytes, flops, nbytes / (speed * rates.bytes_per_us), flops / (speed * rates.flops_per_us))

    for op in plan.ops:
        nbytes = 0
        for access in op.accesses:
            shape = access.footprint.shape
            strides = access.footprint.strides
            size = access.footprint.itemsize * math.prod(
                extent for extent, stride in zip(shape, strides, strict=True) if stride
            )
            for does, name in ((access.reads, "reads"), (access.writes, "writes")):
                if does:
                    nbytes += size
                    whole[name, access.region, access.footprint.address, shape, strides] = size
        each.append(floor(nbytes, op.tile_flops * op.num_tiles))
    return each, floor(sum(whole.values()), sum(op.tile_flops * op.num_tiles for op in plan.ops))
