"""Proofs that a plan is sound. Their cost follows instructions and edges between groups of tiles, not pairs of tiles.

1. Every tile of every op is in exactly one range, and every range within one group.
2. A counter is signalled by instructions of one op, and every wait can be satisfied.
3. The queues run to their end: they keep the order of the list, and waits are for earlier ops only. All roles of an SM
   go through its queue in order, so the first instruction in the list that is not finished waits for nobody.
4. Every two groups that touch common bytes, one of the ops writing them, are ordered as listed. What an instruction
   knows to be complete is what it waited for, what the instructions that it waited for knew, and what earlier
   instructions of its own SM knew. Only waits for *all* ranges that signal a counter count.
5. The loader waits, too, where it would read what an earlier op writes, and the earlier op fences.
6. Stages tile the ring, and shared memory suffices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.abi.errors import PlanError
from machete.megakernel.plan.dependencies import Hazard, find_hazards, needs_fence, reads_loaded
from machete.megakernel.plan.grouping import MAX_GROUPS, Grouping
from machete.megakernel.plan.ordering import Knowledge, needs_of
from machete.megakernel.plan.queues import COLUMNS, COUNT, FIRST, OP, SIGNAL, STEP, TOTAL, WAITS
from machete.megakernel.plan.relation import TiledAccess

if TYPE_CHECKING:
    from machete.megakernel.plan.plan import Plan


def verify(plan: Plan) -> None:
    """Raise `PlanError` with the first reason why the plan is not sound."""
    _verify_sizes(plan)
    _verify_tiles(plan)
    groups = _groups(plan)
    counters = _Counters(plan, groups)
    _verify_progress(plan)
    _verify_order(plan, groups, counters)
    plan.shared.check(plan.kinds, plan.target)
    if plan.shared.one_queue != (plan.schedule == "dynamic"):
        raise _fail(
            f"shared memory is laid out for {'one queue' if plan.shared.one_queue else 'queues of SMs'}",
            "shared memory",
            f"the schedule is {plan.schedule}",
        )


def _fail(what: str, where: str, why: str) -> PlanError:
    return PlanError(what=what, where=where, why=why, fix="build the plan again; if this one was built, report it")


def _name(plan: Plan, op: int) -> str:
    return f"op {op} ({plan.kinds[plan.ops[op].kind].name.rpartition('.')[2]})"


def _verify_sizes(plan: Plan) -> None:
    num_ops = len(plan.ops)
    for field in ("loader_waits", "fences"):
        if len(getattr(plan, field)) != num_ops:
            raise _fail(f"{len(getattr(plan, field))} {field} for {num_ops} ops", "plan", "there is one for each op")
    for index, op in enumerate(plan.ops):
        if not 0 <= op.kind < len(plan.kinds):
            raise _fail(f"op {index} has kind {op.kind}", "plan", f"there are {len(plan.kinds)} kinds")
        if len(op.block) != len(op.tiles) or any(block < 1 for block in op.block):
            raise _fail(f"groups of {op.block} tiles", _name(plan, index), f"its tiles are {op.tiles}")
    if plan.schedule not in ("static", "dynamic"):
        raise _fail(f"schedule {plan.schedule!r}", "plan", "it is static or dynamic")


def _verify_tiles(plan: Plan) -> None:
    begin, rows = plan.queues.begin, plan.queues.rows
    queues = plan.num_sms if plan.schedule == "static" else 1
    if rows.shape[1:] != (COLUMNS,) or (
        len(begin) != queues + 1 or begin[0] != 0 or begin[-1] != len(rows) or np.any(np.diff(begin) < 0)
    ):
        raise _fail(
            f"queue bounds do not cut {len(rows)} instructions into {queues} queues",
            "queues",
            "every instruction belongs to exactly one queue",
        )
    if np.any(rows[:, OP] < 0) or np.any(rows[:, OP] >= len(plan.ops)):
        raise _fail("an instruction names an op that does not exist", "queues", f"there are {len(plan.ops)} ops")
    if np.any(rows[:, WAITS] < 0) or np.any(rows[:, WAITS] >= len(plan.waits)):
        raise _fail("an instruction names waits that do not exist", "queues", f"there are {len(plan.waits)} lists")
    by_op = rows[np.lexsort((rows[:, FIRST], rows[:, OP]))].astype(np.int64)
    bounds = np.searchsorted(by_op[:, OP], np.arange(len(plan.ops) + 1))
    for op, planned in enumerate(plan.ops):
        problem = _cover(by_op[bounds[op] : bounds[op + 1]], planned.num_tiles)
        if problem:
            raise _fail(f"{_name(plan, op)}: {problem}", "queues", "every tile runs exactly once")


def _cover(ranges: np.ndarray, num_tiles: int) -> str:
    """Why these ranges do not cover tiles 0 to num_tiles - 1 once each, or nothing."""
    if len(ranges) == 0:
        return f"none of {num_tiles} tiles is in a queue" if num_tiles else ""
    first, count, step = ranges[:, FIRST], ranges[:, COUNT], ranges[:, STEP]
    if np.any(first < 0) or np.any(count < 1) or np.any(step < 1):
        return "a range is empty or negative"
    last = first + (count - 1) * step
    if last.max() >= num_tiles:
        return f"tile {last.max()} is in a queue, but there are {num_tiles} tiles"
    steps = np.unique(step[count > 1])
    if len(steps) <= 1:
        # Ranges with one step share a tile only if they have one residue, and overlap there.
        common = int(steps[0]) if len(steps) else 1
        order = np.lexsort((first, first % common))
        residue, begin, end = (first % common)[order], first[order], last[order]
        again = (residue[1:] == residue[:-1]) & (begin[1:] <= end[:-1])
        if np.any(again):
            return f"tile {begin[1:][again][0]} is in two ranges"
    else:
        seen = np.zeros(num_tiles, dtype=bool)
        for a, b, s in zip(first.tolist(), last.tolist(), step.tolist(), strict=True):
            part = seen[a : b + 1 : s]
            if part.any():
                return f"tile {a + s * int(part.argmax())} is in two ranges"
            part[:] = True
    if count.sum() != num_tiles:
        return f"{count.sum()} of {num_tiles} tiles are in queues"
    return ""


def _groups(plan: Plan) -> np.ndarray:
    """int64[instructions]: the group that each one lies in."""
    rows = plan.queues.rows.astype(np.int64)
    first, last = rows[:, FIRST], rows[:, FIRST] + (rows[:, COUNT] - 1) * rows[:, STEP]
    groups = np.zeros(len(rows), dtype=np.int64)
    order = np.argsort(rows[:, OP], kind="stable")
    bounds = np.searchsorted(rows[order, OP], np.arange(len(plan.ops) + 1))
    for op, planned in enumerate(plan.ops):
        grouping, mine = planned.grouping, order[bounds[op] : bounds[op + 1]]
        if grouping.count > 1:
            groups[mine] = grouping.of(first[mine])
            within = _stays_in_group(grouping, first[mine], last[mine], rows[mine, STEP])
            if not within.all():
                row = mine[~within][0]
                raise _fail(
                    f"{_name(plan, op)}: tiles {first[row]} to {last[row]} of one range are in several groups",
                    "queues",
                    "an instruction waits and signals for one group",
                )
    return groups


def _stays_in_group(grouping: Grouping, first: np.ndarray, last: np.ndarray, step: np.ndarray) -> np.ndarray:
    """bool[ranges]: both ends are in one group, and all between them on a straight line, along one dim.

    A group is a box, so what lies on a line between two of its tiles is in it.
    """
    grid = grouping.collapsed
    straight = first == last
    stride = 1
    for n in reversed(grid.tiles):
        moved = (last - first) // stride
        on_line = (last - first == moved * stride) & (first // stride % n + moved < n) & (step % stride == 0)
        straight |= on_line
        stride *= n
    return straight & (grid.of(first) == grid.of(last))


class _Counters:
    """Who raises each counter, and how far.

    Attributes:
        owner: for each counter the op whose instructions signal it.
        reach: for each counter its value when all of these have.
        complete: for each counter the groups of its owner all of whose instructions signal it.
        last_waiter: for each op with counters that somebody waits for, the last op that does.
    """

    def __init__(self, plan: Plan, groups: np.ndarray) -> None:
        rows = plan.queues.rows
        ops = rows[:, OP].astype(np.int64)
        own, whole = rows[:, SIGNAL].astype(np.int64), rows[:, TOTAL].astype(np.int64)
        back = (own - whole)[whole >= 0]
        if np.any((back < 1) | (back > MAX_GROUPS)) or own.min(initial=0) < -1 or whole.min(initial=0) < -1:
            raise _fail(
                "the counter of a group does not follow that of its op",
                "counters",
                f"instructions count back from it, by at most {MAX_GROUPS}",
            )
        num = plan.num_dependency_counters
        self.owner, self.reach = [-1] * num, [0] * num
        self.complete: list[list[int]] = [[] for _ in range(num)]
        # Instructions of one group that signal one counter, and instructions of that group at all.
        key = np.concatenate([np.stack([column, ops, groups]) for column in (own, whole)], axis=1)
        signalled, sizes = np.unique(key[:, key[0] >= 0], axis=1, return_counts=True)
        all_groups, instructions = np.unique(np.stack([ops, groups]), axis=1, return_counts=True)
        in_group = dict(zip(zip(*all_groups.tolist(), strict=True), instructions.tolist(), strict=True))
        for counter, op, group, size in zip(*signalled.tolist(), sizes.tolist(), strict=True):
            if self.owner[counter] not in (-1, op):
                raise _fail(
                    f"{_name(plan, self.owner[counter])} and {_name(plan, op)} share a counter",
                    "counters",
                    "a counter belongs to one op",
                )
            self.owner[counter] = op
            self.reach[counter] += size * plan.kinds[plan.ops[op].kind].signals_per_range
            if size == in_group[op, group]:
                self.complete[counter].append(group)
        if -1 in self.owner:
            raise _fail(f"nobody signals counter {self.owner.index(-1)}", "counters", "counters are numbered from 0")
        self.last_waiter: dict[int, int] = {}
        for consumer, waits in np.unique(rows[:, [OP, WAITS]], axis=0).tolist():  # in the order of ops
            for counter, least in plan.waits[waits]:
                self._verify_wait(plan, consumer, counter, least)
                self.last_waiter[self.owner[counter]] = consumer

    def _verify_wait(self, plan: Plan, consumer: int, counter: int, least: int) -> None:
        if not 0 <= counter < len(self.owner):
            raise _fail(f"{_name(plan, consumer)} waits for counter {counter}", "waits", "nobody signals this counter")
        producer = self.owner[counter]
        if producer >= consumer:
            raise _fail(
                f"{_name(plan, consumer)} waits for {_name(plan, producer)}",
                "waits",
                "an op waits for ops before it in the list only",
            )
        if not 0 < least <= self.reach[counter]:
            raise _fail(
                f"{_name(plan, consumer)} waits until counter {counter} is {least}",
                "waits",
                f"{_name(plan, producer)} raises it to {self.reach[counter]}",
            )


def _verify_progress(plan: Plan) -> None:
    ops = plan.queues.rows[:, OP]
    backwards = np.flatnonzero(ops[1:] < ops[:-1]) + 1
    backwards = backwards[~np.isin(backwards, plan.queues.begin)]
    if len(backwards):
        row = int(backwards[0])
        queue = int(np.searchsorted(plan.queues.begin, row, side="right")) - 1
        raise _fail(
            f"queue {queue} runs {_name(plan, ops[row - 1])} before {_name(plan, ops[row])}",
            f"queue {queue}, instruction {row - plan.queues.begin[queue]}",
            "in list order nobody waits for what comes later; in this order they could wait for each other",
        )


def _verify_order(plan: Plan, groups: np.ndarray, counters: _Counters) -> None:
    """Follow, op by op, what instructions know to be complete when they begin."""
    groupings = [op.grouping for op in plan.ops]
    tiled = [
        {access.tensor: TiledAccess.of(access, plan.kinds[op.kind], op.tiles) for access in op.accesses}
        for op in plan.ops
    ]
    hazards = find_hazards([op.accesses for op in plan.ops])
    needs = needs_of(hazards, tiled, groupings)
    knowledge = Knowledge(needs, [grouping.count for grouping in groupings])
    learned: defaultdict[int, dict[int, int]] = defaultdict(dict)  # op -> counter -> what is known when it is full
    unused_after: defaultdict[int, list[int]] = defaultdict(list)
    for producer, consumer in counters.last_waiter.items():
        unused_after[consumer].append(producer)
    seen = [0] * plan.queues.count  # by an SM
    own_queues = plan.schedule == "static"

    rows = plan.queues.rows
    queue = np.repeat(np.arange(plan.queues.count), np.diff(plan.queues.begin))
    order = np.argsort(rows[:, OP], kind="stable")
    bounds = np.searchsorted(rows[order, OP], np.arange(len(plan.ops) + 1)).tolist()
    table = np.column_stack([queue, groups, rows[:, [WAITS, SIGNAL, TOTAL]]])[order].tolist()
    for op in range(len(plan.ops)):
        stale = knowledge.begin(op)
        if stale:
            seen = [known & ~stale for known in seen]
            for counter_told in learned.values():
                for counter in counter_told:
                    counter_told[counter] &= ~stale
        known_to: dict[int, int] = {}  # group -> what all its instructions know
        told: dict[int, int] = {}
        for sm, group, waits, signal, total in table[bounds[op] : bounds[op + 1]]:
            known = seen[sm] if own_queues else 0
            for counter, least in plan.waits[waits]:
                if least == counters.reach[counter]:
                    known |= learned[counters.owner[counter]].get(counter, 0)
            seen[sm] = known
            known_to[group] = known_to[group] & known if group in known_to else known
            if signal >= 0:
                told[signal] = told.get(signal, 0) | known
                if total >= 0:
                    told[total] = told.get(total, 0) | known
        for producer, pairs in hazards.get(op, {}).items():
            first = knowledge.first[producer]
            for group, needed in enumerate(needs[op][producer].rows):
                missing = needed << first & ~known_to[group]
                if missing:
                    raise _not_ordered(plan, producer, op, group, missing >> first, min(pairs))
            _verify_loads(plan, producer, op, pairs)
        if op in counters.last_waiter:
            for counter in told if op in knowledge.first else ():
                told[counter] |= sum(1 << group for group in counters.complete[counter]) << knowledge.first[op]
            learned[op] = told
        knowledge.end(op)
        for producer in unused_after[op]:
            learned.pop(producer, None)


def _verify_loads(plan: Plan, producer: int, consumer: int, pairs: Iterable[Hazard]) -> None:
    if reads_loaded(plan.ops[consumer].accesses, pairs):
        what = f"{_name(plan, consumer)} loads what {_name(plan, producer)} writes"
        if not plan.loader_waits[consumer]:
            raise _fail(f"the loader of {_name(plan, consumer)} does not wait", "loader_waits", what)
    if needs_fence(plan.ops[consumer].accesses, pairs) and not plan.fences[producer]:
        what = f"copies of {_name(plan, consumer)} read or overwrite what {_name(plan, producer)} writes"
        raise _fail(f"{_name(plan, producer)} signals without a proxy fence", "fences", what)


def _not_ordered(
    plan: Plan, producer: int, consumer: int, group: int, missing: int, hazard: tuple[str, str, str]
) -> PlanError:
    kind, theirs, mine = hazard
    first = (missing & -missing).bit_length() - 1
    return _fail(
        f"{_name(plan, producer)} and {_name(plan, consumer)} are not ordered ({kind}: `{theirs}`, `{mine}`)",
        f"group {group} of op {consumer} does not wait for group {first} of op {producer}",
        "they touch common memory, and one of them writes",
    )
