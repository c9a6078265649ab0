"""The public GEMM op: shapes, checks, tile choice, and which implementation a target gets."""

import functools
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
from machete.megakernel.tuning import Choices

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
        slices: int | None = None,
    ) -> list[ScheduledOp]:
        """Schedule one product.

        Args:
            a: (M, K) or (B, M, K). b: (N, K) or (B, N, K). c: (M, N) or (B, M, N), overwritten.
            prologue: applied to a as it is loaded, such as `RmsNormOnLoad`.
            combine: a second product to combine with the first, such as `GluPair`.
            epilogue: applied to each result in this order, such as `Bias`, `Activation`, `ResidualAdd`.
            tile_n: columns of c per tile, 64, 128 or 256.
            slices: parts that K is cut into, for SMs to share a tile; on sm_90a, for products of many rows.

        Left out, `tile_n` and `slices` are what `tune` has measured for this product on this card, else what
        `tile_times` expects to be fastest.
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
        if tile_n is None and slices is None:
            tile_n, slices = _tuned(a, b, c)
        if tile_n is None:
            tile_n = _choose_tile_n(a, c, slices)
        fusions = {
            "prologue": [prologue] if prologue is not None else [],
            "combine": [combine] if combine is not None else [],
            "epilogue": list(epilogue),
        }
        tile_sizes = {"B": 1, "M": TILE_M, "N": tile_n}
        config = {} if slices is None else {"slices": slices}
        return [cls._schedule_single(tile_sizes=tile_sizes, config=config, fusions=fusions, a=a, b=b, c=c)]

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
        slices = op.config.get("slices", 1)
        if type(slices) is not int or not 1 <= slices <= MAX_SLICES:
            raise TileSizeError(
                what=f"slices is {slices!r}",
                where="GemmOp.schedule",
                why=f"K is cut into 1 to {MAX_SLICES} parts, whose sums one SM adds up",
                fix="use one of these numbers, or leave slices out",
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


#: Columns of K in a step of wgmma, where they are not TILE_K, by rows and columns of the tile: the loader has less to
#: do for each byte, and stages are full.
STEP_COLUMNS = {(64, 64): 2 * TILE_K, (64, 128): 2 * TILE_K, (128, 64): 2 * TILE_K}


def step_columns(tile_m: int, tile_n: int) -> int:
    """Columns of K in a step of the K loop of wgmma."""
    return STEP_COLUMNS.get((tile_m, tile_n), TILE_K)


def operands(op: ScheduledOp) -> int:
    """Matrices that the rows of a are multiplied by: 1, or 2 with a GLU's second one."""
    return 1 + sum(slot == "combine" for slot, _, _ in op.op.fusion_types)


def operand_pages(rows: int, columns: int) -> int:
    """Pages that this much of an operand takes in a stage."""
    return -(-rows * columns * 2 // PAGE_BYTES)


def gemm_pipeline(tile_m: int, tile_n: int, columns: int, pages: int) -> PipelineSpec:
    """The ring of a GEMM: stages of `columns` of K, rows of a and then rows of b, in no more than `pages` pages."""
    stage_pages = operand_pages(tile_m, columns) + operand_pages(tile_n, columns)
    return PipelineSpec.streaming(input_stages=pages // stage_pages, stage_pages=stage_pages, page_bytes=PAGE_BYTES)


#: µs of TILE_K columns of K on an H200, by rows and columns of the tile (benchmarks/gemm.py). A narrow tile is hardly
#: faster than one of 128 columns: operands on their way to shared memory are the limit, not the products.
STEP_US = {
    (128, 256): 0.67,
    (128, 128): 0.37,
    (128, 64): 0.255,
    (64, 128): 0.375,
    (64, 64): 0.235,
    (64, 256): 0.57,
}
TILE_US = 0.3  # of every tile, beside its K steps
START_US = 5.0  # until operands arrive, and from the last result to the end of the kernel
SMS = 132
MEMORY_BYTES_PER_US = 3.7e6  # of operands, by tiles of wgmma
MAX_SLICES = 8
LEAST_STEPS = 4  # of TILE_K columns, in a slice
MOST_SPLIT_COLUMNS = 128  # of a tile: sums of others need registers, too
HAND_OVER_US = 1.5  # of sums, from one SM to another
HAND_OVER_BYTES_PER_US = 20e3  # of sums that one SM takes over


def tile_times(m: int, n: int, k: int, batch: int = 1) -> dict[tuple[int, int], float]:
    """Expected µs of a product for each (columns of a tile, slices of K) on sm_90a. The best one is the default."""
    tile_m = TILE_M // 2 if m <= TILE_M // 2 else TILE_M
    return {
        (tile_n, slices): _expected_us(m, n, k, batch, tile_m, tile_n, slices)
        for (rows, tile_n) in STEP_US
        if rows == tile_m
        for slices in range(1, MAX_SLICES + 1)
        if slices == 1 or (tile_n <= MOST_SPLIT_COLUMNS and k >= slices * LEAST_STEPS * TILE_K)
    }


def _expected_us(m: int, n: int, k: int, batch: int, tile_m: int, tile_n: int, slices: int) -> float:
    """Full rounds of tiles over all SMs, or the time of the operands in memory, and a hand-over in each round."""
    columns = step_columns(tile_m, tile_n)
    steps = -(-k // (columns * slices)) * columns // TILE_K
    rounds = -(-batch * -(-m // tile_m) * -(-n // tile_n) * slices // SMS)
    products = rounds * (steps * STEP_US[tile_m, tile_n] + TILE_US)
    memory = 2 * batch * k * (m + n) / MEMORY_BYTES_PER_US
    taken = (slices - 1) * 4 * tile_n * min(m, tile_m)
    hand_over = rounds * (HAND_OVER_US + taken / HAND_OVER_BYTES_PER_US) if taken else 0.0
    return START_US + max(products, memory) + hand_over


@functools.cache
def tuned_choices(device: torch.device) -> Choices | None:
    """What `tune` has measured on this card; None where there is no card."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return Choices("GemmOp", torch.cuda.get_device_name(device))


def tuned_problem(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    """What a measured choice depends on: types and extents."""
    types = " ".join(str(x.dtype).removeprefix("torch.") for x in (a, b, c))
    batch = c.shape[0] if c.ndim == 3 else 1
    return f"{types} {batch}x{c.shape[-2]}x{c.shape[-1]}x{a.shape[-1]}"


def _tuned(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[int, int] | tuple[None, None]:
    """The (tile_n, slices) that was measured to be fastest, if it was and still is one to choose from."""
    choices = tuned_choices(a.device)
    found = None if choices is None else choices.find(tuned_problem(a, b, c))
    if found is None:
        return None, None
    choice = found.get("tile_n", 0), found.get("slices", 0)
    batch, m, n = c.shape
    return choice if choice in tile_times(m, n, a.shape[2], batch) else (None, None)


def _choose_tile_n(a: torch.Tensor, c: torch.Tensor, slices: int | None) -> int:
    batch, m, n = c.shape
    times = tile_times(m, n, a.shape[2], batch)
    return min((choice for choice in times if slices in (None, choice[1])), key=times.__getitem__, default=(128, 0))[0]


def choose_slices(op: ScheduledOp) -> int:
    """The number of slices of K that `tile_times` expects to be best for these tiles."""
    m, n, k, batch = (op.extents[dim] for dim in "MNKB")
    tile_n = op.tile_sizes["N"]
    times = {slices: us for (columns, slices), us in tile_times(m, n, k, batch).items() if columns == tile_n}
    return min(times, key=times.__getitem__)
