"""A sample of `tools/fault_suite.py`; the full suite is a command (docs/fault-suite.md)."""

from __future__ import annotations

import pytest

from fault_reasons import reason
from fault_suite import CASES, judge

EQUIVALENT = {
    "swap": ["fence.mbarrier_init.release.cluster"],
    "gemm_tcgen05": ["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"],
}
SAMPLE = [
    ("through", "sm_90a"),
    ("through", "sm_120a"),
    ("total", "sm_100a"),
    ("exchange", "sm_90a"),
    ("swap", "sm_120a"),
]
GEMMS = [("gemm_wgmma", "sm_90a"), ("gemm_tcgen05", "sm_100a")]


@pytest.mark.parametrize(("name", "arch"), [*SAMPLE, ("gemm_cp_async", "sm_100a"), *GEMMS])
def test_every_fault_of_a_small_kernel_is_named(name: str, arch: str) -> None:
    verdicts = judge(CASES[name], arch)
    assert {verdict.outcome for verdict in verdicts} <= {"named", "equivalent"}
    equivalent = [verdict for verdict in verdicts if verdict.outcome == "equivalent"]
    assert [verdict.mutant.instruction.split()[0] for verdict in equivalent] == EQUIVALENT.get(name, [])
    assert all(map(reason, equivalent))
    assert len(verdicts) >= 3


@pytest.mark.parametrize(("name", "arch", "every"), [("mega_stream", "sm_100a", 12), ("mega_tcgen05", "sm_100a", 25)])
def test_some_faults_of_a_megakernel_are_named(name: str, arch: str, every: int) -> None:
    verdicts = judge(CASES[name], arch, every)
    others = [verdict for verdict in verdicts if verdict.outcome != "named"]
    assert len(others) <= len(verdicts) // 4
    assert [verdict.mutant.instruction for verdict in others if reason(verdict) is None] == []
