"""Simulated time: warps run side by side, and whoever waits goes on no earlier than what it waited for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Report

Launch = Callable[..., Report]
NOW = "mov.u64 {0}, %globaltimer;"
SPIN = (
    "mov.u64 %d10, %globaltimer; add.u64 %d10, %d10, {0};"
    " S{1}: mov.u64 %d11, %globaltimer; setp.lt.u64 %p9, %d11, %d10; @%p9 bra S{1};"
)
SLOT = "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; mul.wide.u32 %d1, %r1, 8; add.s64 %d1, %a0, %d1;"


@pytest.mark.parametrize("ctas", [1, 7])
def test_warps_and_ctas_run_side_by_side(ctas: int, launch: Launch) -> None:
    report = launch(SPIN.format(10_000, 0), threads=256, ctas=ctas)
    assert 10_000 <= report.simulated_ns < 10_200
    assert report.instructions > 8 * ctas * 5_000


@pytest.mark.parametrize("seed", range(5))
def test_a_barrier_opens_when_the_last_warp_comes(seed: int, launch: Launch) -> None:
    out = np.zeros(4, np.uint64)
    launch(
        f"""{SLOT} setp.ne.u32 %p1, %r1, 2; @%p1 bra ALL; {SPIN.format(5_000, 0)}
        ALL: bar.sync 0; {NOW.format("%d3")} st.global.u64 [%d1], %d3;""",
        [out],
        threads=128,
        seed=seed,
    )
    assert out.min() >= 5_000
    assert out.max() < 5_200


@pytest.mark.parametrize("seed", range(5))
def test_a_wait_in_vain_takes_as_long_as_what_it_waits_for(seed: int, launch: Launch) -> None:
    """An mbarrier, and a flag in global memory that another CTA sets."""
    out, flag = np.zeros(2, np.uint64), np.zeros(1, np.uint32)
    launch(
        f"""
        .shared .align 8 .b8 bar[8];
        mov.u32 %r0, %tid.x; mov.u32 %r2, %ctaid.x; setp.ne.u32 %p0, %r0, 0; setp.ne.u32 %p1, %r2, 0;
        @!%p0 mbarrier.init.shared.b64 [bar], 1; bar.sync 0; @%p1 bra WAITS;
        @%p0 bra SLEEPS; {SPIN.format(7_000, 0)} mbarrier.arrive.shared.b64 _, [bar]; ret;
        SLEEPS: setp.ne.u32 %p2, %r0, 32; @%p2 ret;
        W: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra W;
        {NOW.format("%d3")} st.global.u64 [%a0], %d3; red.release.gpu.global.add.u32 [%a1], 1; ret;
        WAITS: @%p0 ret; P: ld.acquire.gpu.global.u32 %r5, [%a1]; setp.eq.u32 %p4, %r5, 0; @%p4 bra P;
        {NOW.format("%d3")} st.global.u64 [%a0+8], %d3;
        """,
        [out, flag],
        threads=64,
        ctas=2,
        seed=seed,
    )
    mbarrier, counter = out.tolist()
    assert 7_000 <= mbarrier < 7_200
    assert mbarrier + 500 <= counter < mbarrier + 700, "a signal takes 500 ns"


@pytest.mark.parametrize("seed", range(5))
def test_copies_share_the_bandwidth_of_their_cta(seed: int, launch: Launch) -> None:
    out, source = np.zeros(1, np.uint64), np.zeros(65536, np.uint8)
    launch(
        f"""
        .shared .align 128 .b8 tile[32768]; .shared .align 8 .b8 bar[8];
        mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 ret;
        mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared.b64 _, [bar], 32768;
        mov.u32 %r1, tile; add.u32 %r2, %r1, 16384; mov.u32 %r3, bar;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%a1], 16384, [%r3];
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%a1+16384], 16384, [%r3];
        W: mbarrier.try_wait.parity.shared.b64 %p3, [bar], 0; @!%p3 bra W;
        {NOW.format("%d3")} st.global.u64 [%a0], %d3;
        """,
        [out, source],
        seed=seed,
    )
    assert 1_024 + 500 <= out[0] < 1_024 + 600, "32 bytes a ns, after 500 ns"
