"""Graphs with a known ailment: a planted delay lands in its category, and the report names it."""

from __future__ import annotations

import pytest
import torch

from diagnosis_graphs import AILMENTS
from machete.megakernel import Megakernel
from machete.trace import Report, Trace

SMS = 4
PLANTED_NS = 30_000


@pytest.mark.archs("sm_90a")
@pytest.mark.parametrize("name", AILMENTS)
def test_a_planted_delay_lands_in_its_category(name: str, arch: str, device: str) -> None:
    graph = AILMENTS[name](device, SMS)
    kernel = Megakernel(graph.ops, arch=arch if device == "cpu" else None, num_sms=SMS, trace=True)

    def report() -> Report:
        graph.result.zero_()
        ran = kernel.run()
        assert torch.equal(graph.result, graph.reference)
        return Trace.of(kernel, ran).report()

    if device == "cuda":
        kernel.run()  # a first launch on a card is slow in places of its own
    well = report()
    graph.delays[graph.tile] += PLANTED_NS
    ill = report()
    planted = PLANTED_NS / 1000
    for category in well.us:
        more = SMS * (ill.us[category] - well.us[category])  # SM-microseconds
        assert more == pytest.approx(graph.expected.get(category, 0) * planted, abs=0.1 * planted), category
    said = (ill if graph.planted_is_ill else well).savings[0]
    assert said.category == graph.says


@pytest.mark.parametrize("name", AILMENTS)
def test_sums_reconcile_with_the_wall_time(name: str) -> None:
    graph = AILMENTS[name]("cpu", SMS)
    graph.delays[graph.tile] += PLANTED_NS
    kernel = Megakernel(graph.ops, num_sms=SMS, trace=True)
    report = Trace.of(kernel, kernel.run()).report()
    assert sum(report.us.values()) == pytest.approx(report.traced_us)
    assert report.reconciliation is not None
    assert report.reconciliation < 0.02
