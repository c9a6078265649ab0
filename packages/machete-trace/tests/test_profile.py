"""Profile-guided plans: a trace teaches the planner what a tile costs, and on an unbalanced graph that pays."""

from __future__ import annotations

import pytest
import torch

from diagnosis_graphs import misjudged
from machete.megakernel import Megakernel
from machete.trace import Trace

SMS = 4


@pytest.mark.archs("sm_90a")
def test_a_plan_from_its_own_trace_is_faster(arch: str, device: str) -> None:
    graph = misjudged(device, SMS)
    options = {"arch": arch if device == "cpu" else None, "num_sms": SMS, "trace": True}
    first = Megakernel(graph.ops, **options)
    first.run()
    before = Trace.of(first, first.run())
    profile = before.profile()
    by_kind = {name.rpartition(".")[2]: us for name, us in profile.items()}
    assert by_kind.keys() == {"LongWork", "Work"}
    assert 20 <= by_kind["LongWork"] < 22, "µs that the tile spins, and what a tile costs at least"
    assert 2 <= by_kind["Work"] < 3.5

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
