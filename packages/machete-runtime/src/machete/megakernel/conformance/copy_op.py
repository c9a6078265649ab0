"""An op that moves data around the op under test."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import torch

from machete.megakernel.abi.op import Op
from machete.megakernel.abi.scheduled import ScheduledOp


class CopyOp(Op):
    """target = source, through registers: both (N,), of one integer dtype."""

    reads = {"source": (None, ("N",))}
    writes = {"target": (None, ("N",))}
    tile = ("N",)

    # Bound by the framework while `compute` is traced.
    N: cutlass.Int32
    tile_size_N: int
    threads_per_row: int

    @classmethod
    def schedule(cls, *, source: torch.Tensor, target: torch.Tensor) -> list[ScheduledOp]:
        return [cls._schedule_single(tile_sizes={"N": 1024}, source=source, target=target)]

    @cute.jit
    def compute(self, tile_N, source, target):  # type: ignore[no-untyped-def]
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                target[n] = source[n]
