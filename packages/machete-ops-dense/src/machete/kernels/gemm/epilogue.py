"""From accumulators to c: one place that knows rows, columns, edges, epilogues and the result type."""

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int64, Uint32, const_expr

VECTOR_BYTES = 16  # that a thread stores at once
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
            fetched = [fetch_pair(c, epilogue, batch, own_row, first + block * 8) for block in range(count)]
            for block in cutlass.range_constexpr(count):
                index = (begin + block) * 4 + half * 2
                pair = [accumulators[index], accumulators[index + 1]]
                for position in cutlass.range_constexpr(len(epilogue)):
                    for i in cutlass.range_constexpr(2):
                        pair[i] = epilogue[position].apply(pair[i], fetched[block][i][position])
                store_pair(c, batch, own_row, first + block * 8, pair[0], pair[1])


@cute.jit
def stage_fragment(
    c,
    address,
    own_row,
    own_chunk,
    batch,
    row,
    column,
    accumulators,
    first: cutlass.Constexpr,
    blocks: cutlass.Constexpr,
    epilogue: cutlass.Constexpr = (),
):
    """Write `blocks` 16x8 blocks from number `first` on to shared memory, rounded, for TMA to store.

    Shared memory at `address` holds rows of 128 bytes, 64 columns of 16 bits, with the 128-byte swizzle; the blocks are
    its rows from `own_row` on, in 16-byte chunks from `own_chunk` on. They are c[batch, row + own_row:, column:];
    `epilogue` applies before.
    """
    lane = cute.arch.thread_idx()[0] % 32
    dtype = c.element_type
    fetched = [
        [
            fetch_pair(c, epilogue, batch, row + own_row + lane // 4 + half * 8, column + block * 8 + lane % 4 * 2)
            for half in range(2)
        ]
        for block in range(blocks)
    ]
    # stmatrix takes four 8x8 blocks: lane l gives the address of row l % 8 of block l / 8.
    target_row = own_row + lane % 16
    for block in cutlass.range_constexpr(0, blocks, 2):
        words = []
        for neighbour in cutlass.range_constexpr(2):
            for half in cutlass.range_constexpr(2):
                index = (first + block + neighbour) * 4 + half * 2
                pair = [accumulators[index], accumulators[index + 1]]
                for position in cutlass.range_constexpr(len(epilogue)):
                    for i in cutlass.range_constexpr(2):
                        held = fetched[block + neighbour][half][i][position]
                        pair[i] = epilogue[position].apply(pair[i], held)
                words.append(rounded_pair(dtype, pair[0], pair[1]))
        chunk = (own_chunk + block + lane // 16) ^ (target_row % 8)
        _store_matrices(address + (target_row * 128 + chunk * 16), words)


@cute.jit
def store_row(c, batch, row, column, values, epilogue: cutlass.Constexpr = ()):
    """Store neighbours in one row of c, from `column` on: all the values that this thread has."""
    _batches, rows, columns = c.shape
    dtype = c.element_type
    vector = VECTOR_BYTES * 8 // dtype.width
    if row < rows:
        for first in cutlass.range_constexpr(0, cute.size(values), vector):
            place = column + first
            if place < columns:
                last = columns - 1
                fetched = [
                    [fusion.fetch(batch, row, cutlass.min(place + i, last)) for fusion in epilogue]
                    for i in range(vector)
                ]
                ready = cute.make_rmem_tensor((vector,), dtype)
                for i in cutlass.range_constexpr(vector):
                    value = values[first + i]
                    for position in cutlass.range_constexpr(len(epilogue)):
                        value = epilogue[position].apply(value, fetched[i][position])
                    ready[i] = value.to(dtype)
                _store_vector(c, batch, row, place, ready)


@cute.jit
def _store_vector(c, batch, row, column, values):
    """Store the neighbours of c[batch, row, column] that exist: by one access where they all do, and are aligned."""
    columns = c.shape[2]
    count: cutlass.Constexpr = cute.size(values)
    aligned: cutlass.Constexpr = c.iterator.alignment >= VECTOR_BYTES and _unit_inner(c)
    whole = aligned and column + count <= columns
    if whole:
        offset = Int64(batch) * c.stride[0] + Int64(row) * c.stride[1] + Int64(column)
        address = c.iterator.toint() + offset * (c.element_type.width // 8)
        pointer = cute.make_ptr(c.element_type, address, cute.AddressSpace.gmem, assumed_align=VECTOR_BYTES)
        cute.autovec_copy(values, cute.make_tensor(pointer, cute.make_layout(count)))
    else:
        for i in cutlass.range_constexpr(count):
            if column + i < columns:
                c[batch, row, column + i] = values[i]


def rounded_pair(dtype, low, high):
    """Two float32 values as one word of two 16-bit ones (cvt.rn)."""
    name = "bf16x2" if dtype is BFloat16 else "f16x2"
    return cute.arch.inline_ptx(
        f"cvt.rn.{name}.f32 {{$w0}}, {{$r1}}, {{$r0}};", write_only_types=[Uint32], read_only_args=[low, high]
    )


def unpacked_pair(dtype, word):
    """The two float32 values of a word of 16-bit ones."""
    if dtype is BFloat16:
        code = "shl.b32 low, {$r0}, 16; and.b32 high, {$r0}, 0xffff0000;"
        code = "{ .reg .b32 low, high; " + code + " mov.b32 {$w0}, low; mov.b32 {$w1}, high; }"
    else:
        code = "{ .reg .b16 low, high; mov.b32 {low, high}, {$r0}; cvt.f32.f16 {$w0}, low; cvt.f32.f16 {$w1}, high; }"
    return cute.arch.inline_ptx(code, write_only_types=[Float32, Float32], read_only_args=[word])


def _store_matrices(address, words) -> None:
    """stmatrix.x4: four 8x8 blocks of 16-bit elements."""
    cute.arch.inline_ptx(
        "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[address, *words],
    )


def fetch_pair(c, epilogue, batch, row, column):
    """What the epilogues read for c[batch, row, column] and its right neighbour.

    Beyond the edges they read the last row and column: loads without branches are all on their way at once.
    """
    _batches, rows, columns = c.shape
    last_row, last_column = cutlass.min(row, rows - 1), columns - 1
    return [
        [fusion.fetch(batch, last_row, cutlass.min(column + i, last_column)) for fusion in epilogue] for i in range(2)
    ]
