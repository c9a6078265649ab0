"""y = x, but at least `low` and at most `high`."""

import cutlass
import cutlass.cute as cute
import torch

from machete.megakernel import Op


class ClampOp(Op):
    """x and y are (M, N) with any strides; the bounds are runtime scalars."""

    reads = {"x": (None, ("M", "N"))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M", "N")
    scalars = {"low": torch.float32, "high": torch.float32}

    @classmethod
    def schedule(cls, *, x, y, low, high, tile_n=256):
        return [cls._schedule_single(tile_sizes={"M": 4, "N": tile_n}, x=x, y=y, low=low, high=high)]

    @cute.jit
    def compute(self, tile_M, tile_N, x, y, low, high):
        for i in cutlass.range(cute.arch.thread_idx()[0], 4 * self.tile_size_N, self.threads_per_row):
            m = tile_M * 4 + i // self.tile_size_N
            n = tile_N * self.tile_size_N + i % self.tile_size_N
            if m < self.M and n < self.N:
                value = x[m, n].to(cutlass.Float32)
                if value < low:
                    value = low
                if value > high:
                    value = high
                y[m, n] = value.to(self.y_dtype)
