"""Recording, replaying and breaking launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import ExecutionError, Report, record_launches
from machete.sim.faults import inject, mutants

Launch = Callable[..., Report]

# Warp 0 writes, warp 1 reads what warp 0 wrote, and counts itself with a release that nobody acquires.
BODY = """
    .shared .align 16 .b8 tile[128];
    mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; shl.b32 %r1, %r1, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1;
    setp.lt.u32 %p0, %r0, 32; add.u32 %r4, %r0, 1; @%p0 st.shared.u32 [%r2], %r4; bar.sync 0; @%p0 ret;
    ld.shared.u32 %r3, [%r2]; setp.eq.u32 %p1, %r0, 99; @%p1 bar.warp.sync -1;
    setp.ne.u32 %p1, %r0, 32; @%p1 ret; red.release.gpu.global.add.u32 [%a0], %r3; fence.acq_rel.gpu;
"""


def test_a_recorded_launch_runs_again_from_the_same_memory(launch: Launch) -> None:
    memory = np.full(4, 5, np.uint32)
    with record_launches() as launches:
        launch(BODY, [memory], threads=64)
    (recorded,) = launches
    before = memory.copy()
    recorded.replay(seed=3)
    assert np.array_equal(memory, before)
    assert recorded.contents()[0] == memory.tobytes()
    with record_launches() as nothing:
        pass
    launch(BODY, [memory], threads=64)
    assert not nothing
    assert len(launches) == 1


def test_every_synchronisation_instruction_is_removed_once(launch: Launch) -> None:
    memory = np.zeros(4, np.uint32)
    with record_launches() as launches:
        launch(BODY, [memory], threads=64)
    texts = [mutant.instruction for mutant in mutants(launches[0])]
    assert texts == [
        "bar.sync 0",
        "@%p1 bar.warp.sync -1",
        "red.release.gpu.global.add.u32 [%a0], %r3 -> red.relaxed.gpu.global.add.u32 [%a0], %r3;",
        "red.release.gpu.global.add.u32 [%a0], %r3",
        "fence.acq_rel.gpu ",
    ]
    verdicts = list(inject(launches[0]))
    assert [verdict.outcome for verdict in verdicts] == ["named", "not reached", "equivalent", "missed", "equivalent"]
    assert verdicts[0].by in ("race", "uninitialised")


def test_a_launch_that_fails_by_itself_is_not_judged(launch: Launch) -> None:
    memory = np.zeros(4, np.uint32)
    with record_launches() as launches, pytest.raises(ExecutionError):
        launch(BODY.replace("bar.sync 0;", ""), [memory], threads=64)
    with pytest.raises(ExecutionError, match=r"not ordered|never written"):
        list(inject(launches[0]))


# Warp 0 writes, warp 1 reads, after a barrier; then as often as the kernel is told to.
TURNS = """
    .shared .align 16 .b8 tile[128];
    mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 31; shl.b32 %r1, %r1, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1;
    ld.global.u32 %r5, [%a0]; setp.lt.u32 %p0, %r0, 32;
    AGAIN: add.u32 %r4, %r0, %r5; @%p0 st.shared.u32 [%r2], %r4; bar.sync 0; @!%p0 ld.shared.u32 %r3, [%r2];
    sub.u32 %r5, %r5, 1; setp.eq.u32 %p1, %r5, 0; @%p1 ret; bar.sync 1; bra AGAIN;
"""


def test_what_one_launch_does_not_need_another_may(launch: Launch) -> None:
    memories = [np.full(4, turns, np.uint32) for turns in (1, 3)]
    with record_launches() as launches:
        for memory in memories:
            launch(TURNS, [memory], threads=64)
    assert [verdict.outcome for verdict in inject(launches[0])] == ["named", "not reached"]
    assert [verdict.outcome for verdict in inject(launches)] == ["named", "named"]


def test_launches_of_two_kernels_are_not_judged_together(launch: Launch) -> None:
    memory = np.full(4, 1, np.uint32)
    with record_launches() as launches:
        launch(TURNS, [memory], threads=64)
        launch(BODY, [memory], threads=64)
    with pytest.raises(ValueError, match="launch 1 is of another kernel"):
        next(inject(launches))


def test_a_replay_begins_with_fresh_variables(launch: Launch) -> None:
    memory = np.zeros(4, np.uint32)
    body = "ld.global.u32 %r1, [count]; add.u32 %r1, %r1, 1; st.global.u32 [count], %r1; st.global.u32 [%a0], %r1;"
    with record_launches() as launches:
        launch(body, [memory], threads=1, before=".global .align 4 .u32 count = 5;")
    for _ in range(2):
        launches[0].replay()
        assert memory[0] == 6
