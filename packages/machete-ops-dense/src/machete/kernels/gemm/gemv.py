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

from .op import PAGE_BYTES, GemmOp, operands, streams_rows

VECTOR = 8  # elements of a 16-byte access
MAX_ROWS = 4
MAX_ACTIVATIONS = 160  # registers of a thread for rows of a; weights and sums need the others
RING_PAGES = 14  # if they fit: the deeper the ring, the longer the wait for a dependency that it covers
LARGEST_STAGE = 2 * PAGE_BYTES  # two stages of it fit every target
CHUNK = 32  # stages between two meetings of the partial sums
GROUP = 4  # stages whose sums over the warp are made together
MAX_GROUPED_REGISTERS = 150  # of a thread, for activations, weights of two stages and the sums of a group


#: What `fits` asks for, in words.
LIMITS = (
    f"a has at most {MAX_ROWS} rows of one batch, a row of b (with its pair) has at most {LARGEST_STAGE} bytes, "
    "and K is a multiple of 64"
)


def fits(op: ScheduledOp) -> bool:
    """Whether this path takes the product: few rows of one batch, b's rows in 16-byte units for every warp."""
    if op.extents["B"] != 1 or op.extents["M"] > MAX_ROWS or not streams_rows(op) or stage_rows(op) is None:
        return False
    return padded_rows(op) * row_vectors(op) * VECTOR <= MAX_ACTIVATIONS


def padded_rows(op: ScheduledOp) -> int:
    """Rows of a that the code is for: the next power of two."""
    return 1 << (max(op.extents["M"], 1) - 1).bit_length()


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


def is_grouped(op: ScheduledOp) -> bool:
    """Whether there are registers to work on `GROUP` stages at once."""
    rows, vectors = padded_rows(op), row_vectors(op)
    activations, weights, sums = rows * vectors * VECTOR, 2 * vectors * VECTOR // 2, rows * GROUP
    return activations + weights + sums <= MAX_GROUPED_REGISTERS


def row_vectors(op: ScheduledOp) -> int:
    """Vectors of a row that one lane multiplies."""
    rows = stage_rows(op)
    assert rows is not None
    return -(-(op.extents["K"] * rows * operands(op) // COMPUTE_WARPS) // (32 * VECTOR))


def lowered(op: ScheduledOp) -> ScheduledOp:
    """The op as this path runs it."""
    rows = stage_rows(op)
    assert rows is not None  # `fits` said so
    k = op.extents["K"]
    packed = op.infos["b"].strides[1] == k
    tile_sizes = {"B": 1, "M": padded_rows(op), "N": rows}
    config = {**op.config, "k": k, "packed": packed, "grouped": is_grouped(op)}
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
            first = tiles.tile(number) * self.tile_size_N  # one batch and one tile of rows: N alone counts
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
                        # Only the first warp needs them; the others fetch one element that is there, of this chunk:
                        # where the result takes the operand's place, other CTAs overwrite what is theirs.
                        valid = warp == 0 and columns[i] < self.N and row < self.M
                        place = (
                            cutlass.select_(valid, Int32(row), Int32(0)),
                            cutlass.select_(valid, columns[i], self._column(tiles, begin, Int32(0), stages)),
                        )
                        fetched.append([fusion.fetch(0, *place) for fusion in epilogue])
            together = GROUP if const_expr(self.grouped) else 1
            in_groups = stages // together * together
            segment = (self.b_dtype, warp * (length * 2), lane, steps, length)
            for number in cutlass.range(0, in_groups, together, unroll=1):
                sums = multiply_stages(ring, together, rows, *segment)
                keep_totals(partial, sums, self.tile_size_M, warp, lane, number)
            for number in cutlass.range(in_groups, stages, unroll=1):
                sums = multiply_stages(ring, 1, rows, *segment)
                keep_totals(partial, sums, self.tile_size_M, warp, lane, number)
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
            tile = tiles.tile(begin + output // self.tile_size_N)
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
        total = warp_sums([total], lane)
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
def multiply_stages(
    ring,
    count: cutlass.Constexpr,
    rows: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    offset,
    lane,
    steps: cutlass.Constexpr,
    length: cutlass.Constexpr,
):
    """The lane's share of the dot products of `count` stages with each row of a, stage by stage; releases the stages.

    The weights of a stage are fetched while those of the stage before are multiplied.
    """
    sums = []
    stage = ring.wait()
    weights = fetch_weights(stage, dtype, offset, lane, steps, length)
    for number in cutlass.range_constexpr(count):
        following, next_weights = stage, weights
        if const_expr(number + 1 < count):
            following = ring.wait()
            next_weights = fetch_weights(following, dtype, offset, lane, steps, length)
        ring.release(stage, after=[cute.recast_tensor(vector, Int32)[0] for vector in weights])
        sums += [dot_product(weights, row) for row in rows]
        stage, weights = following, next_weights
    return sums


@cute.jit
def fetch_weights(stage, dtype: cutlass.Constexpr, offset, lane, steps: cutlass.Constexpr, length: cutlass.Constexpr):
    """The lane's vectors of a segment that begins `offset` bytes into the stage; zeros outside of it."""
    address = stage.address + (offset + lane * (VECTOR * 2))
    vectors = []
    for step in cutlass.range_constexpr(steps):
        vector = cute.make_rmem_tensor((VECTOR,), dtype)
        if const_expr(inside(lane, step, length) is not True):
            vector.fill(0.0)
        if inside(lane, step, length):
            pointer = shared_pointer(dtype, address + step * (32 * VECTOR * 2), 16)
            cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(VECTOR)), vector)
        vectors.append(vector)
    return vectors


def dot_product(vectors, row):
    """Of the lane's weights with its activations, in float32; four sums side by side, so that none waits for itself."""
    parts = [Float32(0.0) for _ in range(4)]
    for step, vector in enumerate(vectors):
        for i in range(VECTOR):
            parts[i % 4] = parts[i % 4] + vector[i].to(Float32) * row[step * VECTOR + i]
    return (parts[0] + parts[1]) + (parts[2] + parts[3])


@cute.jit
def keep_totals(partial, sums: cutlass.Constexpr, rows: cutlass.Constexpr, warp, lane, number):
    """Add up each of the sums (stage by stage, row by row) over the warp; `number` is that of the first stage."""
    lanes = 32 // len(sums)
    total = warp_sums(sums, lane)
    index = lane // lanes
    if lane % lanes == 0:
        partial[warp, index % rows, number + index // rows] = total


def warp_sums(values, lane):
    """Of 2^n values, the sum of value i over the warp, in the 32 / 2^n lanes from lane i * 32 / 2^n on.

    Two lanes that meet each keep one half of the values and hand the other half over, so n values take about n
    shuffles, and not 5 n. Of one value every lane has the sum.
    """
    distance = 16
    while len(values) > 1:
        half = len(values) // 2
        upper = (lane & distance) != 0
        kept = [cutlass.select_(upper, values[half + i], values[i]) for i in range(half)]
        given = [cutlass.select_(upper, values[i], values[half + i]) for i in range(half)]
        values = [own + cute.arch.shuffle_sync_bfly(other, distance) for own, other in zip(kept, given, strict=True)]
        distance //= 2
    value = values[0]
    while distance > 0:
        value = value + cute.arch.shuffle_sync_bfly(value, distance)
        distance //= 2
    return value


def add_segments(partial, first, segments: int, row, number):
    """The sum of the partial sums of `segments` neighbouring warps."""
    total = partial[first, row, number]
    for segment in range(1, segments):
        total = total + partial[first + segment, row, number]
    return total
