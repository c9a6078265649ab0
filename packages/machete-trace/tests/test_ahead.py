"""The ring over time: what is asked for, on its way, and in use."""

from __future__ import annotations

import numpy as np
import torch

from machete.megakernel import Megakernel, Throttle
from machete.trace import Trace
from machete.trace.ahead import stages_of
from small_ops import StreamTotal


def test_stages_are_taken_then_seen_then_used(trace: Trace) -> None:
    ring = trace.report().ring
    shared = trace.plan.shared
    assert ring.capacity == shared.ring_pages * shared.page_bytes
    assert 0 < ring.in_flight_mean <= ring.ahead_mean < ring.ahead_most <= ring.capacity
    assert f"({ring.ahead_most / 1024:.1f} at most)" in str(trace.report())
    for sm in range(4):
        stages = stages_of(trace, sm)
        assert (stages.taken <= stages.seen).all()
        assert (stages.seen <= np.maximum(stages.used, stages.taken)).all()
        assert (np.diff(stages.taken) >= 0).all()
        time, nbytes = stages.ahead()
        assert (np.diff(time) >= 0).all()
        assert nbytes.min() == nbytes[-1] == 0


class ThrottledTotal(StreamTotal):
    """The sum of a vector, through four stages of 1 KiB, under a throttle."""

    throttled = True


def test_a_throttle_keeps_few_bytes_on_their_way() -> None:
    most = {}
    for kib in (1, 3):
        throttle = Throttle(kib << 10, 0, kib << 10)
        ops = ThrottledTotal.schedule(x=torch.ones(8192), s=torch.zeros(1))
        kernel = Megakernel(ops, num_sms=1, throttle=throttle, trace=True)
        trace = Trace.of(kernel, kernel.run())
        assert trace.throttles == ((kib, 0, kib),)
        ring = trace.report().ring
        assert ring.in_flight_most <= ring.ahead_most <= 4 << 10
        most[kib] = ring.in_flight_most
    assert most[1] == 1 << 10
    assert 1 << 10 < most[3] <= 3 << 10
