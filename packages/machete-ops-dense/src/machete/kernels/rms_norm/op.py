"""The public RMSNorm op: shapes, checks, and which implementation it gets."""

from __future__ import annotations

from dataclasses import replace

import torch

from machete.kernels.elementwise import tiles
from machete.kernels.elementwise.views import collapsed, with_rank
from machete.megakernel import Op, ScheduledOp, Target
from machete.megakernel.errors import ConfigError, DtypeError, ExtentError, ShapeMismatchError

COMPUTE_THREADS = 256
VECTORS = 2  # that each thread holds of a row, if there are threads enough
MAX_VALUES = 64  # of a row in the registers of one thread
STAGE_PAGES = 2  # at most; rows that need more take the direct path


MOST_EPS = 1e30


class RMSNormOp(Op):
    """y = x * rsqrt(mean(x², last dim) + eps) * weight in float32, rounded once (Zhang and Sennrich, 2019).

    Shapes: x and y (…, D) of one dtype, bfloat16, float16 or float32; weight (D,) in any of these. Any D >= 1 and any
    strides whose leading dims merge to one; y may be x. Large tensors stream through the page ring, each byte read
    once, where rows are a multiple of 16 bytes and at most 32 KiB. Targets: all.
    """

    reads = {"x": (None, ("M", "D")), "weight": (None, ("D",))}
    writes = {"y": (None, ("M", "D"))}
    tile = ("M",)
    resizable = ("M",)  # the last dim decides about vectors and tiles
    early = ("weight",)

    @classmethod
    def schedule(
        cls,
        *,
        x: torch.Tensor,
        weight: torch.Tensor,
        y: torch.Tensor,
        eps: float = 1e-6,
        streaming: bool | None = None,
    ) -> list[ScheduledOp]:
        """Schedule one normalisation of rows.

        Args:
            x: (…, D). weight: (D,). y: like x, overwritten.
            eps: added to the mean square; fixed when the kernel is compiled.
            streaming: through the page ring or not; chosen from size and strides when left out.
        """
        eps = checked_eps(eps, "RMSNormOp.schedule")
        if all(isinstance(tensor, torch.Tensor) for tensor in (x, y)) and x.shape == y.shape and x.ndim != 2:
            if x.ndim > 2:
                x, y = _merged(x, y)
            x, y = with_rank([x, y], 2)
        config = {"eps": eps, "streaming": streaming}
        return [cls._schedule_single(tile_sizes={"M": 1}, config=config, x=x, weight=weight, y=y)]

    @classmethod
    def check(cls, op: ScheduledOp) -> None:
        tiles.check_floats(op, op.infos, "convert it first")
        x, y = op.infos["x"], op.infos["y"]
        if x.dtype != y.dtype:
            raise DtypeError(
                what=f"x is {x.dtype}, y is {y.dtype}",
                where=str(op),
                why="a row is normalised where it lies in shared memory",
                fix=f"make y {x.dtype}",
            )
        if op.extents["D"] == 0:
            raise ExtentError(
                what="D is 0", where=str(op), why="the mean over no elements is undefined", fix="leave the op out"
            )

    @classmethod
    def lower(cls, target: Target, op: ScheduledOp) -> ScheduledOp:
        from .direct import DirectRMSNorm
        from .streaming import StreamingRMSNorm

        op = super().lower(target, op)
        rows, columns, itemsize = op.extents["M"], op.extents["D"], op.infos["x"].itemsize
        if tiles.streams(op, ("x", "y"), "D", most=STAGE_PAGES * tiles.PAGE_BYTES):
            width = tiles.COPY_BYTES // itemsize
            threads, steps = threads_of_row(columns, width)
            pages = -(-columns * itemsize // tiles.PAGE_BYTES)
            tile_rows, _ = tiles.stream_tile(rows, columns, itemsize, pages * tiles.PAGE_BYTES)
            config = {"stage_pages": pages, "ring_pages": tiles.ring_pages(target)}
            kind: type[Op] = StreamingRMSNorm
        else:
            width = tiles.direct_vector(op, ("x", "weight", "y"), "D")
            threads, steps = threads_of_row(columns, width)
            tile_rows = COMPUTE_THREADS // threads
            config = {"vector": width}
            kind = DirectRMSNorm
            if steps * width > MAX_VALUES:
                steps = 0  # read the row twice
        config |= {"eps": op.config["eps"], "row_threads": threads, "steps": steps}
        return replace(op, op=kind, tile_sizes={"M": tile_rows}, config=dict(sorted(config.items())))


def threads_of_row(columns: int, width: int) -> tuple[int, int]:
    """Threads that share a row, a power of two, and vectors of `width` elements that each holds at most."""
    vectors = -(-columns // width)
    threads = 1 << max(-(-vectors // VECTORS) - 1, 0).bit_length()
    threads = min(threads, COMPUTE_THREADS)
    return threads, -(-vectors // threads)


def _merged(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Both with all dims but the last as one."""
    views = collapsed([x, y], keep=1)
    if views[0].ndim > 2:
        raise ShapeMismatchError(
            what=f"the leading dims of x {tuple(x.shape)}, strides {x.stride()}, and y, strides {y.stride()}, "
            "do not merge to one",
            where="RMSNormOp.schedule",
            why="rows are counted along one dim",
            fix="pass tensors of one memory layout, or schedule the op on slices",
        )
    return views


def checked_eps(eps: object, where: str) -> float:
    """What is added under the root, if it is such a number; `ConfigError` if not."""
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps <= MOST_EPS:
        raise ConfigError(
            what=f"eps={eps!r}",
            where=where,
            why=f"it is a number from 0 to {MOST_EPS:g}, added under the root",
            fix="eps=1e-6",
        )
    return float(eps)
