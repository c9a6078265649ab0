"""The public add op, and its implementations."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32

from machete.megakernel import Op, PipelineSpec, ScheduledOp, Target
from machete.megakernel.errors import ScheduleError, ShapeMismatchError

from . import tiles
from .rows import combine_stage, combine_tile, load_rows, store_rows, tile_extent
from .views import collapsed, with_rank

HALF_PAGE = tiles.PAGE_BYTES // 2
MAX_DIMS = 5


class AddOp(Op):
    """y = a + b in float32, rounded once.

    Shapes: a, b and y of one shape, any rank; bfloat16, float16 or float32 each. Any strides; y may be a or b. Operands
    are not broadcast: pass ``b.expand_as(a)``. Large tensors stream through the page ring where their rows allow bulk
    copies. Targets: all.
    """

    reads = {"a": (None, ("M", "N")), "b": (None, ("M", "N"))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M", "N")
    resizable: ClassVar[tuple[str, ...]] = ("M",)  # the last dim decides about vectors and tiles

    @classmethod
    def schedule(
        cls, *, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, streaming: bool | None = None
    ) -> list[ScheduledOp]:
        """Schedule one sum.

        Args:
            a, b: operands. y: the result, of the same shape.
            streaming: through the page ring or not; chosen from size and strides when left out.
        """
        tensors = {"a": a, "b": b, "y": y}
        if all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
            _check_shapes(tensors)
            if a.ndim > 2:
                a, b, y = collapsed([a, b, y], keep=2) if a.shape[:-2].numel() == 1 else collapsed([a, b, y])
            if a.ndim > 2:
                return _schedule_strided(a, b, y)
            a, b, y = with_rank([a, b, y], 2)
        return [cls._schedule_single(tile_sizes={"M": 1, "N": 1}, config={"streaming": streaming}, a=a, b=b, y=y)]

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        tiles.check_floats(op, op.infos, "convert it first")

    @classmethod
    def lower(cls, target: Target, op: ScheduledOp) -> ScheduledOp:
        op = super().lower(target, op)
        front = op.extents["M"]
        flat = _flattened(op)
        if tiles.streams(flat, ("a", "b", "y"), "N"):
            op = flat
        rows, columns = op.extents["M"], op.extents["N"]
        if op is flat:
            shape = tiles.stream_tile(rows, columns, op.infos["y"].itemsize, HALF_PAGE)
            kind: type[Op] = FlatAdd if op.extents["M"] != front else StreamingAdd
            config = {"ring_pages": tiles.ring_pages(target)}
        else:
            shape, kind = tiles.direct_tile(columns), DirectAdd
            config = {"vector": tiles.direct_vector(op, op.infos, "N")}
        return replace(op, op=kind, tile_sizes=dict(zip(("M", "N"), shape, strict=True)), config=config)


class StreamingAdd(AddOp):
    """Half a page of a and half a page of b in each stage; the sum takes the place of a."""

    pipeline = PipelineSpec.streaming(input_stages=12, output_stages=3, scratch_bytes=0)

    @classmethod
    def pipeline_of(cls, op: ScheduledOp) -> PipelineSpec:
        return ring_of_pages(op)

    @cute.jit
    def load(self, ring, tile_M, tile_N, a, b):
        row, column = tile_M * self.tile_size_M, tile_N * self.tile_size_N
        stage = ring.acquire()
        load_rows(ring, stage, a, row, column, self.tile_size_M, self.tile_size_N)
        load_rows(ring, stage, b, row, column, self.tile_size_M, self.tile_size_N, HALF_PAGE)
        ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_M, tile_N):
        rows = tile_extent(self.M, tile_M * self.tile_size_M, self.tile_size_M)
        columns = tile_extent(self.N, tile_N * self.tile_size_N, self.tile_size_N)
        stage = ring.wait()
        combine_stage(add, self.a_dtype, stage, rows * columns, HALF_PAGE)
        ring.forward(stage)

    @cute.jit
    def store(self, ring, tile_M, tile_N, y):
        stage = ring.wait()
        row, column = tile_M * self.tile_size_M, tile_N * self.tile_size_N
        store_rows(ring, stage, y, row, column, self.tile_size_M, self.tile_size_N)
        ring.release(stage)


class DirectAdd(AddOp):
    """The compute threads read global memory, `vector` elements at a time."""

    @cute.jit
    def compute(self, tile_M, tile_N, a, b, y):
        row, column = tile_M * self.tile_size_M, tile_N * self.tile_size_N
        combine_tile(add, a, b, y, row, column, self.tile_size_M, self.tile_size_N, self.vector)


class StridedAdd(Op):
    """Up to five dims that are adjacent in no common order: one element at a time."""

    reads = {"a": (None, ("I", "J", "K", "M", "N")), "b": (None, ("I", "J", "K", "M", "N"))}
    writes = {"y": (None, ("I", "J", "K", "M", "N"))}
    tile = ("I", "J", "K", "M", "N")

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        AddOp.check(op)

    @cute.jit
    def compute(self, tile_I, tile_J, tile_K, tile_M, tile_N, a, b, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_M * self.tile_size_N, self.threads_per_row):
            m = tile_M * self.tile_size_M + i // self.tile_size_N
            n = tile_N * self.tile_size_N + i % self.tile_size_N
            if m < self.M and n < self.N:
                index = (tile_I, tile_J, tile_K, m, n)
                y[index] = add(a[index].to(Float32), b[index].to(Float32)).to(self.y_dtype)


def add(one, other):
    """What the op does to two values."""
    return one + other


def ring_of_pages(op: ScheduledOp) -> PipelineSpec:
    """A ring of stages of one page; results leave in a quarter of them."""
    pages = op.config["ring_pages"]
    return PipelineSpec.streaming(
        input_stages=pages, output_stages=pages // 4, page_bytes=tiles.PAGE_BYTES, scratch_bytes=0
    )


class FlatAdd(StreamingAdd):
    """Rows that lie one behind the other as one: nothing is left of them that could be fewer in a run."""

    resizable: ClassVar[tuple[str, ...]] = ()


def _flattened(op: ScheduledOp) -> ScheduledOp:
    """A copy of the op; as one row if its rows are no whole copies, but lie one behind the other."""
    rows, columns = op.extents["M"], op.extents["N"]
    packed = all(info.strides in ((columns, 1), (1, 1)) for info in op.infos.values())
    if columns * op.infos["y"].itemsize % tiles.COPY_BYTES == 0 or not packed or rows * columns >= 1 << 30:
        return replace(op)
    shape = (1, rows * columns)
    infos = {name: replace(info, shape=shape, strides=(shape[1], 1)) for name, info in op.infos.items()}
    return replace(op, infos=infos, extents={"M": 1, "N": shape[1]})


def _check_shapes(tensors: dict[str, torch.Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ShapeMismatchError(
            what=f"AddOp: shapes {', '.join(f'{name} {shape}' for name, shape in shapes.items())}",
            where="AddOp.schedule",
            why="operands are not broadcast",
            fix="pass b.expand_as(a): a view, nothing is copied",
        )


def _schedule_strided(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> list[ScheduledOp]:
    if a.ndim > MAX_DIMS:
        raise ScheduleError(
            what=f"AddOp: {a.ndim} dims that cannot be merged (shape {tuple(a.shape)})",
            where="AddOp.schedule",
            why=f"device code counts along at most {MAX_DIMS}",
            fix="pass tensors of one memory layout, or schedule the op on slices",
        )
    a, b, y = with_rank([a, b, y], MAX_DIMS)
    rows, columns = tiles.direct_tile(a.shape[-1])
    sizes = {"I": 1, "J": 1, "K": 1, "M": rows, "N": columns}
    return [StridedAdd._schedule_single(tile_sizes=sizes, a=a, b=b, y=y)]
