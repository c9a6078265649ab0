"""Which op has to wait for which: read-after-write, write-after-read and write-after-write, by real memory.

Accesses to the same bytes in the same layout share a *view*. A view remembers its last writer and the readers since;
whoever comes later is ordered after those, and through them after everybody before. So the cost follows the number of
distinct overlapping views, not the number of pairs of ops. The argument holds for each byte by itself, and so for
tiles: the tile of a writer that has a byte waits for the tiles that had it before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from machete.megakernel.abi.footprint import Footprint
from machete.megakernel.plan.memory import Access

#: (kind, tensor of the producer, tensor of the consumer); kind is "RAW", "WAR" or "WAW".
Hazard = tuple[str, str, str]

#: consumer -> producer -> hazards.
Hazards = dict[int, dict[int, set[Hazard]]]


@dataclass(frozen=True)
class Dependency:
    """Op `consumer` starts when op `producer` is done. Both are indices in list order, producer first."""

    producer: int
    consumer: int
    hazards: frozenset[Hazard]


def find_hazards(accesses: Sequence[Sequence[Access]]) -> Hazards:
    """Hazards whose transitive closure orders every two ops that touch common bytes, one of them writing."""
    keys = [[(access.region, access.footprint) for access in op] for op in accesses]
    neighbours = _overlapping_views(accesses)
    last_writer: dict[tuple[int, Footprint], tuple[int, str]] = {}
    readers: defaultdict[tuple[int, Footprint], list[tuple[int, str]]] = defaultdict(list)
    hazards: Hazards = {}
    for consumer, op in enumerate(accesses):
        found: defaultdict[int, set[Hazard]] = defaultdict(set)
        for access, key in zip(op, keys[consumer], strict=True):
            for view in neighbours.get(key, ()):
                if view in last_writer:
                    producer, tensor = last_writer[view]
                    if access.reads:
                        found[producer].add(("RAW", tensor, access.tensor))
                    if access.writes:
                        found[producer].add(("WAW", tensor, access.tensor))
                if access.writes:
                    for producer, tensor in readers[view]:
                        found[producer].add(("WAR", tensor, access.tensor))
        for access, key in zip(op, keys[consumer], strict=True):
            if access.writes:
                for view in neighbours[key]:
                    if _covers(access.footprint, view[1]):
                        last_writer.pop(view, None)
                        readers[view] = []
                last_writer[key] = (consumer, access.tensor)
            elif key in neighbours:
                readers[key].append((consumer, access.tensor))
        hazards[consumer] = dict(found)
    return hazards


def _covers(one: Footprint, other: Footprint) -> bool:
    """Whether all bytes of the other view belong to this one, as far as that is plain to see."""
    if one == other:
        return True
    dense = math.prod(one.shape) * one.itemsize == one.span[1] - one.span[0] and not one.self_overlapping()
    return dense and one.span[0] <= other.span[0] and other.span[1] <= one.span[1]


def _overlapping_views(
    accesses: Sequence[Sequence[Access]],
) -> dict[tuple[int, Footprint], list[tuple[int, Footprint]]]:
    """For each view the views that overlap it (itself first), where one of the two is written at all."""
    written: dict[tuple[int, Footprint], bool] = {}
    for op in accesses:
        for access in op:
            key = (access.region, access.footprint)
            written[key] = written.get(key, False) or access.writes
    neighbours: defaultdict[tuple[int, Footprint], list[tuple[int, Footprint]]] = defaultdict(list)
    open_views: list[tuple[int, Footprint]] = []
    for key in sorted(written, key=lambda view: (view[0], view[1].span)):
        region, footprint = key
        open_views = [v for v in open_views if v[0] == region and v[1].span[1] > footprint.span[0]]
        if written[key]:
            neighbours[key].append(key)
        for view in open_views:
            if (written[key] or written[view]) and footprint.overlaps(view[1]):
                neighbours[key].append(view)
                neighbours[view].append(key)
        open_views.append(key)
    return dict(neighbours)


def reads_loaded(consumer: Sequence[Access], hazards: Iterable[Hazard]) -> bool:
    """Whether a producer writes something that the consumer's `load` reads, which copies through another proxy."""
    loaded = {access.tensor for access in consumer if access.loaded}
    return any(kind == "RAW" and tensor in loaded for kind, _, tensor in hazards)


def needs_fence(consumer: Sequence[Access], hazards: Iterable[Hazard]) -> bool:
    """Whether copies of the consumer read or overwrite what the producer may have written through the generic proxy."""
    hazards = list(hazards)
    stored = {access.tensor for access in consumer if access.stored}
    return reads_loaded(consumer, hazards) or any(kind == "WAW" and tensor in stored for kind, _, tensor in hazards)


def reduce_hazards(hazards: Hazards) -> tuple[Dependency, ...]:
    """The dependencies that the others do not imply: the transitive reduction, in order of consumer."""
    ancestors: dict[int, int] = {}  # op -> bit set
    dependencies: list[Dependency] = []
    for consumer in sorted(hazards):
        reached = 0
        kept: list[Dependency] = []
        # A producer is implied only by one that comes later in the list, so look at those first.
        for producer in sorted(hazards[consumer], reverse=True):
            if not reached >> producer & 1:
                kept.append(Dependency(producer, consumer, frozenset(hazards[consumer][producer])))
                reached |= ancestors[producer] | 1 << producer
        ancestors[consumer] = reached
        dependencies += reversed(kept)
    return tuple(dependencies)
