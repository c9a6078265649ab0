"""Plans as values: what they hold, print, and survive."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from machete.megakernel.abi import Op, PipelineSpec, PlanError, ScheduledOp, Target, TmaBox
from machete.megakernel.plan import Plan, Program
from machete.megakernel.plan.cost import RATES
from machete.megakernel.plan.program import FENCES, LOADER_WAITS, TOTAL_SHIFT
from machete.megakernel.plan.queues import FIRST, OP, SIGNAL, TOTAL, WAITS

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


def waits_of(plan: Plan, op: int) -> dict[int, list[tuple[int, int]]]:
    """First tile of each range of an op to the ranges of tiles it waits for, as (op, first tile) of one of them."""
    rows = plan.queues.rows.tolist()
    owner = {row[SIGNAL]: (row[OP], row[FIRST]) for row in reversed(rows)}
    return {row[FIRST]: [owner[c] for c, _ in plan.waits[row[WAITS]]] for row in rows if row[OP] == op}


def test_a_tile_waits_for_the_tiles_that_it_reads():
    plan = example(num_sms=16)
    assert all(waits == [] for waits in waits_of(plan, 0).values())
    assert waits_of(plan, 1) == {tile: [(0, tile)] for tile in range(16)}
    # 10 tiles of 100 elements, in place of 16 tiles of 64.
    wide = waits_of(plan, 3)
    assert wide[0] == [(2, 0), (2, 1)]
    assert wide[1] == [(2, 1), (2, 2), (2, 3)]
    assert wide[9] == [(2, 14), (2, 15)]
    # The streaming op signals twice for each range: compute and store.
    assert {threshold for waits in plan.waits for _, threshold in waits} == {1, 2}
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
    assert (plan.num_counters, plan.waits) == (0, ((),))
    assert (plan.queues.rows[:, [SIGNAL, TOTAL]] == -1).all()
    assert Program.of(plan).waits.shape == (0, 2)
    plan.verify()


class TotalOp(Op):
    """Reads all of x in its only tile."""

    reads = {"x": VECTOR}
    writes = {"s": (None, ("one",))}

    def compute(self, x, s): ...


def total(x, s) -> ScheduledOp:
    return TotalOp._schedule_single(x=x, s=s)


def test_an_op_that_reads_everything_waits_for_one_counter():
    x, y, z, s = vectors(4)
    plan = Plan.build([scale(x, y), total(y, s[:1])], SM90, 4)
    plan.verify()
    assert plan.ops[0].grouping.count == 1, "nobody tells its tiles apart"
    assert plan.waits == ((), ((0, 4),))
    # Beside a consumer that does, ranges signal the counter of their group and that of the op.
    plan = Plan.build([scale(x, y), scale(y, z), total(y, s[:1])], SM90, 4)
    plan.verify()
    rows = plan.queues.rows
    assert set(rows[rows[:, OP] == 0, TOTAL].tolist()) == {0}
    assert rows[rows[:, OP] == 0, SIGNAL].min() > 0
    assert [plan.waits[w] for w in rows[rows[:, OP] == 2, WAITS]] == [((0, 16),)]


def test_an_op_that_reads_a_slice_waits_for_the_tiles_in_it():
    x, y, s = vectors(3, 1024)
    plan = Plan.build([scale(x, y), total(y[256:512], s[:1])], SM90, 4)
    plan.verify()
    assert plan.ops[0].block == (4,), "16 tiles, of which the second four are read"
    row = plan.queues.rows[plan.queues.rows[:, OP] == 1][0]
    assert plan.waits[row[WAITS]] == ((0, 4),)
    assert plan.num_counters == 1, "nobody waits for the other groups"


def test_an_sm_waits_once_for_what_all_its_tiles_need():
    x, y, z = torch.zeros(64), torch.zeros(1), torch.zeros(64)
    plan = Plan.build([total(x, y), spread(y, z)], SM90, 2)
    plan.verify()
    assert waits_of(plan, 1) == {0: [(0, 0)], 1: [(0, 0)]}
    other = torch.zeros(64)
    plan = Plan.build([total(x, y), spread(y, z), spread(y, other)], SM90, 2)
    plan.verify()
    assert waits_of(plan, 2) == {0: [], 1: []}, "both SMs have waited for op 0 already"
    dynamic = Plan.build([total(x, y), spread(y, z), spread(y, other)], SM90, 2, schedule="dynamic")
    dynamic.verify()
    assert all(waits == [(0, 0)] for waits in waits_of(dynamic, 2).values()), "who fetches it is not known"


class SpreadOp(Op):
    reads = {"s": (None, ("one",))}
    writes = {"y": VECTOR}
    tile = ("N",)

    def compute(self, s, y, tile_N): ...


def spread(s, y) -> ScheduledOp:
    return SpreadOp._schedule_single(tile_sizes={"N": 16}, s=s, y=y)


class IrregularOp(ScaleOp):
    irregular = True


def test_irregular_ops_make_a_dynamic_plan():
    x, y, z = vectors(3)
    irregular = IrregularOp._schedule_single(tile_sizes={"N": 64}, x=x, y=y, factor=1.0)
    plan = Plan.build([irregular, scale(y, z)], SM90, 4)
    plan.verify()
    assert plan.schedule == "dynamic"
    assert plan.queues.begin.tolist() == [0, len(plan.queues.rows)]
    assert plan.tiles_per_sm is None
    assert plan.shared.slots == 2, "an SM holds what it runs and the next one"
    assert plan.num_counters == plan.num_dependency_counters + 1, "one more hands out instructions"
    assert "dynamic" in str(plan).splitlines()[0]
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.build([irregular, scale(y, z)], SM90, 4, schedule="static").schedule == "static"
    assert Plan.build([scale(y, z)], SM90, 4, schedule="dynamic").schedule == "dynamic"
    with pytest.raises(PlanError, match=r"schedule='dynamc'(.|\n)*dynamic"):
        Plan.build([scale(y, z)], SM90, 4, schedule="dynamc")


def test_the_cost_of_a_tile_follows_from_its_bytes_or_its_flops_or_a_profile():
    class BusyOp(ScaleOp):
        @classmethod
        def cost(cls, op):
            return 0.0, 5.3e6 * 10

    x, y, z = vectors(3, 1 << 20)
    busy = BusyOp._schedule_single(tile_sizes={"N": 64}, x=y, y=z, factor=1.0)
    assert ScaleOp.cost(scale(x, y, tile=1 << 16)) == (2 * 4 * 65536, 0)
    assert ScaleOp.cost(scale(x[:100], y[:100], tile=1 << 16)) == (2 * 4 * 100, 0), "no more than there is"
    plan = Plan.build([scale(x, y, tile=1 << 16), busy], SM90, 132)
    rates = RATES["sm_90a"]
    assert plan.ops[0].tile_us == pytest.approx(rates.tile_us + 524288 / rates.bytes_per_us)
    assert plan.ops[1].tile_us == pytest.approx(rates.tile_us + 10)
    name = plan.kinds[1].name
    assert Plan.build([scale(x, y), busy], SM90, 132, profile={name: 7.5, "other.Op": 1.0}).ops[1].tile_us == 7.5
    by_index = Plan.build([scale(x, y), busy], SM90, 132, profile={name: 7.5, 1: 9.0}).ops
    assert by_index[1].tile_us == 9.0
    with pytest.raises(PlanError, match="profile"):
        Plan.build([scale(x, y), busy], SM90, 132, profile={name: 0.0})
    with pytest.raises(PlanError, match=r"profile\[2\], but there are 2 ops"):
        Plan.build([scale(x, y), busy], SM90, 132, profile={2: 1.0})


def test_measured_times_change_the_queues():
    """Two ops of five tiles on four SMs: the SM that has two tiles of a slow first op gets none of the other."""
    x, y, z, w = vectors(4, 320)
    ops = [scale(x, y), scale(z, w, mode="other")]
    slow = dict.fromkeys({kind.name for kind in Plan.build(ops, SM90, 4).kinds}, 1.0)
    even = Plan.build(ops, SM90, 4, profile=slow)
    assert even.tiles_per_sm.tolist() == [3, 3, 2, 2]

    class SlowOp(ScaleOp):
        pass

    ops = [SlowOp._schedule_single(tile_sizes={"N": 64}, x=x, y=y, factor=1.0), scale(z, w)]
    plan = Plan.build(ops, SM90, 4, profile={f"{SlowOp.__module__}.{SlowOp.__qualname__}": 10.0})
    plan.verify()
    assert plan.tiles_per_sm.min() == plan.tiles_per_sm[0] == 2, "SM 0 has two slow tiles, and nothing else"


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "list indices"),
        ("{}", "'abi' is missing"),
        (json.dumps({**example().to_dict(), "waits": 1}), "not iterable"),
        (
            json.dumps({name: value for name, value in example().to_dict().items() if name != "fences"}),
            "'fences' is missing",
        ),
    ],
)
def test_what_is_no_plan_is_said_to_be_none(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=rf"describes no plan: .*{reason}"):
        Plan.from_json(text)


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
    assert lines[0].startswith("plan for sm_90a, 4 SMs, static: 4 ops of 3 kinds, 3 dependencies, 58 instructions")
    assert "ring of 6 pages of 16384 bytes, 2 output slots, 16384 resident bytes" in lines[1]
    assert "after 0 (RAW x), loader waits" in lines[3]
    assert "10 tiles in 10 groups, 0.22 µs each  after 2 (RAW x, WAW y)" in lines[5]


def test_it_can_be_drawn():
    graph = example().graph()
    assert list(graph.edges) == [(0, 1), (1, 2), (2, 3)]
    assert graph.nodes[1]["label"] == "1: StreamOp"
    assert graph.edges[2, 3]["hazards"] == [("RAW", "y", "x"), ("WAW", "y", "y")]


def test_the_program_is_the_plan_as_tables():
    x, y, weight, z, s = vectors(5, 128)
    plan = Plan.build([stream(x, weight, y), stream(y, weight, z), total(y, s[:1])], SM90, 2)
    program = Program.of(plan)
    assert program.queue_begin.tolist() == [0, 3, 5]
    # kind, op, first, count, step, first wait, waits | flags, counter; the whole op's counter is 0
    assert program.rows.tolist() == [
        [0, 0, 0, 1, 1, 0, FENCES | 1 << TOTAL_SHIFT, 1],
        [0, 1, 0, 1, 1, 0, 1 | LOADER_WAITS, -1],
        [1, 2, 0, 1, 1, 2, 1, -1],
        [0, 0, 1, 1, 1, 0, FENCES | 2 << TOTAL_SHIFT, 2],
        [0, 1, 1, 1, 1, 1, 1 | LOADER_WAITS, -1],
    ]
    assert program.waits.tolist() == [[1, 2], [2, 2], [0, 4]]
    assert program.record_bytes == max(kind.record.size for kind in plan.kinds)


def test_planning_a_gigabyte_costs_no_more_than_planning_little():
    sizes = []
    for extent in (132 * 256, 2**29):
        x = torch.zeros(1).expand(extent)
        y = torch.empty(extent, dtype=torch.float16)  # 1 GiB that is never touched
        op = scale(x, y, tile=256)
        plan = Plan.build([op], SM90, 132)
        plan.verify()
        sizes.append((len(Program.of(plan).rows), len(plan.to_json())))
        assert plan.tiles_per_sm.sum() == extent // 256
    assert sizes[0][0] == sizes[1][0] == 132
    assert sizes[1][1] < 2 * sizes[0][1], "only the digits of the counts grow"
