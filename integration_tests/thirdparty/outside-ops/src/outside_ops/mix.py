"""z = x + weight (y - x), streamed through the page ring."""

import cutlass
import cutlass.cute as cute
import torch

from machete.megakernel import Op, PipelineSpec

SPAN = 1024  # elements in a tile: 4 KiB of each operand


class MixOp(Op):
    """x, y and z are (N,) float32, contiguous; the weight is a runtime scalar."""

    reads = {"x": (torch.float32, ("N",)), "y": (torch.float32, ("N",))}
    writes = {"z": (torch.float32, ("N",))}
    tile = ("N",)
    scalars = {"weight": torch.float32}
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=2, page_bytes=4 * SPAN)
    throttled = True

    @classmethod
    def schedule(cls, *, x, y, z, weight):
        return [cls._schedule_single(tile_sizes={"N": SPAN}, x=x, y=y, z=z, weight=weight)]

    @cute.jit
    def load(self, ring, tile_N, x, y):
        first = tile_N * SPAN
        count = cutlass.min(SPAN, self.N - first)
        stage = ring.acquire()
        ring.load_span(stage, x, first, count)
        ring.load_span(stage, y, first, count, offset=4 * SPAN)
        ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_N, weight):
        stage = ring.wait()
        sX = stage.tensor(cutlass.Float32, cute.make_layout(SPAN))
        sY = stage.tensor(cutlass.Float32, cute.make_layout(SPAN), offset=4 * SPAN)
        count = cutlass.min(SPAN, self.N - tile_N * SPAN)
        for i in cutlass.range(cute.arch.thread_idx()[0], count, self.threads_per_row):
            sX[i] = sX[i] + weight * (sY[i] - sX[i])
        ring.forward(stage)

    @cute.jit
    def store(self, ring, tile_N, z):
        first = tile_N * SPAN
        stage = ring.wait()
        ring.store_span(stage, z, first, cutlass.min(SPAN, self.N - first))
        ring.release(stage)
