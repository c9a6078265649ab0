"""Profile-guided plans: a trace teaches the planner what a tile costs, and on an unbalanced graph that pays."""

from __future__ import annotations

import pytest
import torch

from diagnosis_graphs import misjudged
from machete.megakernel import Megakernel
from machete.trace import Trace
from small_ops import Scale

SMS = 4


@pytest.mark.archs("sm_90a")
def test_a_plan_from_its_own_trace_is_faster(arch: str, device: str) -> None:
    graph = misjudged(device, SMS)
    options = {"arch": arch if device == "cpu" else None, "num_sms": SMS, "trace": True}
    first = Megakernel(graph.ops, **options)
    first.run()
    before = Trace.of(first, first.run())
    profile = before.profile()
    assert profile.keys() == {0, 1}
    assert 20 <= profile[0] < 22, "µs that the tile spins, and what a tile costs at least"
    assert 2 <= profile[1] < 3.5

    graph.result.zero_()
    second = Megakernel(graph.ops, profile=profile, **options)
    second.run()
    after = Trace.of(second, second.run())
    assert torch.equal(graph.result, graph.reference)
    # 2 tiles of 20 µs and 40 of 2 µs: 40 µs on an SM that has a long one and its share of the others, 30 at best.
    assert after.report().us["imbalance"] < before.report().us["imbalance"] / 2
    if device == "cpu":  # simulated time is no timing: it is the same on every machine
        assert before.total_us == pytest.approx(40, rel=0.1)
        assert after.total_us == pytest.approx(30, rel=0.1)


def test_ops_of_one_kind_and_size_share_their_time() -> None:
    x, y, z = torch.zeros(2048), torch.zeros(2048), torch.zeros(512)
    ops = [*Scale.schedule(x=x, y=y), *Scale.schedule(x=y, y=x), *Scale.schedule(x=z, y=z)]
    kernel = Megakernel(ops, trace=True)
    profile = Trace.of(kernel, kernel.run()).profile()
    assert profile[0] == profile[1] != profile[2]
    assert [op.tile_us for op in Megakernel(ops, profile=profile).plan.ops] == list(profile.values())
