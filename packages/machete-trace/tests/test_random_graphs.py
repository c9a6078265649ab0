"""What holds for the trace of any graph."""

from __future__ import annotations

import random

import numpy as np
import pytest

from machete.megakernel.tooling import traced_kernels
from machete.trace import Trace
from machete.trace.attribution import attribute
from random_graphs import check, draw


@pytest.mark.parametrize(("seed", "target"), [(0, "sm_90a"), (1, "sm_100a")])
def test_time_is_attributed_once_and_clocks_agree(seed: int, target: str) -> None:
    generator = random.Random(seed)
    with traced_kernels() as kernels:
        # Tracing changes no result either: `check` compares them with torch.
        kernel = check(draw(generator, target), seed, "cpu", target, generator.choice([2, 3, 5]))
    assert kernels == [kernel]
    trace = Trace.of(kernel, kernel.report)
    assert not trace.lost.any()
    assert trace.alignment.early_ns <= trace.alignment.error_ns
    pieces = attribute(trace)
    per_sm = np.bincount(pieces.sm, pieces.duration, minlength=kernel.plan.num_sms)
    assert np.allclose(per_sm, trace.total_us)
    report = trace.report()
    assert sum(report.us.values()) == pytest.approx(trace.total_us)
    assert report.reconciliation is not None
    assert report.wall_us is not None
    assert abs(report.wall_us - trace.total_us) < 0.02 * trace.total_us + 0.4, "entry and exit of a CTA"
