"""Dependencies against brute force over the bytes that ops really touch."""

from __future__ import annotations

import itertools

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from machete.megakernel.abi import Op, ScheduledOp, Target
from machete.megakernel.plan import Dependency, Plan
from machete.megakernel.plan.dependencies import find_hazards, reduce_hazards
from machete.megakernel.plan.memory import accesses_of

MATRIX = (None, ("M", "N"))


class Combine(Op):
    reads = {"x": MATRIX, "w": MATRIX}
    writes = {"y": MATRIX}
    tile = ("M",)

    def compute(self, x, w, y, tile_M): ...


class Update(Op):
    """In place."""

    reads = {"y": MATRIX}
    writes = {"y": MATRIX}
    tile = ("M",)

    def compute(self, y, tile_M): ...


def combine(x, w, y, tile=2) -> ScheduledOp:
    return Combine._schedule_single(tile_sizes={"M": tile}, x=x, w=w, y=y)


def update(y, tile=2) -> ScheduledOp:
    return Update._schedule_single(tile_sizes={"M": tile}, y=y)


def dependencies(*ops: ScheduledOp) -> set[tuple[int, int]]:
    found = reduce_hazards(find_hazards(accesses_of(ops)))
    return {(dependency.producer, dependency.consumer) for dependency in found}


def elements(tensor: torch.Tensor) -> set[int]:
    """Addresses of the elements."""
    addresses = (
        tensor.data_ptr() + tensor.element_size() * sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
        for index in itertools.product(*map(range, tensor.shape))
    )
    return set(addresses)


def conflict(one: ScheduledOp, other: ScheduledOp) -> bool:
    """Whether both touch a common element, and one of them writes it."""
    if not (one.num_tiles and other.num_tiles):
        return False
    touched = [({name: elements(op.tensors[name]) for name in op.infos}, set(op.op.writes)) for op in (one, other)]
    (mine, my_writes), (theirs, their_writes) = touched
    return any(mine[a] & theirs[b] for a in mine for b in theirs if a in my_writes or b in their_writes)


@st.composite
def views(draw, storages, shape=(4, 4)):
    """A 4 × 4 view of one of the storages: contiguous, strided, transposed or shifted."""
    base = draw(st.sampled_from(storages))
    strides = draw(st.sampled_from([(4, 1), (8, 1), (8, 2), (1, 4), (16, 3)]))
    reach = sum(3 * stride for stride in strides)
    return base.as_strided(shape, strides, draw(st.integers(0, base.numel() - reach - 1)))


@st.composite
def graphs(draw):
    """Ops on views of two storages."""
    storages = [torch.zeros(64), torch.zeros(96)]
    ops = []
    for _ in range(draw(st.integers(1, 8))):
        y = draw(views(storages))
        if draw(st.booleans()):
            ops.append(update(y, tile=draw(st.integers(1, 5))))
        else:
            inputs = [draw(views(storages)) for _ in range(2)]
            inputs = [torch.zeros(4, 4) if elements(x) & elements(y) else x for x in inputs]
            ops.append(combine(*inputs, y, tile=draw(st.integers(1, 5))))
    return ops


@settings(deadline=None)
@given(graphs(), st.integers(1, 4))
def test_every_conflicting_pair_is_ordered_and_no_other_edge_is_drawn(ops, num_sms):
    plan = Plan.build(ops, Target.named("sm_90a"), num_sms)
    plan.verify()
    assert Plan.from_json(plan.to_json()) == plan
    ordered = networkx.transitive_closure(plan.graph())
    conflicts = networkx.DiGraph(
        (i, j) for i, j in itertools.combinations(range(len(ops)), 2) if conflict(ops[i], ops[j])
    )
    for i, j in conflicts.edges:
        assert ordered.has_edge(i, j), f"{ops[i]} and {ops[j]} are not ordered\n{plan}"
    conflicts.add_nodes_from(range(len(ops)))
    assert set(plan.graph().edges) == set(networkx.transitive_reduction(conflicts).edges)


def buffers(count: int, *shape: int) -> list[torch.Tensor]:
    return [torch.zeros(shape or (4, 4)) for _ in range(count)]


def test_a_chain_needs_neighbours_only():
    a, b, c, d = buffers(4)
    assert dependencies(combine(a, a, b), combine(b, a, c), combine(c, b, d)) == {(0, 1), (1, 2)}


def test_a_diamond_keeps_its_branches_apart():
    a, b, c, d, e = buffers(5)
    assert dependencies(combine(a, a, b), combine(b, a, c), combine(b, b, d), combine(c, d, e)) == {
        (0, 1),
        (0, 2),
        (1, 3),
        (2, 3),
    }


def test_readers_come_before_the_next_writer_and_are_not_ordered_themselves():
    a, b, c, d = buffers(4)
    assert dependencies(combine(a, a, b), combine(a, a, c), combine(d, d, a)) == {(0, 2), (1, 2)}


def test_updates_in_place_come_one_after_another():
    a, _ = buffers(2)
    assert dependencies(update(a), update(a), update(a)) == {(0, 1), (1, 2)}


def test_disjoint_slices_of_one_tensor_are_independent():
    base, (a,) = torch.zeros(4, 16), buffers(1)
    left, middle, right = base[:, :4], base[:, 2:6], base[:, 4:8]
    assert dependencies(combine(a, a, left), combine(a, a, right)) == set()
    assert dependencies(combine(a, a, left), combine(a, a, right), combine(middle, middle, a.clone())) == {
        (0, 2),
        (1, 2),
    }


def test_who_writes_all_of_a_view_stands_for_those_before():
    base, a = torch.zeros(8, 4), torch.zeros(8, 4)
    ops = [update(base[:4]), update(base[2:6]), combine(a[:4], a[:4], base[4:]), update(base), update(base[3:5])]
    hazards = find_hazards(accesses_of(ops))
    assert set(hazards[4]) == {3}
    assert dependencies(*ops) == {(0, 1), (1, 2), (2, 3), (3, 4)}


def test_ops_without_tiles_order_nobody():
    base = torch.zeros(8, 4)
    assert dependencies(update(base), update(base[4:4]), update(base)) == {(0, 2)}


def test_hazards_name_the_tensors():
    a, b, c = buffers(3)
    plan = Plan.build([combine(a, b, c), combine(c, c, a)], Target.named("sm_90a"), 2)
    assert plan.dependencies == (
        Dependency(0, 1, frozenset({("RAW", "y", "x"), ("RAW", "y", "w"), ("WAR", "x", "y")})),
    )


def test_the_plan_does_not_depend_on_where_tensors_lie():
    keep = torch.zeros(1000)  # moves the second set of buffers

    def graph() -> list[ScheduledOp]:
        a, b, c = buffers(3)
        return [combine(a, b, c), update(c[1:]), combine(c, c, a)]

    one, other = (Plan.build(graph(), Target.named("sm_90a"), 4) for _ in range(2))
    assert one == other
    assert one.to_json() == other.to_json()
    assert keep.numel() == 1000


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_reduction_is_the_transitive_reduction(pairs):
    graph = networkx.DiGraph((min(pair), max(pair)) for pair in pairs if pair[0] != pair[1])
    graph.add_nodes_from(range(10))
    hazards = {j: {i: {("RAW", "y", "x")} for i in graph.predecessors(j)} for j in range(10)}
    reduced = reduce_hazards(hazards)
    assert {(d.producer, d.consumer) for d in reduced} == set(networkx.transitive_reduction(graph).edges)


def decoder(layers: int) -> list[ScheduledOp]:
    """Ten ops a layer: activations in a few buffers, slices of a cache, weights that nobody writes."""
    hidden, normed, mixed = buffers(3, 64, 64)
    packed, cache = torch.zeros(64, 192), torch.zeros(layers, 64, 128)
    ops = []
    for layer in range(layers):
        weights = buffers(4, 64, 64)
        q, k, v = packed[:, :64], packed[:, 64:128], packed[:, 128:]
        ops += [combine(hidden, weights[0], normed)]
        ops += [combine(normed, weight, part) for weight, part in zip(weights, (q, k, v), strict=False)]
        ops += [combine(k, k, cache[layer, :, :64]), combine(v, v, cache[layer, :, 64:])]
        ops += [combine(q, cache[layer, :, :64], mixed), update(mixed)]
        ops += [combine(mixed, weights[3], normed), update(hidden)]
    return ops


def irregular() -> list[ScheduledOp]:
    """About 25,000 tiles of 110 ops with tiles of seven sizes, each the input of the next."""
    ring = buffers(8, 4000, 1)
    ops = [combine(ring[i % 8], ring[i % 8], ring[(i + 1) % 8], tile=15 + i % 7) for i in range(110)]
    assert 24_000 < sum(op.num_tiles for op in ops) < 26_000
    return ops


def chain(rows: int) -> list[ScheduledOp]:
    """300 ops, each the input of the next."""
    ring = buffers(8, rows, 64)
    return [combine(ring[i % 8], ring[i % 8], ring[(i + 1) % 8]) for i in range(300)]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: chain(64), id="300 ops of 32 tiles"),
        pytest.param(lambda: chain(264), id="300 ops of 132 tiles, each of which waits for one"),
        pytest.param(lambda: decoder(30), id="300 ops of 30 layers"),
        pytest.param(irregular, id="25,000 tiles of several sizes"),
    ],
)
def test_many_ops_on_132_sms_plan_and_verify(make):
    """Work follows edges between ops: no more instructions than tiles, and a few waits for each of them."""
    ops = make()
    plan = Plan.build(ops, Target.named("sm_90a"), 132)
    plan.verify()
    rows = len(plan.queues.rows)
    assert len(ops) <= rows <= sum(op.num_tiles for op in ops)
    assert sum(map(len, plan.waits)) <= 132 * rows
    assert len(plan.dependencies) <= 2 * len(ops)


def test_two_million_tiles_with_sub_grid_dependencies_take_few_instructions():
    x, y, z = (torch.empty(2**22, 1) for _ in range(3))
    ops = [combine(x, x, y), combine(y, y, z)]
    assert ops[0].num_tiles == 2**21
    plan = Plan.build(ops, Target.named("sm_90a"), 132)
    plan.verify()
    assert plan.ops[0].grouping.count == 16
    assert len(plan.queues.rows) <= 2 * 16 * 132
