"""Loads from shared memory are on their way until something waits for them; an mbarrier.arrive does not.

The kernel has the shape of what went wrong on an H200 (docs/decisions/0017): a warp reads a page and releases it, and
another one refills it by a bulk copy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Race, Report

Launch = Callable[..., Report]

# Warp 0 reads the page of 128 bytes and arrives at bar+8, one lane for all; warp 1 refills it then. %p0: warp 0.
KERNEL = """
    .shared .align 128 .b8 tile[4096]; .shared .align 8 .b8 bar[32];
    mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 32; not.pred %p1, %p0; and.b32 %r2, %r0, 31; setp.eq.u32 %p2, %r2, 0;
    shl.b32 %r1, %r2, 2; mov.u32 %r3, tile; add.u32 %r3, %r3, %r1; and.pred %p3, %p0, %p2; and.pred %p4, %p1, %p2;
    @%p3 mbarrier.init.shared.b64 [bar], 1; @%p3 mbarrier.init.shared.b64 [bar+8], 1;
    @%p3 fence.mbarrier_init.release.cluster; @%p0 st.shared.u32 [%r3+1024], %r0;
    @%p0 st.shared.u32 [%r3], %r0; fence.proxy.async.shared::cta; bar.sync 0;
    @%p1 bra REFILL;
    {load} {between} bar.warp.sync -1; {arrive}
    st.shared.u32 [%r3+2048], %r4; ret;
    REFILL: @!%p4 ret; A: mbarrier.try_wait.parity.shared.b64 %p5, [bar+8], 0; @!%p5 bra A;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a0], 128, [bar];
    B: mbarrier.try_wait.parity.shared.b64 %p5, [bar], 0; @!%p5 bra B;
"""
LOAD = "ld.shared.u32 %r4, [%r3];"
ARRIVE = "@%p3 mbarrier.arrive.shared.b64 _, [bar+8];"
# What machete.megakernel.device.ptx.mbarrier_arrive_after emits.
AFTER = """
    mov.u32 %r10, %nctaid.z; sub.u32 %r10, %r10, 1; or.b32 %r11, %r4, 0; and.b32 %r11, %r11, %r10;
    setp.eq.u32 %p6, %r11, 0; and.pred %p6, %p6, %p3; @%p6 mbarrier.arrive.shared.b64 _, [bar+8];
"""
REPORT = r"load in flight when its stage was released(.|\n)*ring\.release\(stage, after=registers\)"


def refill(launch: Launch, check: str, between: str = "", load: str = LOAD, arrive: str = ARRIVE) -> None:
    storage = np.zeros(256, np.uint8)
    start = -storage.ctypes.data % 128
    memory = storage[start : start + 128].view(np.uint32)
    for seed in range(4):
        launch(KERNEL.format(load=load, between=between, arrive=arrive), [memory], threads=64, seed=seed, check=check)


ROW = "and.b32 %r7, %r2, 7; shl.b32 %r7, %r7, 4; mov.u32 %r9, tile; add.u32 %r7, %r7, %r9;"  # of 16 bytes
LOADS = {
    "ld": LOAD,
    "a vector": f"{ROW} ld.shared.v4.b32 {{%r4, %r5, %r6, %r8}}, [%r7];",
    "a generic address": "cvt.u64.u32 %d1, %r3; cvta.shared.u64 %d1, %d1; ld.u32 %r4, [%d1];",
    "volatile": "ld.volatile.shared.u32 %r4, [%r3];",
    "ldmatrix": f"{ROW} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r4}}, [%r7];",
}


@pytest.mark.parametrize("check", ["races", "strict"])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_an_arrival_overtakes_a_load(launch: Launch, load: str, check: str) -> None:
    with pytest.raises(Race, match=REPORT) as report:
        refill(launch, check, load=load)
    (other,) = report.value.waiting
    assert other.what == "the earlier load"
    assert other.place.ptx_line != report.value.place.ptx_line
    assert "cp.async.bulk" in str(report.value)


@pytest.mark.parametrize("check", ["races", "strict"])
def test_an_arrival_may_have_a_predicate_that_depends_on_the_load(launch: Launch, check: str) -> None:
    refill(launch, check, arrive=AFTER)


def test_where_only_memory_is_checked_nothing_is_reported(launch: Launch) -> None:
    refill(launch, "memory")


# What comes between the load and the arrival; whether that will do, and whether it will where only that counts which
# ptxas cannot put behind the arrival.
STORE = "st.shared.u32 [%r3+2048], %r5;"
ADDRESS = "and.b32 %r5, %r4, 124; mov.u32 %r6, tile; add.u32 %r5, %r5, %r6;"
LATER = "ld.shared.u32 %r5, [%r3+1024];"
BETWEEN = {
    "arithmetic": ("add.u32 %r5, %r4, 1;", True, False),
    "a shuffle": ("shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1;", True, False),
    "a predicate of nothing": ("setp.eq.u32 %p7, %r4, 7;", True, False),
    "a predicate of something else": (
        "setp.eq.u32 %p7, %r4, 7; @%p3 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 0;", True, False,
    ),
    "a store": ("st.shared.u32 [%r3+2048], %r4;", True, True),
    "a store of what depends on it": (f"add.u32 %r5, %r4, 1; mul.lo.u32 %r5, %r5, 3; {STORE}", True, True),
    "an address": (f"{ADDRESS} ld.shared.u32 %r5, [%r5+1024]; add.u32 %r5, %r5, 1; {STORE}", True, True),
    "a branch": ("setp.eq.u32 %p7, %r4, 99; @%p7 bra NEXT; NEXT:", True, True),
    "a store of a choice": (f"setp.eq.u32 %p7, %r4, 99; selp.u32 %r5, 1, 2, %p7; {STORE}", True, True),
    "a later load that is used": (f"{LATER} {STORE}", True, True),
    "a later load that is not": (LATER, False, False),
    "an earlier load that is used": (f"{LATER} ld.shared.u32 %r6, [%r3]; {STORE}", False, False),
    "a copy": ("mov.b32 %r5, %r4; mov.b64 %d1, {%r5, %r4}; mov.b64 {%r6, %r7}, %d1;", False, False),
    "another register": ("add.u32 %r5, %r0, 1;", False, False),
    "a fence of proxies": ("fence.proxy.async.shared::cta;", True, True),
    "a fence of all proxies": ("fence.proxy.async;", True, True),
    "a fence of another space": ("fence.proxy.async.global;", False, False),
    "a fence of memory": ("fence.acq_rel.cta;", True, True),
    "a barrier": ("barrier.sync 1, 32;", True, False),
    "a release for the device": ("@%p3 red.release.gpu.shared.add.u32 [%r3+1024], 0;", True, True),
}  # fmt: skip


@pytest.mark.parametrize("check", ["races", "strict"])
@pytest.mark.parametrize("case", BETWEEN, ids=BETWEEN)
def test_what_waits_for_a_load(launch: Launch, case: str, check: str) -> None:
    between, loose, strict = BETWEEN[case]
    if strict if check == "strict" else loose:
        refill(launch, check, between)
    else:
        with pytest.raises(Race, match=REPORT):
            refill(launch, check, between)


def test_an_arrival_for_a_cluster_has_a_fence(launch: Launch) -> None:
    refill(launch, "strict", arrive="@%p3 mbarrier.arrive.release.cluster.shared::cta.b64 _, [bar+8];")


@pytest.mark.parametrize("check", ["races", "strict"])
def test_loads_after_the_arrival_are_another_matter(launch: Launch, check: str) -> None:
    refill(launch, check, "st.shared.u32 [%r3+2048], %r4;", arrive=f"{ARRIVE} ld.shared.u32 %r5, [%r3+1024];")
