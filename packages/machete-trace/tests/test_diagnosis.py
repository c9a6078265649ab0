"""Graphs with a known ailment: a planted delay lands in its category, and the report names it."""

from __future__ import annotations

import re

import pytest
import torch

from diagnosis_graphs import AILMENTS
from machete.megakernel import Megakernel
from machete.trace import Report, Trace

SMS = 4
PLANTED_NS = 100_000  # long beside a tile of 2000: how many of them an SM has stored when it has computed all is luck


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


def test_the_end_of_a_barrier_is_not_known_before_shared_memory_is() -> None:
    """On a card a warp goes on past a barrier, up to what needs shared memory; the simulator's stops there."""
    graph = AILMENTS["uneven warps"]("cpu", SMS)
    ptx = Megakernel(graph.ops, num_sms=SMS, trace=True).compile().ptx
    barriers = re.split(r"bar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?\s+1, 256;", ptx)[1:]
    assert len(barriers) == len(graph.ops)  # each signals, after a barrier
    branches = r"ld\.volatile\.shared\.u32 (%r\d+).*setp\.lt\.s32\s+(%p\d+), \1, 0;.*@\2 bra"
    for code in barriers:
        assert re.search(branches, code.split("%clock", 1)[0], re.DOTALL)


@pytest.mark.parametrize("name", AILMENTS)
def test_sums_reconcile_with_the_wall_time(name: str) -> None:
    graph = AILMENTS[name]("cpu", SMS)
    graph.delays[graph.tile] += PLANTED_NS
    kernel = Megakernel(graph.ops, num_sms=SMS, trace=True)
    report = Trace.of(kernel, kernel.run()).report()
    assert sum(report.us.values()) == pytest.approx(report.traced_us)
    assert report.reconciliation is not None
    assert report.reconciliation < 0.02
