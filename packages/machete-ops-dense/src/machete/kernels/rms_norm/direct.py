"""Rows from global memory: few rows, where latency counts, and every layout that bulk copies do not take."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from machete.kernels.elementwise.rows import global_vector, store_vector
from machete.megakernel import PipelineSpec
from machete.megakernel.authoring import COMPUTE_WARPS

from .op import RMSNormOp
from .reduce import row_sums, scale_by, square_sum


class DirectRMSNorm(RMSNormOp):
    """`row_threads` threads share a row; each holds its `steps` vectors in registers, or with 0 reads them twice."""

    pipeline = PipelineSpec.plain(page_bytes=1024)

    @cute.jit
    def compute(self, tiles, dependencies, page_ptr, x, weight, y):
        thread = cute.arch.thread_idx()[0]
        own, group = thread % self.row_threads, thread // self.row_threads
        partial = cute.make_tensor(cute.recast_ptr(page_ptr, dtype=Float32), cute.make_layout((COMPUTE_WARPS, 1, 2)))
        columns = [(own + step * self.row_threads) * self.vector for step in range(self.steps)]
        weights = [read_vector(weight_rows(weight), 0, column, self.vector) for column in columns]
        dependencies.wait()
        side = Int32(0)
        for number in cutlass.range(tiles.count, unroll=1):
            row = tiles.index(number, "M") * self.tile_size_M + group
            total = Float32(0.0)
            values = [read_vector(x, row, column, self.vector) for column in columns]
            for vector in values:
                total = total + square_sum(vector)
            if const_expr(self.steps == 0):
                for column in cutlass.range(own * self.vector, self.D, self.row_threads * self.vector, unroll=4):
                    total = total + square_sum(read_vector(x, row, column, self.vector))
            # Two sides by turns: who still reads the sum of the row before is not overtaken.
            sums = row_sums([total], partial[None, None, side], self.row_threads)
            side = side ^ 1
            factor = cute.math.rsqrt(sums[0] / Float32(self.D) + Float32(self.eps))
            for step in cutlass.range_constexpr(self.steps):
                scale_by(values[step], factor, weights[step])
                write_vector(y, row, columns[step], values[step], self.vector)
            if const_expr(self.steps == 0):
                for column in cutlass.range(own * self.vector, self.D, self.row_threads * self.vector, unroll=4):
                    vector = read_vector(x, row, column, self.vector)
                    scale_by(vector, factor, read_vector(weight_rows(weight), 0, column, self.vector))
                    write_vector(y, row, column, vector, self.vector)


def weight_rows(weight):
    """The weight as a matrix of one row."""
    layout = cute.make_layout((1, weight.shape[0]), stride=(0, weight.stride[0]))
    return cute.make_tensor(weight.iterator, layout)


@cute.jit
def read_vector(source, row, column, count: cutlass.Constexpr):
    """`count` neighbours in registers; zeros outside the tensor."""
    values = cute.make_rmem_tensor((count,), source.element_type)
    values.fill(0.0)
    if row < source.shape[0] and column < source.shape[1]:
        found = global_vector(source, row, column, count)
        for i in cutlass.range_constexpr(count):
            values[i] = found[i]
    return values


@cute.jit
def write_vector(target, row, column, values, count: cutlass.Constexpr):
    """The counterpart of `read_vector`."""
    if row < target.shape[0] and column < target.shape[1]:
        store_vector(target, row, column, values, count)
