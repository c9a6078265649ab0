"""Two to sixteen rows of a against a large weight, on tensor cores: every weight is read once, as fast as memory goes.

Rows of b are the narrow operand of mma.m16n8k16, eight at a time, the rows of a the wide one. Each of the eight compute
warps multiplies its own columns of K, and holds its part of a in registers for the whole range of tiles, so that only
weights go through the ring. Partial sums meet in shared memory once per tile. Where a does not fit the registers, K is
cut into slices, which different SMs multiply. The one with the last slice adds up all, always in the same order.

The others hand their sums over through global memory, each with a tag in the same word: whoever sees the tag has the
sum, so nobody waits for a fence or an atomic. Slices before the last wait for nobody, and they come first in every SM's
queue, so the last one does not wait for ever.
"""

from dataclasses import replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64, Uint32, const_expr

from machete.megakernel import PipelineSpec, ScheduledOp, TmaBox, temporary
from machete.megakernel.authoring import (
    COMPUTE_WARPS,
    global_pointer,
    shared_pointer,
    store_tagged,
    sync_compute_threads,
)

from .epilogue import fetch_pair, rounded_pair, store_pair, unpacked_pair
from .gemv import apply_fusion
from .mma_sync import multiply
from .op import PAGE_BYTES, GemmOp, Tensors, operands, streams_rows

MAX_ROWS = 16
UNIT = 32  # columns of K that the four lanes of a row read at once, 16 bytes each: two steps of the MMA
BOX_COLUMNS = UNIT * COMPUTE_WARPS  # of K in one TMA box: a unit for each warp, and the widest box there is
BLOCK = 8  # rows of b that one MMA multiplies
TILE_COLUMNS = (32, 16, 8)  # of c, as rows of b in a box; the more, the fewer boxes
MAX_REGISTERS = 128  # of a thread, for rows of a
MAX_SLICE_REGISTERS = 112  # the same beside what the hand-over of slices needs
HELD_REGISTERS = 128  # with the weights of a prologue, which are read before the dependencies if they fit
MAX_SLICES = 8
RING_PAGES = 14
TYPICAL_SMS = 132
EVEN = 0.9  # a wide tile is good enough if SMs are busy for this part of the time


def fits(op: ScheduledOp) -> bool:
    """Whether this path takes the product."""
    if not 2 <= op.extents["M"] <= MAX_ROWS or op.extents["B"] != 1 or not streams_rows(op) or slices(op) > MAX_SLICES:
        return False
    return slices(op) == 1 or not any(slot == "prologue" for slot, _, _ in op.op.fusion_types)


#: What `fits` asks for, in words.
LIMITS = (
    f"a has 2 to {MAX_ROWS} rows of one batch, elements have 16 bits, b is contiguous along K, "
    "and with a prologue K is at most 4096 (8192 for 8 rows)"
)


def padded_rows(op: ScheduledOp) -> int:
    """Rows of a that the code is for."""
    return 8 if op.extents["M"] <= 8 else MAX_ROWS


def slices(op: ScheduledOp) -> int:
    """Into how many slices K is cut, so that a's part of one fits the registers."""
    boxes, per_box = -(-op.extents["K"] // BOX_COLUMNS), padded_rows(op) // 2
    if boxes * per_box <= MAX_REGISTERS:
        return 1
    count = -(-boxes // (MAX_SLICE_REGISTERS // per_box))
    return 1 << (count - 1).bit_length()


def tile_columns(op: ScheduledOp) -> int:
    """Columns of c in a tile: the most that keep SMs evenly busy."""

    def evenness(columns: int) -> float:
        tiles = -(-op.extents["N"] // columns) * slices(op)
        return tiles / (-(-tiles // TYPICAL_SMS) * TYPICAL_SMS)

    return next((columns for columns in TILE_COLUMNS if evenness(columns) >= EVEN), max(TILE_COLUMNS, key=evenness))


def lowered(op: ScheduledOp) -> ScheduledOp:
    """The op as this path runs it."""
    count, columns = slices(op), tile_columns(op)
    length = -(-op.extents["K"] // (count * BOX_COLUMNS)) * BOX_COLUMNS
    config = dict(sorted({**op.config, "slice_k": length}.items()))
    kind = (FewRowsGemm if count == 1 else SplitFewRowsGemm).fused(op.op.fusion_types)
    tile_sizes = {"B": 1, "M": padded_rows(op), "N": columns}
    if count == 1:
        op = replace(op, op=kind, tile_sizes=tile_sizes, config=config)
    else:
        tiles = -(-op.extents["N"] // columns)
        width = operands(op) * padded_rows(op) * columns
        more = {
            "partial": temporary((tiles, count - 1, width), torch.int64, op.device, zeroed=True),
            "slices": temporary((count,), torch.int32, op.device),
        }
        op = op.with_tensors(kind, more, tile_sizes={**tile_sizes, "S": 1}, config=config)
    return replace(op, boxes=kind.descriptors(op))


class FewRowsGemm(GemmOp):
    """A tile is 8 to 32 columns of c, all rows of a, all of K."""

    throttled = True
    early = ("prologue",)
    resizable = ()  # K decides about the code, and the range of tiles is walked as planned
    pipeline = PipelineSpec.streaming(input_stages=RING_PAGES, scratch_bytes=0)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        rows, columns = op.tile_sizes["M"], op.tile_sizes["N"]
        return PipelineSpec.streaming(
            input_stages=RING_PAGES,
            page_bytes=PAGE_BYTES,
            elastic=True,
            copied_bytes=min(PAGE_BYTES, op.config["slice_k"] * columns * 2),
            scratch_bytes=operands(op) * COMPUTE_WARPS * rows * columns * 4,
        )

    @classmethod
    def cost(cls, op: ScheduledOp) -> tuple[float, float]:
        """Bytes and FLOPs of one tile: its weights."""
        elements = op.tile_sizes["N"] * operands(op) * op.config["slice_k"]
        return 2.0 * elements, 2.0 * elements * MAX_ROWS

    @classmethod
    def descriptors(cls, op: ScheduledOp):
        box = TmaBox((1, op.tile_sizes["N"], BOX_COLUMNS))
        return {name: box for name in op.infos if name == "b" or name.startswith("combine")}

    @property
    def page_boxes(self) -> int:
        """Boxes in a page."""
        return PAGE_BYTES // (self.tile_size_N * BOX_COLUMNS * 2)

    @cute.jit
    def load(self, ring, tiles, tma_b, combine):
        for number in cutlass.range(tiles.count, unroll=1):
            self._load_tile(ring, tiles.index(number, "N"), Int32(0), tma_b, combine)

    @cute.jit
    def _load_tile(self, ring, tile, begin, tma_b, combine):
        """Bring a tile's weights, from column `begin` on."""
        matrices = (tma_b, *(pair.tma_up for pair in combine))
        boxes, row = self.slice_k // BOX_COLUMNS, tile * self.tile_size_N
        for page in cutlass.range(boxes // self.page_boxes, unroll=1):
            load_page(ring, matrices, row, begin + page * (self.page_boxes * BOX_COLUMNS), self.page_boxes)
        if const_expr(boxes % self.page_boxes > 0):
            last = boxes // self.page_boxes * self.page_boxes * BOX_COLUMNS
            load_page(ring, matrices, row, begin + last, boxes % self.page_boxes)

    @cute.jit
    def compute(self, ring, tiles, dependencies, page_ptr, a, c, prologue, combine, epilogue):
        rows = RowFragments(self.a_dtype, self.slice_k, self.tile_size_M)
        # Bound methods, not `sums.method()`, which the DSL takes for a mutation where control flow is dynamic.
        sums = SharedSums(page_ptr, self.tile_size_M, self.tile_size_N)
        fetch, add, store = sums.fetch, sums.add, sums.store
        weights = [rows.held_weights(fusion, a.shape[2]) for fusion in prologue]
        dependencies.wait()
        rows.load(a, Int32(0))
        for fusion, held in zip(prologue, weights, strict=True):
            rows.normalise(fusion, held, page_ptr, a.shape[2])
        for number in cutlass.range(tiles.count, unroll=1):
            column = tiles.index(number, "N") * self.tile_size_N
            fetched = fetch(c, epilogue, column)
            products = multiply_tile(ring, rows, self.b_dtype, 1 + len(combine), self.tile_size_N, self.page_boxes)
            totals = add(products)
            store(c, combine, epilogue, column, totals, fetched)


class SplitFewRowsGemm(FewRowsGemm):
    """A tile is 8 to 32 columns of c, all rows of a, one of S slices of K.

    `partial` holds sums on their way, zero where there is none; `slices` has no contents, it is there for its extent.
    """

    hands_over = True
    writes: ClassVar[Tensors] = {
        **GemmOp.writes,
        "partial": (torch.int64, ("T", "others", "W")),
        "slices": (torch.int32, ("S",)),
    }
    # Slices of one tile are neighbours: the tiles of a range are of one slice if S divides the number of SMs.
    tile: ClassVar[tuple[str, ...]] = ("B", "M", "N", "S")

    @cute.jit
    def load(self, ring, tiles, tma_b, combine):
        for own in cutlass.range(self.S, unroll=1):
            for number in cutlass.range(tiles.count, unroll=1):
                if tiles.index(number, "S") == own:
                    self._load_tile(ring, tiles.index(number, "N"), own * self.slice_k, tma_b, combine)

    @cute.jit
    def compute(self, ring, tiles, dependencies, page_ptr, a, c, partial, combine, epilogue):
        dependencies.wait()
        for own in cutlass.range(self.S, unroll=1):
            found = Int32(0)
            for number in cutlass.range(tiles.count, unroll=1):
                if tiles.index(number, "S") == own:
                    found = Int32(1)
            if found == 1:
                self._multiply_slice(own, ring, tiles, dependencies, page_ptr, a, c, partial, combine, epilogue)

    @cute.jit
    def _multiply_slice(self, own, ring, tiles, dependencies, page_ptr, a, c, partial, combine, epilogue):
        """All tiles of the range that are of slice `own`."""
        # Bound methods, not `sums.method()`, which the DSL takes for a mutation where control flow is dynamic.
        rows = RowFragments(self.a_dtype, self.slice_k, self.tile_size_M)
        sums = SharedSums(page_ptr, self.tile_size_M, self.tile_size_N)
        fetch, add, store, has_piece = sums.fetch, sums.add, sums.store, sums.has_piece
        hand_over, take_over = sums.hand_over, sums.take_over
        rows.load(a, own * self.slice_k)
        for number in cutlass.range(tiles.count, unroll=1):
            if tiles.index(number, "S") == own:
                tile = tiles.index(number, "N")
                column = tile * self.tile_size_N
                products = multiply_tile(ring, rows, self.b_dtype, 1 + len(combine), self.tile_size_N, self.page_boxes)
                totals = add(products)
                if own < self.S - 1:
                    hand_over(partial, tile, own, totals)
                elif has_piece():  # the others would fetch what this warp may have overwritten
                    fetched = fetch(c, epilogue, column)
                    store(c, combine, epilogue, column, take_over(dependencies, partial, tile, own, totals), fetched)


def compute_warp():
    """Number of the compute warp."""
    return cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // 32)


@cute.jit
def load_page(ring, matrices: cutlass.Constexpr, row, column, boxes: cutlass.Constexpr):
    """Fill a page for each matrix with boxes of its rows from `row` on, side by side from `column` on."""
    for matrix in cutlass.range_constexpr(len(matrices)):
        stage = ring.acquire()
        for box in cutlass.range_constexpr(boxes):
            offset = box * matrices[matrix].nbytes
            ring.load_tile(stage, matrices[matrix], (Int32(0), row, column + box * BOX_COLUMNS), offset=offset)
        ring.commit(stage)


class RowFragments:
    """The warp's columns of all rows of a, as MMA operands.

    Columns come in units of 32, dealt to the warps one by one. Lane l has rows l/4 and l/4 + 8, and of each unit the
    eight columns from 8 (l%4) on: two steps of the MMA that take K in an order of their own, the same as for b.
    """

    def __init__(self, dtype: type, length: int, rows: int) -> None:
        self.dtype, self.length = dtype, length
        self.boxes = length // BOX_COLUMNS
        self.halves = rows // 8
        self.words = [cute.make_rmem_tensor((self.boxes * 4,), Uint32) for _ in range(self.halves)]

    def column(self, box: int):
        """First column of the lane's vector."""
        lane = cute.arch.thread_idx()[0] % 32
        return box * BOX_COLUMNS + compute_warp() * UNIT + lane % 4 * 8

    @cute.jit
    def load(self, a, offset):
        """Read the columns from `offset` on; zeros below the last row, and right of the last column."""
        lane = cute.arch.thread_idx()[0] % 32
        for half in cutlass.range_constexpr(self.halves):
            row = lane // 4 + half * 8
            self.words[half].fill(0)
            base = a.iterator.toint() + (Int64(row) * a.stride[1] + Int64(offset)) * 2
            words = self.words[half]
            for box in cutlass.range_constexpr(self.boxes):
                column = self.column(box)
                if row < a.shape[1] and offset + column < a.shape[2]:
                    pointer = global_pointer(Uint32, base + Int64(column * 2), 16)
                    vector = cute.make_rmem_tensor((4,), Uint32)
                    cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(4)), vector)
                    for i in cutlass.range_constexpr(4):
                        words[box * 4 + i] = vector[i]

    def held_weights(self, fusion, columns):
        """A prologue's operand for all vectors of the lane, or None where registers do not suffice for it."""
        if self.boxes * 4 * (self.halves + 1) > HELD_REGISTERS:
            return None
        return [self._weights(fusion, box, columns) for box in range(self.boxes)]

    def _weights(self, fusion, box: int, columns):
        """The operand for one vector: four words of two values, or eight values of a type that has other words."""
        # Where there is no vector, a is zero: any weights will do.
        values = fusion.fetch(cutlass.min(self.column(box), columns - 8), 8)
        if values.element_type is not self.dtype:
            return [values[i] for i in range(8)]
        words = cute.recast_tensor(values, Uint32)
        return [words[i] for i in range(4)]

    def _weight_pair(self, weights, i: int):
        """Two neighbours of what `_weights` returned."""
        return unpacked_pair(self.dtype, weights[i]) if len(weights) == 4 else weights[2 * i : 2 * i + 2]

    @cute.jit
    def normalise(self, fusion: cutlass.Constexpr, held: cutlass.Constexpr, page_ptr, columns):
        """Apply a prologue: each row's statistic from all warps, then the values, rounded to the operand's type.

        Values are unpacked two at a time: all at once, they would not fit the registers.
        """
        lane = cute.arch.thread_idx()[0] % 32
        statistics = cute.make_tensor(
            cute.recast_ptr(page_ptr, dtype=Float32), cute.make_layout((COMPUTE_WARPS, MAX_ROWS))
        )
        for half in cutlass.range_constexpr(self.halves):
            total = Float32(0.0)
            for word in cutlass.range_constexpr(self.boxes * 4):
                for value in unpacked_pair(self.dtype, self.words[half][word]):
                    total = total + fusion.statistic(value)
            for shift in cutlass.range_constexpr(2):
                total = total + cute.arch.shuffle_sync_bfly(total, 1 << shift)
            if lane % 4 == 0:
                statistics[compute_warp(), lane // 4 + half * 8] = total
        sync_compute_threads()
        scales = []
        for half in cutlass.range_constexpr(self.halves):
            total = statistics[0, lane // 4 + half * 8]
            for warp in cutlass.range_constexpr(1, COMPUTE_WARPS):
                total = total + statistics[warp, lane // 4 + half * 8]
            scales.append(fusion.scale(total, columns))
        for box in cutlass.range_constexpr(self.boxes):
            weights = self._weights(fusion, box, columns) if const_expr(held is None) else held[box]
            for half in cutlass.range_constexpr(self.halves):
                for i in cutlass.range_constexpr(4):
                    low, high = unpacked_pair(self.dtype, self.words[half][box * 4 + i])
                    pair = self._weight_pair(weights, i)
                    low, high = (
                        fusion.apply(value, scales[half], weight)
                        for value, weight in zip((low, high), pair, strict=True)
                    )
                    self.words[half][box * 4 + i] = rounded_pair(self.dtype, low, high)

    def operand(self, box: int, half_unit: int):
        """Four registers of the MMA's wide operand."""
        zero, registers = Uint32(0), []
        for word in (0, 1):
            index = box * 4 + half_unit * 2 + word
            registers.append(self.words[0][index])
            registers.append(self.words[1][index] if self.halves == 2 else zero)
        return registers


@cute.jit
def multiply_tile(
    ring,
    rows: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    matrices: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    page_boxes: cutlass.Constexpr,
):
    """The warp's part of a tile: for each matrix four sums of each block of eight columns.

    The weights of a page are fetched while those of the page before are multiplied.
    """
    products = [cute.make_rmem_tensor((columns // BLOCK * 4,), Float32) for _ in range(matrices)]
    for fragment in products:
        fragment.fill(0.0)
    pages = [(begin, matrix) for begin in range(0, rows.boxes, page_boxes) for matrix in range(matrices)]
    stage, weights = _fetch_page(ring, min(page_boxes, rows.boxes), columns)
    for number in cutlass.range_constexpr(len(pages)):
        begin, matrix = pages[number]
        next_stage, following = stage, weights
        if const_expr(number + 1 < len(pages)):
            next_stage, following = _fetch_page(ring, min(page_boxes, rows.boxes - pages[number + 1][0]), columns)
        _multiply_page(rows, dtype, begin, columns, weights, products[matrix])
        ring.release(stage, after=[vector[0] for vector in weights])
        stage, weights = next_stage, following
    return products


@cute.jit
def _fetch_page(ring, boxes: cutlass.Constexpr, columns: cutlass.Constexpr):
    """The next page, and the lane's vectors of it: for each box, one of each block."""
    lane = cute.arch.thread_idx()[0] % 32
    row_bytes = BOX_COLUMNS * 2
    stage = ring.wait()
    address = stage.address + (lane // 4 * row_bytes + compute_warp() * (UNIT * 2) + lane % 4 * 16)
    vectors = []
    for row in cutlass.range_constexpr(0, boxes * columns, BLOCK):
        vector = cute.make_rmem_tensor((4,), Uint32)
        source = shared_pointer(Uint32, address + row * row_bytes, 16)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(4)), vector)
        vectors.append(vector)
    return stage, vectors


@cute.jit
def _multiply_page(
    rows: cutlass.Constexpr,
    dtype: cutlass.Constexpr,
    begin: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    vectors: cutlass.Constexpr,
    products: cutlass.Constexpr,
):
    """Multiply a page of weights by the boxes of a from number `begin` on."""
    blocks = columns // BLOCK
    for box in cutlass.range_constexpr(len(vectors) // blocks):
        for half_unit in cutlass.range_constexpr(2):
            operand = rows.operand(begin + box, half_unit)
            for block in cutlass.range_constexpr(blocks):
                vector = vectors[box * blocks + block]
                multiply(
                    (dtype, dtype), products, block * 4, operand, [vector[half_unit * 2], vector[half_unit * 2 + 1]]
                )


class SharedSums:
    """Where the warps' sums of a tile meet, and who adds up which.

    The results of a tile are blocks of eight columns, and halves of eight rows: each of these pieces belongs to one
    warp, two neighbouring columns of a row to each lane. Where there are fewer pieces than warps, some have none.
    """

    def __init__(self, page_ptr, rows: int, columns: int) -> None:
        self.page_ptr, self.halves, self.blocks = page_ptr, rows // 8, columns // BLOCK

    @property
    def pieces(self) -> int:
        """Pieces of one matrix; those of the next one follow."""
        return self.halves * self.blocks

    def has_piece(self):
        """Whether the warp has one."""
        return compute_warp() < self.pieces

    def row(self):
        """The lane's row of c."""
        return compute_warp() // self.blocks * 8 + cute.arch.thread_idx()[0] % 32 // 4

    def column(self):
        """The first of the lane's columns of c, counted in the tile."""
        return compute_warp() % self.blocks * BLOCK + cute.arch.thread_idx()[0] % 4 * 2

    def _pair(self, matrix: int, piece, warp):
        """The lane's two sums of a piece from one warp."""
        lane = cute.arch.thread_idx()[0] % 32
        index = ((matrix * self.pieces + piece) * COMPUTE_WARPS + warp) * 64 + lane * 2
        pointer = shared_pointer(Float32, Int32(self.page_ptr.toint()) + index * 4, 8)
        return cute.make_tensor(pointer, cute.make_layout(2))

    def fetch(self, c, epilogue, column):
        """What the epilogues read for the lane's results; this may run long before the sums are there.

        Warps without a piece may do so before `add`: they fetch elements of the tile, and nobody looks at them.
        """
        return fetch_pair(c, epilogue, 0, self.row(), column + self.column())

    @cute.jit
    def add(self, products: cutlass.Constexpr):
        """The totals of the warp's piece, two for each matrix, added up in the order of the warps."""
        sync_compute_threads()  # nobody reads the sums of the tile before any more
        for matrix in cutlass.range_constexpr(len(products)):
            for half in cutlass.range_constexpr(self.halves):
                for block in cutlass.range_constexpr(self.blocks):
                    pair = cute.make_rmem_tensor((2,), Float32)
                    for i in cutlass.range_constexpr(2):
                        pair[i] = products[matrix][block * 4 + half * 2 + i]
                    cute.autovec_copy(pair, self._pair(matrix, half * self.blocks + block, compute_warp()))
        sync_compute_threads()
        totals = cute.make_rmem_tensor((2 * len(products),), Float32)
        totals.fill(0.0)
        pair_of = self._pair
        if self.has_piece():
            for matrix in cutlass.range_constexpr(len(products)):
                for warp in cutlass.range_constexpr(COMPUTE_WARPS):
                    pair = cute.make_rmem_tensor((2,), Float32)
                    cute.autovec_copy(pair_of(matrix, compute_warp(), warp), pair)
                    for i in cutlass.range_constexpr(2):
                        totals[matrix * 2 + i] = totals[matrix * 2 + i] + pair[i]
        return totals

    @cute.jit
    def store(self, c, combine: cutlass.Constexpr, epilogue: cutlass.Constexpr, column, totals, fetched):
        """Combine, apply the epilogues, and store the lane's results."""
        own_row, own_column = self.row(), column + self.column()
        if self.has_piece():
            pair = [totals[0], totals[1]]
            for i in cutlass.range_constexpr(2):
                for position in cutlass.range_constexpr(len(combine)):
                    pair[i] = apply_fusion(combine[position], pair[i], totals[2 * (1 + position) + i])
                for position in cutlass.range_constexpr(len(epilogue)):
                    pair[i] = apply_fusion(epilogue[position], pair[i], fetched[i][position])
            store_pair(c, 0, own_row, own_column, pair[0], pair[1])

    def _partial(self, partial, tile, number, matrix: int):
        """Where the lane's two sums of a slice are in global memory, as an address."""
        lane = cute.arch.thread_idx()[0] % 32
        offset = Int64(tile) * partial.stride[0] + Int64(number) * partial.stride[1]
        index = (matrix * self.pieces + compute_warp()) * 64 + lane * 2
        return partial.iterator.toint() + (offset + Int64(index)) * 8

    @cute.jit
    def hand_over(self, partial, tile, own, totals):
        """Write the totals of this slice for the last one."""
        address_of = self._partial
        if self.has_piece():
            for matrix in cutlass.range_constexpr(cute.size(totals) // 2):
                store_tagged(address_of(partial, tile, own, matrix), totals[matrix * 2], totals[matrix * 2 + 1])

    @cute.jit
    def take_over(self, dependencies, partial, tile, own, totals):
        """For warps with a piece: the totals of all slices, in their order, the own one last. Leaves zeros behind."""
        everything = cute.make_rmem_tensor((cute.size(totals),), Float32)
        everything.fill(0.0)
        address_of = self._partial
        for number in cutlass.range(own, unroll=1):
            for matrix in cutlass.range_constexpr(cute.size(totals) // 2):
                pair = dependencies.take_tagged(address_of(partial, tile, number, matrix))
                for i in cutlass.range_constexpr(2):
                    everything[matrix * 2 + i] = everything[matrix * 2 + i] + pair[i]
        for i in cutlass.range_constexpr(cute.size(totals)):
            everything[i] = everything[i] + totals[i]
        return everything
