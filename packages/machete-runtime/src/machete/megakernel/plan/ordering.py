"""Who waits for what: groups of tiles that touch common bytes, without the waits that others imply.

A wait tells more than its counter: whoever has seen a group complete knows everything that the instructions of that
group knew when they began. So, group by group, the newest producers are looked at first, and what their completion
implies is not waited for again. The same holds along the queue of an SM: all roles take its instructions in order, so
what one of them has waited for, the next ones need not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from machete.megakernel.plan.dependencies import Hazards
from machete.megakernel.plan.grouping import Grouping
from machete.megakernel.plan.queues import OP, SIGNAL, TOTAL, WAITS, Queues
from machete.megakernel.plan.relation import Cut, Meeting, TiledAccess, cut, need

#: (counter, value that it has to reach)
Wait = tuple[int, int]
#: (op, group of it, or ALL_GROUPS)
Event = tuple[int, int]
ALL_GROUPS = -1

#: consumer -> producer -> which groups of the one need which of the other
Needs = dict[int, dict[int, Meeting]]


def cuts_of(hazards: Hazards, accesses: Sequence[Mapping[str, TiledAccess]]) -> dict[tuple[int, int], Cut]:
    """(producer, consumer) to how finely their hazards want tiles to be told apart."""
    cuts: dict[tuple[int, int], Cut] = {}
    for consumer, found in hazards.items():
        for producer, pairs in found.items():
            tensors = sorted({(theirs, mine) for _, theirs, mine in pairs})
            together = ((accesses[producer][theirs], accesses[consumer][mine]) for theirs, mine in tensors)
            cuts[producer, consumer] = cut(tuple(dict.fromkeys(together)))
    return cuts


def blocks_of(
    hazards: Hazards, cuts: Mapping[tuple[int, int], Cut], tiles: Sequence[tuple[int, ...]]
) -> list[Grouping]:
    """The coarsest groups for which every hazard is exact, but for those that others imply for whole ops."""
    done: list[int] = []  # ops that are complete when this one is
    blocks: list[dict[int, int]] = [{} for _ in tiles]
    for consumer in range(len(tiles)):
        finished = known = 0
        for producer in sorted(hazards.get(consumer, ()), reverse=True):
            found = cuts[producer, consumer]
            if not known >> producer & 1:
                for op, dims in ((producer, found.producer), (consumer, found.consumer)):
                    for dim, together in dims:
                        blocks[op][dim] = math.gcd(blocks[op].get(dim, 0), together)
            if found.whole:
                known |= done[producer] | 1 << producer
            if found.covers:
                finished |= done[producer] | 1 << producer
        done.append(finished | known)
    return [
        Grouping(counts, tuple(min(block.get(dim, n), n) if n else 1 for dim, n in enumerate(counts)))
        for counts, block in zip(tiles, blocks, strict=True)
    ]


def needs_of(hazards: Hazards, accesses: Sequence[Mapping[str, TiledAccess]], groupings: Sequence[Grouping]) -> Needs:
    """Which groups touch common bytes, for every two ops with a hazard."""
    return {
        consumer: {
            producer: need(
                {(accesses[consumer][mine], accesses[producer][theirs]) for _, theirs, mine in pairs},
                groupings[consumer],
                groupings[producer],
            )
            for producer, pairs in found.items()
        }
        for consumer, found in hazards.items()
    }


class Knowledge:
    """Sets of groups that are known to be complete, as bits of an int.

    Only ops that a later op still needs have bits. Bits are used again, so sets are forgotten (`forget`) whenever an op
    gets bits that another had before.
    """

    def __init__(self, needs: Needs, counts: Sequence[int]) -> None:
        self._last = {producer: consumer for consumer in sorted(needs) for producer in needs[consumer]}
        self._ends: defaultdict[int, list[int]] = defaultdict(list)  # consumer -> producers that nobody needs after it
        for producer, consumer in self._last.items():
            self._ends[consumer].append(producer)
        self._counts = counts
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # size -> first bits
        self._top = 0
        self.first: dict[int, int] = {}  # op -> first bit

    def begin(self, op: int) -> int:
        """Give the op bits if somebody needs it; returns the set of bits that had another meaning so far."""
        if op not in self._last:
            return 0
        size = 1 << (max(self._counts[op], 1) - 1).bit_length()
        if self._free[size]:
            self.first[op] = self._free[size].pop()
            return ((1 << size) - 1) << self.first[op]
        self.first[op] = self._top
        self._top += size
        return 0

    def end(self, op: int) -> list[int]:
        """Take back the bits of ops that nobody needs after this one; returns these ops."""
        for producer in self._ends[op]:
            size = 1 << (max(self._counts[producer], 1) - 1).bit_length()
            self._free[size].append(self.first.pop(producer))
        return self._ends[op]

    def all_of(self, op: int) -> int:
        """All groups of an op that somebody needs."""
        return ((1 << self._counts[op]) - 1) << self.first[op]


def events_of(
    needs: Needs, groupings: Sequence[Grouping], ranges: Sequence[tuple[Sequence[int], Sequence[int]]], ordered: bool
) -> Iterator[list[tuple[Event, ...]]]:
    """For each op, for each of its instructions, the events that it has to wait for: what nothing else implies.

    Args:
        needs: who needs whom.
        groupings: of all ops.
        ranges: for each op the queue and the group of each instruction, in the order of the queue.
        ordered: every queue belongs to one SM, which has seen what its earlier instructions waited for.
    """
    knowledge = Knowledge(needs, [grouping.count for grouping in groupings])
    told: dict[Event, int] = {}  # what is known once an event has been seen
    seen: defaultdict[int, int] = defaultdict(int)  # what each SM knows
    for consumer, (queues, groups) in enumerate(ranges):
        stale = knowledge.begin(consumer)
        if stale:
            told = {event: known & ~stale for event, known in told.items()}
            for sm in seen:
                seen[sm] &= ~stale
        found = needs.get(consumer, {})
        producers = [
            (producer, groupings[producer].count, knowledge.first[producer], knowledge.all_of(producer))
            for producer in sorted(found, reverse=True)
        ]
        rows = [found[producer].rows for producer, *_ in producers]
        op_waits: list[tuple[Event, ...]] = []
        lasts = consumer in knowledge.first
        union = knowledge.all_of(consumer) if lasts else 0
        for group in range(groupings[consumer].count if producers or lasts else 0):
            events, known = _missing(producers, [needed[group] for needed in rows], told)
            op_waits.append(events)
            if lasts:
                told[consumer, group] = known | 1 << knowledge.first[consumer] + group
                union |= known
        if lasts:
            told[consumer, ALL_GROUPS] = union
        if not ordered:
            yield [op_waits[group] for group in groups] if producers else [()] * len(groups)
        elif producers or lasts:
            row_waits: list[tuple[Event, ...]] = []
            for queue, group in zip(queues, groups, strict=True):
                row_waits.append(_unseen(op_waits[group], told, seen, queue))
                if lasts:  # a group that is complete vouches for all that its SMs had seen by then
                    told[consumer, group] |= seen[queue]
                    told[consumer, ALL_GROUPS] |= seen[queue]
            yield row_waits
        else:
            yield [()] * len(groups)
        for producer in knowledge.end(consumer):
            for group in range(ALL_GROUPS, groupings[producer].count):
                del told[producer, group]


def _missing(
    producers: Sequence[tuple[int, int, int, int]], needed: Sequence[int], told: Mapping[Event, int]
) -> tuple[tuple[Event, ...], int]:
    """What a group has to wait for, and what it knows then.

    Args:
        producers: (op, groups, first bit, all bits), the newest first.
        needed: the groups needed of each.
        told: what is known once an event has been seen.
    """
    known = 0
    events: list[Event] = []
    for (producer, count, first, everything), groups in zip(producers, needed, strict=True):
        missing = (groups << first) & ~known
        if count > 1 and missing == everything:
            events.append((producer, ALL_GROUPS))
            known |= told[producer, ALL_GROUPS]
            continue
        missing >>= first
        while missing:
            group = (missing & -missing).bit_length() - 1
            missing &= missing - 1
            events.append((producer, group))
            known |= told[producer, group]
    return tuple(events), known


def _unseen(
    waits: tuple[Event, ...], told: Mapping[Event, int], seen: defaultdict[int, int], queue: int
) -> tuple[Event, ...]:
    """What an SM has not waited for before, which it has from now on."""
    known, kept = seen[queue], []
    for event in waits:
        tells = told[event]  # the event's own groups are part of it
        if tells & ~known:
            kept.append(event)
            known |= tells
    seen[queue] = known
    return waits if len(kept) == len(waits) else tuple(kept)


def assign_waits(
    queues: Queues,
    groups: np.ndarray,
    needs: Needs,
    groupings: Sequence[Grouping],
    signals: Sequence[int],
    ordered: bool,
) -> tuple[Queues, tuple[tuple[Wait, ...], ...]]:
    """Rows with their waits and signals, and the distinct lists of waits, of which the first is empty.

    Args:
        queues, groups: instructions and the group of each.
        needs, groupings: who needs whom.
        signals: for each op, how many signals a finished range gives.
        ordered: every queue belongs to one SM.
    """
    rows = queues.rows.copy()
    queue = np.repeat(np.arange(queues.count), np.diff(queues.begin))
    order = np.argsort(rows[:, OP], kind="stable")
    bounds = np.searchsorted(rows[order, OP], np.arange(len(groupings) + 1))
    queue_of, group_of = queue[order].tolist(), groups[order].tolist()
    ranges = [(queue_of[a:b], group_of[a:b]) for a, b in pairwise(bounds.tolist())]
    events = [waits for op in events_of(needs, groupings, ranges, ordered) for waits in op]

    distinct = dict.fromkeys(events)
    counter_of = {event: counter for counter, event in enumerate(sorted({e for waits in distinct for e in waits}))}
    ops = rows[order, OP].tolist()
    count: defaultdict[Event, int] = defaultdict(int)
    for event in zip(ops, group_of, strict=True):
        count[event] += 1
    for op, size in enumerate(np.diff(bounds).tolist()):
        count[op, ALL_GROUPS] = size
    numbers: dict[tuple[Wait, ...], int] = {(): 0}
    number_of = {}
    for waits in distinct:
        pairs = tuple((counter_of[event], count[event] * signals[event[0]]) for event in waits)
        number_of[waits] = numbers.setdefault(pairs, len(numbers))
    own = np.array([counter_of.get(event, -1) for event in zip(ops, group_of, strict=True)], dtype=np.int32)
    whole = np.array([counter_of.get((op, ALL_GROUPS), -1) for op in range(len(groupings))], dtype=np.int32)[ops]
    rows[order, WAITS] = [number_of[waits] for waits in events]
    rows[order, SIGNAL] = np.where(own >= 0, own, whole)
    rows[order, TOTAL] = np.where(own >= 0, whole, -1)
    return Queues(queues.begin, rows), tuple(numbers)
