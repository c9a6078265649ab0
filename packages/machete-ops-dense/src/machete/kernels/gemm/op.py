"""The public GEMM op: shapes, checks, tile choice, and which implementation a target gets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from machete.megakernel import Fusion, Op, PipelineSpec, ScheduledOp, Target, TmaBox
from machete.megakernel.errors import (
    AlignmentError,
    DtypeError,
    ExtentError,
    ScheduleError,
    StrideError,
    TargetError,
    TensorTypeError,
    TileSizeError,
)

PAGE_BYTES = 16 * 1024
TILE_M = 128
TMA_ALIGNMENT = 16
L2_REUSE = 8  # how often a panel of an operand is read while it is in L2, roughly
TILE_K = 64  # 128 bytes of a 16-bit type: one swizzle atom, and one page holds 128 rows of it
_OPERAND_DTYPES = (torch.bfloat16, torch.float16)
Tensors = Mapping[str, tuple[torch.dtype | None, tuple[str, ...]]]
_RESULT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class GemmOp(Op):
    """c = a @ b.T with float32 accumulation, b laid out like `nn.Linear.weight`.

    Shapes: a (M, K), b (N, K), c (M, N), or all three with a leading batch dim B. a and b are bfloat16 or float16 (both
    the same), c is bfloat16, float16 or float32. Any M, N, K >= 1 whose row strides TMA can step over: the last dim
    of a and b is contiguous, rows start on 16-byte boundaries (K a multiple of 8 for a packed operand).

    Targets: sm_90a with wgmma, sm_100a and sm_120a with mma.sync.
    """

    reads: ClassVar[Tensors] = {"a": (None, ("B", "M", "K")), "b": (None, ("B", "N", "K"))}
    writes: ClassVar[Tensors] = {"c": (None, ("B", "M", "N"))}
    tile: ClassVar[tuple[str, ...]] = ("B", "M", "N")
    resizable: ClassVar[tuple[str, ...]] = ("B", "M", "N", "K")
    fusions = {
        "prologue": {"batch": "B", "rows": "M", "columns": "K"},
        "combine": {"batch": "B", "rows": "M", "columns": "N", "depth": "K"},
        "epilogue": {"batch": "B", "rows": "M", "columns": "N"},
    }

    @classmethod
    def schedule(
        cls,
        *,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        prologue: Fusion | None = None,
        combine: Fusion | None = None,
        epilogue: Sequence[Fusion] = (),
        tile_n: int | None = None,
    ) -> list[ScheduledOp]:
        """Schedule one product.

        Args:
            a: (M, K) or (B, M, K). b: (N, K) or (B, N, K). c: (M, N) or (B, M, N), overwritten.
            prologue: applied to a as it is loaded, such as `RmsNormOnLoad`.
            combine: a second product to combine with the first, such as `GluPair`.
            epilogue: applied to each result in this order, such as `Bias`, `Activation`, `ResidualAdd`.
            tile_n: columns of c per tile, 64, 128 or 256; left out, the one that `tile_times` expects to be fastest.
        """
        for name, x in (("a", a), ("b", b), ("c", c)):
            if not isinstance(x, torch.Tensor):
                raise TensorTypeError(
                    what=f"GemmOp: `{name}` is a {type(x).__name__}, no torch.Tensor",
                    where="GemmOp.schedule",
                    why="ops read and write the memory of torch tensors",
                    fix=f"{name}=torch.as_tensor(…)",
                )
        ranks = {name: x.ndim for name, x in (("a", a), ("b", b), ("c", c))}
        if set(ranks.values()) == {2}:
            a, b, c = a.unsqueeze(0), b.unsqueeze(0), c.unsqueeze(0)
        elif set(ranks.values()) != {3}:
            raise ScheduleError(
                what="a, b and c must all have rank 2, or all have rank 3",
                where="GemmOp.schedule",
                why=f"their ranks are {ranks}",
                fix="use (M, K), (N, K), (M, N), or put a batch dim in front of all three",
            )
        if tile_n is None:
            tile_n = _choose_tile_n(a, c)
        fusions = {
            "prologue": [prologue] if prologue is not None else [],
            "combine": [combine] if combine is not None else [],
            "epilogue": list(epilogue),
        }
        return [cls._schedule_single(tile_sizes={"B": 1, "M": TILE_M, "N": tile_n}, fusions=fusions, a=a, b=b, c=c)]

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        dtypes = {name: info.dtype for name, info in op.infos.items()}
        if dtypes["a"] not in _OPERAND_DTYPES or dtypes["a"] != dtypes["b"] or dtypes["c"] not in _RESULT_DTYPES:
            raise DtypeError(
                what=f"a is {dtypes['a']}, b is {dtypes['b']}, c is {dtypes['c']}",
                where="GemmOp",
                why="the tensor cores multiply two operands of one 16-bit type here",
                fix="make a and b both bfloat16 or both float16, and c bfloat16, float16 or float32",
            )
        if op.tile_sizes["N"] not in (64, 128, 256):
            raise TileSizeError(
                what=f"tile_n is {op.tile_sizes['N']}",
                where="GemmOp.schedule",
                why="a tile is a whole number of tensor-core instructions and of shared-memory pages",
                fix="use 64, 128 or 256, or leave tile_n out",
            )
        b = op.infos["b"]
        for name, info in op.infos.items():
            if name.startswith("combine") and (info.strides, info.dtype) != (b.strides, b.dtype):
                raise StrideError(
                    what=f"`{name}` is {info.dtype} with strides {info.strides}, b is {b.dtype} with {b.strides}",
                    where="GemmOp",
                    why="both matrices of a pair are read in the same steps",
                    fix="use two slices of one weight, or two tensors of one layout",
                )
            if name.startswith("combine") and info.alignment < TMA_ALIGNMENT:
                raise AlignmentError(
                    what=f"`{name}` is aligned to {info.alignment} bytes",
                    where="GemmOp",
                    why=f"rows of weights are copied in units of {TMA_ALIGNMENT} bytes",
                    fix=f"slice at a multiple of {TMA_ALIGNMENT // info.itemsize} elements",
                )
        if op.extents["K"] == 0:
            raise ExtentError(
                what="K is 0",
                where="GemmOp",
                why="a TMA descriptor cannot describe a tensor with no elements",
                fix="fill c with zeros instead",
            )

    @classmethod
    def descriptors(cls, op: ScheduledOp) -> Mapping[str, TmaBox]:
        return {
            "a": TmaBox((1, op.tile_sizes["M"], TILE_K), swizzle=128),
            "b": TmaBox((1, op.tile_sizes["N"], TILE_K), swizzle=128),
        }

    @classmethod
    def takes_whole_rows(cls, op: ScheduledOp) -> bool:
        """Whether the product takes fusions that need whole rows of a: prologues, and combining two products."""
        from . import few_rows, gemv

        return few_rows.fits(op) or gemv.fits(op)

    @classmethod
    def cost(cls, op: ScheduledOp) -> tuple[float, float]:
        """Bytes and FLOPs of one tile. Operand panels are shared by the tiles around, which L2 serves."""
        m, n = op.tile_sizes["M"], op.tile_sizes["N"]
        k, itemsize = op.extents["K"], op.infos["a"].itemsize
        panels = (m + n) * k * itemsize
        return m * n * op.infos["c"].itemsize + panels / L2_REUSE, 2.0 * m * n * k

    @classmethod
    def lower(cls, target: Target, op: ScheduledOp) -> ScheduledOp:
        from . import few_rows, gemv, wgmma
        from .mma_sync import MmaSyncGemm

        op = super().lower(target, op)
        if few_rows.fits(op):
            return few_rows.lowered(op)
        if gemv.fits(op):
            return gemv.lowered(op)
        _refuse_unsupported_fusions(op, target)
        if target.name == "sm_90a":
            return wgmma.lowered(op)
        # Two warps side by side cover 128 columns at most with the accumulators in registers.
        tile_sizes = {**op.tile_sizes, "N": min(op.tile_sizes["N"], 128)}
        op = replace(op, op=MmaSyncGemm.fused(op.op.fusion_types), tile_sizes=tile_sizes)
        return replace(op, boxes=cls.descriptors(op))


def _refuse_unsupported_fusions(op: ScheduledOp, target: Target) -> None:
    """Norm on load and GLU pairs need whole rows of a at hand, which tiles of many rows do not have yet."""
    from . import few_rows, gemv

    for slot, _, kind in op.op.fusion_types:
        if slot != "epilogue":
            raise TargetError(
                what=f"{kind.__name__} as {slot} of a GemmOp with M = {op.extents['M']}",
                where=f"{op} on {target.name}",
                why=f"it is there where {few_rows.LIMITS}, and where {gemv.LIMITS}",
                fix="schedule it as an op of its own before or after the product",
            )


def operand_pages(tile_n: int) -> int:
    """Pages of one pipeline stage: 128 rows of a, then `tile_n` rows of b, TILE_K columns of each."""
    return 1 + -(-tile_n // 128)


def gemm_pipeline(tile_n: int, stages: int) -> PipelineSpec:
    """The ring of a GEMM: `stages` stages of one K step each."""
    return PipelineSpec.streaming(input_stages=stages, stage_pages=operand_pages(tile_n), page_bytes=PAGE_BYTES)


#: µs of one K step of a 128-row tile, by its columns, with all SMs of an H200 at it (benchmarks/gemm.py). A narrow tile
#: is hardly faster than one of 128 columns: operands on their way to shared memory are the limit, not the products.
STEP_US = {256: 0.66, 128: 0.37, 64: 0.34}
TILE_US = 1.0  # of every tile, beside its K steps
SMS = 132


def tile_times(m: int, n: int, k: int, batch: int = 1) -> dict[int, float]:
    """Expected µs of a product for each tile_n: full rounds of tiles over all SMs. The best one is the default."""
    steps = -(-k // TILE_K)
    rows = batch * -(-m // TILE_M)
    return {
        columns: -(-rows * -(-n // columns) // SMS) * (steps * step_us + TILE_US)
        for columns, step_us in STEP_US.items()
    }


def _choose_tile_n(a: torch.Tensor, c: torch.Tensor) -> int:
    batch, m, n = c.shape
    times = tile_times(m, n, a.shape[2], batch)
    return min(times, key=times.__getitem__)
