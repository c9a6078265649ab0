"""Rows through the page ring: copied in, normalised where they lie, copied out."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from machete.kernels.elementwise.rows import load_rows, shared_vector, store_rows, tile_extent
from machete.kernels.elementwise.tiles import COPY_BYTES, PAGE_BYTES
from machete.megakernel import PipelineSpec, ScheduledOp
from machete.megakernel.authoring import COMPUTE_THREADS, COMPUTE_WARPS

from .op import MAX_VALUES, RMSNormOp
from .reduce import SUM_BYTES, row_sums, scale_by, square_sum


class StreamingRMSNorm(RMSNormOp):
    """A tile is as many rows as fill a stage. `row_threads` threads share a row, `steps` vectors of 16 bytes each.

    Each thread holds its part of several rows at once, so that all rows of a batch meet at one barrier.
    """

    pipeline = PipelineSpec.streaming(input_stages=12, output_stages=3, scratch_bytes=2 * SUM_BYTES)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        stages = op.config["ring_pages"] // op.config["stage_pages"]
        return PipelineSpec.streaming(
            input_stages=stages,
            output_stages=max(stages // 4, 1),
            stage_pages=op.config["stage_pages"],
            page_bytes=PAGE_BYTES,
            scratch_bytes=2 * SUM_BYTES * rows_held(op.infos["x"].itemsize, op.config["steps"]),
        )

    @cute.jit
    def load(self, ring, tiles, x):
        for number in cutlass.range(tiles.count, unroll=1):
            stage = ring.acquire()
            load_rows(ring, stage, x, tiles.index(number, "M") * self.tile_size_M, 0, self.tile_size_M, 1 << 30)
            ring.commit(stage)

    @cute.jit
    def compute(self, ring, tiles, dependencies, page_ptr, weight):
        width = 128 // self.x_dtype.width
        group_rows = COMPUTE_THREADS // self.row_threads  # rows side by side
        batches = -(-self.tile_size_M // group_rows)
        held = min(batches, rows_held(self.x_dtype.width // 8, self.steps))
        thread = cute.arch.thread_idx()[0]
        own, group = thread % self.row_threads, thread // self.row_threads
        partial = cute.make_tensor(cute.recast_ptr(page_ptr, dtype=Float32), cute.make_layout((COMPUTE_WARPS, held, 2)))
        weights = [load_weight(weight, own + step * self.row_threads, width) for step in range(self.steps)]
        dependencies.wait()
        side = Int32(0)
        for number in cutlass.range(tiles.count, unroll=1):
            rows = tile_extent(self.M, tiles.index(number, "M") * self.tile_size_M, self.tile_size_M)
            stage = ring.wait()
            for batch in cutlass.range_constexpr(0, batches, held):
                count = min(held, batches - batch)
                values, totals = [], []
                for i in cutlass.range_constexpr(count):
                    row = (batch + i) * group_rows + group
                    vectors = [
                        self._vector(stage, row, rows, own + step * self.row_threads) for step in range(self.steps)
                    ]
                    total = Float32(0.0)
                    for vector in vectors:
                        total = total + square_sum(vector)
                    values.append(vectors)
                    totals.append(total)
                # Two sides by turns: who still reads the sums of the batch before is not overtaken.
                sums = row_sums(totals, partial[None, None, side], self.row_threads)
                side = side ^ 1
                for i in cutlass.range_constexpr(count):
                    row = (batch + i) * group_rows + group
                    factor = cute.math.rsqrt(sums[i] / Float32(self.D) + Float32(self.eps))
                    for step in cutlass.range_constexpr(self.steps):
                        scale_by(values[i][step], factor, weights[step])
                        self._put(stage, row, rows, own + step * self.row_threads, values[i][step])
            ring.forward(stage)

    @cute.jit
    def store(self, ring, tiles, y):
        for number in cutlass.range(tiles.count, unroll=1):
            stage = ring.wait()
            store_rows(ring, stage, y, tiles.index(number, "M") * self.tile_size_M, 0, self.tile_size_M, 1 << 30)
            ring.release(stage)

    @cute.jit
    def _vector(self, stage, row, rows, index):
        """Vector `index` of a row in the stage; zeros where there is none."""
        width = 128 // self.x_dtype.width
        vector = cute.make_rmem_tensor((width,), self.x_dtype)
        vector.fill(0.0)
        if row < rows and index * width < self.D:
            address = stage.address + (row * self.D + index * width) * (self.x_dtype.width // 8)
            cute.autovec_copy(shared_vector(self.x_dtype, address, width), vector)
        return vector

    @cute.jit
    def _put(self, stage, row, rows, index, vector):
        """The counterpart of `_vector`."""
        width = 128 // self.x_dtype.width
        if row < rows and index * width < self.D:
            address = stage.address + (row * self.D + index * width) * (self.x_dtype.width // 8)
            cute.autovec_copy(vector, shared_vector(self.x_dtype, address, width))


def rows_held(itemsize: int, steps: int) -> int:
    """Rows of which a thread holds its part at the same time."""
    return max(1, MAX_VALUES // (steps * (COPY_BYTES // itemsize)))


@cute.jit
def load_weight(weight, index, width: cutlass.Constexpr):
    """Elements index * width … of the weight, those that exist."""
    held = cute.make_rmem_tensor((width,), weight.element_type)
    held.fill(0.0)
    if index * width < weight.shape[0]:
        for i in cutlass.range_constexpr(width):
            held[i] = weight[index * width + i]
    return held
