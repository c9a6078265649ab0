"""Device functions for tiles of rows: in and out of the ring, and over global memory.

In a stage the rows of a tile lie one behind the other without gaps, so the compute threads see one run of elements.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from machete.megakernel.authoring import COMPUTE_THREADS, global_pointer, shared_pointer

from .tiles import COPY_BYTES


@cute.jit
def tile_extent(total, first, size: cutlass.Constexpr):
    """How much of a tile of `size` from `first` on lies within `total`."""
    return cutlass.max(cutlass.min(total - first, size), 0)


def address_of(tensor, row, column):
    """Global address (Int64) of tensor[row, column]."""
    itemsize = tensor.element_type.width // 8
    offset = Int64(row) * tensor.stride[0] + Int64(column) * tensor.stride[1]
    return tensor.iterator.toint() + offset * itemsize


@cute.jit
def load_rows(
    ring,
    stage,
    source,
    row,
    column,
    tile_rows: cutlass.Constexpr,
    tile_columns: cutlass.Constexpr,
    offset: cutlass.Constexpr = 0,
):
    """Copy a tile of `source` (rows, columns) from `row`, `column` on to `offset` bytes into the stage."""
    rows = tile_extent(source.shape[0], row, tile_rows)
    columns = tile_extent(source.shape[1], column, tile_columns)
    address = address_of(source, row, column)
    if rows <= 1 or columns == Int32(source.stride[0]):
        run = cute.make_tensor(
            global_pointer(source.element_type, address, COPY_BYTES), cute.make_layout(rows * columns)
        )
        ring.load_span(stage, run, 0, rows * columns, offset)
    else:
        row_bytes = columns * (source.element_type.width // 8)
        step = Int64(source.stride[0]) * (source.element_type.width // 8)
        for i in cutlass.range(rows, unroll=1):
            ring.load_bytes(stage, address + Int64(i) * step, row_bytes, i * row_bytes + offset)


@cute.jit
def store_rows(ring, stage, target, row, column, tile_rows: cutlass.Constexpr, tile_columns: cutlass.Constexpr):
    """Copy a tile from the beginning of the stage to `target` (rows, columns) from `row`, `column` on."""
    rows = tile_extent(target.shape[0], row, tile_rows)
    columns = tile_extent(target.shape[1], column, tile_columns)
    address = address_of(target, row, column)
    if rows <= 1 or columns == Int32(target.stride[0]):
        run = cute.make_tensor(
            global_pointer(target.element_type, address, COPY_BYTES), cute.make_layout(rows * columns)
        )
        ring.store_span(stage, run, 0, rows * columns)
    else:
        row_bytes = columns * (target.element_type.width // 8)
        step = Int64(target.stride[0]) * (target.element_type.width // 8)
        for i in cutlass.range(rows, unroll=1):
            pointer = global_pointer(target.element_type, address + Int64(i) * step, COPY_BYTES)
            run = cute.make_tensor(pointer, cute.make_layout(columns))
            ring.store_span(within(stage, i * row_bytes), run, 0, columns)


def within(stage, nbytes):
    """The stage from `nbytes` on."""
    return replace(stage, address=stage.address + nbytes)


def shared_vector(dtype, address, count: int):
    """`count` elements at a shared address, 16 bytes in all, as a tensor."""
    return cute.make_tensor(shared_pointer(dtype, address, COPY_BYTES), cute.make_layout(count))


@cute.jit
def combine_stage(function: cutlass.Constexpr, dtype: cutlass.Constexpr, stage, count, second: cutlass.Constexpr):
    """stage[i] = function(stage[i], stage[second bytes + i]) for `count` elements, in float32."""
    itemsize = dtype.width // 8
    width = COPY_BYTES // itemsize
    thread = cute.arch.thread_idx()[0]
    vectors = count // width
    for i in cutlass.range(thread, vectors, COMPUTE_THREADS, unroll=2):
        address = stage.address + i * COPY_BYTES
        one, other = cute.make_rmem_tensor((width,), dtype), cute.make_rmem_tensor((width,), dtype)
        cute.autovec_copy(shared_vector(dtype, address, width), one)
        cute.autovec_copy(shared_vector(dtype, address + second, width), other)
        for j in cutlass.range_constexpr(width):
            one[j] = function(one[j].to(Float32), other[j].to(Float32)).to(dtype)
        cute.autovec_copy(one, shared_vector(dtype, address, width))
    for i in cutlass.range(vectors * width + thread, count, COMPUTE_THREADS, unroll=1):
        one = cute.make_tensor(shared_pointer(dtype, stage.address + i * itemsize, itemsize), cute.make_layout(1))
        other = cute.make_tensor(
            shared_pointer(dtype, stage.address + i * itemsize + second, itemsize), cute.make_layout(1)
        )
        one[0] = function(one[0].to(Float32), other[0].to(Float32)).to(dtype)


@cute.jit
def combine_tile(
    function: cutlass.Constexpr,
    first,
    second,
    result,
    row,
    column,
    tile_rows: cutlass.Constexpr,
    tile_columns: cutlass.Constexpr,
    vector: cutlass.Constexpr,
):
    """result = function(first, second) in float32 on a tile of global memory, `vector` elements at a time."""
    per_row = tile_columns // vector
    for i in cutlass.range(cute.arch.thread_idx()[0], tile_rows * per_row, COMPUTE_THREADS, unroll=1):
        m, n = row + i // per_row, column + i % per_row * vector
        if m < result.shape[0] and n < result.shape[1]:
            one = global_vector(first, m, n, vector)
            other = global_vector(second, m, n, vector)
            values = cute.make_rmem_tensor((vector,), result.element_type)
            for j in cutlass.range_constexpr(vector):
                values[j] = function(one[j].to(Float32), other[j].to(Float32)).to(result.element_type)
            store_vector(result, m, n, values, vector)


def global_vector(source, row, column, count: int):
    """`count` neighbours of source[row, column] in registers; with more than one, at a 16-byte boundary."""
    values = cute.make_rmem_tensor((count,), source.element_type)
    if const_expr(count == 1):
        values[0] = source[row, column]
    else:
        pointer = global_pointer(source.element_type, address_of(source, row, column), COPY_BYTES)
        cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(count)), values)
    return values


def store_vector(target, row, column, values, count: int) -> None:
    """The counterpart of `global_vector`."""
    if const_expr(count == 1):
        target[row, column] = values[0]
    else:
        pointer = global_pointer(target.element_type, address_of(target, row, column), COPY_BYTES)
        cute.autovec_copy(values, cute.make_tensor(pointer, cute.make_layout(count)))
