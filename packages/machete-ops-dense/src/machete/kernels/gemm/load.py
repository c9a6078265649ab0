"""The load phase that all GEMM implementations share: one K step of both operands per ring stage."""

import cutlass
import cutlass.cute as cute

from .op import PAGE_BYTES, TILE_K


def k_steps(k):
    """Steps of the K loop."""
    return (k + TILE_K - 1) // TILE_K


class OperandLoader:
    """Mixin with `load`. Outside the tensors TMA fills with zeros, which add nothing to a product."""

    @property
    def kept_stages(self) -> int:
        """Stages that a tile takes at least, whatever K is; the last of them may hold nothing."""
        return 1

    @cute.jit
    def load(self, ring, tile_B, tile_M, tile_N, tma_a, tma_b):
        steps = k_steps(self.K)
        for step in cutlass.range(steps, unroll=1):
            stage = ring.acquire()
            k = step * TILE_K
            ring.load_tile(stage, tma_a, (tile_B, tile_M * self.tile_size_M, k))
            ring.load_tile(stage, tma_b, (tile_B, tile_N * self.tile_size_N, k), offset=PAGE_BYTES)
            ring.commit(stage)
        for _ in cutlass.range(steps, self.kept_stages, unroll=1):
            ring.commit(ring.acquire())
