"""The load phase that all GEMM implementations share: one K step of both operands per ring stage."""

import cutlass
import cutlass.cute as cute

from .op import PAGE_BYTES, TILE_K, operand_pages


class OperandLoader:
    """Mixin with `load`. Outside the tensors TMA fills with zeros, which add nothing to a product."""

    @property
    def kept_stages(self) -> int:
        """Stages that a tile takes at least, whatever K is; the last of them may hold nothing."""
        return 1

    @property
    def step_columns(self) -> int:
        """Columns of K in a step."""
        return TILE_K

    @property
    def b_offset(self) -> int:
        """Where b begins in a stage, in bytes."""
        return operand_pages(self.tile_size_M, self.step_columns) * PAGE_BYTES

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
        for part in cutlass.range_constexpr(self.step_columns // TILE_K):
            k = step * self.step_columns + part * TILE_K
            ring.load_tile(stage, tma_a, (tile_B, tile_M * self.tile_size_M, k), offset=part * tma_a.nbytes)
            offset = self.b_offset + part * tma_b.nbytes
            ring.load_tile(stage, tma_b, (tile_B, tile_N * self.tile_size_N, k), offset=offset)
        ring.commit(stage)

    @cute.jit
    def _fill_up(self, ring, steps):
        """The stages that a tile takes beyond its steps."""
        for _ in cutlass.range(steps, self.kept_stages, unroll=1):
            ring.commit(ring.acquire())
