"""How ops on rows of memory are cut into tiles: through the ring where there is much to move, else directly.

A large tensor streams: bulk copies bring tiles of whole 16-byte units into the ring, results leave the same way, and
every byte moves once. A small one, and one with other strides, is read and written by the compute threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from machete.megakernel import ScheduledOp, Target
from machete.megakernel.errors import AlignmentError, DtypeError

PAGE_BYTES = 16 * 1024
RING_PAGES = {"sm_90a": 12, "sm_100a": 12, "sm_120a": 4}
COPY_BYTES = 16  # what bulk copies and the widest accesses move
STREAM_BYTES = 4 << 20  # results below this come sooner without the ring
DIRECT_VECTOR = 8  # elements
DIRECT_TILE = 2048  # elements: one vector for each compute thread

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def check_floats(op: ScheduledOp, names: Iterable[str], fix: str) -> None:
    """Raise `DtypeError` unless these tensors are bfloat16, float16 or float32."""
    for name in names:
        info = op.infos[name]
        if info.dtype not in FLOATS:
            raise DtypeError(
                what=f"`{name}` is {info.dtype}",
                where=str(op),
                why="it is computed in float32, from and to bfloat16, float16 or float32",
                fix=fix,
            )


def streams(op: ScheduledOp, names: Sequence[str], columns: str, most: int | None = None) -> bool:
    """Whether an op on tensors of two dims, the last one `columns`, goes through the ring; rows of `most` bytes do.

    `op.config["streaming"]` decides if it is True or False; True raises `AlignmentError` where it is not possible.
    """
    wanted = op.config["streaming"]
    reason = _obstacle(op, names, columns, most)
    if wanted and reason:
        raise AlignmentError(
            what=f"streaming=True, but {reason}",
            where=str(op),
            why="rows are copied in bulk, whole or in even parts",
            fix="leave streaming out: the op has a path for every layout",
        )
    if wanted is None:
        result = op.infos[names[-1]]
        return not reason and result.nbytes >= STREAM_BYTES
    return bool(wanted)


def _obstacle(op: ScheduledOp, names: Sequence[str], columns: str, most: int | None) -> str:
    """Why rows cannot be copied in bulk, or nothing."""
    infos = [op.infos[name] for name in names]
    for info in infos:
        if info.dtype != infos[0].dtype:
            return f"`{info.name}` is {info.dtype} and `{infos[0].name}` {infos[0].dtype}"
        if not info.unit_inner:
            return f"neighbours in a row of `{info.name}` are {info.strides[-1]} elements apart"
        if info.alignment < COPY_BYTES and not info.is_empty:
            return f"rows of `{info.name}` start at multiples of {info.alignment} bytes"
        row_bytes = op.extents[columns] * info.itemsize
        if info.shape[0] > 1 and row_bytes % COPY_BYTES:
            return f"rows of `{info.name}` are {row_bytes} bytes long, no multiple of {COPY_BYTES}"
        if most is not None and row_bytes > most:
            return f"rows of `{info.name}` are {row_bytes} bytes long, more than {most}"
    return ""


def stream_tile(rows: int, columns: int, itemsize: int, nbytes: int) -> tuple[int, int]:
    """Rows and columns of a tile that fills `nbytes` of a stage: whole rows, or an even part of one."""
    unit = COPY_BYTES // itemsize
    if columns * itemsize > nbytes:
        parts = -(-columns * itemsize // nbytes)
        return 1, -(-columns // (parts * unit)) * unit
    width = max(-(-columns // unit) * unit, unit)
    return max(min(nbytes // (width * itemsize), rows), 1), width


def direct_vector(op: ScheduledOp, names: Iterable[str], columns: str) -> int:
    """Elements of one access of the compute threads: 8 where all rows allow 16-byte accesses, else 1."""
    infos = [op.infos[name] for name in names]
    aligned = all(info.unit_inner and (info.alignment >= COPY_BYTES or info.is_empty) for info in infos)
    return DIRECT_VECTOR if aligned and op.extents[columns] % DIRECT_VECTOR == 0 else 1


def direct_tile(columns: int) -> tuple[int, int]:
    """Rows and columns of a tile of the compute threads: powers of two."""
    width = min(DIRECT_TILE, max(1 << (max(columns, 1) - 1).bit_length(), DIRECT_VECTOR))
    return DIRECT_TILE // width, width


def ring_pages(target: Target) -> int:
    """Pages of the ring: a multiple of what other dense ops form stages of."""
    return RING_PAGES[target.name]
