"""`machete-sim trace`: what warps did when, as text and for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from machete.sim import Deadlock, Report, chrome_trace, trace_launches

Launch = Callable[..., Report]
SPIN = "mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra L;"
# Warp 0 is busy for a while, then both warps meet.
BUSY = f"mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 32; @%p0 bra M; {SPIN} M: bar.sync 0;"
LOAD = """
    .shared .align 16 .b8 s[1024]; .shared .align 8 .b8 bar[8];
    mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster; fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1024;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%a0], 1024, [bar];
    W: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra W;
"""


@pytest.mark.parametrize("seed", range(5))
def test_who_waits_is_seen_to_wait(seed: int, launch: Launch) -> None:
    with trace_launches() as timelines:
        launch(BUSY, threads=64, ctas=2, seed=seed)
    [timeline] = timelines
    waits = [s for s in timeline.slices if s.kind == "waits" and s.end - s.begin > 100]
    assert sorted((s.cta, s.warp, s.opcode) for s in waits) == [(0, 1, "bar.sync"), (1, 1, "bar.sync")]
    assert all(2900 < s.end - s.begin < 3100 for s in waits)
    for warp in range(2):
        own = [s for s in timeline.slices if (s.cta, s.warp) == (1, warp)]
        assert [s.begin for s in own[1:]] == [s.end for s in own[:-1]]  # no time is missing, or there twice
    lines = timeline.text().splitlines()
    assert sum(line.startswith("  warp") for line in lines) == 4
    assert any(line.count(".") > 60 for line in lines if line.startswith("  warp  1"))
    assert "bar.sync" in lines[-1]


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_is_in_flight_until_the_wait_for_it_ends(seed: int, launch: Launch) -> None:
    with trace_launches() as timelines:
        launch(LOAD, [np.zeros(256, np.float32)], threads=1, seed=seed)
    slices = timelines[0].slices
    [copy] = [s for s in slices if s.kind == "copy"]
    [wait] = [s for s in slices if s.kind == "waits"]
    assert copy.opcode.startswith("cp.async.bulk")
    assert wait.opcode.startswith("mbarrier.try_wait")
    assert copy.begin < wait.begin < wait.end == copy.end
    assert "copies  |" in timelines[0].text()
    assert "waits" in timelines[0].text(events=True)


def test_the_file_has_a_process_a_cta_and_a_thread_a_warp(launch: Launch) -> None:
    with trace_launches() as timelines:
        launch(LOAD, [np.zeros(256, np.float32)], threads=1, ctas=2)
        launch(BUSY, threads=64)
    events: list[dict[str, Any]] = json.loads(chrome_trace(timelines))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["launch 0 k CTA (0, 0, 0)", "launch 0 k CTA (1, 0, 0)", "launch 1 k CTA (0, 0, 0)"]
    assert sum(event["name"] == "thread_name" for event in events) == 4
    assert [event["ph"] for event in events if event.get("cat") == "copy"] == ["b", "e"] * 2
    first = {event["pid"]: event["ts"] for event in reversed(events) if event["ph"] == "X"}
    assert first[1] == first[2] == 0
    assert first[3] * 1000 >= timelines[0].nanoseconds


def test_a_kernel_that_fails_is_traced_up_to_there(launch: Launch) -> None:
    with trace_launches() as timelines, pytest.raises(Deadlock):
        launch("mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 32; @%p0 bar.sync 1, 64; ret;", threads=64)
    assert [s.opcode for s in timelines[0].slices if s.kind == "waits"] == ["bar.sync"]


def test_nothing_is_collected_outside(launch: Launch) -> None:
    with trace_launches() as timelines:
        pass
    launch(BUSY)
    assert timelines == []
