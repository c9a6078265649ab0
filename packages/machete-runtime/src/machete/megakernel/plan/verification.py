"""Proofs that a plan is sound. Their cost follows instructions and edges between ops, not tiles.

1. Every tile of every op is in exactly one range of one queue.
2. Counters belong to one op each, and every wait can be satisfied.
3. Every two ops that touch common bytes, one of them writing, are ordered as listed, by waits on *all* of the
   earlier op (transitively).
4. The loader waits, too, where it would read what an earlier op writes.
5. The queues run to their end: executing them with unlimited patience leaves nobody waiting. All roles of an SM
   go through its queue in order, so the queues of whole instructions decide that.
6. Stages tile the ring, and shared memory suffices.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from machete.megakernel.abi.errors import PlanError
from machete.megakernel.plan.dependencies import closure, find_hazards, reads_loaded
from machete.megakernel.plan.queues import COUNT, FIRST, OP, STEP

if TYPE_CHECKING:
    from machete.megakernel.plan.plan import Plan


def verify(plan: Plan) -> None:
    """Raise `PlanError` with the first reason why the plan is not sound."""
    _verify_sizes(plan)
    _verify_tiles(plan)
    full = _verify_counters(plan)
    _verify_order(plan, full)
    _verify_progress(plan)
    plan.shared.check(plan.kinds, plan.target)


def _fail(what: str, where: str, why: str) -> PlanError:
    return PlanError(what=what, where=where, why=why, fix="build the plan again; if this one was built, report it")


def _name(plan: Plan, op: int) -> str:
    return f"op {op} ({plan.kinds[plan.ops[op].kind].name.rpartition('.')[2]})"


def _verify_sizes(plan: Plan) -> None:
    num_ops = len(plan.ops)
    for field in ("counters", "waits", "loader_waits", "fences"):
        if len(getattr(plan, field)) != num_ops:
            raise _fail(f"{len(getattr(plan, field))} {field} for {num_ops} ops", "plan", "there is one for each op")
    for index, op in enumerate(plan.ops):
        if not 0 <= op.kind < len(plan.kinds):
            raise _fail(f"op {index} has kind {op.kind}", "plan", f"there are {len(plan.kinds)} kinds")


def _verify_tiles(plan: Plan) -> None:
    begin, rows = plan.queues.begin, plan.queues.rows
    if len(begin) != plan.num_sms + 1 or begin[0] != 0 or begin[-1] != len(rows) or np.any(np.diff(begin) < 0):
        raise _fail(
            f"queue bounds do not cut {len(rows)} instructions into {plan.num_sms} queues",
            "queues",
            "every instruction belongs to exactly one SM",
        )
    if np.any(rows[:, OP] < 0) or np.any(rows[:, OP] >= len(plan.ops)):
        raise _fail("an instruction names an op that does not exist", "queues", f"there are {len(plan.ops)} ops")
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
    if np.any(first < 0) or np.any(count < 1) or np.any(step < 1) or np.any(step != step[0]):
        return "a range is empty, negative, or has another step than the others"
    last = first + (count - 1) * step
    if last.max() >= num_tiles:
        return f"tile {last.max()} is in a queue, but there are {num_tiles} tiles"
    # Ranges with one step share a tile only if they have one residue, and overlap there.
    order = np.lexsort((first, first % step))
    residue, first, last = (first % step)[order], first[order], last[order]
    again = (residue[1:] == residue[:-1]) & (first[1:] <= last[:-1])
    if np.any(again):
        return f"tile {first[1:][again][0]} is in two ranges"
    if count.sum() != num_tiles:
        return f"{count.sum()} of {num_tiles} tiles are in queues"
    return ""


def _verify_counters(plan: Plan) -> dict[int, set[int]]:
    """Consumer to the ops that it waits for completely, after checking all counters and waits."""
    owners = {counter: op for op, counter in enumerate(plan.counters) if counter >= 0}
    if sorted(owners) != list(range(plan.num_counters)) or len(owners) != sum(c >= 0 for c in plan.counters):
        raise _fail("two ops share a counter, or one is unused", "counters", "a counter belongs to one op")
    ranges = plan.queues.ranges_per_op(len(plan.ops))
    full: dict[int, set[int]] = defaultdict(set)
    for consumer, waits in enumerate(plan.waits):
        for counter, threshold in waits:
            if counter not in owners:
                raise _fail(
                    f"{_name(plan, consumer)} waits for counter {counter}", "waits", "nobody signals this counter"
                )
            producer = owners[counter]
            if producer >= consumer:
                raise _fail(
                    f"{_name(plan, consumer)} waits for {_name(plan, producer)}",
                    "waits",
                    "an op waits for ops before it in the list only",
                )
            reachable = int(ranges[producer]) * plan.kinds[plan.ops[producer].kind].signals_per_range
            if not 0 < threshold <= reachable:
                raise _fail(
                    f"{_name(plan, consumer)} waits until counter {counter} is {threshold}",
                    "waits",
                    f"{_name(plan, producer)} raises it to {reachable}",
                )
            if threshold == reachable:
                full[consumer].add(producer)
    return full


def _verify_order(plan: Plan, full: dict[int, set[int]]) -> None:
    ancestors = closure(len(plan.ops), full)
    for consumer, found in find_hazards([op.accesses for op in plan.ops]).items():
        for producer, hazards in found.items():
            kind, theirs, mine = min(hazards)
            pair = f"{_name(plan, producer)} and {_name(plan, consumer)}"
            if not ancestors[consumer] >> producer & 1:
                raise _fail(
                    f"{pair} are not ordered ({kind}: `{theirs}`, `{mine}`)",
                    "waits",
                    "they touch common memory, and one of them writes",
                )
            if reads_loaded(plan.ops[consumer].accesses, hazards):
                what = f"{_name(plan, consumer)} loads what {_name(plan, producer)} writes"
                if not plan.loader_waits[consumer]:
                    raise _fail(f"the loader of {_name(plan, consumer)} does not wait", "loader_waits", what)
                if not plan.fences[producer]:
                    raise _fail(f"{_name(plan, producer)} signals without a proxy fence", "fences", what)


def _verify_progress(plan: Plan) -> None:
    """Execute the queues, each instruction as soon as its waits allow."""
    begin, ops = plan.queues.begin.tolist(), plan.queues.rows[:, OP].tolist()
    position, end = begin[:-1], begin[1:]
    value = [0] * plan.num_counters
    blocked: defaultdict[int, list[int]] = defaultdict(list)  # counter -> SMs
    ready = deque(range(plan.num_sms))
    while ready:
        sm = ready.popleft()
        while position[sm] < end[sm]:
            op = ops[position[sm]]
            missing = next((counter for counter, least in plan.waits[op] if value[counter] < least), None)
            if missing is not None:
                blocked[missing].append(sm)
                break
            position[sm] += 1
            counter = plan.counters[op]
            if counter >= 0:
                value[counter] += plan.kinds[plan.ops[op].kind].signals_per_range
                ready.extend(blocked.pop(counter, ()))
    for sm in range(plan.num_sms):
        if position[sm] < end[sm]:
            op = ops[position[sm]]
            counter, least = next(wait for wait in plan.waits[op] if value[wait[0]] < wait[1])
            raise _fail(
                f"deadlock: SM {sm} waits in {_name(plan, op)} for counter {counter} to reach {least}",
                f"SM {sm}, instruction {position[sm] - begin[sm]}",
                f"it stays at {value[counter]}: {_name(plan, plan.counters.index(counter))} comes later in a queue",
            )
