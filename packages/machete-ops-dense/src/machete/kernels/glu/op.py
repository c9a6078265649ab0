"""The public GLU op, and its implementations."""

from dataclasses import replace

import cutlass.cute as cute
import torch

from machete.kernels.elementwise import tiles
from machete.kernels.elementwise.activations import check_activation, gated
from machete.kernels.elementwise.add import HALF_PAGE, ring_of_pages
from machete.kernels.elementwise.rows import combine_stage, combine_tile, load_rows, store_rows, tile_extent
from machete.megakernel import Op, PipelineSpec, ScheduledOp, Target


class GluOp(Op):
    """y = activation(gate) * up in float32, rounded once (Shazeer, "GLU Variants Improve Transformer", 2020).

    Shapes: gate, up and y (M, F), or (F,); bfloat16, float16 or float32 each. Any strides, so gate and up can be the
    two halves of one tensor; y may be gate or up. Large tensors stream through the page ring where their rows allow
    bulk copies. Targets: all.
    """

    reads = {"gate": (None, ("M", "F")), "up": (None, ("M", "F"))}
    writes = {"y": (None, ("M", "F"))}
    tile = ("M", "F")
    resizable = ("M",)  # the last dim decides about vectors and tiles

    @classmethod
    def schedule(
        cls,
        *,
        gate: torch.Tensor,
        up: torch.Tensor,
        y: torch.Tensor,
        activation: str = "silu",
        streaming: bool | None = None,
    ) -> list[ScheduledOp]:
        """Schedule one gated linear unit.

        Args:
            gate, up: operands. y: the result, of the same shape.
            activation: silu, gelu (with the error function), relu or sigmoid.
            streaming: through the page ring or not; chosen from size and strides when left out.
        """
        check_activation(activation, "GluOp.schedule")
        if all(isinstance(tensor, torch.Tensor) and tensor.ndim == 1 for tensor in (gate, up, y)):
            gate, up, y = gate[None], up[None], y[None]
        config = {"activation": activation, "streaming": streaming}
        return [cls._schedule_single(tile_sizes={"M": 1, "F": 1}, config=config, gate=gate, up=up, y=y)]

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        tiles.check_floats(op, op.infos, "convert it first")

    @classmethod
    def lower(cls, target: Target, op: ScheduledOp) -> ScheduledOp:
        op = super().lower(target, op)
        rows, columns = op.extents["M"], op.extents["F"]
        config = {"activation": op.config["activation"]}
        if tiles.streams(op, ("gate", "up", "y"), "F"):
            shape = tiles.stream_tile(rows, columns, op.infos["y"].itemsize, HALF_PAGE)
            kind: type[Op] = StreamingGlu
            config["ring_pages"] = tiles.ring_pages(target)
        else:
            shape, kind = tiles.direct_tile(columns), DirectGlu
            config["vector"] = tiles.direct_vector(op, op.infos, "F")
        return replace(op, op=kind, tile_sizes=dict(zip(("M", "F"), shape, strict=True)), config=config)


class StreamingGlu(GluOp):
    """Half a page of gate and half a page of up in each stage; the result takes the place of gate."""

    pipeline = PipelineSpec.streaming(input_stages=12, output_stages=3, scratch_bytes=0)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        return ring_of_pages(op)

    @cute.jit
    def load(self, ring, tile_M, tile_F, gate, up):
        row, column = tile_M * self.tile_size_M, tile_F * self.tile_size_F
        stage = ring.acquire()
        load_rows(ring, stage, gate, row, column, self.tile_size_M, self.tile_size_F)
        load_rows(ring, stage, up, row, column, self.tile_size_M, self.tile_size_F, HALF_PAGE)
        ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_M, tile_F):
        rows = tile_extent(self.M, tile_M * self.tile_size_M, self.tile_size_M)
        columns = tile_extent(self.F, tile_F * self.tile_size_F, self.tile_size_F)
        stage = ring.wait()
        combine_stage(gated(self.activation), self.gate_dtype, stage, rows * columns, HALF_PAGE)
        ring.forward(stage)

    @cute.jit
    def store(self, ring, tile_M, tile_F, y):
        stage = ring.wait()
        row, column = tile_M * self.tile_size_M, tile_F * self.tile_size_F
        store_rows(ring, stage, y, row, column, self.tile_size_M, self.tile_size_F)
        ring.release(stage)


class DirectGlu(GluOp):
    """The compute threads read global memory, `vector` elements at a time."""

    @cute.jit
    def compute(self, tile_M, tile_F, gate, up, y):
        row, column = tile_M * self.tile_size_M, tile_F * self.tile_size_F
        function = gated(self.activation)
        combine_tile(function, gate, up, y, row, column, self.tile_size_M, self.tile_size_F, self.vector)
