"""Which SM runs which tiles, as far as the cost model can tell before the kernel runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from machete.megakernel.plan.cost import Rates
from machete.megakernel.plan.grouping import Grouping
from machete.megakernel.plan.ordering import Needs
from machete.megakernel.plan.queues import Ranges, chunks, deal

#: Position of a tiled dim, and tiles of a panel along it.
Panel = tuple[int, int]

#: Instructions of one op for each SM: this many are worth exact dependencies in any case, and no more than the most.
LEAST_ROWS, MOST_ROWS = 4, 16
#: In between, instructions may cost this part of the op's time.
INSTRUCTION_SHARE = 1 / 8
#: Instructions that each SM fetches of one op, about, where they share a queue.
FETCHES = 8


def affordable_rows(num_tiles: int, tile_us: float, rates: Rates, num_sms: int) -> int:
    """How many instructions an op may be cut into for the sake of its dependencies."""
    op_us = num_tiles * tile_us / num_sms
    per_sm = INSTRUCTION_SHARE * op_us / rates.instruction_us
    return int(num_sms * min(max(per_sm, LEAST_ROWS), MOST_ROWS))


def place(
    groupings: Sequence[Grouping],
    needs: Needs,
    tile_us: Sequence[float],
    keeps_state: Sequence[bool],
    panels: Sequence[Panel | None],
    rates: Rates,
    num_sms: int,
) -> list[Ranges]:
    """List scheduling, op by op: tiles go to the SMs that are free first, once something that they need is there.

    `keeps_state` says which ops want neighbouring tiles in a range, where they are cut into groups; `panels`, which
    hand out tiles in panels, where they are not cut and fill all SMs more than once.
    """
    free, work = np.zeros(num_sms), np.zeros(num_sms)
    finished: list[np.ndarray] = []  # of each group of each op, in µs
    start = 0
    placed = []
    for op, grouping in enumerate(groupings):
        ready = np.zeros(grouping.count)
        for producer, need in needs.get(op, {}).items():
            if need.matrix.size:
                times = np.where(need.matrix, finished[producer] + rates.dependency_us, 0.0)
                ready = np.maximum(ready, times.max(axis=1))
        if grouping.num_tiles == 0:
            nothing = np.zeros(0, dtype=np.int64)
            placed.append(Ranges(nothing, nothing, nothing, nothing, nothing))
            finished.append(ready)
            continue
        available = np.maximum(free, ready.min())
        blocked = keeps_state[op] and grouping.count > 1
        panel = panels[op]
        if panel is None or grouping.count > 1 or grouping.num_tiles <= num_sms:
            lines = grouping.lines()
        else:
            lines = grouping.panels(*panel)
        ranges = deal(grouping, available, work, start, tile_us[op], blocked, lines)
        placed.append(ranges)
        start = (start + grouping.num_tiles) % num_sms

        order = np.argsort(ranges.sm, kind="stable")
        sm, group = ranges.sm[order], ranges.group[order]
        duration = ranges.count[order] * tile_us[op]
        total = np.cumsum(duration)
        begin = np.searchsorted(sm, sm)  # the SM's first range of this op
        end = available[sm] + total - (total - duration)[begin]
        end = np.maximum(end, ready[group] + duration)
        np.maximum.at(free, sm, end)
        np.add.at(work, sm, duration)
        finish = np.zeros(grouping.count)
        np.maximum.at(finish, group, end)
        finished.append(finish)
    return placed


def place_in_one_queue(groupings: Sequence[Grouping], num_sms: int) -> list[Ranges]:
    """Ranges in list order, for SMs that fetch the next one whenever they are free."""
    return [chunks(grouping, max(grouping.num_tiles // (FETCHES * num_sms), 1)) for grouping in groupings]
