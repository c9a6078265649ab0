"""Registers share places only if no lane can tell."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from machete.sim.registers import SLOT, Access, Flow, place


def access(reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), certain: bool = True) -> Access:
    return Access(reads, writes, certain)


def test_a_chain_needs_two_places() -> None:
    accesses = [access((), (0,)), *(access((i,), (i + 1,)) for i in range(20))]
    offsets, size = place(accesses, {}, [32] * 21)
    assert size == 2 * SLOT
    assert len(set(offsets)) == 2


def test_a_held_register_shares_its_place_with_none() -> None:
    accesses = [access((), (0,)), *(access((i,), (i + 1,)) for i in range(20))]
    offsets, size = place(accesses, {}, [32] * 21, {3})
    assert size == 3 * SLOT
    assert offsets.count(offsets[3]) == 1


def test_a_value_from_before_a_loop_lives_through_it() -> None:
    # 0: a = …   1: b = …   2: use a   3: use b   4: branch to 2   5: end
    accesses = [access((), (0,)), access((), (1,)), access((0,), (2,)), access((1,), (3,)), access(), access()]
    offsets, _ = place(accesses, {4: Flow(2)}, [32] * 4)
    assert offsets[0] not in (offsets[1], offsets[2], offsets[3])
    assert offsets[1] not in (offsets[2], offsets[3])


def test_a_value_carried_around_the_loop_lives_through_it() -> None:
    # 0: (loop) use x   1: t = …   2: use t   3: x = …   4: branch to 0
    accesses = [access((0,)), access((), (1,)), access((1,)), access((), (0,)), access()]
    offsets, _ = place(accesses, {4: Flow(0)}, [32, 32])
    assert offsets[0] != offsets[1]


def test_a_guarded_definition_keeps_the_old_value() -> None:
    # 0: x = …   1: t = …   2: use t   3: @p x = …   4: use x
    accesses = [access((), (0,)), access((), (1,)), access((1,)), access((), (0,), certain=False), access((0,))]
    offsets, _ = place(accesses, {}, [32, 32])
    assert offsets[0] != offsets[1]


def test_sizes_do_not_mix() -> None:
    accesses = [access((), (0,)), access((0,), (1,)), access((1,), (2,))]
    offsets, size = place(accesses, {}, [32, 64, 128])
    assert sorted(offsets) == [0, SLOT, 3 * SLOT]
    assert size == 7 * SLOT


def test_divergent_lanes_keep_their_values(launch: Callable[..., object]) -> None:
    """Both sides of a branch use many short-lived registers while the other lanes wait with theirs."""
    out = np.zeros(32, np.uint32)
    busy = "".join(f"add.u32 %r{k + 1}, %r{k}, 1; " for k in range(10, 60))
    launch(
        f"""
        mov.u32 %r0, %tid.x; mul.lo.u32 %r1, %r0, 7; mul.lo.u32 %r2, %r0, 3; and.b32 %r3, %r0, 1;
        setp.eq.u32 %p0, %r3, 0; mov.u32 %r10, %r1; @%p0 bra EVEN;
        {busy} add.u32 %r4, %r60, %r2; bra JOIN;
        EVEN: mov.u32 %r10, %r2; {busy} add.u32 %r4, %r60, %r1;
        JOIN: mul.wide.u32 %d0, %r0, 4; add.s64 %d1, %a0, %d0; st.global.u32 [%d1], %r4;
        """,
        [out],
    )
    assert np.array_equal(out, np.arange(32) * 10 + 50)
