"""Which groups of two ops touch common bytes.

Both accesses are seen in one mixed-radix number system whose digits are the strides of the two views: rows, columns,
bytes. A group of tiles is a box there, so two groups meet if their intervals meet in every digit; where a box is not
exact (a flat tile that ends in the middle of a row), it is a bounding box, and the bytes from first to last decide as
well. Both tests are necessary for common bytes, so the answer may say yes when unsure, never no.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from machete.megakernel.abi.footprint import Footprint
from machete.megakernel.plan.grouping import MAX_GROUPS, Grouping
from machete.megakernel.plan.kinds import Kind
from machete.megakernel.plan.memory import Access


@dataclass(frozen=True)
class TiledAxis:
    """An axis of a tensor along which tiles differ: tiled dim number `dim`, `size` elements to a tile."""

    axis: int
    dim: int
    size: int


@dataclass(frozen=True)
class TiledAccess:
    """A tensor of an op, and how tiles cut it."""

    footprint: Footprint
    axes: tuple[TiledAxis, ...]
    tiles: tuple[int, ...]

    @classmethod
    def of(cls, access: Access, kind: Kind, tiles: tuple[int, ...]) -> TiledAccess:
        """The access of an op of this kind with these tiles."""
        return _tiled(
            access.footprint, kind.tensors[access.tensor].dims, kind.tile, tuple(kind.tile_sizes.items()), tiles
        )

    @cached_property
    def scales(self) -> tuple[tuple[int, int, int, int], ...]:
        """(dim, bytes from tile to tile, bytes that they cover together, stride) of the axes that tell tiles apart."""
        footprint, found = self.footprint, []
        for tiled in self.axes:
            stride = footprint.strides[tiled.axis]
            if stride and self.tiles[tiled.dim] > 1:
                found.append((tiled.dim, stride * tiled.size, stride * footprint.shape[tiled.axis], stride))
        return tuple(found)

    def boxes(self, grouping: Grouping) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """For each axis the first index and the one after the last, int64[groups]."""
        low = [np.zeros(1, dtype=np.int64) for _ in self.footprint.shape]
        high = [np.full(1, extent, dtype=np.int64) for extent in self.footprint.shape]
        for tiled in self.axes:
            first, end = grouping.bounds(tiled.dim)
            low[tiled.axis] = first * tiled.size
            high[tiled.axis] = np.minimum(end * tiled.size, self.footprint.shape[tiled.axis])
        return low, high


def _tiled(
    footprint: Footprint,
    dims: tuple[str, ...],
    tile: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
    tiles: tuple[int, ...],
) -> TiledAccess:
    size_of = dict(sizes)
    axes = tuple(TiledAxis(axis, tile.index(dim), size_of[dim]) for axis, dim in enumerate(dims) if dim in size_of)
    return TiledAccess(footprint, axes, tiles)


# ---------------------------------------------------------------------------------------------- which groups meet


@dataclass(frozen=True, eq=False)
class Meeting:
    """Which groups of a consumer need which groups of a producer.

    Attributes:
        matrix: bool[groups of the consumer, groups of the producer].
        rows: its rows as bit sets.
    """

    matrix: np.ndarray
    rows: tuple[int, ...]

    @classmethod
    def of(cls, matrix: np.ndarray) -> Meeting:
        """The relation in this matrix."""
        packed = np.packbits(matrix, axis=1, bitorder="little")
        width, data = packed.shape[1], packed.tobytes()
        rows = (int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), max(width, 1)))
        return cls(matrix, tuple(rows))


#: Of two ops with one group each and a hazard.
_ONE_ON_ONE = Meeting.of(np.ones((1, 1), dtype=bool))


def need(
    pairs: Iterable[tuple[TiledAccess, TiledAccess]], consumer_groups: Grouping, producer_groups: Grouping
) -> Meeting:
    """What a consumer needs of a producer, through these pairs of (its access, the producer's), of which one meets."""
    if consumer_groups.count == producer_groups.count == 1:
        return _ONE_ON_ONE
    found = {id(m): m for m in (_meeting(mine, consumer_groups, theirs, producer_groups) for mine, theirs in pairs)}
    if len(found) == 1:
        return next(iter(found.values()))
    return Meeting.of(np.logical_or.reduce([one.matrix for one in found.values()]))


# Layers repeat: most relations in a plan have been seen before.
@lru_cache(maxsize=512)
def _meeting(one: TiledAccess, one_groups: Grouping, other: TiledAccess, other_groups: Grouping) -> Meeting:
    return Meeting.of(meeting(one, one_groups, other, other_groups))


def meeting(one: TiledAccess, one_groups: Grouping, other: TiledAccess, other_groups: Grouping) -> np.ndarray:
    """bool[groups of one, groups of other]: which of them may touch common bytes."""
    first, last = _spans(one, one_groups)
    other_first, other_last = _spans(other, other_groups)
    meets = (first[:, None] <= other_last) & (other_first <= last[:, None])
    radices = _radices(one.footprint, other.footprint)
    for (low, high), (other_low, other_high) in zip(
        _digits(one, one_groups, radices), _digits(other, other_groups, radices), strict=True
    ):
        meets &= (low[:, None] <= other_high) & (other_low <= high[:, None])
    return np.broadcast_to(meets, (one_groups.count, other_groups.count))


def _spans(access: TiledAccess, grouping: Grouping) -> tuple[np.ndarray, np.ndarray]:
    """First and last byte of each group."""
    low, high = access.boxes(grouping)
    first = last = np.full(1, access.footprint.address, dtype=np.int64)
    for stride, begin, end in zip(access.footprint.strides, low, high, strict=True):
        first, last = first + begin * stride, last + (end - 1) * stride
    return first, last + (access.footprint.itemsize - 1)


def _radices(one: Footprint, other: Footprint) -> tuple[int, ...]:
    """Strides of both views, largest first, if each divides the one before; else none."""
    strides = sorted({stride for view in (one, other) for stride, _ in view.steps if stride}, reverse=True)
    if any(large % small for large, small in pairwise(strides)):
        return ()
    return tuple(strides)


def _digits(
    access: TiledAccess, grouping: Grouping, radices: tuple[int, ...]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Least and largest value of each digit, for each group; the least significant digit, bytes, comes first."""
    if not radices:
        return
    footprint = access.footprint
    begins, ends = access.boxes(grouping)
    zero = np.zeros(1, dtype=np.int64)
    carry_low = carry_high = zero
    for position in range(len(radices), -1, -1):
        unit = radices[position] if position < len(radices) else 1
        above = radices[position - 1] if position else 0
        digit = footprint.address % above // unit if above else footprint.address // unit
        low, high = carry_low + digit, carry_high + digit
        if position == len(radices):
            high = high + (footprint.itemsize - 1)
        for stride, extent, begin, end in zip(footprint.strides, footprint.shape, begins, ends, strict=True):
            if position < len(radices) and stride == unit and extent > 1:
                low, high = low + begin, high + (end - 1)
        if above:
            radix = above // unit
            carry_low, carry_high = low // radix, high // radix
            wraps = carry_low != carry_high
            low, high = np.where(wraps, 0, low % radix), np.where(wraps, radix - 1, high % radix)
        yield low, high


# ---------------------------------------------------------------------------------------------- how fine to cut


#: An access of a producer, and one of a consumer to common memory.
Pairs = tuple[tuple[TiledAccess, TiledAccess], ...]


@dataclass(frozen=True)
class Cut:
    """How the tiles of two ops relate.

    Attributes:
        producer, consumer: (dim, tiles that may stay together along it) for each tiled dim that tells tiles apart.
        covers: every tile of the producer touches something that the consumer touches.
    """

    producer: tuple[tuple[int, int], ...]
    consumer: tuple[tuple[int, int], ...]
    covers: bool

    @property
    def whole(self) -> bool:
        """Whether the relation tells no tiles apart: every tile of the consumer needs all of the producer."""
        return not self.producer and not self.consumer


@lru_cache(maxsize=4096)
def cut(pairs: Pairs) -> Cut:
    """How finely groups have to be cut so that the relation of two ops through these pairs is exact."""
    mine, theirs = dict(_partly(pairs)), dict(_partly([(consumer, producer) for producer, consumer in pairs]))
    covers = not mine
    for producer, consumer in pairs:
        for dim, tile, reach, stride in producer.scales:
            for other_dim, other_tile, other_reach, other_stride in consumer.scales:
                if tile < other_reach and other_tile < reach:  # both move through the same digits of the address
                    aligned = stride == other_stride
                    offset = (consumer.footprint.address // stride - producer.footprint.address // stride) * stride
                    mine[dim] = math.gcd(mine.get(dim, 0), _ratio(other_tile, tile, aligned, offset))
                    theirs[other_dim] = math.gcd(theirs.get(other_dim, 0), _ratio(tile, other_tile, aligned, offset))
    return Cut(tuple(mine.items()), tuple(theirs.items()), covers)


def _ratio(large: int, small: int, aligned: bool, offset: int) -> int:
    """How many small tiles may stay together so that no boundary between large ones falls inside."""
    if aligned and large % small == 0 and offset % large == 0:
        return large // small
    return 1


def _partly(pairs: Iterable[tuple[TiledAccess, TiledAccess]]) -> Iterator[tuple[int, int]]:
    """(dim, tiles that may stay together) of dims along which only some tiles of the first op touch the other."""
    pairs = list(pairs)
    tiles = pairs[0][0].tiles
    for dim, n in enumerate(tiles):
        if n == 1 or any(dim not in {scale[0] for scale in access.scales} for access, _ in pairs):
            continue  # one tile; or some tensor is the same for all tiles along this dim
        block = -(-n // MAX_GROUPS)
        lines = Grouping(tiles, tuple(block if i == dim else m for i, m in enumerate(tiles)))
        touches = np.zeros(lines.count, dtype=bool)
        for access, other in pairs:
            touches |= meeting(access, lines, other, Grouping.whole(other.tiles))[:, 0]
        changes = np.flatnonzero(touches[1:] != touches[:-1]) + 1
        if len(changes):
            yield dim, block * math.gcd(*changes.tolist())
