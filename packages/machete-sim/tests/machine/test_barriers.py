"""mbarriers and named barriers: what they order, and their misuse."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import BarrierMisuse, Deadlock, Livelock, MbarrierMisuse, Report, Trap, UnknownInstruction

Launch = Callable[..., Report]
SHARED = ".shared .align 16 .b8 bar[64]; .shared .align 16 .b8 tile[1024];"
ONE = "mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0;"  # p0: not the first thread
INIT = f"{SHARED} {ONE} @!%p0 mbarrier.init.shared::cta.b64 [bar], {{0}}; bar.sync 0;"
WAIT = "{{ .reg .pred w; AGAIN{0}: mbarrier.try_wait.parity.shared::cta.b64 w, [bar], {1}; @!w bra AGAIN{0}; }}"


@pytest.mark.parametrize("seed", range(5))
def test_a_producer_and_its_consumers(launch: Launch, seed: int) -> None:
    """Warp 0 fills a slot when all of warp 1 released it, ten times over."""
    out = np.zeros((10, 32), np.uint32)
    launch(
        f"""
        {SHARED} {ONE}
        @!%p0 mbarrier.init.shared.b64 [bar], 32; @!%p0 mbarrier.init.shared.b64 [bar+8], 32; bar.sync 0;
        and.b32 %r1, %r0, 31; shl.b32 %r2, %r1, 2; mov.u32 %r3, tile; add.u32 %r3, %r3, %r2;
        setp.ge.u32 %p1, %r0, 32; mov.u32 %r4, 0; mov.u32 %r5, 0;
        cvt.u64.u32 %d2, %r2; add.s64 %d1, %a0, %d2;
        @%p1 bra CONSUME;
        PRODUCE: xor.b32 %r6, %r5, 1;
        W1: mbarrier.try_wait.parity.shared.b64 %p2, [bar+8], %r6; @!%p2 bra W1;
        mad.lo.u32 %r7, %r4, 1000, %r0; st.shared.u32 [%r3], %r7;
        mbarrier.arrive.shared.b64 _, [bar];
        add.u32 %r4, %r4, 1; xor.b32 %r5, %r5, 1; setp.lt.u32 %p3, %r4, 10; @%p3 bra PRODUCE; ret;
        CONSUME:
        W2: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [bar], %r5, 1000; @!%p2 bra W2;
        ld.shared.u32 %r7, [%r3]; st.global.u32 [%d1], %r7; add.s64 %d1, %d1, 128;
        mbarrier.arrive.release.cta.shared::cta.b64 _, [bar+8];
        add.u32 %r4, %r4, 1; xor.b32 %r5, %r5, 1; setp.lt.u32 %p3, %r4, 10; @%p3 bra CONSUME;
        """,
        [out],
        threads=64,
        seed=seed,
    )
    assert np.array_equal(out, np.arange(10)[:, None] * 1000 + np.arange(32))


def test_states_and_pending_counts(launch: Launch) -> None:
    out = np.zeros(4, np.uint32)
    launch(
        f"""
        {INIT.format(3)} @%p0 ret;
        mbarrier.arrive.shared.b64 %d1, [bar]; mbarrier.pending_count.b64 %r1, %d1; st.global.u32 [%a0], %r1;
        mbarrier.test_wait.shared.b64 %p1, [bar], %d1; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%a0+4], %r1;
        mbarrier.arrive_drop.shared.b64 %d2, [bar], 1; mbarrier.arrive.noComplete.shared.b64 %d3, [bar], 0;
        """.replace("mbarrier.arrive.noComplete.shared.b64 %d3, [bar], 0;", "mbarrier.arrive.shared.b64 %d3, [bar];")
        + """
        mbarrier.test_wait.shared.b64 %p1, [bar], %d1; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%a0+8], %r1;
        mbarrier.arrive.shared.b64 %d4, [bar], 2;
        mbarrier.test_wait.shared.b64 %p1, [bar], %d4; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%a0+12], %r1;
        mbarrier.inval.shared.b64 [bar]; st.shared.b64 [bar], %d1; ld.shared.b64 %d5, [bar];
        """,
        [out],
        threads=32,
    )
    assert list(out) == [3, 0, 1, 1]  # the dropped arrival makes the second phase expect two


MISUSE = [
    ("mbarrier.arrive.shared.b64 _, [tile];", "no initialised mbarrier"),
    ("mbarrier.try_wait.parity.shared.b64 %p1, [tile], 0;", "no initialised mbarrier"),
    ("mbarrier.inval.shared.b64 [bar]; mbarrier.arrive.shared.b64 _, [bar];", "no initialised mbarrier"),
    ("mbarrier.init.shared.b64 [tile], 0;", "count 0"),
    ("mbarrier.arrive.shared.b64 _, [bar], 3;", "too many arrivals"),
    (3 * "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;", "too many arrivals"),
    (2 * "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;", "overflows"),
    ("mbarrier.arrive.shared.b64 _, [bar]; mbarrier.init.shared.b64 [bar], 2;", "while it is in use"),
    ("mbarrier.try_wait.parity.shared.b64 %p1, [bar], 2;", "neither 0 nor 1"),
    ("st.shared.b32 [bar], 5; mbarrier.arrive.shared.b64 _, [bar];", "overwritten"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), MISUSE)
def test_mbarrier_misuse(launch: Launch, body: str, message: str) -> None:
    with pytest.raises(MbarrierMisuse, match=message):
        launch(f"{INIT.format(2)} @%p0 ret; {body}")


def test_named_barriers(launch: Launch) -> None:
    """Two pairs of warps meet at barriers of their own; producers only arrive."""
    out = np.zeros(128, np.uint32)
    launch(
        """
        .shared .align 4 .b8 tile[512];
        mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 6; add.u32 %r1, %r1, 1; shl.b32 %r2, %r0, 2; mov.u32 %r3, tile;
        add.u32 %r4, %r3, %r2; and.b32 %r5, %r0, 32; setp.ne.u32 %p0, %r5, 0; mul.wide.u32 %d0, %r0, 4;
        add.s64 %d1, %a0, %d0; @%p0 bra CONSUME;
        st.shared.u32 [%r4], %r0; bar.arrive %r1, 64; ret;
        CONSUME: bar.sync %r1, 64; ld.shared.u32 %r6, [%r4+-128]; st.global.u32 [%d1], %r6;
        """,
        [out],
        threads=128,
    )
    thread = np.arange(128)
    assert np.array_equal(out, np.where(thread & 32, thread - 32, 0))


def test_barrier_reductions(launch: Launch) -> None:
    out = np.zeros(3, np.uint32)
    launch(
        """
        mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 10; barrier.cta.red.popc.aligned.u32 %r1, 0, %p0;
        barrier.cta.red.and.aligned.pred %p1, 0, !%p0; barrier.cta.red.or.aligned.pred %p2, 0, %p0;
        setp.ne.u32 %p3, %r0, 40; @%p3 ret; selp.u32 %r2, 1, 0, %p1; selp.u32 %r3, 1, 0, %p2;
        st.global.u32 [%a0], %r1; st.global.u32 [%a0+4], %r2; st.global.u32 [%a0+8], %r3;
        """,
        [out],
        threads=64,
    )
    assert list(out) == [10, 0, 1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("bar.sync 1, 40;", "not a multiple of 32"),
        ("bar.sync 1, 256;", "the CTA has 64"),
        ("mov.u32 %r1, 16; bar.sync %r1;", "does not exist"),
        ("bar.arrive 1, 64; bar.arrive 1, 64;", "a second time"),
        ("mov.u32 %r1, %tid.x; and.b32 %r1, %r1, 32; add.u32 %r1, %r1, 32; bar.sync 1, %r1;", "with"),
    ],
)
def test_named_barrier_misuse(launch: Launch, body: str, message: str) -> None:
    with pytest.raises((BarrierMisuse, Deadlock), match=message):
        launch(body, threads=64, sms=1)


def test_a_warp_may_arrive_and_then_wait(launch: Launch) -> None:
    """Two of three warps arrive; the second waits as well, and its threads count twice."""
    out = np.zeros(1, np.uint32)
    launch(
        """
        mov.u32 %r0, %tid.x; mov.u32 %r1, 7;
        setp.ge.u32 %p1, %r0, 64; @%p1 bra DONE;
        bar.arrive 1, 96;
        setp.ne.u32 %p0, %r0, 32; setp.lt.u32 %p1, %r0, 32; @%p1 bra DONE;
        bar.sync 1, 96;
        @!%p0 st.global.u32 [%a0], %r1;
        DONE:
        """,
        [out],
        threads=96,
    )
    assert out[0] == 7


def test_a_deadlock_says_who_waits_for_what(launch: Launch) -> None:
    mark = '// @machete.mark "op={0} tile={1}" %r0 7\n'
    with pytest.raises(Deadlock) as caught:
        launch(
            f"""
            {INIT.format(2)} {mark} mbarrier.arrive.shared.b64 _, [bar];
            """.replace("mbarrier.arrive", "@!%p0 mbarrier.arrive")
            + WAIT.format(0, 0)
            + "bar.sync 3, 64;",
            threads=64,
        )
    text = str(caught.value)
    assert "1 of 2 arrivals" in text
    assert "phase parity 0" in text
    assert "op=0 tile=7" in text
    assert "op=32 tile=7" in text
    assert len(caught.value.waiting) == 2

    with pytest.raises(Deadlock, match="named barrier 3: 32 of 64 threads"):
        launch("mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 32; @%p0 ret; bar.sync 3, 64;", threads=64)


def test_polling_a_flag_that_never_comes(launch: Launch) -> None:
    flag = np.zeros(1, np.uint32)
    spin = "AGAIN: ld.acquire.gpu.global.u32 %r1, [%a0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra AGAIN;"
    with pytest.raises(Deadlock, match="polls memory that does not change") as caught:
        launch(spin, [flag], ctas=4)
    assert len(caught.value.waiting) == 4


def test_polling_that_counts_is_a_deadlock_too(launch: Launch) -> None:
    """Registers change, so it is not certain; but nobody has done anything for millions of instructions."""
    flag = np.zeros(1, np.uint32)
    spin = "AGAIN: add.u32 %r2, %r2, 1; ld.acquire.gpu.global.u32 %r1, [%a0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra AGAIN;"
    with pytest.raises(Deadlock, match="polls memory that does not change"):
        launch(f"mov.u32 %r2, 0; {spin}", [flag])


def test_reading_the_same_value_often_is_no_deadlock(launch: Launch) -> None:
    x, out = np.full(1, 3, np.uint32), np.zeros(128, np.uint32)
    launch(
        """
        mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a1, %d0; mov.u32 %r1, 0; mov.u32 %r2, 0;
        AGAIN: ld.volatile.global.u32 %r3, [%a0]; add.u32 %r2, %r2, %r3; add.u32 %r1, %r1, 1;
        setp.lt.u32 %p0, %r1, 5000; @%p0 bra AGAIN; st.global.u32 [%d1], %r2;
        """,
        [x, out],
        threads=128,
    )
    assert (out == 15000).all()


@pytest.mark.parametrize("seed", range(3))
def test_polling_a_flag_of_another_cta(launch: Launch, seed: int) -> None:
    """A chain of CTAs, each waiting for the one before it: fair scheduling carries the flag through."""
    flags = np.zeros(9, np.uint32)
    flags[0] = 1
    launch(
        """
        mov.u32 %r0, %ctaid.x; mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0; elect.sync _|%p1, 0xffffffff; @!%p1 ret;
        AGAIN: ld.acquire.gpu.global.u32 %r1, [%d1]; setp.eq.u32 %p0, %r1, 0; @%p0 bra AGAIN;
        add.u32 %r1, %r1, 1; st.release.gpu.global.u32 [%d1+4], %r1;
        """,
        [flags],
        ctas=8,
        seed=seed,
    )
    assert list(flags) == list(range(1, 10))


def test_a_livelock_ends_at_the_budget(launch: Launch) -> None:
    with pytest.raises(Livelock, match="10000 warp instructions"):
        launch("AGAIN: add.u32 %r1, %r1, 1; bra AGAIN;", max_instructions=10_000)


def test_bounded_waits_end_by_time_or_count(launch: Launch) -> None:
    """Simulated time passes while everybody sleeps, so a wait that gives up after a second does give up."""
    out = np.zeros(1, np.uint32)
    launch(
        f"""
        {INIT.format(1)} @%p0 ret; mov.u64 %d1, %globaltimer;
        AGAIN: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @%p1 bra DONE;
        mov.u64 %d2, %globaltimer; sub.u64 %d3, %d2, %d1; setp.lt.u64 %p2, %d3, 1000000000; @%p2 bra AGAIN;
        st.global.u32 [%a0], 7; DONE: ret;
        """,
        [out],
    )
    assert out[0] == 7


def test_trap_is_an_error_with_its_mark(launch: Launch) -> None:
    with pytest.raises(Trap) as caught:
        launch('mov.u32 %r1, 12;\n// @machete.mark "tile={0}" %r1\ntrap;', threads=32)
    assert caught.value.mark == "tile=12"
    assert "trap was executed" in str(caught.value)


@pytest.mark.parametrize("operand", ["[%r1]", "%unknown"])
def test_marks_show_registers_and_numbers_only(operand: str, launch: Launch) -> None:
    with pytest.raises(UnknownInstruction, match=f"{re.escape(operand)} is not a register"):
        launch(f'// @machete.mark "tile={{0}}" {operand}\ntrap;', threads=32)
