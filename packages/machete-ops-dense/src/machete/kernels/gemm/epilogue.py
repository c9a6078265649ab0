"""From accumulators to c: one place that knows rows, columns, edges, epilogues and the result type."""

import cutlass
import cutlass.cute as cute
from cutlass import Int64, const_expr

CHUNK = 16  # blocks whose epilogue operands are fetched together, so that their latencies overlap


@cute.jit
def store_pair(c, batch, row, column, first, second):
    """Store c[batch, row, column] and its right neighbour, where they exist; `column` is even."""
    _batches, rows, columns = c.shape
    if row < rows:
        dtype = c.element_type
        pair_bytes = dtype.width // 4
        if const_expr(c.iterator.alignment >= pair_bytes and _unit_inner(c)):
            if column + 1 < columns:
                address = c.iterator.toint() + (
                    Int64(batch) * c.stride[0] + Int64(row) * c.stride[1] + Int64(column)
                ) * (dtype.width // 8)
                pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=pair_bytes)
                pair = cute.make_rmem_tensor((2,), dtype)
                pair[0] = first.to(dtype)
                pair[1] = second.to(dtype)
                cute.autovec_copy(pair, cute.make_tensor(pointer, cute.make_layout(2)))
            elif column < columns:
                c[batch, row, column] = first.to(dtype)
        else:
            if column < columns:
                c[batch, row, column] = first.to(dtype)
            if column + 1 < columns:
                c[batch, row, column + 1] = second.to(dtype)


def _unit_inner(c) -> bool:
    return isinstance(c.stride[-1], int) and c.stride[-1] == 1


@cute.jit
def store_fragment(c, batch, row, column, accumulators, blocks: cutlass.Constexpr, epilogue: cutlass.Constexpr = ()):
    """Store `blocks` 16x8 blocks (m16n8 accumulator layout) side by side from `row`, `column` of this warp.

    Lane l holds rows l/4 and l/4 + 8, columns 2(l%4) and 2(l%4) + 1 of each block (PTX ISA, mma.m16n8k16); wgmma's
    accumulators are the same blocks, one above the other by warp. `epilogue` applies to each element before.
    """
    lane = cute.arch.thread_idx()[0] % 32
    for half in cutlass.range_constexpr(2):
        own_row = row + lane // 4 + half * 8
        for begin in cutlass.range_constexpr(0, blocks, CHUNK):
            count = min(CHUNK, blocks - begin)
            first = column + begin * 8 + lane % 4 * 2
            fetched = [_fetch_pair(c, epilogue, batch, own_row, first + block * 8) for block in range(count)]
            for block in cutlass.range_constexpr(count):
                index = (begin + block) * 4 + half * 2
                pair = [accumulators[index], accumulators[index + 1]]
                for position in cutlass.range_constexpr(len(epilogue)):
                    for i in cutlass.range_constexpr(2):
                        pair[i] = epilogue[position].apply(pair[i], fetched[block][i][position])
                store_pair(c, batch, own_row, first + block * 8, pair[0], pair[1])


def _fetch_pair(c, epilogue, batch, row, column):
    """What the epilogues read for c[batch, row, column] and its right neighbour.

    Beyond the edges they read the last row and column: loads without branches are all on their way at once.
    """
    _batches, rows, columns = c.shape
    last_row, last_column = cutlass.min(row, rows - 1), columns - 1
    return [
        [fusion.fetch(batch, last_row, cutlass.min(column + i, last_column)) for fusion in epilogue] for i in range(2)
    ]
