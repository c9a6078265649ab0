"""What all GEMM implementations with tiles of many rows share: one K step of both operands per ring stage.

In a stage, an operand is rows of 128 bytes with the 128-byte swizzle, as TMA writes them. Where neighbours along K are
adjacent in memory, such a row is 128 bytes of K of one row of the operand. Where neighbours along M or N are, the
operand is *transposed*: blocks of 64 of these, in each of which a row is the 64 at one place of K.
"""

from types import MappingProxyType
from typing import ClassVar

import cutlass
import cutlass.cute as cute

from machete.megakernel import PipelineSpec, ScheduledOp

from .op import BLOCK_ROWS, PAGE_BYTES, ROW_BYTES, TILE_M, GemmOp, gemm_pipeline, operand_pages, step_parts

BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES
PRODUCT_BYTES = 32  # of K in one instruction, of whatever tensor cores
RING_PAGES = 12
PANEL_TILES = 16  # 132 tiles of 128 x 256 in panels of 16 are about square: they read the least


class OperandLoader:
    """Mixin with `load`. Outside the tensors TMA fills with zeros, which add nothing to a product."""

    #: Operands whose neighbours along K are not adjacent.
    transposed: ClassVar[tuple[str, ...]] = ()

    @property
    def kept_stages(self) -> int:
        """Stages that a tile takes at least, whatever K is; the last of them may hold nothing."""
        return 1

    @property
    def parts(self) -> int:
        """Rows of 128 bytes of K in a step."""
        return 1

    @property
    def part_columns(self) -> int:
        """Columns of K in 128 bytes."""
        return ROW_BYTES * 8 // self.a_dtype.width

    @property
    def step_columns(self) -> int:
        """Columns of K in a step."""
        return self.parts * self.part_columns

    @property
    def b_offset(self) -> int:
        """Where b begins in a stage, in bytes."""
        return operand_pages(self.tile_size_M, self.parts) * PAGE_BYTES

    def steps(self, columns):
        """Steps of the K loop."""
        return (columns + self.step_columns - 1) // self.step_columns

    @cute.jit
    def load(self, ring, tile_B, tile_M, tile_N, tma_a, tma_b):
        for step in cutlass.range(self.steps(self.K), unroll=1):
            self._load_step(ring, tile_B, tile_M, tile_N, step, tma_a, tma_b)
        self._fill_up(ring, self.steps(self.K))

    @cute.jit
    def _load_step(self, ring, tile_B, tile_M, tile_N, step, tma_a, tma_b):
        """Bring both operands of one step."""
        stage = ring.acquire()
        for part in cutlass.range_constexpr(self.parts):
            k = step * self.step_columns + part * self.part_columns
            rows_a, rows_b = self.tile_size_M, self.tile_size_N
            offset_b = self.b_offset + part * rows_b * ROW_BYTES
            self._load_rows(ring, stage, "a", tma_a, (tile_B, tile_M * rows_a, k), rows_a, part * rows_a * ROW_BYTES)
            self._load_rows(ring, stage, "b", tma_b, (tile_B, tile_N * rows_b, k), rows_b, offset_b)
        ring.commit(stage)

    @cute.jit
    def _load_rows(
        self,
        ring,
        stage,
        name: cutlass.Constexpr,
        tma,
        place,
        rows: cutlass.Constexpr,
        offset: cutlass.Constexpr,
    ):
        """Bring `rows` rows of an operand from `place` on."""
        batch, row, k = place
        if cutlass.const_expr(name in self.transposed):
            for block in cutlass.range_constexpr(rows // BLOCK_ROWS):
                where = (batch, row + block * BLOCK_ROWS, k)
                ring.load_tile(stage, tma, where, offset=offset + block * BLOCK_BYTES)
        else:
            ring.load_tile(stage, tma, place, offset=offset)

    @cute.jit
    def _fill_up(self, ring, steps):
        """The stages that a tile takes beyond its steps."""
        if cutlass.const_expr(self.kept_stages > 0):
            for _ in cutlass.range(steps, self.kept_stages, unroll=1):
                ring.commit(ring.acquire())


class LargeTiles(OperandLoader, GemmOp, abstract=True):
    """Tiles of 128 rows and up to 256 columns, for targets with 227 KB of shared memory; K steps of 64 or 128."""

    panels = MappingProxyType({"M": PANEL_TILES})
    pipeline = gemm_pipeline(TILE_M, 256, 1, RING_PAGES)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        tile_m, tile_n = op.tile_sizes["M"], op.tile_sizes["N"]
        return gemm_pipeline(tile_m, tile_n, step_parts(tile_m, tile_n), RING_PAGES)

    @property
    def parts(self) -> int:
        """Rows of 128 bytes of K in a step."""
        return step_parts(self.tile_size_M, self.tile_size_N)
