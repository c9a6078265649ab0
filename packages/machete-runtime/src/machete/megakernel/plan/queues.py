"""Each SM's queue: which range of tiles of which op it runs, in order.

An instruction names a range, not a tile, so the queues of an op with a million tiles are no longer than those
of an op with one tile for each SM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

OP, FIRST, COUNT, STEP = range(4)


@dataclass(frozen=True, eq=False)
class Queues:
    """The queues of all SMs, one after another.

    Attributes:
        begin: int32[SMs + 1]; the rows of SM s are begin[s] to begin[s + 1].
        rows: int32[instructions, 4]: op index, first tile, number of tiles, step between tiles.
    """

    begin: np.ndarray
    rows: np.ndarray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Queues):
            return NotImplemented
        return np.array_equal(self.begin, other.begin) and np.array_equal(self.rows, other.rows)

    def __hash__(self) -> int:
        return hash((self.begin.tobytes(), self.rows.tobytes()))

    @property
    def num_sms(self) -> int:
        """Number of queues."""
        return len(self.begin) - 1

    def of_sm(self, sm: int) -> np.ndarray:
        """The rows of one SM."""
        return self.rows[self.begin[sm] : self.begin[sm + 1]]

    def ranges_per_op(self, num_ops: int) -> np.ndarray:
        """int64[ops]: number of instructions of each op."""
        return np.bincount(self.rows[:, OP], minlength=num_ops)

    def tiles_per_sm(self) -> np.ndarray:
        """int64[SMs]: number of tiles that each SM runs."""
        totals = np.concatenate([[0], np.cumsum(self.rows[:, COUNT], dtype=np.int64)])
        return totals[self.begin[1:]] - totals[self.begin[:-1]]


def build_queues(tiles: Sequence[int], num_sms: int) -> Queues:
    """Spread ops with these numbers of tiles over the SMs, in list order.

    Tile t of an op runs on SM (start + t) mod `num_sms`. The start moves on by the tiles of the ops before, so
    that the last, partial waves of consecutive ops fall on different SMs.
    """
    parts: list[np.ndarray] = []
    sms: list[np.ndarray] = []
    start = 0
    for op, total in enumerate(tiles):
        first = np.arange(min(total, num_sms), dtype=np.int64)
        sms.append((start + first) % num_sms)
        count = (total - first + num_sms - 1) // num_sms
        parts.append(np.stack([np.full_like(first, op), first, count, np.full_like(first, num_sms)], axis=1))
        start = (start + total) % num_sms
    sm = np.concatenate(sms)
    order = np.argsort(sm, kind="stable")
    begin = np.searchsorted(sm[order], np.arange(num_sms + 1))
    return Queues(begin.astype(np.int32), np.concatenate(parts)[order].astype(np.int32))
