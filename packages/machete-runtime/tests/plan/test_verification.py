"""A plan that was tampered with is refused, with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from machete.megakernel.abi import Op, PipelineSpec, PlanError, Target
from machete.megakernel.plan import Plan, Queues
from machete.megakernel.plan.queues import COUNT, FIRST, OP, SIGNAL, STEP, TOTAL, WAITS

VECTOR = (None, ("N",))


class CopyOp(Op):
    reads = {"x": VECTOR}
    writes = {"y": VECTOR}
    tile = ("N",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=2)

    def load(self, ring, x, tile_N): ...
    def compute(self, ring): ...
    def store(self, ring, y, tile_N): ...


class TotalOp(Op):
    reads = {"x": VECTOR}
    writes = {"s": (None, ("one",))}

    def compute(self, x, s): ...


def build(schedule: str = "static") -> Plan:
    """0 → 1 → 2 tile by tile, 3 on its own, 4 reads all of 1, 5 reads all of 3; 10 tiles each, 4 SMs."""
    a, b, c, d, e, f, s, t = (torch.zeros(80) for _ in range(8))
    pairs = ((a, b), (b, c), (c, d), (e, f))
    ops = [CopyOp._schedule_single(tile_sizes={"N": 8}, x=x, y=y) for x, y in pairs]
    ops += [TotalOp._schedule_single(x=c, s=s[:1]), TotalOp._schedule_single(x=f, s=t[:1])]
    return Plan.build(ops, Target.named("sm_90a"), 4, schedule=schedule)


def find(table: np.ndarray, op: int, tile: int = 0) -> int:
    """The row of an op that starts with a tile."""
    return int(np.flatnonzero((table[:, OP] == op) & (table[:, FIRST] == tile))[0])


def cell(op: int, tile: int, column: int, value: int) -> Callable[[Plan], Plan]:
    return rows(lambda table: table.__setitem__((find(table, op, tile), column), value))


def rows(edit: Callable[[np.ndarray], object]) -> Callable[[Plan], Plan]:
    """A plan whose instructions went through `edit`."""

    def mutate(plan: Plan) -> Plan:
        changed = plan.queues.rows.copy()
        edit(changed)
        return replace(plan, queues=Queues(plan.queues.begin, changed))

    return mutate


def swap(table: np.ndarray, one: int, other: int) -> None:
    table[[one, other]] = table[[other, one]]


def without_last_row(plan: Plan) -> Plan:
    begin = plan.queues.begin.copy()
    begin[-1] -= 1
    return replace(plan, queues=Queues(begin, plan.queues.rows[:-1]))


def begins(*values: int) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, queues=Queues(np.array(values, dtype=np.int32), plan.queues.rows))


def waits(op: int, *changed: tuple[int, int]) -> Callable[[Plan], Plan]:
    """All instructions of an op wait for these."""

    def mutate(plan: Plan) -> Plan:
        table = plan.queues.rows.copy()
        table[table[:, OP] == op, WAITS] = len(plan.waits)
        return replace(plan, queues=Queues(plan.queues.begin, table), waits=(*plan.waits, changed))

    return mutate


def less(op: int, by: int = 1) -> Callable[[Plan], Plan]:
    """The first instruction of an op waits for one signal less."""

    def mutate(plan: Plan) -> Plan:
        number = plan.queues.rows[find(plan.queues.rows, op), WAITS]
        lists = list(plan.waits)
        lists[number] = tuple((counter, least - by) for counter, least in lists[number])
        return replace(plan, waits=tuple(lists))

    return mutate


def planned(op: int, **changes: object) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, ops=(*plan.ops[:op], replace(plan.ops[op], **changes), *plan.ops[op + 1 :]))


def field(**changes: object) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, **changes)


def shared(**changes: int) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, shared=replace(plan.shared, **changes))


def backwards(table: np.ndarray) -> None:
    """The first SM runs an instruction of op 1 before one of op 0."""
    swap(table, 0, int(np.flatnonzero(table[:, OP] == 1)[0]))


# Counters: 0 to 9 are the tiles of op 0, 10 is all of op 1, 11 to 20 its tiles, 21 all of op 3.
MUTATIONS = [
    ("a range is missing", without_last_row, r"op 3 \(CopyOp\): [78] of 10 tiles are in queues"),
    ("a range is too long", cell(3, 0, COUNT, 4), r"tile 12 is in a queue, but there are 10"),
    ("a range is too short", cell(3, 0, COUNT, 2), r"op 3 \(CopyOp\): 9 of 10 tiles"),
    ("a range is empty", cell(3, 0, COUNT, 0), r"a range is empty"),
    ("a tile runs twice", cell(3, 0, FIRST, 1), r"tile 1 is in two ranges"),
    ("a range steps differently", cell(3, 0, STEP, 2), r"op 3 .*tile \d is in two ranges"),
    ("a range does not step", cell(3, 0, STEP, 0), r"empty or negative"),
    ("a range is negative", cell(3, 0, FIRST, -4), r"negative"),
    ("an instruction of no op", cell(0, 0, OP, 6), r"names an op that does not exist"),
    ("an op never runs", rows(lambda t: t.__setitem__((t[:, OP] == 3, OP), 2)), r"op 2 \(CopyOp\): tile \d+ is in two"),
    ("a range is in two groups", planned(3, block=(2,)), r"op 3 .*: tiles \d to \d of one range are in several groups"),
    ("groups of no tiles", planned(3, block=(0,)), r"groups of \(0,\) tiles"),
    ("groups of other dims", planned(3, block=(1, 1)), r"groups of \(1, 1\) tiles"),
    ("groups too large to tell what is needed", planned(0, block=(10,)), r"op 0 .* and op 1 .* are not ordered"),
    ("queue bounds leave rows out", begins(0, 4, 8, 12, 15), r"queue bounds do not cut 36 instructions"),
    ("queue bounds run backwards", begins(0, 12, 4, 20, 36), r"queue bounds"),
    ("too few queues", begins(0, 18, 36), r"into 4 queues"),
    ("a queue for all in a static plan", field(schedule="dynamic"), r"into 1 queues"),
    ("an unknown schedule", field(schedule="random"), r"schedule 'random'"),
    ("a dependency is forgotten", waits(1), r"op 0 .* and op 1 .* are not ordered \(RAW: `y`, `x`\)"),
    ("one tile's dependency is forgotten", cell(1, 3, WAITS, 0), r"group 3 of op 1 does not wait for group 3 of op 0"),
    ("a tile waits for its neighbour", cell(1, 3, WAITS, 1), r"group 3 of op 1 does not wait for group 3 of op 0"),
    ("a wait ends before the producer", less(1), r"group 0 of op 1 does not wait for group 0 of op 0"),
    ("a wait for a whole op ends early", less(4), r"op 1 .* and op 4 .* are not ordered"),
    ("a wait never ends", less(1, -1), r"waits until counter 0 is 3.*\n.*\n.*raises it to 2"),
    ("a wait for a whole op never ends", less(5, -1), r"waits until counter 21 is 9.*\n.*\n.*raises it to 8"),
    ("a wait for nothing", less(1, 2), r"waits until counter 0 is 0"),
    ("a wait for nobody", waits(5, (21, 8), (30, 1)), r"waits for counter 30.*\n.*\n.*nobody signals"),
    ("a wait for a negative counter", waits(5, (-1, 1)), r"waits for counter -1"),
    ("a wait for a later op", waits(0, (10, 20)), r"op 0 .* waits for op 1"),
    ("a wait for itself", waits(1, (10, 20)), r"op 1 .* waits for op 1"),
    ("waits that do not exist", cell(1, 0, WAITS, 99), r"names waits that do not exist"),
    ("a range does not signal", cell(0, 3, SIGNAL, -1), r"nobody signals counter 3"),
    ("a range does not count for its op", cell(1, 3, TOTAL, -1), r"waits until counter 10 is 20.*\n.*\n.*to 18"),
    ("a range signals for another tile", cell(0, 3, SIGNAL, 4), r"nobody signals counter 3"),
    ("a range signals for another op", cell(2, 3, SIGNAL, 4), r"op 0 .* and op 2 .* share a counter"),
    ("a counter of an op after those of its groups", cell(1, 3, TOTAL, 20), r"the counter of a group does not follow"),
    ("a counter below none", cell(0, 3, SIGNAL, -2), r"the counter of a group"),
    ("loader waits too few", field(loader_waits=()), r"0 loader_waits for 6 ops"),
    (
        "the loader does not wait",
        field(loader_waits=(False, True) + (False,) * 4),
        r"the loader of op 2(.|\n)*op 1 .* writes",
    ),
    ("nobody fences", field(fences=(False, True) + (False,) * 4), r"op 0 .* signals without a proxy fence"),
    ("a queue runs an op before what it waits for", rows(backwards), r"queue 0 runs op 1 .* before op 0"),
    ("the ring is too small", shared(ring_pages=4), r"3 stages of 2 pages in a ring of 4"),
    ("stages do not tile the ring", shared(ring_pages=7), r"a ring of 7 pages is no multiple of 2-page stages"),
    ("pages of another size", shared(page_bytes=8192), r"pages of 16384 bytes in a ring of 8192"),
    ("no room for the resident page", shared(resident_bytes=8192), r"16384 resident bytes in 8192"),
    ("records do not fit their slots", shared(record_bytes=16), r"a record of \d+ bytes in slots for 16"),
    ("more output slots than stages", shared(output_slots=4), r"4 output slots for 3 stages"),
    ("no output slot", shared(output_slots=0), r"0 output slots"),
    ("too much shared memory", shared(ring_pages=14), r"bytes, sm_90a has 232448"),
    ("shared memory for one queue", shared(one_queue=True), r"laid out for one queue"),
    ("a kind that does not exist", planned(0, kind=2), r"has kind 2"),
]


def test_a_built_plan_is_sound():
    build().verify()


@pytest.mark.parametrize(("mutate", "reason"), [pytest.param(*row[1:], id=row[0]) for row in MUTATIONS])
def test_a_changed_plan_is_refused_with_the_reason(mutate, reason):
    with pytest.raises(PlanError) as caught:
        mutate(build()).verify()
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert caught.value.fix


def test_waits_may_be_implied_by_others():
    """What counts is the order, not the edge."""
    plan = build()
    waits(2, *((counter, 2) for counter in range(11, 21)))(plan).verify()
    waits(2, (10, 20))(plan).verify()
    waits(3, (0, 1), (10, 3))(plan).verify()
    # Op 4 waits for all tiles of op 1, each in its own way.
    waits(4, *((counter, 2) for counter in range(11, 21)))(plan).verify()


def test_knowledge_passes_through_groups():
    """c is read and overwritten tile by tile: the last op knows of the first through the one between."""
    a, b, c = (torch.zeros(80) for _ in range(3))
    pairs = ((a, b), (b, c), (a, b), (b, c))
    ops = [CopyOp._schedule_single(tile_sizes={"N": 8}, x=x, y=y) for x, y in pairs]
    plan = Plan.build(ops, Target.named("sm_90a"), 10)
    plan.verify()
    table = plan.queues.rows
    assert all(len(plan.waits[w]) <= 1 for w in table[:, WAITS]), "op 3 waits for op 2, which has waited for op 1"
    nothing = table.copy()
    nothing[nothing[:, OP] == 2, WAITS] = 0
    with pytest.raises(PlanError, match=r"op 1 .* and op 2 .* are not ordered \(WAR: `x`, `y`\)"):
        replace(plan, queues=Queues(plan.queues.begin, nothing)).verify()


@pytest.mark.parametrize(
    ("mutate", "reason"),
    [
        pytest.param(cell(1, 3, WAITS, 0), r"group 3 of op 1 does not wait", id="a dependency is forgotten"),
        pytest.param(rows(lambda table: swap(table, 0, 10)), r"queue 0 runs op 1 .* before op 0", id="out of order"),
        pytest.param(field(schedule="static"), r"into 4 queues", id="a static plan with one queue"),
        pytest.param(shared(one_queue=False), r"laid out for queues of SMs", id="laid out for queues"),
    ],
)
def test_a_changed_dynamic_plan_is_refused_with_the_reason(mutate, reason):
    plan = build("dynamic")
    plan.verify()
    with pytest.raises(PlanError, match=reason):
        mutate(plan).verify()


def test_what_an_sm_has_seen_does_not_count_where_another_may_fetch_the_row():
    """In a static plan an SM need not wait twice; taken as the order of one queue for all, that is no order."""
    x, y, z, w = (torch.zeros(80) for _ in range(4))
    total = TotalOp._schedule_single(x=x, s=y[:1])
    copies = [CopyOp._schedule_single(tile_sizes={"N": 80}, x=y, y=out) for out in (z, w)]
    plan = Plan.build([total, *copies], Target.named("sm_90a"), 1)
    plan.verify()
    assert plan.waits[plan.queues.rows[2, WAITS]] == ()
    shared_queue = replace(plan, schedule="dynamic", shared=plan.shared.fetched())
    with pytest.raises(PlanError, match=r"op 0 .* and op 2 .* are not ordered"):
        shared_queue.verify()
