"""Layers: ops of the same kinds in the same order, again and again."""

from __future__ import annotations

from collections.abc import Sequence


def layers_of(kinds: Sequence[int]) -> list[range]:
    """Ranges of ops that are layers, from the kind of each op; none if nothing repeats.

    The longest stretch counts that repeats with one period, of the shortest period that gives one at least as long as
    half of the ops. What comes before and after it, and is no whole layer, belongs to none.
    """
    for period in range(1, len(kinds) // 2 + 1):
        best = range(0)
        begin = 0
        for index in range(period, len(kinds) + 1):
            if index == len(kinds) or kinds[index] != kinds[index - period]:
                if index - begin > len(best):
                    best = range(begin, index)
                begin = index - period + 1
        count = len(best) // period
        if count >= 2 and len(best) >= len(kinds) / 2:
            return [range(best.start + i * period, best.start + (i + 1) * period) for i in range(count)]
    return []
