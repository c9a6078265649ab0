"""Ops for the fault suite that use all that the persistent kernel has for an op: what nobody uses cannot be broken."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32

from machete.megakernel import Op, PipelineSpec

CHUNK = 256  # elements from a chunk of a row to the next; all are used, or all but one: no multiple of 16 bytes
ROW = 3 * CHUNK


class Mix(Op):
    """For each row x: its first two chunks + 1 to y, the sum of all three to s, the row's number to m.

    y leaves by the storer's copies, while compute still reads the last chunk and writes s itself; m is written by the
    storer's lanes, after they have released their last stage. All three overlap where they are given the same rows.
    """

    reads = {"x": (torch.float32, ("T", "E"))}
    writes = {"y": (torch.float32, ("T", "E")), "s": (torch.float32, ("T", "E")), "m": (torch.float32, ("T", "E"))}
    tile = ("T",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=1, page_bytes=4 * CHUNK)

    @classmethod
    def schedule(cls, *, x, y, s, m):
        return [cls._schedule_single(tile_sizes={"T": 1}, x=x, y=y, s=s, m=m)]

    @cute.jit
    def load(self, ring, tile_T, x):
        for chunk in cutlass.range(3, unroll=1):
            stage = ring.acquire()
            ring.load_span(stage, x[tile_T, None], chunk * CHUNK, used(tile_T, chunk))
            ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_T, s):
        total = Float32(0.0)
        for chunk in cutlass.range_constexpr(2):
            stage = ring.wait()
            total = total + self._increment(stage, used(tile_T, chunk))
            ring.forward(stage)
        stage = ring.wait()
        self._add_up(stage, used(tile_T, 2), total, s[tile_T, None])
        ring.release(stage)

    @cute.jit
    def _increment(self, stage, count):
        """Add one to the thread's value in the stage; what it was."""
        thread = cute.arch.thread_idx()[0]
        values = stage.tensor(Float32, cute.make_layout(CHUNK))
        value = Float32(0.0)
        if thread < count:
            value = values[thread]
            values[thread] = value + 1.0
        return value

    @cute.jit
    def _add_up(self, stage, count, total, row):
        """The thread's value in the stage and the total of the others to a row of s."""
        thread = cute.arch.thread_idx()[0]
        if thread < count:
            row[CHUNK + thread] = stage.tensor(Float32, cute.make_layout(CHUNK))[thread] + total

    @cute.jit
    def store(self, ring, tile_T, y, m):
        for chunk in cutlass.range(2, unroll=1):
            stage = ring.wait()
            ring.store_span(stage, y[tile_T, None], chunk * CHUNK, used(tile_T, chunk))
            ring.release(stage)
        m[tile_T, cute.arch.thread_idx()[0] % 32] = Float32(tile_T)


class MixPairs(Mix):
    """The same in stages of two pages."""

    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=2, page_bytes=4 * CHUNK)


class MixLarge(Mix):
    """The same in pages for which the tensor cores' operands leave room."""

    pipeline = PipelineSpec.streaming(input_stages=12, output_stages=2, stage_pages=1, page_bytes=16 * 1024)


def used(tile, chunk):
    """Elements of a chunk that are used."""
    return CHUNK - (tile + chunk) % 2
