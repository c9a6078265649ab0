"""Plans as values: what they hold, print, and survive."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
import torch

from machete.megakernel.abi import Op, PipelineSpec, PlanError, ScheduledOp, Target, TmaBox
from machete.megakernel.plan import Plan, Program
from machete.megakernel.plan.program import LOADER_WAITS

VECTOR = (None, ("N",))
SM90 = Target.named("sm_90a")


class ScaleOp(Op):
    reads = {"x": VECTOR}
    writes = {"y": VECTOR}
    tile = ("N",)
    scalars = {"factor": torch.float32}

    def compute(self, tile_N, x, y, factor): ...


class StreamOp(Op):
    """y = x + b, copied by descriptor and by bulk."""

    reads = {"x": VECTOR, "b": VECTOR}
    writes = {"y": VECTOR}
    tile = ("N",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=2)

    @classmethod
    def descriptors(cls, op):
        return {"x": TmaBox((op.tile_sizes["N"],))}

    def load(self, ring, tma_x, tile_N): ...
    def compute(self, ring, b): ...
    def store(self, ring, y, tile_N): ...


def scale(x, y, tile=64, factor=2.0, **config) -> ScheduledOp:
    return ScaleOp._schedule_single(tile_sizes={"N": tile}, config=config, x=x, y=y, factor=factor)


def stream(x, b, y, tile=64) -> ScheduledOp:
    return StreamOp._schedule_single(tile_sizes={"N": tile}, x=x, b=b, y=y)


def vectors(count: int, extent: int = 1000) -> list[torch.Tensor]:
    return [torch.zeros(extent) for _ in range(count)]


def example(num_sms: int = 4) -> Plan:
    """scale → stream (x from scale) → stream (b from stream, x a weight) → scale in place."""
    x, y, weight, z, out = vectors(5)
    ops = [scale(x, y), stream(y, weight, z), stream(weight, z, out), scale(out, out, tile=100, mode="fast")]
    return Plan.build(ops, SM90, num_sms)


def test_ops_of_one_kind_share_a_body():
    x, y, z = vectors(3)
    aligned, odd = torch.zeros(1008)[:1000], torch.zeros(1001)[1:]
    ops = [
        scale(x, y),
        scale(y, z, factor=3.0),  # tensors and scalars are data
        scale(x[:10], y[:10]),  # extents, too
        scale(x, y, tile=65),
        scale(x, y, mode=1),
        scale(x, y, mode=True),  # equal to 1, and yet another constant
        scale(x, y, mode=1.0),
        scale(odd, y),  # less aligned
        scale(aligned[::2], y[:500]),  # strided
        scale(x.half(), y),
    ]
    plan = Plan.build(ops, SM90, 4)
    assert plan.kind_of_op == (0, 0, 0, 1, 2, 3, 4, 5, 6, 7)
    assert [kind.index for kind in plan.kinds] == list(range(8))
    assert plan.kinds[0].op is ScaleOp
    assert plan.kinds[2].config == {"mode": 1}
    assert plan.kinds[2].tile_sizes == {"N": 64}


def test_a_kind_knows_what_device_code_needs():
    kind = example().kinds[1]
    assert kind.name.endswith("test_plan.StreamOp")
    assert kind.declaration is StreamOp.declaration
    assert kind.extent_dims == kind.tile == ("N",)
    assert kind.tensors["x"].unit_inner
    assert kind.tensors["x"].alignment == 16
    assert kind.descriptors == {"x": TmaBox((64,))}
    assert (kind.stage_pages, kind.resident_bytes, kind.signals_per_range) == (2, 16 * 1024, 2)


def test_waits_counters_and_loader_waits():
    plan = example()
    assert plan.counters == (0, 1, 2, -1), "nobody waits for the last op"
    assert plan.num_counters == 3
    # Four ranges each; the streaming op signals twice for each: compute and store.
    assert plan.waits == ((), ((0, 4),), ((1, 8),), ((2, 8),))
    # The second stream loads a weight only: its copies run ahead of its dependencies.
    assert plan.loader_waits == (False, True, False, False)


def test_the_loader_waits_for_a_producer_that_other_edges_imply():
    x, y, z, out = vectors(4)
    ops = [scale(x, y), scale(y, z), stream(y, z, out)]
    plan = Plan.build(ops, SM90, 2)
    assert [(d.producer, d.consumer) for d in plan.dependencies] == [(0, 1), (1, 2)]
    assert plan.loader_waits == (False, False, True), "it loads y, from op 0, whose edge is implied by that of op 1"


def test_independent_ops_have_no_counters():
    plan = Plan.build([scale(*vectors(2)), scale(*vectors(2))], SM90, 4)
    assert (plan.counters, plan.num_counters, plan.waits) == ((-1, -1), 0, ((), ()))
    assert Program.of(plan).waits.shape == (0, 2)
    plan.verify()


def test_ops_without_tiles_are_planned_and_never_run():
    x, y, z = vectors(3)
    empty = torch.zeros(0)
    plan = Plan.build([scale(x, y), scale(empty, empty.clone()), scale(y, z)], SM90, 4)
    plan.verify()
    assert set(plan.queues.rows[:, 0].tolist()) == {0, 2}
    only = Plan.build([scale(empty, empty.clone())], SM90, 4)
    only.verify()
    assert Program.of(only).rows.shape == (0, 8)


@pytest.mark.parametrize("num_sms", [1, 4, 132])
def test_json_round_trip(num_sms):
    plan = example(num_sms)
    text = plan.to_json()
    loaded = Plan.from_json(text)
    assert loaded == plan
    assert loaded.to_json() == text
    assert json.loads(text) == plan.to_dict()
    loaded.verify()
    one, other = Program.of(plan), Program.of(loaded)
    for table in ("queue_begin", "rows", "waits"):
        assert getattr(one, table).tobytes() == getattr(other, table).tobytes()


def test_a_loaded_plan_knows_its_ops_by_name_only():
    kind = Plan.from_json(example().to_json()).kinds[0]
    assert kind.name.endswith("test_plan.ScaleOp")
    with pytest.raises(PlanError, match=r"knows its op class by name only(.|\n)*imports no op package"):
        _ = kind.declaration


def test_plans_that_differ_compare_unequal():
    plan = example()
    assert plan == example()
    assert plan != example(num_sms=5)
    assert plan != dataclasses.replace(plan, loader_waits=(True,) * 4)


def test_it_prints_as_a_readable_summary():
    lines = str(example()).splitlines()
    assert lines[0].startswith("plan for sm_90a, 4 SMs: 4 ops of 3 kinds, 3 dependencies, 16 instructions")
    assert "ring of 6 pages of 16384 bytes, 2 output slots, 16384 resident bytes" in lines[1]
    assert "after 0 (RAW x), loader waits" in lines[3]
    assert "10 tiles  after 2 (RAW x, WAW y)" in lines[5]


def test_it_can_be_drawn():
    graph = example().graph()
    assert list(graph.edges) == [(0, 1), (1, 2), (2, 3)]
    assert graph.nodes[1]["label"] == "1: StreamOp"
    assert graph.edges[2, 3]["hazards"] == [("RAW", "y", "x"), ("WAW", "y", "y")]


def test_the_program_is_the_plan_as_tables():
    plan = example(num_sms=2)
    program = Program.of(plan)
    assert program.queue_begin.tolist() == [0, 4, 8]
    # kind, op, first, count, step, first wait, waits | loader, counter
    assert program.rows[:4].tolist() == [
        [0, 0, 0, 8, 2, 0, 0, 0],
        [1, 1, 0, 8, 2, 0, 1 + LOADER_WAITS, 1],
        [1, 2, 0, 8, 2, 1, 1, 2],
        [2, 3, 0, 5, 2, 2, 1, -1],
    ]
    assert program.waits.tolist() == [[0, 2], [1, 4], [2, 4]]
    assert program.record_bytes == max(kind.record.size for kind in plan.kinds)


def test_planning_a_gigabyte_costs_no_more_than_planning_little():
    sizes, seconds = [], []
    for extent in (132 * 256, 2**29):
        x = torch.zeros(1).expand(extent)
        y = torch.empty(extent, dtype=torch.float16)  # 1 GiB that is never touched
        op = scale(x, y, tile=256)
        started = time.perf_counter()
        plan = Plan.build([op], SM90, 132)
        plan.verify()
        seconds.append(time.perf_counter() - started)
        sizes.append((len(Program.of(plan).rows), len(plan.to_json())))
        assert plan.tiles_per_sm.sum() == extent // 256
    assert sizes[0][0] == sizes[1][0] == 132
    assert sizes[1][1] < 2 * sizes[0][1], "only the digits of the counts grow"
    assert seconds[1] < 10 * seconds[0] + 0.01
