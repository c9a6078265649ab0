"""Happens-before: every conflict is named with both accesses, and what is ordered is never reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import MbarrierMisuse, MissingProxyFence, Race, Report

Launch = Callable[..., Report]

# Threads of warp 0 have %p0, of warp 1 %p1; lane 0 of each has %p2. %r1 is 4 * lane.
START = """
    .shared .align 128 .b8 tile[4096]; .shared .align 8 .b8 bar[32];
    mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 32; not.pred %p1, %p0; and.b32 %r2, %r0, 31; setp.eq.u32 %p2, %r2, 0;
    shl.b32 %r1, %r2, 2; mov.u32 %r3, tile; add.u32 %r3, %r3, %r1; and.pred %p3, %p0, %p2; and.pred %p4, %p1, %p2;
    @%p3 mbarrier.init.shared.b64 [bar], 1; @%p3 mbarrier.init.shared.b64 [bar+8], 32;
    @%p3 fence.mbarrier_init.release.cluster; @%p0 st.shared.u32 [%r3], %r0; fence.proxy.async.shared::cta; bar.sync 0;
"""
WRITE, READ = "@%p0 st.shared.u32 [%r3], %r0;", "@%p1 ld.shared.u32 %r4, [%r3];"
WAIT = "{0}: mbarrier.try_wait.parity.shared.b64 %p5, [bar+{1}], {2}; @!%p5 bra {0};"
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 128;"
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a0], 128, [bar];"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 128; cp.async.bulk.commit_group;"
FENCE = "fence.proxy.async.shared::cta;"


def memory() -> np.ndarray:
    storage = np.zeros(1024 + 128, np.uint8)
    start = -storage.ctypes.data % 128
    return storage[start : start + 1024].view(np.uint32)


ORDERED = {
    "a barrier": f"{WRITE} bar.sync 0; {READ}",
    "a barrier of which one side only arrives": f"{WRITE} @%p0 bar.arrive 1, 64; @%p1 bar.sync 1, 64; {READ}",
    "an mbarrier, every lane arriving": (
        f"{WRITE} @%p0 mbarrier.arrive.shared.b64 _, [bar+8]; @%p0 bra END; {WAIT.format('A', 8, 0)} {READ} END:"
    ),
    "an mbarrier, one lane arriving after the warp has met": (
        f"{WRITE} bar.warp.sync -1; @%p3 mbarrier.arrive.shared.b64 _, [bar]; @%p0 bra END; {WAIT.format('A', 0, 0)} "
        f"{READ} END:"
    ),
    "one lane that waits, then the warp meets": (
        f"{WRITE} bar.warp.sync -1; @%p3 mbarrier.arrive.shared.b64 _, [bar]; @!%p4 bra END; {WAIT.format('A', 0, 0)} "
        f"END: bar.warp.sync -1; {READ}"
    ),
    "neighbouring bytes of one word": (
        "@%p0 st.shared.u8 [%r3], %r0; @%p1 st.shared.u8 [%r3+1], %r0; bar.sync 0; ld.shared.u16 %r4, [%r3];"
    ),
    "the same value from two warps": "mov.u32 %r4, 7; st.shared.u32 [%r3], %r4; bar.sync 0; ld.shared.u32 %r4, [%r3];",
    "reads of one word by everybody": "@%p3 st.shared.u32 [tile], %r0; bar.sync 0; ld.shared.u32 %r4, [tile];",
    "atomics on one word": (
        "@%p3 st.shared.u32 [tile], %r0; bar.sync 0; mov.u32 %r5, tile; red.shared.add.u32 [%r5], 1; "
        "atom.shared.add.u32 %r6, [%r5], 1;"
    ),
    "release and acquire in global memory": (
        "@%p3 st.global.u32 [%a0], %r0; @%p3 red.release.gpu.global.add.u32 [%a0+64], 1; @!%p4 bra END; "
        "A: ld.acquire.gpu.global.u32 %r4, [%a0+64]; setp.eq.u32 %p5, %r4, 0; @%p5 bra A; "
        "ld.global.u32 %r4, [%a0]; END:"
    ),
    "fences around relaxed accesses": (
        "@%p3 st.global.u32 [%a0], %r0; @%p3 fence.acq_rel.gpu; @%p3 st.relaxed.gpu.global.u32 [%a0+64], 1; "
        "@!%p4 bra END;"
        " A: ld.relaxed.gpu.global.u32 %r4, [%a0+64]; setp.eq.u32 %p5, %r4, 0; @%p5 bra A; fence.acq_rel.gpu; "
        "ld.global.u32 %r4, [%a0]; END:"
    ),
    "a load into a stage that was read before": (
        f"{WRITE} {FENCE} bar.sync 0; {READ} bar.sync 0; @%p3 {EXPECT} @%p3 {LOAD} {WAIT.format('A', 0, 0)} {READ}"
    ),
    "a store of what was fenced and synchronised": (
        f"{WRITE} {FENCE} bar.sync 0; @!%p4 bra END; {STORE} ld.shared.u32 %r4, [tile]; "
        "cp.async.bulk.wait_group.read 0; "
        f"st.shared.u32 [tile], %r4; cp.async.bulk.wait_group 0; ld.global.u32 %r4, [%a0]; END:"
    ),
    "a fence by the thread that stores, after the barrier": (
        f"{WRITE} bar.sync 0; @!%p4 bra END; {FENCE} {STORE} cp.async.bulk.wait_group 0; END:"
    ),
    "barrier.cluster": f"{WRITE} barrier.cluster.arrive; barrier.cluster.wait; {READ}",
    "cp.async and its wait": (
        "cvt.u64.u32 %d1, %r1; add.s64 %d2, %a0, %d1; @%p0 cp.async.ca.shared.global [%r3], [%d2], 4; "
        "cp.async.wait_all; "
        f"bar.sync 0; {READ}"
    ),
    "lanes that copy the same to one place": "@%p0 cp.async.ca.shared.global [tile], [%a0], 4; cp.async.wait_all;",
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("body", ORDERED.values(), ids=ORDERED)
def test_no_report_where_there_is_order(launch: Launch, body: str, seed: int) -> None:
    launch(START + body, [memory()], threads=64, seed=seed)


RACES = {
    "no barrier": (f"{WRITE} {READ}", "not ordered"),
    "write and write": ("st.shared.u32 [%r3], %r0;", "earlier write"),
    "lanes of one store": ("mov.u32 %r4, tile; @%p0 st.shared.u32 [%r4], %r0;", "another lane of this store"),
    "another barrier": (f"{WRITE} @%p0 bar.arrive 1, 64; @%p1 bar.arrive 2, 64; {READ}", "not ordered"),
    "one lane arrives for the warp": (
        f"{WRITE} @%p3 mbarrier.arrive.shared.b64 _, [bar]; @%p0 bra END; {WAIT.format('A', 0, 0)} {READ} END:",
        "bar.warp.sync",
    ),
    "one lane waits for the warp": (
        (
            f"{WRITE} bar.warp.sync -1; @%p3 mbarrier.arrive.shared.b64 _, [bar]; @!%p4 bra END; "
            f"{WAIT.format('A', 0, 0)} END: {READ}"
        ),
        "not ordered",
    ),
    "a relaxed arrival": (
        (
            f"{WRITE} @%p0 mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [bar+8]; @%p0 bra END; "
            f"{WAIT.format('A', 8, 0)} {READ} END:"
        ),
        "not ordered",
    ),
    "the wrong parity": (
        f"{WRITE} bar.warp.sync -1; @%p0 bra END; {WAIT.format('A', 0, 1)} {READ} END:",
        "not ordered",
    ),
    "plain polling": (
        "@%p3 red.release.gpu.global.add.u32 [%a0+64], 1; @!%p4 bra END; ld.global.u32 %r4, [%a0+64]; END:",
        "not ordered",
    ),
    "relaxed instead of acquire": (
        (
            "@%p3 st.global.u32 [%a0], %r0; @%p3 red.release.gpu.global.add.u32 [%a0+64], 1; @!%p4 bra END; "
            "A: ld.relaxed.gpu.global.u32 %r4, [%a0+64]; setp.eq.u32 %p5, %r4, 0; @%p5 bra A; "
            "ld.global.u32 %r4, [%a0]; END:"
        ),
        "byte 0 of 'p0'",
    ),
    "a load into a stage that is being read": (
        f"{WRITE} {FENCE} bar.sync 0; {READ} @%p3 {EXPECT} @%p3 {LOAD} {WAIT.format('A', 0, 0)}",
        "not ordered",
    ),
    "nobody waits for a load": (f"@%p3 {EXPECT} @%p3 {LOAD} bar.sync 0; {READ}", "wait for the phase of the mbarrier"),
    "overwritten before the store has read": (
        (
            f"{WRITE} {FENCE} bar.sync 0; @!%p4 bra END; {STORE} st.shared.u32 [tile], %r4; "
            "cp.async.bulk.wait_group 0; END:"
        ),
        "wait_group.read",
    ),
    "read before the store has written": (
        (
            f"{WRITE} {FENCE} bar.sync 0; @!%p4 bra END; {STORE} cp.async.bulk.wait_group.read 0; "
            "ld.global.u32 %r4, [%a0]; END:"
        ),
        "without .read",
    ),
    "no commit before the wait": (
        (
            f"{WRITE} {FENCE} bar.sync 0; @!%p4 bra END; {STORE.split(';')[0]}; cp.async.bulk.wait_group 0; "
            "st.shared.u32 [tile], %r4; END:"
        ),
        "not ordered",
    ),
    "cp.async without its wait": (
        (
            "cvt.u64.u32 %d1, %r1; add.s64 %d2, %a0, %d1; @%p0 cp.async.ca.shared.global [%r3], [%d2], 4; "
            f"bar.sync 0; {READ}"
        ),
        "cp.async.wait_group",
    ),
    "lanes that copy different things to one place": (
        "cvt.u64.u32 %d1, %r1; add.s64 %d2, %a0, %d1; @%p0 cp.async.ca.shared.global [tile], [%d2], 4;",
        "asynchronous write",
    ),
    "a barrier used before it is known to be there": (
        "@%p3 mbarrier.init.shared.b64 [bar+16], 1; @%p4 mbarrier.arrive.shared.b64 _, [bar+16];",
        "not ordered",
    ),
}


@pytest.mark.parametrize(("body", "message"), RACES.values(), ids=RACES)
def test_a_race_names_both_accesses(launch: Launch, body: str, message: str) -> None:
    """Whichever of the two comes first; some seeds may end in another error first (no barrier is initialised yet)."""
    caught = []
    for seed in range(8):
        with pytest.raises((Race, MbarrierMisuse)) as report:
            launch(START + body, [memory()], threads=64, seed=seed)
        if isinstance(report.value, Race):
            caught.append(report.value)
    assert all("earlier" in other.what and other.place.ptx_line for error in caught for other in error.waiting)
    assert any(message in str(error) for error in caught), [str(error) for error in caught]
    assert len(caught) >= 4, "what the checker finds does not depend on the order in which things happen to run"


CTAS = """
    mov.u32 %r0, %ctaid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra OTHER;
    st.global.u32 [%a0], %r0; red.release.{0}.global.add.u32 [%a0+64], 1; ret;
    OTHER: ld.acquire.{1}.global.u32 %r4, [%a0+64]; setp.eq.u32 %p1, %r4, 0; @%p1 bra OTHER; ld.global.u32 %r4, [%a0];
"""


def test_scopes(launch: Launch) -> None:
    launch(CTAS.format("gpu", "gpu"), [memory()], threads=1, ctas=2)
    for release, acquire in (("cta", "gpu"), ("gpu", "cta"), ("cta", "cta")):
        with pytest.raises(Race):
            launch(CTAS.format(release, acquire), [memory()], threads=1, ctas=2)


PROXIES = {
    "a store of fresh data": f"{WRITE} bar.sync 0; @!%p4 bra END; {STORE} cp.async.bulk.wait_group 0; END:",
    "a fence before the write": f"{FENCE} {WRITE} bar.sync 0; @!%p4 bra END; {STORE} cp.async.bulk.wait_group 0; END:",
    "a fence of the other space": (
        f"{WRITE} fence.proxy.async.global; bar.sync 0; @!%p4 bra END; {STORE} cp.async.bulk.wait_group 0; END:"
    ),
    "a load over fresh data": f"{WRITE} bar.sync 0; @%p3 {EXPECT} @%p3 {LOAD} {WAIT.format('A', 0, 0)}",
    "a load of what was just written": (
        f"@%p3 st.global.u32 [%a0], %r0; bar.sync 0; @%p3 {EXPECT} @%p3 {LOAD} {WAIT.format('A', 0, 0)}"
    ),
    "a barrier that the copy engine cannot see yet": (
        "@%p3 mbarrier.init.shared.b64 [bar+16], 1; @!%p3 bra END; "
        f"{EXPECT.replace('[bar]', '[bar+16]')} {LOAD.replace('[bar]', '[bar+16]')} {WAIT.format('A', 16, 0)} END:"
    ),
}


@pytest.mark.parametrize("body", PROXIES.values(), ids=PROXIES)
def test_proxies_need_fences(launch: Launch, body: str) -> None:
    for seed in range(4):
        with pytest.raises(MissingProxyFence, match="fence"):
            launch(START + body, [memory()], threads=64, seed=seed)


def test_bytes_that_a_phase_did_not_wait_for(launch: Launch) -> None:
    """An arrival without expect_tx completes the phase; the copy lands in the next one."""
    body = f"""
        @!%p3 bra END; {LOAD} mbarrier.arrive.shared.b64 _, [bar]; {WAIT.format("A", 0, 0)}
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 128; END: bar.sync 0;
        @%p3 mbarrier.arrive.shared.b64 _, [bar]; {WAIT.format("B", 0, 1)}
    """
    with pytest.raises(MbarrierMisuse, match="issued in phase 0"):
        launch(START + body, [memory()], threads=64, seed=4)


def test_an_mbarrier_is_initialised_once(launch: Launch) -> None:
    body = "@%p3 mbarrier.init.shared.b64 [bar], 1;"
    with pytest.raises(MbarrierMisuse, match="inval must come first"):
        launch(START + body, [memory()], threads=64)
    launch(START + "@%p3 mbarrier.inval.shared.b64 [bar]; " + body, [memory()], threads=64)


def test_checking_is_a_switch(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    body = START + "st.shared.u32 [%r3], %r0;"
    launch(body, [memory()], threads=64, check="memory")
    monkeypatch.setenv("MACHETE_SIM_CHECK", "memory")
    launch(body, [memory()], threads=64)
    monkeypatch.setenv("MACHETE_SIM_CHECK", "races")
    with pytest.raises(Race):
        launch(body, [memory()], threads=64)


MEETINGS = {
    "bar.warp.sync": ("bar.warp.sync -1;", True),
    "a barrier": ("@%p0 bar.sync 1, 32;", True),
    "a vote": ("vote.sync.any.pred %p5, %p0, -1;", False),
    "a shuffle": ("shfl.sync.idx.b32 %r5, %r0, 0, 31, -1;", False),
}


@pytest.mark.parametrize(("meeting", "promised"), MEETINGS.values(), ids=MEETINGS)
def test_a_strict_check_takes_no_other_instruction_for_a_syncwarp(launch: Launch, meeting: str, promised: bool) -> None:
    """PTX promises that memory is ordered by bar.warp.sync, not by every instruction at which a warp meets."""
    arrive = f"@%p3 mbarrier.arrive.shared.b64 _, [bar]; @%p0 bra END; {WAIT.format('A', 0, 0)} {READ} END:"
    body = f"{START} {WRITE} {meeting} {arrive}"
    launch(body, [memory()], threads=64, check="races")
    if promised:
        launch(body, [memory()], threads=64, check="strict")
    else:
        with pytest.raises(Race, match=r"bar\.warp\.sync"):
            launch(body, [memory()], threads=64, check="strict")
