"""Places of registers in a warp's register file.

PTX has thousands of virtual registers; a few hundred live at a time. Registers whose lifetimes do not meet share a
place, which keeps the register files of all resident warps in the processor's caches.

Lifetimes are exact (a backward data-flow analysis over basic blocks), then widened to one interval of records each.
Lanes diverge freely, yet every lane by itself follows the control flow that was analysed, and lanes write only their
own part of a register.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush

SLOT = 128  # bytes of a 32-bit register of a warp


class Register(int):
    """A virtual register: its number, told apart from other integers in a record."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a record does to registers. A definition that lanes may skip does not end an earlier lifetime."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    certain: bool  # the record has no guard


@dataclass(frozen=True, slots=True)
class Flow:
    """Where control goes after a record, besides the next one."""

    target: int | None = None
    falls_through: bool = True


def place(
    accesses: Sequence[Access], flows: dict[int, Flow], widths: Sequence[int], held: Set[int] = frozenset()
) -> tuple[list[int], int]:
    """Byte offset of every register, and the size of the register file.

    widths: bits of each register, 16 to 128. flows: of the records that branch or end. held: registers that share
    with none, since something reads them for longer than the instruction that names them (wgmma reads A until a wait).
    """
    intervals = _intervals(accesses, flows, len(widths))
    for register in held:
        intervals[register] = (0, len(accesses) - 1)
    return _scan(intervals, widths)


def _bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def _intervals(accesses: Sequence[Access], flows: dict[int, Flow], count: int) -> list[tuple[int, int] | None]:
    total = len(accesses)
    leaders = {0} | {f.target for f in flows.values() if f.target is not None} | {r + 1 for r in flows}
    starts = sorted(r for r in leaders if r is not None and r < total)
    ends = [*(s - 1 for s in starts[1:]), total - 1]
    block_of = {start: index for index, start in enumerate(starts)}

    needed, defined = [], []  # read before written; written for certain
    for start, end in zip(starts, ends, strict=True):
        need = certain = 0
        for access in accesses[start : end + 1]:
            for register in access.reads:
                need |= (1 << register) & ~certain
            for register in access.writes:
                if access.certain:
                    certain |= 1 << register
                else:
                    need |= (1 << register) & ~certain
        needed.append(need)
        defined.append(certain)

    successors: list[list[int]] = []
    for end in ends:
        flow = flows.get(end, Flow())
        following = [end + 1] if flow.falls_through and end + 1 < total else []
        if flow.target is not None:
            following.append(flow.target)
        successors.append([block_of[record] for record in following])

    live_in, live_out = list(needed), [0] * len(starts)
    changed = True
    while changed:
        changed = False
        for index in range(len(starts) - 1, -1, -1):
            out = 0
            for successor in successors[index]:
                out |= live_in[successor]
            if out != live_out[index]:
                live_out[index] = out
                live_in[index] = needed[index] | out & ~defined[index]
                changed = True

    first, last = [total] * count, [-1] * count
    for record, access in enumerate(accesses):
        for register in (*access.reads, *access.writes):
            first[register] = min(first[register], record)
            last[register] = record
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for register in _bits(live_in[index]):
            first[register] = min(first[register], start)
            last[register] = max(last[register], start)
        for register in _bits(live_out[index]):
            first[register] = min(first[register], end)
            last[register] = max(last[register], end)
    return [(a, b) if b >= 0 else None for a, b in zip(first, last, strict=True)]


def _scan(intervals: list[tuple[int, int] | None], widths: Sequence[int]) -> tuple[list[int], int]:
    """Linear scan. Registers of different sizes never share a place, nor do those that meet in one record."""
    offsets = [0] * len(widths)
    free: dict[int, list[int]] = {1: [], 2: [], 4: []}
    active: list[tuple[int, int, int]] = []  # last record, slots, offset
    size = 0
    order = sorted((interval, register) for register, interval in enumerate(intervals) if interval is not None)
    for (start, end), register in order:
        while active and active[0][0] < start:
            _, slots, offset = heappop(active)
            heappush(free[slots], offset)
        slots = max(widths[register] // 32, 1)
        if free[slots]:
            offset = heappop(free[slots])
        else:
            offset, size = size, size + slots * SLOT
        offsets[register] = offset
        heappush(active, (end, slots, offset))
    return offsets, max(size, SLOT)
