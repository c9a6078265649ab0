"""What the cost model makes of a plan, and the picture of it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from machete.megakernel.abi import Op, Target
from machete.megakernel.plan import Plan
from machete.megakernel.plan.cost import RATES
from machete.megakernel.plan.picture import picture
from machete.megakernel.plan.queues import OP
from machete.megakernel.plan.timeline import timeline

VECTOR = (None, ("N",))
RATE = RATES["sm_90a"]


class First(Op):
    reads = {"x": VECTOR}
    writes = {"y": VECTOR}
    tile = ("N",)

    def compute(self, tile_N, x, y): ...


class Second(First):
    pass


class Total(Op):
    reads = {"x": VECTOR}
    writes = {"s": (None, ("one",))}

    def compute(self, x, s): ...


def chain(num_sms: int = 4, schedule: str = "static", first_us: float = 10.0) -> Plan:
    """8 tiles → 8 tiles → 1."""
    x, y, z, s = torch.zeros(64), torch.zeros(64), torch.zeros(64), torch.zeros(1)
    ops = [op._schedule_single(tile_sizes={"N": 8}, x=a, y=b) for op, a, b in ((First, x, y), (Second, y, z))]
    ops.append(Total._schedule_single(x=z, s=s))
    profile = {
        f"{First.__module__}.First": first_us,
        f"{First.__module__}.Second": 2.0,
        f"{First.__module__}.Total": 5.0,
    }
    return Plan.build(ops, Target.named("sm_90a"), num_sms, schedule=schedule, profile=profile)


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_times_follow_from_the_cost_model(schedule):
    plan = chain(schedule=schedule)
    times = timeline(plan)
    op = plan.queues.rows[:, OP]
    assert (times.end - times.begin)[op == 0].tolist() == pytest.approx([10 + RATE.instruction_us] * 8)
    assert (times.begin >= times.turned).all()
    for sm in range(4):
        mine = times.sm == sm
        assert (times.turned[mine][1:] == times.end[mine][:-1]).all(), "SMs do one thing after another"
    last = times.end[op == 1].max()
    assert times.begin[op == 2][0] == pytest.approx(last + RATE.dependency_us)
    assert times.total_us == pytest.approx(last + RATE.dependency_us + 5 + RATE.instruction_us)
    assert sorted(set(times.sm.tolist())) == [0, 1, 2, 3]


def test_a_tile_waits_for_its_own_tiles_only():
    """Two rounds of the first op: tiles of the second wait for the round before, not for the last one."""
    plan = chain()
    times = timeline(plan)
    op = plan.queues.rows[:, OP]
    early = times.begin[op == 1].min()
    assert early < times.end[op == 0].max() + RATE.dependency_us


def test_sms_that_fetch_go_on_where_others_are_slow():
    plan = chain(num_sms=3, schedule="dynamic")
    times = timeline(plan)
    assert times.sm[:3].tolist() == [0, 1, 2]
    assert len(set(times.sm.tolist())) == 3


def test_the_picture_has_a_box_for_every_range_and_shows_waits():
    plan = chain()
    text = picture(plan)
    assert text == picture(chain()), "equal plans give equal text"
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text or "" for title in root.iter(f"{space}title")]
    assert sum(title.startswith("op ") for title in titles) == len(plan.queues.rows)
    waits = sum(title.startswith("waits ") for title in titles)
    assert waits == (timeline(plan).waiting_us > 0).sum() > 0
    texts = {element.text for element in root.iter(f"{space}text")}
    assert {"SM 0", "SM 1", "SM 2", "SM 3", "0 µs"} <= texts
    assert any(text and text.endswith("First: 1 ops") for text in texts)


def test_a_plan_with_nothing_to_do_can_be_drawn():
    empty = torch.zeros(0)
    op = First._schedule_single(tile_sizes={"N": 8}, x=empty, y=empty.clone())
    plan = Plan.build([op], Target.named("sm_90a"), 2)
    assert timeline(plan).total_us == 0
    ElementTree.fromstring(picture(plan))
