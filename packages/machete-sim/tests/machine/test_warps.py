"""Divergence, and instructions that the lanes of a warp execute together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Divergence, Report

Launch = Callable[..., Report]
LOAD = "mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0; ld.global.u32 %r1, [%d1];"
STORE = "add.s64 %d2, %a1, %d0; st.global.u32 [%d2], %r2;"


def test_data_dependent_loops(launch: Launch) -> None:
    """Each lane leaves the loop by itself; all meet again behind it (Collatz steps)."""
    x = np.arange(1, 129, dtype=np.uint32)
    out = np.zeros_like(x)
    launch(
        f"""
        {LOAD} mov.u32 %r2, 0;
        LOOP: setp.eq.u32 %p0, %r1, 1; @%p0 bra DONE;
        and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
        mad.lo.u32 %r1, %r1, 3, 1; bra NEXT;
        EVEN: shr.u32 %r1, %r1, 1;
        NEXT: add.u32 %r2, %r2, 1; bra LOOP;
        DONE: activemask.b32 %r4; setp.ne.u32 %p2, %r4, 0xffffffff; @%p2 trap;
        {STORE}
        """,
        [x, out],
        threads=128,
    )

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n = 3 * n + 1 if n & 1 else n // 2
            count += 1
        return count

    assert list(out) == [steps(int(n)) for n in x]


def test_partial_warps_and_early_exit(launch: Launch) -> None:
    x, out = np.arange(40, dtype=np.uint32), np.zeros(40, np.uint32)
    launch(
        f"""
        {LOAD} setp.lt.u32 %p0, %r1, 5; @%p0 ret;
        vote.sync.ballot.b32 %r2, %p0, 0xffffffff; activemask.b32 %r2;
        {STORE}
        """,
        [x, out],
        threads=40,
    )
    assert (out[:5] == 0).all()
    assert (out[5:32] == 0xFFFFFFE0).all()
    assert (out[32:] == 0xFF).all()


SHUFFLES = {
    "up": ("up.b32 %r2|%p0, %r1, 3, 0", lambda i: i - 3 if i >= 3 else i),
    "down": ("down.b32 %r2|%p0, %r1, 3, 31", lambda i: i + 3 if i + 3 < 32 else i),
    "bfly": ("bfly.b32 %r2, %r1, 5, 31", lambda i: i ^ 5),
    "idx": ("idx.b32 %r2, %r1, 9, 31", lambda i: 9),
    "segments of 8": ("down.b32 %r2, %r1, 2, 0x1807", lambda i: i + 2 if i % 8 < 6 else i),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffles(launch: Launch, name: str) -> None:
    text, source = SHUFFLES[name]
    x, out = np.random.default_rng(0).integers(0, 1 << 31, 32).astype(np.uint32), np.zeros(32, np.uint32)
    launch(f"{LOAD} shfl.sync.{text}, 0xffffffff; {STORE}", [x, out])
    assert list(out) == [x[source(i)] for i in range(32)]


def test_votes_match_and_redux(launch: Launch) -> None:
    x = np.random.default_rng(1).integers(0, 4, 32).astype(np.uint32)
    out = np.zeros((8, 32), np.uint32)
    stores = "".join(f"st.global.u32 [%d2+{128 * k}], %r{10 + k}; " for k in range(8))
    launch(
        f"""
        {LOAD} setp.eq.u32 %p0, %r1, 2;
        vote.sync.ballot.b32 %r10, %p0, 0xffffffff; vote.sync.any.pred %p1, %p0, 0xffffffff; selp.u32 %r11, 1, 0, %p1;
        vote.sync.all.pred %p1, !%p0, 0xffffffff; selp.u32 %r12, 1, 0, %p1;
        match.any.sync.b32 %r13, %r1, 0xffffffff; redux.sync.add.u32 %r14, %r1, 0xffffffff;
        redux.sync.max.s32 %r15, %r1, 0xffffffff; redux.sync.xor.b32 %r16, %r1, 0xffffffff;
        elect.sync %r17|%p2, 0xffffffff; selp.u32 %r17, 1, 0, %p2;
        add.s64 %d2, %a1, %d0; {stores}
        """,
        [x, out],
    )
    ballot = sum(1 << i for i in range(32) if x[i] == 2)
    assert (out[0] == ballot).all()
    assert (out[1] == (ballot != 0)).all()
    assert (out[2] == (ballot == 0)).all()
    assert list(out[3]) == [sum(1 << k for k in range(32) if x[k] == x[i]) for i in range(32)]
    assert (out[4] == x.sum()).all()
    assert (out[5] == x.max()).all()
    assert (out[6] == np.bitwise_xor.reduce(x)).all()
    assert list(out[7]) == [1] + [0] * 31


def test_lanes_meet_at_a_warp_barrier(launch: Launch) -> None:
    """Half of the warp takes a detour; the shuffle behind bar.warp.sync sees what it computed."""
    x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    launch(
        f"""
        {LOAD} setp.lt.u32 %p0, %r1, 16; @%p0 bra JOIN; add.u32 %r1, %r1, 100;
        JOIN: bar.warp.sync 0xffffffff; shfl.sync.bfly.b32 %r2, %r1, 16, 31, 0xffffffff; {STORE}
        """,
        [x, out],
    )
    assert list(out) == [i + 116 if i < 16 else i - 16 for i in range(32)]


def test_subgroups_have_their_own_masks(launch: Launch) -> None:
    x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    launch(
        f"""
        {LOAD} setp.lt.u32 %p0, %r1, 16; @%p0 bra LOW;
        redux.sync.add.u32 %r2, %r1, 0xffff0000; bra END;
        LOW: redux.sync.add.u32 %r2, %r1, 0xffff;
        END: {STORE}
        """,
        [x, out],
    )
    assert (out[:16] == sum(range(16))).all()
    assert (out[16:] == sum(range(16, 32))).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@%p0 shfl.sync.idx.b32 %r2, %r1, 0, 31, 0xffffffff;", "skip it by their predicate"),
        (
            "@%p0 bra A; vote.sync.ballot.b32 %r2, %p0, 0xffffffff; A: elect.sync %r2|%p1, 0xffffffff;",
            "wait for each other",
        ),
        ("shfl.sync.idx.b32 %r2, %r1, 0, 31, 0xffff;", "not in its own member mask"),
        ("@%p0 bra A; shfl.sync.idx.b32 %r2, %r1, 0, 31, 0xffff0000; A: nanosleep.u32 1;", "does not take part"),
        ("@%p0 bar.sync 0;", "skip it by their predicate"),
    ],
)
def test_missing_lanes(launch: Launch, body: str, message: str) -> None:
    x, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    with pytest.raises(Divergence, match=message):
        launch(f"{LOAD} setp.lt.u32 %p0, %r1, 16; {body} {STORE}", [x, out])


def test_special_registers(launch: Launch) -> None:
    out = np.zeros((4, 64, 6), np.uint32)
    launch(
        """
        mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
        mul.wide.u32 %d0, %r3, 24; add.s64 %d1, %a0, %d0;
        mov.u32 %r4, %laneid; st.global.u32 [%d1], %r4; mov.u32 %r4, %warpid; st.global.u32 [%d1+4], %r4;
        mov.u32 %r4, %nctaid.x; st.global.u32 [%d1+8], %r4; mov.u32 %r4, %smid; st.global.u32 [%d1+12], %r4;
        mov.u32 %r4, %lanemask_lt; st.global.u32 [%d1+16], %r4;
        add.u32 %r4, %tid.x, %ctaid.x; st.global.u32 [%d1+20], %r4;
        """,
        [out],
        threads=64,
        ctas=4,
        sms=2,
    )
    lane = np.arange(64) % 32
    for cta in range(4):
        assert (out[cta, :, 0] == lane).all()
        assert (out[cta, :, 1] == np.arange(64) // 32).all()
        assert (out[cta, :, 2] == 4).all()
        assert (out[cta, :, 3] < 2).all()
        assert (out[cta, :, 4] == (1 << lane) - 1).all()
        assert (out[cta, :, 5] == np.arange(64) + cta).all()
