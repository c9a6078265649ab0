"""One to four rows of a against a large weight: every weight is read once, at the speed of memory.

A stage of the ring holds whole rows of b (and of the GLU's second matrix beside them). The eight compute warps share
it: each multiplies 1/8 of a stage, a segment of one row, by activations that stay in registers for the whole range of
tiles. Partial sums meet in shared memory once for every `CHUNK` stages. Weights have no producer in the graph, so the
loader runs ahead of every dependency; `compute` waits for the activations only when it needs them.
"""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from machete.megakernel import PipelineSpec, ScheduledOp
from machete.megakernel.authoring import (
    COMPUTE_WARPS,
    global_pointer,
    shared_pointer,
    sync_compute_threads,
)

from .op import PAGE_BYTES, GemmOp

VECTOR = 8  # elements of a 16-byte access
MAX_ROWS = 4
MAX_ACTIVATIONS = 160  # registers of a thread for rows of a; weights and sums need the others
RING_PAGES = 14  # if they fit: the deeper the ring, the longer the wait for a dependency that it covers
LARGEST_STAGE = 2 * PAGE_BYTES  # two stages of it fit every target
CHUNK = 32  # stages between two meetings of the partial sums


#: What `fits` asks for, in words.
LIMITS = (
    f"a has at most {MAX_ROWS} rows of one batch, a row of b (with its pair) has at most {LARGEST_STAGE} bytes, "
    "and K is a multiple of 64"
)


def fits(op: ScheduledOp) -> bool:
    """Whether this path takes the product: few rows of one batch, b's rows in 16-byte units for every warp."""
    rows = stage_rows(op)
    if op.extents["B"] != 1 or op.extents["M"] > MAX_ROWS or rows is None:
        return False
    length = op.extents["K"] * rows * operands(op) // COMPUTE_WARPS
    return padded_rows(op) * -(-length // (32 * VECTOR)) * VECTOR <= MAX_ACTIVATIONS


def padded_rows(op: ScheduledOp) -> int:
    """Rows of a that the code is for: the next power of two."""
    return 1 << (max(op.extents["M"], 1) - 1).bit_length()


def operands(op: ScheduledOp) -> int:
    """1, or 2 with a GLU's second matrix."""
    return 1 + sum(slot == "combine" for slot, _, _ in op.op.fusion_types)


def stage_rows(op: ScheduledOp) -> int | None:
    """Results per stage: as many rows of K as fill one page, at most one for each warp; None if K does not suit."""
    k, matrices = op.extents["K"], operands(op)
    rows = COMPUTE_WARPS // matrices
    while rows > 1 and rows * matrices * k * 2 > PAGE_BYTES:
        rows //= 2
    segments = COMPUTE_WARPS // (rows * matrices)
    if rows * matrices * k * 2 > LARGEST_STAGE or k % (segments * VECTOR) != 0:
        return None
    return rows


def lowered(op: ScheduledOp) -> ScheduledOp:
    """The op as this path runs it."""
    rows = stage_rows(op)
    assert rows is not None  # `fits` said so
    k = op.extents["K"]
    packed = op.infos["b"].strides[1] == k
    tile_sizes = {"B": 1, "M": padded_rows(op), "N": rows}
    config = {**op.config, "k": k, "packed": packed}
    kind = GemvGemm.fused(op.op.fusion_types)
    return replace(op, op=kind, tile_sizes=tile_sizes, config=dict(sorted(config.items())), boxes={})


class GemvGemm(GemmOp):
    """`rows` results per stage and tile; a tile covers all rows of a."""

    throttled = True
    first_warp_writes = True
    early = ("prologue",)
    resizable = ()  # K decides about tiles and stages, and the range of tiles is walked as planned
    pipeline = PipelineSpec.streaming(input_stages=RING_PAGES, scratch_bytes=(CHUNK + 1) * COMPUTE_WARPS * 4)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        stage_bytes = op.tile_sizes["N"] * operands(op) * op.config["k"] * 2
        pages = -(-stage_bytes // PAGE_BYTES)
        rows = op.tile_sizes["M"]
        return PipelineSpec.streaming(
            input_stages=RING_PAGES // pages,
            stage_pages=pages,
            page_bytes=PAGE_BYTES,
            elastic=True,
            copied_bytes=stage_bytes,
            scratch_bytes=(CHUNK + 1) * COMPUTE_WARPS * 4 * rows,
        )

    @classmethod
    def cost(cls, op: ScheduledOp) -> tuple[float, float]:
        """Bytes and FLOPs of one tile: the weights of a stage."""
        elements = op.tile_sizes["N"] * operands(op) * op.config["k"]
        return 2.0 * elements, 2.0 * elements * op.tile_sizes["M"]

    @classmethod
    def descriptors(cls, op: ScheduledOp):
        return {}

    @cute.jit
    def load(self, ring, tiles, b, combine):
        row_bytes = self.k * 2
        for number in cutlass.range(tiles.count, unroll=1):
            first = tiles.index(number, "N") * self.tile_size_N
            stage = ring.acquire()
            load_rows(ring, stage, b, first, self.tile_size_N, row_bytes, 0, self.packed)
            for pair in combine:
                offset = self.tile_size_N * row_bytes
                load_rows(ring, stage, pair.up, first, self.tile_size_N, row_bytes, offset, self.packed)
            ring.commit(stage)

    @cute.jit
    def compute(self, ring, tiles, dependencies, page_ptr, a, c, prologue, combine, epilogue):
        thread = cute.arch.thread_idx()[0]
        lane, warp = thread % 32, cute.arch.make_warp_uniform(thread // 32)
        matrices = 1 + len(combine)
        segments = COMPUTE_WARPS // (self.tile_size_N * matrices)
        length = self.k // segments  # elements of a row that one warp multiplies
        column = warp % segments * length + lane * VECTOR
        steps = -(-length // (32 * VECTOR))
        partial = cute.make_tensor(
            cute.recast_ptr(page_ptr, dtype=Float32),
            cute.make_layout((COMPUTE_WARPS, self.tile_size_M, CHUNK + 1)),
        )

        weights = [
            [held_weights(fusion, column + step * 32 * VECTOR, lane, step, length) for step in range(steps)]
            for fusion in prologue
        ]
        dependencies.wait()
        rows = [load_row(a, row, column, lane, steps, length) for row in range(self.tile_size_M)]
        for fusion, held in zip(prologue, weights, strict=True):
            normalise(fusion, held, rows, partial, segments, self.k, warp, lane)

        for begin in cutlass.range(0, tiles.count, CHUNK, unroll=1):
            if begin > 0:
                sync_compute_threads()  # the first warp may still be reading the sums of the chunk before
            stages = cutlass.min(tiles.count - begin, CHUNK)
            columns = [self._column(tiles, begin, lane + 32 * i, stages) for i in range(self.tile_size_N)]
            fetched = []
            if const_expr(len(epilogue) > 0):
                for row in cutlass.range_constexpr(self.tile_size_M):
                    for i in cutlass.range_constexpr(self.tile_size_N):
                        valid = warp == 0 and columns[i] < self.N and row < self.M
                        fetched.append(fetch_epilogue(epilogue, row, columns[i], valid))
            for number in cutlass.range(stages, unroll=1):
                stage = ring.wait()
                address = stage.address + (warp * (length * 2) + lane * (VECTOR * 2))
                sums = multiply_segment(self.b_dtype, ring, stage, address, rows, lane, steps, length)
                for row in cutlass.range_constexpr(self.tile_size_M):
                    total = warp_sum(sums[row])
                    if lane == 0:
                        partial[warp, row, number] = total
            sync_compute_threads()
            if warp == 0:
                for row in cutlass.range_constexpr(self.tile_size_M):
                    for i in cutlass.range_constexpr(self.tile_size_N):
                        if columns[i] < self.N and row < self.M:
                            number, own = (lane + 32 * i) // self.tile_size_N, (lane + 32 * i) % self.tile_size_N
                            value = add_segments(partial, own * segments, segments, row, number)
                            for pair in combine:
                                other = (self.tile_size_N + own) * segments
                                value = apply_fusion(pair, value, add_segments(partial, other, segments, row, number))
                            for position in cutlass.range_constexpr(len(epilogue)):
                                held = fetched[row * self.tile_size_N + i][position]
                                value = apply_fusion(epilogue[position], value, held)
                            c[0, row, columns[i]] = value.to(c.element_type)

    @cute.jit
    def _column(self, tiles, begin, output, stages):
        """The column of c that output number `output` of a chunk is; beyond the last one where there is none."""
        column = Int32(self.N)
        if output < stages * self.tile_size_N:
            tile = tiles.index(begin + output // self.tile_size_N, "N")
            column = tile * self.tile_size_N + output % self.tile_size_N
        return column


def apply_fusion(fusion, value, fetched):
    """`fusion.apply` as a plain call: inside run-time branches the DSL takes `object.method()` for a mutation."""
    return fusion.apply(value, fetched)


@cute.jit
def load_rows(
    ring,
    stage,
    matrix,
    first,
    rows: cutlass.Constexpr,
    row_bytes: cutlass.Constexpr,
    offset: cutlass.Constexpr,
    packed: cutlass.Constexpr,
):
    """Copy `rows` rows of a weight from row `first` on; where the matrix ends, its last row again.

    The warps of rows that do not exist then multiply numbers, and nobody looks at the result.
    """
    if const_expr(packed):
        if first + rows <= matrix.shape[1]:
            ring.load_bytes(stage, row_address(matrix, first), Int32(rows * row_bytes), offset)
        else:
            load_single_rows(ring, stage, matrix, first, rows, row_bytes, offset)
    else:
        load_single_rows(ring, stage, matrix, first, rows, row_bytes, offset)


@cute.jit
def load_single_rows(
    ring,
    stage,
    matrix,
    first,
    rows: cutlass.Constexpr,
    row_bytes: cutlass.Constexpr,
    offset: cutlass.Constexpr,
):
    """One copy for each row."""
    last = matrix.shape[1] - 1
    for row in cutlass.range_constexpr(rows):
        source = row_address(matrix, cutlass.min(first + row, last))
        ring.load_bytes(stage, source, Int32(row_bytes), offset + row * row_bytes)


def row_address(matrix, row):
    """Global address (Int64) of a row of a weight (batch, rows, depth)."""
    return matrix.iterator.toint() + Int64(row) * matrix.stride[1] * 2


def inside(lane, step: int, length: int):
    """Whether the lane's vector of this step lies in the segment: a Python bool where all of them do."""
    if (step + 1) * 32 * VECTOR <= length:
        return True
    return step * 32 * VECTOR + lane * VECTOR < length


@cute.jit
def held_weights(fusion: cutlass.Constexpr, column, lane, step: cutlass.Constexpr, length: cutlass.Constexpr):
    """A prologue's operand for the lane's vector, or the vector before it where there is none."""
    shift = Int32(0)
    if const_expr(inside(lane, step, length) is not True):
        if not inside(lane, step, length):
            shift = Int32(column)
    return fusion.fetch(column - shift, VECTOR)


@cute.jit
def load_row(a, row: cutlass.Constexpr, column, lane, steps: cutlass.Constexpr, length: cutlass.Constexpr):
    """The lane's vectors of row `row` of a as float32; zeros outside the segment and below the last row."""
    values = cute.make_rmem_tensor((steps * VECTOR,), Float32)
    values.fill(0.0)
    for step in cutlass.range_constexpr(steps):
        if inside(lane, step, length) and row < a.shape[1]:
            address = a.iterator.toint() + (Int64(row) * a.stride[1] + Int64(column + step * 32 * VECTOR)) * 2
            source = cute.make_tensor(global_pointer(a.element_type, address, 16), cute.make_layout(VECTOR))
            vector = cute.make_rmem_tensor((VECTOR,), a.element_type)
            cute.autovec_copy(source, vector)
            for i in cutlass.range_constexpr(VECTOR):
                values[step * VECTOR + i] = vector[i].to(Float32)
    return values


@cute.jit
def normalise(
    fusion: cutlass.Constexpr,
    held: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    partial,
    segments: cutlass.Constexpr,
    k: cutlass.Constexpr,
    warp,
    lane,
):
    """Apply a prologue to the activations: the row's statistic from all warps that hold a part of it, then values."""
    for row in cutlass.range_constexpr(len(rows)):
        total = Float32(0.0)
        for i in cutlass.range_constexpr(cute.size(rows[row])):
            total = total + fusion.statistic(rows[row][i])
        total = warp_sum(total)
        if lane == 0:
            partial[warp, row, CHUNK] = total
    sync_compute_threads()
    for row in cutlass.range_constexpr(len(rows)):
        total = add_segments(partial, warp // segments * segments, segments, row, CHUNK)
        scale = fusion.scale(total, k)
        for i in cutlass.range_constexpr(cute.size(rows[row])):
            weight = held[i // VECTOR][i % VECTOR]
            rows[row][i] = fusion.apply(rows[row][i], scale, weight)


@cute.jit
def multiply_segment(
    dtype: cutlass.Constexpr,
    ring,
    stage,
    address,
    rows: cutlass.Constexpr,
    lane,
    steps: cutlass.Constexpr,
    length: cutlass.Constexpr,
):
    """Dot products of the lane's weights with its activations, one for each row of a; releases the stage."""
    vectors = []
    for step in cutlass.range_constexpr(steps):
        vector = cute.make_rmem_tensor((VECTOR,), dtype)
        if const_expr(inside(lane, step, length) is not True):
            vector.fill(0.0)
        if inside(lane, step, length):
            pointer = shared_pointer(dtype, address + step * (32 * VECTOR * 2), 16)
            cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(VECTOR)), vector)
        vectors.append(vector)
    ring.release(stage)
    sums = []
    for row in cutlass.range_constexpr(len(rows)):
        parts = [Float32(0.0) for _ in range(4)]
        for step in cutlass.range_constexpr(steps):
            for i in cutlass.range_constexpr(VECTOR):
                parts[i % 4] = parts[i % 4] + vectors[step][i].to(Float32) * rows[row][step * VECTOR + i]
        sums.append((parts[0] + parts[1]) + (parts[2] + parts[3]))
    return sums


@cute.jit
def warp_sum(value):
    """The sum over the warp, in every lane."""
    for shift in cutlass.range_constexpr(5):
        value = value + cute.arch.shuffle_sync_bfly(value, 16 >> shift)
    return value


def add_segments(partial, first, segments: int, row, number):
    """The sum of the partial sums of `segments` neighbouring warps."""
    total = partial[first, row, number]
    for segment in range(1, segments):
        total = total + partial[first + segment, row, number]
    return total


@cute.jit
def fetch_epilogue(epilogue: cutlass.Constexpr, row: cutlass.Constexpr, column, valid):
    """What the epilogues of one element read, before the product is there."""
    fetched = []
    for position in cutlass.range_constexpr(len(epilogue)):
        value = Float32(0.0)
        if valid:
            value = epilogue[position].fetch(0, row, column)
        fetched.append(value)
    return fetched
