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

VECTOR = (None, ("N",))


class CopyOp(Op):
    reads = {"x": VECTOR}
    writes = {"y": VECTOR}
    tile = ("N",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=2)

    def load(self, ring, x, tile_N): ...
    def compute(self, ring): ...
    def store(self, ring, y, tile_N): ...


def build() -> Plan:
    """0 → 1 → 2 and 3 on its own, 10 tiles each, 4 SMs: 4 rows for each op, 3 of 4 SMs run 2 or 3 tiles."""
    a, b, c, d = (torch.zeros(80) for _ in range(4))
    lonely = [torch.zeros(80), torch.zeros(80)]
    ops = [CopyOp._schedule_single(tile_sizes={"N": 8}, x=x, y=y) for x, y in ((a, b), (b, c), (c, d), tuple(lonely))]
    return Plan.build(ops, Target.named("sm_90a"), 4)


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
    return lambda plan: replace(plan, waits=(*plan.waits[:op], changed, *plan.waits[op + 1 :]))


def field(**changes: object) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, **changes)


def shared(**changes: int) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, shared=replace(plan.shared, **changes))


MUTATIONS = [
    ("a range is missing", without_last_row, r"op 3 \(CopyOp\): [78] of 10 tiles are in queues"),
    ("a range is too long", rows(lambda t: t.__setitem__((0, 2), 4)), r"tile 12 is in a queue, but there are 10"),
    ("a range is too short", rows(lambda t: t.__setitem__((0, 2), 2)), r"op 0 \(CopyOp\): 9 of 10 tiles"),
    ("a range is empty", rows(lambda t: t.__setitem__((0, 2), 0)), r"a range is empty"),
    ("a tile runs twice", rows(lambda t: t.__setitem__((0, 1), 1)), r"tile 1 is in two ranges"),
    ("a range steps differently", rows(lambda t: t.__setitem__((0, 3), 2)), r"another step"),
    ("a range is negative", rows(lambda t: t.__setitem__((0, 1), -4)), r"negative"),
    ("an instruction of no op", rows(lambda t: t.__setitem__((0, 0), 4)), r"names an op that does not exist"),
    ("an op never runs", rows(lambda t: t.__setitem__((t[:, 0] == 3, 0), 2)), r"op 2 \(CopyOp\): tile \d+ is in two"),
    ("queue bounds leave rows out", begins(0, 4, 8, 12, 15), r"queue bounds do not cut 16 instructions"),
    ("queue bounds run backwards", begins(0, 8, 4, 12, 16), r"queue bounds"),
    ("too few queues", begins(0, 8, 16), r"into 4 queues"),
    ("a dependency is forgotten", waits(1), r"op 0 .* and op 1 .* are not ordered \(RAW: `y`, `x`\)"),
    ("a wait ends before the producer", waits(1, (0, 7)), r"op 0 .* and op 1 .* are not ordered"),
    ("a wait never ends", waits(1, (0, 9)), r"waits until counter 0 is 9.*\n.*\n.*raises it to 8"),
    ("a wait for nothing", waits(1, (0, 0)), r"waits until counter 0 is 0"),
    ("a wait for nobody", waits(1, (0, 8), (5, 1)), r"waits for counter 5.*\n.*\n.*nobody signals"),
    ("a wait for a later op", waits(0, (1, 8)), r"op 0 .* waits for op 1"),
    ("a wait for itself", waits(1, (0, 8), (1, 8)), r"op 1 .* waits for op 1"),
    ("two ops share a counter", field(counters=(0, 0, -1, -1)), r"two ops share a counter"),
    ("a counter too few", field(counters=(0, 1, -1)), r"3 counters for 4 ops"),
    ("waits too few", field(waits=()), r"0 waits for 4 ops"),
    ("the loader does not wait", field(loader_waits=(False, True, False, False)), r"the loader of op 2 .* op 1"),
    ("a queue runs an op before what it waits for", rows(lambda t: swap(t, 0, 1)), r"deadlock: SM 0 waits in op 1"),
    ("the ring is too small", shared(ring_pages=4), r"3 stages of 2 pages in a ring of 4"),
    ("stages do not tile the ring", shared(ring_pages=7), r"a ring of 7 pages is no multiple of 2-page stages"),
    ("pages of another size", shared(page_bytes=8192), r"pages of 16384 bytes in a ring of 8192"),
    ("no room for the resident page", shared(resident_bytes=8192), r"16384 resident bytes in 8192"),
    ("records do not fit their slots", shared(record_bytes=16), r"a record of \d+ bytes in slots for 16"),
    ("more output slots than stages", shared(output_slots=4), r"4 output slots for 3 stages"),
    ("no output slot", shared(output_slots=0), r"0 output slots"),
    ("too much shared memory", shared(ring_pages=14), r"bytes, sm_90a has 232448"),
    ("a kind that does not exist", lambda p: replace(p, ops=(replace(p.ops[0], kind=1), *p.ops[1:])), r"has kind 1"),
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
    """What counts is the order, not the edge: op 2 may wait for op 0 as well, and op 3 for all."""
    plan = build()
    assert plan.waits == ((), ((0, 8),), ((1, 8),), ())
    waits(2, (0, 8), (1, 8))(plan).verify()
    waits(3, (0, 3), (1, 1))(plan).verify()


def test_a_deadlock_across_queues_is_found():
    """Op 3 runs first on SM 0, and waits for op 0 there; everywhere else op 0 is done."""
    plan = waits(3, (0, 8))(build())
    plan.verify()
    first_of_sm0, last_of_sm0 = 0, 3
    with pytest.raises(PlanError, match=r"deadlock: SM 0 waits in op 3 .* for counter 0 to reach 8(.|\n)*stays at 6"):
        rows(lambda table: swap(table, first_of_sm0, last_of_sm0))(plan).verify()
