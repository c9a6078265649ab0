"""Each SM's queue: which range of tiles of which op it runs, in order.

An instruction names a range, not a tile, so the queues of an op with a million tiles are no longer than those
of an op with one tile for each SM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from machete.megakernel.plan.grouping import Grouping, Lines

#: Columns of `Queues.rows`.
OP, FIRST, COUNT, STEP, WAITS, SIGNAL, TOTAL = range(7)
COLUMNS = 7

#: Differences in time below this, in µs, are none.
_RESOLUTION = 1e-6


@dataclass(frozen=True, eq=False)
class Queues:
    """The queues of all SMs, one after another; or one queue that all SMs fetch from.

    Attributes:
        begin: int32[queues + 1]; the rows of queue s are begin[s] to begin[s + 1].
        rows: int32[instructions, 7]: op index, first tile, number of tiles, step between tiles, number of its list of
            waits, counter to signal or -1, second counter to signal (of the whole op) or -1.
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
    def count(self) -> int:
        """Number of queues."""
        return len(self.begin) - 1

    def of_sm(self, sm: int) -> np.ndarray:
        """The rows of one queue."""
        return self.rows[self.begin[sm] : self.begin[sm + 1]]

    def ranges_per_op(self, num_ops: int) -> np.ndarray:
        """int64[ops]: number of instructions of each op."""
        return np.bincount(self.rows[:, OP], minlength=num_ops)

    def tiles_per_queue(self) -> np.ndarray:
        """int64[queues]: number of tiles in each."""
        totals = np.concatenate([[0], np.cumsum(self.rows[:, COUNT], dtype=np.int64)])
        return totals[self.begin[1:]] - totals[self.begin[:-1]]


@dataclass(frozen=True)
class Ranges:
    """The instructions of one op, each as int64: its SM (0 in a shared queue), tiles as in `Queues`, and group."""

    sm: np.ndarray
    first: np.ndarray
    count: np.ndarray
    step: np.ndarray
    group: np.ndarray


def joined(ranges: Sequence[Ranges], num_queues: int) -> tuple[Queues, np.ndarray]:
    """The queues of these ops in list order, without waits and signals yet, and int64[instructions]: their groups."""
    sm = np.concatenate([op.sm for op in ranges])
    order = np.argsort(sm, kind="stable")
    rows = np.full((len(sm), COLUMNS), -1, dtype=np.int64)
    rows[:, OP] = np.repeat(np.arange(len(ranges)), [len(op.sm) for op in ranges])
    for column, name in ((FIRST, "first"), (COUNT, "count"), (STEP, "step")):
        rows[:, column] = np.concatenate([getattr(op, name) for op in ranges])
    rows[:, WAITS] = 0
    begin = np.searchsorted(sm[order], np.arange(num_queues + 1))
    group = np.concatenate([op.group for op in ranges])
    return Queues(begin.astype(np.int32), rows[order].astype(np.int32)), group[order]


def chunks(grouping: Grouping, size: int) -> Ranges:
    """The tiles in order, at most `size` neighbours to an instruction, for a queue that all SMs fetch from."""
    lines = grouping.lines()
    copies = -(-lines.length // size)
    line = np.repeat(np.arange(len(copies)), copies)
    offset = (np.arange(len(line)) - np.repeat(np.cumsum(copies) - copies, copies)) * size
    count = np.minimum(lines.length[line] - offset, size)
    first = lines.first[line] + offset * lines.step[line]
    return Ranges(np.zeros_like(first), first, count, np.where(count > 1, lines.step[line], 1), lines.group[line])


def deal(
    grouping: Grouping,
    available: np.ndarray,
    work: np.ndarray,
    start: int,
    tile_us: float,
    blocked: bool,
    lines: Lines | None = None,
) -> Ranges:
    """List scheduling of equal tiles: each next tile to the SM that is free first.

    SMs that are behind catch up with a few neighbouring tiles each; from then on tiles go round, SM after SM, so that
    what the first groups need is there early. Among SMs that are free at the same time, those come first that had less
    to do, then those from `start` on.

    Args:
        grouping: of the op's tiles; no range crosses a group.
        available: float64[SMs], when each SM is free, in µs.
        work: float64[SMs], how much it had to do, in µs.
        start: SM that comes first among equals.
        tile_us: time of a tile.
        blocked: each SM gets neighbouring tiles only, for an op that keeps state from tile to tile of a range.
        lines: the tiles in the order in which they are handed out, if not group by group.
    """
    lines = lines or grouping.lines()
    num_sms, total = len(available), grouping.num_tiles
    catch_up = _catch_up(available, total, tile_us)
    free = available + catch_up * tile_us
    rotated = (np.arange(num_sms) - start) % num_sms
    order = np.lexsort((rotated, np.round(work / _RESOLUTION), np.round(free / _RESOLUTION)))
    if blocked:
        rest = total - int(catch_up.sum())
        catch_up = catch_up + rest // num_sms
        catch_up[order[: rest % num_sms]] += 1
        first_free = order
    else:
        first_free = np.lexsort((rotated, np.round(available / _RESOLUTION)))

    # Neighbours: cut where an SM's share ends, and where a line ends.
    sizes = catch_up[first_free]
    shares, begins = first_free[sizes > 0], (np.cumsum(sizes) - sizes)[sizes > 0]
    neighbours = int(sizes.sum())
    cuts = np.unique(np.concatenate([begins, lines.begin[lines.begin < neighbours]]))
    line = np.searchsorted(lines.begin, cuts, side="right") - 1
    count = np.diff(np.append(cuts, neighbours))
    near = Ranges(
        sm=shares[np.searchsorted(begins, cuts, side="right") - 1] if neighbours else cuts,
        first=lines.first[line] + (cuts - lines.begin[line]) * lines.step[line],
        count=count,
        step=np.where(count > 1, lines.step[line], 1),
        group=lines.group[line],
    )

    # Round and round: each line gives a range to as many SMs as it has tiles.
    begin = np.maximum(lines.begin, neighbours)
    length = np.maximum(lines.begin + lines.length - begin, 0)
    copies = np.minimum(length, num_sms)
    line = np.repeat(np.arange(len(copies)), copies)
    offset = np.arange(len(line)) - np.repeat(np.cumsum(copies) - copies, copies)
    position = begin[line] + offset
    count = (length[line] - offset + num_sms - 1) // num_sms
    far = Ranges(
        sm=order[(position - neighbours) % num_sms],
        first=lines.first[line] + (position - lines.begin[line]) * lines.step[line],
        count=count,
        step=np.where(count > 1, lines.step[line] * num_sms, 1),
        group=lines.group[line],
    )
    names = ("sm", "first", "count", "step", "group")
    return Ranges(**{name: np.concatenate([getattr(near, name), getattr(far, name)]) for name in names})


def _catch_up(available: np.ndarray, total: int, tile_us: float) -> np.ndarray:
    """int64[SMs]: tiles after which each SM is at most one tile behind the last one, if there are as many tiles."""

    def tiles_until(time: float) -> np.ndarray:
        return np.maximum(np.ceil((time - available) / tile_us - _RESOLUTION).astype(np.int64) - 1, 0)

    latest, earliest = float(available.max()), float(available.min())
    tiles = tiles_until(latest)
    if tiles.sum() <= total:
        return tiles
    for _ in range(50):
        middle = (latest + earliest) / 2
        if tiles_until(middle).sum() > total:
            latest = middle
        else:
            earliest = middle
    return tiles_until(earliest)
