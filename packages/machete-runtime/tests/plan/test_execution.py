"""Plans, executed: random graphs in random legal interleavings equal running the ops one after another.

The executor knows a plan's tables only. SMs take instructions from their queues, wait for counters, read what a tile
reads at one time and write what it writes at a later one, and signal; whoever may go on is chosen at random. A
dependency that is missing shows as a wrong number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from machete.megakernel.abi import Op, PlanError, ScheduledOp, ScheduleError, Target
from machete.megakernel.plan import Plan, Program, Queues
from machete.megakernel.plan.program import MAX_WAITS, TOTAL_SHIFT
from machete.megakernel.plan.queues import SIGNAL, TOTAL, WAITS

Values = dict[str, np.ndarray]


class HostOp(Op, abstract=True):
    """An op that also says, in NumPy, what a tile computes from its parts of the tensors."""

    def compute(self): ...

    @staticmethod
    def meaning(values: Values) -> Values:
        raise NotImplementedError


class Mix1(HostOp):
    reads = {"x": (None, ("N",)), "w": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @staticmethod
    def meaning(values):
        return {"y": 3 * values["x"] + values["w"] + 1}


class Mix2(HostOp):
    reads = {"x": (None, ("M", "N")), "w": (None, ("M", "N"))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M", "N")
    meaning = Mix1.meaning


class Columns2(Mix2):
    """The same, cut along columns only."""

    tile = ("N",)


class Update2(HostOp):
    """In place, columns outside of rows."""

    reads = {"x": (None, ("M", "N")), "y": (None, ("M", "N"))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("N", "M")

    @staticmethod
    def meaning(values):
        return {"y": 5 * values["y"] + values["x"]}


class Mix3(HostOp):
    reads = {"x": (None, ("B", "M", "N")), "w": (None, ("B", "M", "N"))}
    writes = {"y": (None, ("B", "M", "N"))}
    tile = ("B", "M", "N")
    meaning = Mix1.meaning


class Heads3(Mix3):
    """Heads in the middle, rows whole."""

    tile = ("M",)


class RowSum(HostOp):
    reads = {"x": (None, ("M", "N"))}
    writes = {"s": (None, ("M",))}
    tile = ("M",)

    @staticmethod
    def meaning(values):
        return {"s": values["x"].sum(axis=1) + 7}


class Spread(HostOp):
    reads = {"s": (None, ("M",)), "w": (None, ("N",))}
    writes = {"y": (None, ("M", "N"))}
    tile = ("M", "N")

    @staticmethod
    def meaning(values):
        return {"y": 3 * values["s"][:, None] + values["w"]}


class Product(HostOp):
    """c = a @ b.T: tiles need row blocks of a, and of b."""

    reads = {"a": (None, ("M", "K")), "b": (None, ("N", "K"))}
    writes = {"c": (None, ("M", "N"))}
    tile = ("M", "N")

    @staticmethod
    def meaning(values):
        return {"c": values["a"] @ values["b"].T + 1}


CLASSES = [Mix1, Mix2, Columns2, Update2, Mix3, Heads3, RowSum, Spread, Product]
SIZE = 300  # elements of a storage
EXTENTS = {"B": 2, "M": 6, "N": 8, "K": 8}


def random_view(draw: random.Random, storage: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Dense, padded, or a slice of something wider, anywhere in the storage."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent if draw.random() < 0.7 else draw.choice([step * extent + 4, 2 * step * extent])
    strides.reverse()
    if len(shape) == 2 and draw.random() < 0.15:
        strides = [1, shape[0]]
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    offset = draw.choice([0, 0, draw.randrange(SIZE - reach)])
    return storage.as_strided(shape, strides, offset)


def random_ops(draw: random.Random, storages: list[torch.Tensor]) -> list[ScheduledOp]:
    ops: list[ScheduledOp] = []
    used: list[torch.Tensor] = []
    for _ in range(draw.randint(2, 9)):
        op = draw.choice(CLASSES)
        extents = {dim: draw.choice([extent, extent, extent // 2]) for dim, extent in EXTENTS.items()}
        tensors = {}
        for name, (_, dims) in {**op.reads, **op.writes}.items():
            shape = tuple(extents[dim] for dim in dims)
            again = [view for view in used if view.shape == shape]
            tensors[name] = (
                draw.choice(again) if again and draw.random() < 0.6 else random_view(draw, draw.choice(storages), shape)
            )
        sizes = {dim: draw.randint(1, 4) for dim in op.tile}
        try:
            ops.append(op._schedule_single(tile_sizes=sizes, **tensors))
        except ScheduleError:
            continue  # an output that overlaps an input
        used += tensors.values()
    return ops


def parts(op: ScheduledOp, tile: int) -> Values:
    """The op's tensors as NumPy views, as far as this tile touches them."""
    index = dict(zip(op.op.tile, np.unravel_index(tile, op.tiles or (1,)), strict=False))
    found = {}
    for name, tensor in op.tensors.items():
        slices = []
        for dim in op.op.declaration.tensors[name].dims:
            size = op.tile_sizes.get(dim, op.extents[dim])
            first = int(index.get(dim, 0)) * size
            slices.append(slice(first, first + size))
        found[name] = tensor.numpy()[tuple(slices)]
    return found


class Executor:
    """SMs as generators that yield where others may come in between: True if something happened, False if not."""

    def __init__(self, plan: Plan, ops: list[ScheduledOp]) -> None:
        self.plan, self.ops, self.program = plan, ops, Program.of(plan)
        self.counters = [0] * (1 + max(self.program.rows[:, 7].max(), self.program.waits[:, 0].max(initial=0)))
        self.next_row = 0

    def _rows(self, sm: int) -> Iterator[list[int]]:
        begin, rows = self.program.queue_begin.tolist(), self.program.rows.tolist()
        if self.plan.schedule == "static":
            yield from rows[begin[sm] : begin[sm + 1]]
            return
        while self.next_row < len(rows):
            self.next_row += 1
            yield rows[self.next_row - 1]

    def sm(self, number: int) -> Iterator[bool]:
        for kind, op, first, count, step, wait_begin, flags, signal in self._rows(number):
            assert self.plan.kind_of_op[op] == kind
            waits = self.program.waits[wait_begin : wait_begin + (flags & MAX_WAITS)].tolist()
            while any(self.counters[counter] < least for counter, least in waits):
                yield False
            for tile in range(first, first + count * step, step):
                values = parts(self.ops[op], tile)
                read = {name: value.copy() for name, value in values.items() if name in self.ops[op].op.reads}
                yield True
                for name, value in self.ops[op].op.meaning(read).items():
                    values[name][...] = value
                yield True
            if signal >= 0:
                per_range = self.plan.kinds[kind].signals_per_range
                self.counters[signal] += per_range
                if flags >> TOTAL_SHIFT:
                    self.counters[signal - (flags >> TOTAL_SHIFT)] += per_range

    def run(self, draw: random.Random, restless: float) -> None:
        """`restless`: how often to turn to another SM; the rarer, the further one gets ahead of the others."""
        running = {number: self.sm(number) for number in range(self.plan.num_sms)}
        favourite, idle = 0, 0
        while running:
            if draw.random() < restless or favourite not in running or idle:
                favourite = draw.choice(list(running))
            happened = next(running[favourite], None)
            if happened is None:
                del running[favourite]
            idle = idle + 1 if happened is False else 0
            assert idle < 200 * self.plan.num_sms, f"deadlock\n{self.plan}"


def sequentially(ops: list[ScheduledOp]) -> None:
    for op in ops:
        values = {name: tensor.numpy() for name, tensor in op.tensors.items()}
        results = op.op.meaning({name: values[name].copy() for name in op.op.reads})
        for name, value in results.items():
            values[name][...] = value


def agrees(
    ops: list[ScheduledOp], storages: list[torch.Tensor], executor: Executor, draw: random.Random, restless: float
) -> bool:
    """Whether an execution leaves behind what running the ops in order does. Storages keep the latter."""
    before = [storage.clone() for storage in storages]
    executor.run(draw, restless)
    found = [storage.clone() for storage in storages]
    for storage, contents in zip(storages, before, strict=True):
        storage.copy_(contents)
    sequentially(ops)
    return all(torch.equal(storage, got) for storage, got in zip(storages, found, strict=True))


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**40), st.integers(1, 7), st.sampled_from(["static", "dynamic"]))
def test_random_graphs_in_random_interleavings_equal_the_sequential_reference(seed, num_sms, schedule):
    draw = random.Random(seed)
    storages = [torch.randint(-9, 9, (SIZE,)) for _ in range(draw.randint(1, 3))]
    ops = random_ops(draw, storages)
    if not ops:
        return
    profile = {f"{op.__module__}.{op.__qualname__}": draw.choice([0.1, 1.0, 5.0]) for op in CLASSES}
    plan = Plan.build(ops, Target.named("sm_90a"), num_sms, schedule=schedule, profile=profile)
    plan.verify()
    assert agrees(ops, storages, Executor(plan, ops), draw, draw.choice([0.02, 0.1, 0.5])), str(plan)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**40), st.integers(1, 4), st.sampled_from(["static", "dynamic"]))
def test_no_wait_and_no_signal_can_be_left_out(seed, num_sms, schedule):
    draw = random.Random(seed)
    ops = random_ops(draw, [torch.zeros(SIZE, dtype=torch.int64) for _ in range(2)])[:5]
    if not ops:
        return
    plan = Plan.build(ops, Target.named("sm_90a"), num_sms, schedule=schedule)
    rows = plan.queues.rows
    needed = [(row, wait) for row in range(len(rows)) for wait in plan.waits[rows[row, WAITS]]]
    for row, wait in draw.sample(needed, min(len(needed), 20)):
        changed = rows.copy()
        changed[row, WAITS] = len(plan.waits)
        fewer = tuple(other for other in plan.waits[rows[row, WAITS]] if other != wait)
        with pytest.raises(PlanError, match="are not ordered"):
            replace(plan, queues=Queues(plan.queues.begin, changed), waits=(*plan.waits, fewer)).verify()
    waited_for = {counter for row in rows for counter, _ in plan.waits[row[WAITS]]}
    assert waited_for == set(rows[:, [SIGNAL, TOTAL]].ravel().tolist()) - {-1}, "nobody signals for nobody"


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_the_executor_notices_a_dependency_that_is_missing(schedule):
    draw = random.Random(0)
    storages = [torch.randint(-9, 9, (SIZE,)) for _ in range(3)]
    x, y, z = (storage[:64] for storage in storages)
    ops = [Mix1._schedule_single(tile_sizes={"N": 16}, x=a, w=a, y=b) for a, b in ((x, y), (y, z), (z, x))]
    plan = Plan.build(ops, Target.named("sm_90a"), 3, schedule=schedule)

    def run(waits: bool) -> bool:
        for storage in storages:
            storage.random_(-9, 9)  # 4 x + 1, again and again, would end where all values are one
        executor = Executor(plan, ops)
        if not waits:
            executor.program.rows[:, 6] &= ~MAX_WAITS
        return agrees(ops, storages, executor, draw, restless=0.1)

    assert all(run(waits=True) for _ in range(20))
    assert not all(run(waits=False) for _ in range(20))
