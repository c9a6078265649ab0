"""The public GEMM op: shapes, checks, tile choice, and which implementation a target gets."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from machete.megakernel import Fusion, Op, PipelineSpec, ScheduledOp, Target, TmaBox
from machete.megakernel.errors import (
    AlignmentError,
    ConfigError,
    DtypeError,
    ExtentError,
    ScheduleError,
    ShapeMismatchError,
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
ROW_BYTES = 128  # of K, or of a transposed operand's rows: one swizzle atom; a page holds 128 of them
BLOCK_ROWS = 64  # of a transposed operand in one box
TILE_K = 64  # columns of K in a row of 16-bit elements; of which times of steps are counted
HALVES = (torch.bfloat16, torch.float16)
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)
Tensors = Mapping[str, tuple[torch.dtype | None, tuple[str, ...]]]
_RESULT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class GemmOp(Op):
    """c = a @ b.T with float32 accumulation, b laid out like `nn.Linear.weight`.

    Shapes: a (M, K), b (N, K), c (M, N), or all three with a leading batch dim B. a and b are both bfloat16, both
    float16, or each float8_e4m3fn or float8_e5m2; c is bfloat16, float16 or float32. Any M, N, K >= 1 whose strides TMA
    can step over: the last dim of a and b is contiguous and rows start on 16-byte boundaries (K a multiple of 8 for a
    packed operand of 16 bits); or, for 16 bits, the other dim is contiguous (a view like `x.T`) and columns do.

    Targets: sm_90a with wgmma, sm_100a with tcgen05, sm_120a with mma.sync.
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
        a_scale: torch.Tensor | None = None,
        b_scale: torch.Tensor | None = None,
        tile_n: int | None = None,
        slices: int | None = None,
        fast_accumulation: bool = False,
    ) -> list[ScheduledOp]:
        """Schedule one product.

        Args:
            a: (M, K) or (B, M, K). b: (N, K) or (B, N, K). c: (M, N) or (B, M, N), overwritten.
            a_scale, b_scale: what a and b are multiples of, for operands of 8 bits: one element, or one for each row of
                a, (M,) or (B, M), and of b, (N,) or (B, N). They apply to sums, before `epilogue`.
            prologue: applied to a as it is loaded, such as `RmsNormOnLoad`.
            combine: a second product to combine with the first, such as `GluPair`.
            epilogue: applied to each result in this order, such as `Bias`, `Activation`, `ResidualAdd`.
            tile_n: columns of c per tile, a multiple of 16 from 32 to 256. With a transposed b, and on other targets
                than sm_90a, the next larger of 64, 128 and 256 is taken (on sm_120a, 128 at most).
            slices: parts that K is cut into, for SMs to share a tile; on sm_90a and sm_100a, for products of many rows.
            fast_accumulation: of products of 8 bits on sm_90a, leave the sums of all of K to the tensor cores, which
                keep 14 bits or so of fractions (`use_fast_accum` of torch); else they go to float32 every 128 or 256.

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
            tile_n = _choose_tile_n(a, b, c, slices)
        fusions = {
            "prologue": [prologue] if prologue is not None else [],
            "combine": [combine] if combine is not None else [],
            "epilogue": [*_scales(a, b, a_scale, b_scale), *epilogue],
        }
        tile_sizes = {"B": 1, "M": TILE_M, "N": tile_n}
        config: dict[str, Any] = {} if slices is None else {"slices": slices}
        transposed = tuple(name for name, x in (("a", a), ("b", b)) if is_transposed(x))
        if transposed:
            config["transposed"] = transposed
        if not isinstance(fast_accumulation, bool):
            raise ConfigError(
                what=f"fast_accumulation={fast_accumulation!r}",
                where="GemmOp.schedule",
                why="it is either so or not",
                fix="fast_accumulation=True",
            )
        if fast_accumulation:
            config["fast_accumulation"] = True
        return [cls._schedule_single(tile_sizes=tile_sizes, config=config, fusions=fusions, a=a, b=b, c=c)]

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        dtypes = {name: op.infos[name].dtype for name in "abc"}
        operands = {dtypes["a"], dtypes["b"]}
        same_kind = operands <= {*BYTES} or (len(operands) == 1 and operands <= {*HALVES})
        if not same_kind or dtypes["c"] not in _RESULT_DTYPES:
            raise DtypeError(
                what=", ".join(f"{name} is {dtype}" for name, dtype in dtypes.items()),
                where="GemmOp",
                why="the tensor cores multiply two operands of one 16-bit type, or of 8-bit float types",
                fix="make a and b both bfloat16, both float16, or each float8_e4m3fn or float8_e5m2; "
                "and c bfloat16, float16 or float32",
            )
        if operands <= {*BYTES} and "transposed" in op.config:
            raise StrideError(
                what=f"{' and '.join(op.config['transposed'])} of 8-bit elements, adjacent along rows, not along K",
                where="GemmOp",
                why="8-bit operands are read along K",
                fix="a.contiguous(), or keep a transposed copy of the weight",
            )
        if op.tile_sizes["N"] not in range(NARROWEST, WIDEST + 1, 16):
            raise TileSizeError(
                what=f"tile_n is {op.tile_sizes['N']}",
                where="GemmOp.schedule",
                why="a tile is a whole number of tensor-core instructions, and its sums fit the registers",
                fix=f"use a multiple of 16 from {NARROWEST} to {WIDEST}, or leave tile_n out",
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
        columns = ROW_BYTES // op.infos["a"].itemsize
        return {
            name: TmaBox((1, BLOCK_ROWS, columns), swizzle=128, inner=1)
            if name in op.config.get("transposed", ())
            else TmaBox((1, op.tile_sizes[dim], columns), swizzle=128)
            for name, dim in (("a", "M"), ("b", "N"))
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
        from . import few_rows, gemv, tcgen05, wgmma
        from .mma_sync import MmaSyncGemm

        op = super().lower(target, op)
        if few_rows.fits(op):
            return few_rows.lowered(op)
        if gemv.fits(op):
            return gemv.lowered(op)
        _refuse_unsupported_fusions(op, target)
        # Without a measurement of these targets, widths of whole pages; a transposed b comes in blocks.
        if target.name != "sm_90a" or "b" in op.config.get("transposed", ()):
            op = with_columns(op, next(width for width in PLAIN_WIDTHS if width >= op.tile_sizes["N"]))
        if target.name == "sm_90a":
            return wgmma.lowered(op)
        if target.name == "sm_100a":
            return tcgen05.lowered(op)
        # Two warps side by side cover 128 columns at most with the accumulators in registers.
        op = with_columns(op, min(op.tile_sizes["N"], 128))
        op = replace(op, op=MmaSyncGemm.fused(op.op.fusion_types))
        return replace(op, boxes=cls.descriptors(op))


def with_columns(op: ScheduledOp, tile_n: int) -> ScheduledOp:
    """The op with tiles of this many columns."""
    return replace(op, tile_sizes={**op.tile_sizes, "N": tile_n})


def streams_rows(op: ScheduledOp) -> bool:
    """Whether b is rows of 16-bit elements, which paths for few rows stream as they are."""
    return op.infos["b"].dtype in HALVES and "transposed" not in op.config


def is_transposed(x: torch.Tensor) -> bool:
    """Whether neighbours along K, the last dim, are not adjacent, but those along M or N are."""
    return x.shape[-2] > 1 and x.stride(-2) == 1 and (x.shape[-1] == 1 or x.stride(-1) != 1)


def _scales(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor | None, b_scale: torch.Tensor | None
) -> list[Fusion]:
    """The scales of rows of a, and of rows of b, as epilogues."""
    if a_scale is None and b_scale is None:
        return []
    from machete.kernels.fusions import ColumnScale, RowScale

    scales: list[Fusion] = []
    for name, x, scale, kind in (("a", a, a_scale, RowScale), ("b", b, b_scale, ColumnScale)):
        if scale is None:
            continue
        fitting = (x.shape[:2], x.shape[1:2])
        if not isinstance(scale, torch.Tensor) or not (scale.numel() == 1 or scale.shape in fitting):
            found = tuple(scale.shape) if isinstance(scale, torch.Tensor) else type(scale).__name__
            raise ShapeMismatchError(
                what=f"{name}_scale is {found}, {name} is {tuple(x.shape)}",
                where="GemmOp.schedule",
                why="a scale is a tensor with one element, or with one for each row",
                fix=f"{name}_scale of shape (1,), {tuple(x.shape[1:2])} or {tuple(x.shape[:2])}",
            )
        if scale.dtype not in (torch.float32, *HALVES):
            raise DtypeError(
                what=f"{name}_scale is {scale.dtype}",
                where="GemmOp.schedule",
                why="sums are multiplied by scales in float32",
                fix=f"{name}_scale.float()",
            )
        scales.append(kind((scale.reshape(()) if scale.numel() == 1 else scale).expand(x.shape[:2])))
    return scales


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


#: Columns of a tile up to which a step of the K loop has two rows of 128 bytes of K, by rows of the tile: the loader
#: has less to do for each byte, pages are full, and three stages fit.
MOST_DOUBLE_COLUMNS = {64: 192, 128: 64}


def step_parts(tile_m: int, tile_n: int) -> int:
    """Rows of 128 bytes of K in a step of the K loop."""
    return 2 if tile_n <= MOST_DOUBLE_COLUMNS[tile_m] else 1


def operands(op: ScheduledOp) -> int:
    """Matrices that the rows of a are multiplied by: 1, or 2 with a GLU's second one."""
    return 1 + sum(slot == "combine" for slot, _, _ in op.op.fusion_types)


def operand_pages(rows: int, parts: int) -> int:
    """Pages that this many rows of an operand take in a stage, `parts` x 128 bytes of K."""
    return -(-rows * parts * ROW_BYTES // PAGE_BYTES)


def gemm_pipeline(tile_m: int, tile_n: int, parts: int, pages: int, elastic: bool = False) -> PipelineSpec:
    """The ring of a GEMM: stages of `parts` x 128 bytes of K, of a and then of b, in no more than `pages` pages.

    An `elastic` one shrinks where that does not fit.
    """
    stage_pages = operand_pages(tile_m, parts) + operand_pages(tile_n, parts)
    return PipelineSpec.streaming(
        input_stages=pages // stage_pages,
        stage_pages=stage_pages,
        page_bytes=PAGE_BYTES,
        scratch_bytes=0,
        elastic=elastic,
    )


NARROWEST, WIDEST = 32, 256  # columns of a tile
PLAIN_WIDTHS = (64, 128, 256)  # for all targets
WIDTHS = (*range(NARROWEST, 128, 16), *range(128, WIDEST + 1, 32))  # to choose from

#: µs of TILE_K columns of K on an H200, by rows and columns of the tile (benchmarks/gemm.py); in between, they lie on a
#: line. A narrow tile is hardly faster than one of 128 columns: operands on their way to shared memory are the limit,
#: not the products.
STEP_US = {
    (128, 256): 0.67,
    (128, 128): 0.37,
    (128, 64): 0.255,
    (64, 128): 0.375,
    (64, 64): 0.235,
    (64, 256): 0.57,
}
TILE_US = 0.3  # of every tile, beside its K steps
EXPOSED_US = 5.0  # of 128 x 256 results that no TMA stores while the next tile is multiplied
START_US = 5.0  # until operands arrive, and from the last result to the end of the kernel
SMS = 132
MEMORY_BYTES_PER_US = 3.7e6  # of operands, by tiles of wgmma
MAX_SLICES = 8
LEAST_STEPS = 4  # of TILE_K columns, in a slice
MOST_SPLIT_COLUMNS = 128  # of a tile: sums of others need registers, too
HAND_OVER_US = 1.5  # of sums, from one SM to another
HAND_OVER_BYTES_PER_US = 20e3  # of sums that one SM takes over


def tile_times(m: int, n: int, k: int, batch: int = 1, widths: Sequence[int] = WIDTHS) -> dict[tuple[int, int], float]:
    """Expected µs of a product for each (columns of a tile, slices of K) on an H200. The best one is the default.

    Other targets take the same choice, unmeasured. k counts elements of 16 bits; two of 8 bits take as long as one.
    """
    tile_m = TILE_M // 2 if m <= TILE_M // 2 else TILE_M
    return {
        (tile_n, slices): _expected_us(m, n, k, batch, tile_m, tile_n, slices)
        for tile_n in widths
        for slices in range(1, MAX_SLICES + 1)
        if slices == 1 or (tile_n <= MOST_SPLIT_COLUMNS and k >= slices * LEAST_STEPS * TILE_K)
    }


def product_times(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> dict[tuple[int, int], float]:
    """`tile_times` of a product c of rows a and b, with or without a batch dim."""
    batch = c.shape[0] if c.ndim == 3 else 1
    widths = PLAIN_WIDTHS if is_transposed(b) else WIDTHS
    return tile_times(c.shape[-2], c.shape[-1], _halves(a.shape[-1], a.dtype), batch, widths)


def stored_by_tma(tile_m: int, tile_n: int) -> bool:
    """Whether a result of 16-bit elements is whole boxes of 64 columns, which the two compute warpgroups share well."""
    return tile_n in PLAIN_WIDTHS or (tile_m > TILE_M // 2 and tile_n % 64 == 0)


def step_us(tile_m: int, tile_n: int) -> float:
    """Expected µs of TILE_K columns of K."""
    lower, upper = (64, 128) if tile_n <= 128 else (128, 256)
    first, last = STEP_US[tile_m, lower], STEP_US[tile_m, upper]
    return first + (last - first) * (tile_n - lower) / (upper - lower)


def _expected_us(m: int, n: int, k: int, batch: int, tile_m: int, tile_n: int, slices: int) -> float:
    """Full rounds of tiles over all SMs and the time of the operands in memory, of which the shorter one is not quite
    hidden by the longer one, and a hand-over in each round."""
    columns = TILE_K * step_parts(tile_m, tile_n)
    steps = -(-k // (columns * slices)) * columns // TILE_K
    rounds = -(-batch * -(-m // tile_m) * -(-n // tile_n) * slices // SMS)
    exposed = 0.0 if stored_by_tma(tile_m, tile_n) else EXPOSED_US * tile_m * tile_n / (128 * 256)
    products = rounds * (steps * step_us(tile_m, tile_n) + TILE_US + exposed)
    memory = 2 * batch * k * (m + n) / MEMORY_BYTES_PER_US
    taken = (slices - 1) * 4 * tile_n * min(m, tile_m)
    hand_over = rounds * (HAND_OVER_US + taken / HAND_OVER_BYTES_PER_US) if taken else 0.0
    return START_US + (products**4 + memory**4) ** 0.25 + hand_over


@functools.cache
def tuned_choices(device: torch.device) -> Choices | None:
    """What `tune` has measured on this card; None where there is no card."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return Choices("GemmOp", torch.cuda.get_device_name(device))


def tuned_problem(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    """What a measured choice depends on: types, which operands are transposed, and extents."""
    names = [str(x.dtype).removeprefix("torch.") for x in (a, b, c)]
    types = " ".join(f"{name}.T" if is_transposed(x) else name for name, x in zip(names, (a, b, c), strict=True))
    batch = c.shape[0] if c.ndim == 3 else 1
    return f"{types} {batch}x{c.shape[-2]}x{c.shape[-1]}x{a.shape[-1]}"


def _tuned(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[int, int] | tuple[None, None]:
    """The (tile_n, slices) that was measured to be fastest, if it was and still is one to choose from."""
    choices = tuned_choices(a.device)
    found = None if choices is None else choices.find(tuned_problem(a, b, c))
    if found is None:
        return None, None
    choice = found.get("tile_n", 0), found.get("slices", 0)
    return choice if choice in product_times(a, b, c) else (None, None)


def _choose_tile_n(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, slices: int | None) -> int:
    times = product_times(a, b, c)
    return min((choice for choice in times if slices in (None, choice[1])), key=times.__getitem__, default=(128, 0))[0]


def choose_slices(op: ScheduledOp) -> int:
    """The number of slices of K that `tile_times` expects to be best for these tiles."""
    m, n, k, batch = (op.extents[dim] for dim in "MNKB")
    tile_n = op.tile_sizes["N"]
    expected = tile_times(m, n, _halves(k, op.infos["a"].dtype), batch, (tile_n,))
    return min(expected, key=expected.__getitem__)[1]


def _halves(k: int, dtype: torch.dtype) -> int:
    """Columns of K as elements of 16 bits."""
    return -(-k * dtype.itemsize // 2)
