"""Small ops of every shape that a graph can have: compute only, in place, many to one, one to many, streaming, scratch.

Tests and `random_graphs` build graphs of them. Values are meant to be small integers in float32, so that every result
is exact whatever the order of additions.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import torch

from machete.megakernel import Op, PipelineSpec, TmaBox
from machete.megakernel.authoring import sync_compute_threads


class Scale(Op):
    """y = factor * x, compute only."""

    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)
    scalars = {"factor": torch.float32}

    @classmethod
    def schedule(cls, *, x, y, factor=2.0, tile_n=256):
        return [cls._schedule_single(tile_sizes={"N": tile_n}, x=x, y=y, factor=factor)]

    @cute.jit
    def compute(self, tile_N, x, y, factor):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = x[n] * factor


class Accumulate(Op):
    """y += x, in place."""

    reads = {"x": (None, ("N",)), "y": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x, y, tile_n=128):
        return [cls._schedule_single(tile_sizes={"N": tile_n}, x=x, y=y)]

    @cute.jit
    def compute(self, tile_N, x, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = y[n] + x[n]


class RowSum(Op):
    """s[m] = sum of x[m, :], tiled by rows: many to one."""

    reads = {"x": (None, ("M", "K"))}
    writes = {"s": (None, ("M",))}
    tile = ("M",)

    @classmethod
    def schedule(cls, *, x, s, tile_m=32):
        return [cls._schedule_single(tile_sizes={"M": tile_m}, x=x, s=s)]

    @cute.jit
    def compute(self, tile_M, x, s):
        row = tile_M * self.tile_size_M + cute.arch.thread_idx()[0]
        if cute.arch.thread_idx()[0] < self.tile_size_M and row < self.M:
            total = cutlass.Float32(0.0)
            for k in cutlass.range(self.K, unroll=1):
                total = total + x[row, k]
            s[row] = total


class Spread(Op):
    """y[m, n] = x[m] + y0[n], tiled both ways: one to many."""

    reads = {"x": (None, ("M",)), "y0": (None, ("N",))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M", "N")

    @classmethod
    def schedule(cls, *, x, y0, y, tile_m=16, tile_n=64):
        return [cls._schedule_single(tile_sizes={"M": tile_m, "N": tile_n}, x=x, y0=y0, y=y)]

    @cute.jit
    def compute(self, tile_M, tile_N, x, y0, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_M * self.tile_size_N, self.threads_per_row):
            m = tile_M * self.tile_size_M + i // self.tile_size_N
            n = tile_N * self.tile_size_N + i % self.tile_size_N
            if m < self.M and n < self.N:
                y[m, n] = x[m] + y0[n]


class StreamAdd(Op):
    """z = x + y through the page ring."""

    reads = {"x": (torch.float32, ("N",)), "y": (torch.float32, ("N",))}
    writes = {"z": (torch.float32, ("N",))}
    tile = ("N",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=2, page_bytes=1024)

    @classmethod
    def schedule(cls, *, x, y, z):
        return [cls._schedule_single(tile_sizes={"N": 256}, x=x, y=y, z=z)]

    @cute.jit
    def load(self, ring, tile_N, x, y):
        first = tile_N * self.tile_size_N
        count = cutlass.min(self.tile_size_N, self.N - first)
        stage = ring.acquire()
        ring.load_span(stage, x, first, count)
        ring.load_span(stage, y, first, count, offset=1024)
        ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_N):
        stage = ring.wait()
        sX = stage.tensor(self.x_dtype, cute.make_layout(self.tile_size_N))
        sY = stage.tensor(self.y_dtype, cute.make_layout(self.tile_size_N), offset=1024)
        for i in cutlass.range(
            cute.arch.thread_idx()[0],
            cutlass.min(self.tile_size_N, self.N - tile_N * self.tile_size_N),
            self.threads_per_row,
        ):
            sX[i] = sX[i] + sY[i]
        ring.forward(stage)

    @cute.jit
    def store(self, ring, tile_N, z):
        first = tile_N * self.tile_size_N
        stage = ring.wait()
        ring.store_span(stage, z, first, cutlass.min(self.tile_size_N, self.N - first))
        ring.release(stage)


class StreamTotal(Op):
    """s[0] = sum of x: one tile, many stages, an accumulator in registers across all of `compute`.

    Its stages are of one page: another size than `StreamAdd`'s, in the same ring.
    """

    reads = {"x": (torch.float32, ("N",))}
    writes = {"s": (torch.float32, ("one",))}
    tile = ("one",)
    pipeline = PipelineSpec.streaming(input_stages=4, stage_pages=1, page_bytes=1024)

    @classmethod
    def schedule(cls, *, x, s):
        return [cls._schedule_single(tile_sizes={"one": 1}, x=x, s=s)]

    @cute.jit
    def load(self, ring, x):
        for chunk in cutlass.range((self.N + 255) // 256, unroll=1):
            stage = ring.acquire()
            ring.load_span(stage, x, chunk * 256, cutlass.min(256, self.N - chunk * 256))
            ring.commit(stage)

    @cute.jit
    def compute(self, ring, s):
        total = cutlass.Float32(0.0)
        for chunk in cutlass.range((self.N + 255) // 256, unroll=1):
            stage = ring.wait()
            sX = stage.tensor(self.x_dtype, cute.make_layout(256))
            for i in cutlass.range(
                cute.arch.thread_idx()[0] % 32, cutlass.min(256, self.N - chunk * 256), 32, unroll=1
            ):
                total = total + sX[i]
            ring.release(stage)
        for shift in cutlass.range_constexpr(5):
            total = total + cute.arch.shuffle_sync_bfly(total, 16 >> shift)
        if cute.arch.thread_idx()[0] == 0:
            s[0] = total


class ReverseTiles(Op):
    """y = x with every whole tile of 64 elements reversed, through a scratch page."""

    reads = {"x": (torch.float32, ("N",))}
    writes = {"y": (torch.float32, ("N",))}
    tile = ("N",)
    pipeline = PipelineSpec.plain(pages=1, page_bytes=1024)

    @classmethod
    def schedule(cls, *, x, y):
        return [cls._schedule_single(tile_sizes={"N": 64}, x=x, y=y)]

    @cute.jit
    def compute(self, page_ptr, tile_N, x, y):
        sX = cute.make_tensor(cute.recast_ptr(page_ptr, dtype=cutlass.Float32), cute.make_layout(64))
        first = tile_N * 64
        count = cutlass.min(64, self.N - first)
        thread = cute.arch.thread_idx()[0]
        if thread < count:
            sX[thread] = x[first + thread]
        sync_compute_threads()
        if thread < count:
            source = thread
            if count == 64:
                source = 63 - thread
            y[first + thread] = sX[source]


class TensorProduct(Op):
    """c = a @ b.T in tf32, accumulated in tensor memory: tiles of 128 x 16, a stage for every 8 columns of K.

    a (M, K), b (N, K), c (M, N); K a multiple of 4. Tensor cores ignore the low 13 bits of a and b.
    """

    targets = ("sm_100a",)
    reads = {"a": (torch.float32, ("M", "K")), "b": (torch.float32, ("N", "K"))}
    writes = {"c": (torch.float32, ("M", "N"))}
    tile = ("M", "N")
    resizable = ("M", "N", "K")
    pipeline = PipelineSpec.streaming(input_stages=3, stage_pages=5, page_bytes=1024)

    columns = 8  # of K in a stage: 32 bytes, swizzled
    b_offset = 4096
    rows = 6 << 61 | 1 << 46 | (256 >> 4) << 32 | 1 << 16  # of 32 bytes: PTX ISA, "tcgen05 Shared memory descriptor"
    product = 1 << 4 | 2 << 7 | 2 << 10 | 16 // 8 << 17 | 128 // 16 << 24  # "tcgen05 Instruction descriptor"

    @classmethod
    def schedule(cls, *, a, b, c):
        return [cls._schedule_single(tile_sizes={"M": 128, "N": 16}, a=a, b=b, c=c)]

    @classmethod
    def descriptors(cls, op):
        return {"a": TmaBox((128, cls.columns), swizzle=32), "b": TmaBox((16, cls.columns), swizzle=32)}

    @cute.jit
    def load(self, ring, tile_M, tile_N, tma_a, tma_b):
        for k in cutlass.range(0, self.K, self.columns, unroll=1):
            stage = ring.acquire()
            ring.load_tile(stage, tma_a, (tile_M * 128, k))
            ring.load_tile(stage, tma_b, (tile_N * 16, k), offset=self.b_offset)
            ring.commit(stage)

    @cute.jit
    def multiply(self, ring, accumulators):
        sums = accumulators.acquire()
        for k in cutlass.range(0, self.K, self.columns, unroll=1):
            stage = ring.wait()
            with cute.arch.elect_one():
                a, b = ((stage.address + offset & 0x3FFFF) >> 4 for offset in (0, self.b_offset))
                cute.arch.inline_ptx(
                    "{ .reg .pred adds; setp.ne.u32 adds, {$r4}, 0; "
                    "tcgen05.mma.cta_group::1.kind::tf32 [{$r0}], {$r1}, {$r2}, {$r3}, adds; }",
                    read_only_args=[
                        sums,
                        cutlass.Int64(self.rows) | cutlass.Int64(a),
                        cutlass.Int64(self.rows) | cutlass.Int64(b),
                        cutlass.Int32(self.product),
                        k,
                    ],
                )
            ring.release(stage)
        accumulators.commit()

    @cute.jit
    def compute(self, accumulators, tile_M, tile_N, c):
        thread = cute.arch.thread_idx()[0]
        row = tile_M * 128 + thread % 128
        first = thread // 128 * 8  # each warpgroup takes half of the columns
        sums = accumulators.wait()
        values = cute.make_rmem_tensor((8,), cutlass.Float32)
        values.fill(0.0)
        if self.K > 0:
            taken = accumulators.read(sums, first, 8)
            for i in cutlass.range_constexpr(8):
                values[i] = taken[i]
        accumulators.release()
        for i in cutlass.range_constexpr(8):
            column = tile_N * 16 + first + i
            if row < self.M and column < self.N:
                c[row, column] = values[i]
