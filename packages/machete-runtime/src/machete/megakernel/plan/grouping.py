"""Groups of tiles: what a dependency waits for.

The tiles of an op form a grid. Blocks of that grid are *groups*: every instruction belongs to one group, each group
that somebody waits for has a counter, and an instruction waits for just the groups of earlier ops that touch what its
own group touches. A dim along which nobody can tell tiles apart is not cut, so an op that all consumers need all of is
one group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: Groups of one op, at most.
MAX_GROUPS = 256


@dataclass(frozen=True)
class Grouping:
    """The groups of one op, numbered like tiles: the last dim varies fastest.

    Attributes:
        tiles: number of tiles along each tiled dim.
        block: tiles of one group along each of them; the last groups may be smaller.
    """

    tiles: tuple[int, ...]
    block: tuple[int, ...]

    @classmethod
    def whole(cls, tiles: tuple[int, ...]) -> Grouping:
        """All tiles in one group."""
        return cls(tiles, tuple(max(n, 1) for n in tiles))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Groups along each dim."""
        return tuple(-(-n // b) for n, b in zip(self.tiles, self.block, strict=True))

    @cached_property
    def count(self) -> int:
        """Number of groups."""
        return math.prod(self.shape)

    @cached_property
    def num_tiles(self) -> int:
        """Number of tiles."""
        return math.prod(self.tiles)

    def of(self, tiles: np.ndarray) -> np.ndarray:
        """int64: the group of each of these tile numbers."""
        group, rest, scale = np.zeros(len(tiles), dtype=np.int64), tiles.astype(np.int64), 1
        for n, b, groups in reversed(list(zip(self.tiles, self.block, self.shape, strict=True))):
            group += rest % n // b * scale
            rest, scale = rest // n, scale * groups
        return group

    def bounds(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """int64[groups] each: first tile of every group along a tiled dim, and the one after its last."""
        inner = math.prod(self.shape[axis + 1 :])
        index = np.arange(self.count, dtype=np.int64) // inner % self.shape[axis]
        first = index * self.block[axis]
        return first, np.minimum(first + self.block[axis], self.tiles[axis])

    @cached_property
    def collapsed(self) -> Grouping:
        """The same groups over fewer dims: a dim that is not cut is one with the dim outside of it."""
        tiles: list[int] = []
        block: list[int] = []
        for n, b in reversed(list(zip(self.tiles, self.block, strict=True))):
            if n == 1:
                continue
            if tiles and block[-1] == tiles[-1]:
                tiles[-1], block[-1] = tiles[-1] * n, block[-1] * b
            else:
                tiles.append(n)
                block.append(b)
        return Grouping(tuple(reversed(tiles or [1])), tuple(reversed(block or [1])))

    @cached_property
    def line_axis(self) -> int:
        """Along which of the `collapsed` dims a group is cut into lines: the longest, the innermost of several."""
        return max(range(len(self.collapsed.block)), key=lambda axis: (self.collapsed.block[axis], axis))

    def most_rows(self, num_sms: int) -> int:
        """Instructions that these groups make at most."""
        block = self.collapsed.block
        length = block[self.line_axis]
        return self.count * (math.prod(block) // length) * min(length, num_sms)

    def coarser(self) -> Grouping:
        """Groups twice as large, along the dim that has most of them."""
        axis = max(range(len(self.shape)), key=self.shape.__getitem__)
        block = list(self.block)
        block[axis] = min(2 * block[axis], self.tiles[axis])
        return Grouping(self.tiles, tuple(block))

    def bounded(self, num_sms: int, max_rows: int) -> Grouping:
        """These groups, merged as far as needed for `MAX_GROUPS` and for `max_rows` instructions."""
        grouping = self
        while grouping.count > 1 and (grouping.count > MAX_GROUPS or grouping.most_rows(num_sms) > max_rows):
            grouping = grouping.coarser()
        return grouping

    def lines(self) -> Lines:
        """The tiles of all groups as lines, group by group."""
        grid, axis = self.collapsed, self.line_axis
        strides = [math.prod(grid.tiles[i + 1 :]) for i in range(len(grid.tiles))]
        others = [i for i in range(len(grid.tiles)) if i != axis]
        group = np.arange(grid.count, dtype=np.int64)
        first, end = grid.bounds(axis)
        length, start = end - first, first * strides[axis]
        for i in others:
            low, high = grid.bounds(i)
            # One line for each index along this dim, for each line so far.
            copies = (high - low)[group]
            begins = np.cumsum(copies) - copies
            index = low[group].repeat(copies) + np.arange(copies.sum()) - begins.repeat(copies)
            group, length = group.repeat(copies), length.repeat(copies)
            start = start.repeat(copies) + index * strides[i]
        begin = np.cumsum(length) - length
        return Lines(begin, length, start, np.full_like(start, strides[axis]), group)

    def panels(self, axis: int, length: int) -> Lines:
        """The tiles of all groups as short lines along one dim: `length` tiles, then their neighbours along the others.

        Tiles that run at the same time are then close to each other along every dim. For groups that are not cut.
        """
        strides = [math.prod(self.tiles[i + 1 :]) for i in range(len(self.tiles))]
        begins = np.arange(0, self.tiles[axis], length, dtype=np.int64)
        first, lengths = begins * strides[axis], np.minimum(self.tiles[axis] - begins, length)
        for i in range(axis + 1, len(self.tiles)):
            steps = np.arange(self.tiles[i], dtype=np.int64) * strides[i]
            first, lengths = (first[:, None] + steps).reshape(-1), lengths.repeat(len(steps))
        for i in reversed(range(axis)):
            steps = np.arange(self.tiles[i], dtype=np.int64) * strides[i]
            first, lengths = (steps[:, None] + first).reshape(-1), np.tile(lengths, len(steps))
        group = np.zeros_like(first)
        return Lines(np.cumsum(lengths) - lengths, lengths, first, np.full_like(first, strides[axis]), group)


@dataclass(frozen=True)
class Lines:
    """Tiles in the order in which they are handed out, as int64 arithmetic progressions.

    Attributes:
        begin: position of the line's first tile in that order.
        length: tiles of the line.
        first: its first tile number.
        step: from one of its tile numbers to the next.
        group: the group that the line belongs to.
    """

    begin: np.ndarray
    length: np.ndarray
    first: np.ndarray
    step: np.ndarray
    group: np.ndarray
