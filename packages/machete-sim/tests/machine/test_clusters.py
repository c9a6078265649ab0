"""Clusters: shared memory of one another, cluster barriers, multicast, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from machete.sim import (
    BarrierMisuse,
    Deadlock,
    Image,
    LaunchConfig,
    MbarrierMisuse,
    OutOfBounds,
    Race,
    Uninitialised,
    UnknownInstruction,
    UnsupportedLaunch,
    run,
)

Launch = Callable[..., Any]

SHARED = ".shared .align 128 .b8 buffer[1024];\n.shared .align 8 .b64 barrier;"
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RANK = "mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %tid.x; mov.u32 %r3, %cluster_nctarank;"


def exchanged(
    launch: Launch, body: str, arrays: Sequence[np.ndarray], cluster: tuple[int, int, int], **config: Any
) -> Any:
    size = int(np.prod(cluster))
    return launch(body, arrays, before=SHARED, cluster=cluster, **{"ctas": size, **config})


def test_special_registers_number_the_ctas_of_a_cluster(launch: Launch) -> None:
    names = ["cluster_ctaid.x", "cluster_ctaid.y", "cluster_nctaid.x", "cluster_nctaid.y", "clusterid.x", "clusterid.y",
             "nclusterid.x", "nclusterid.y", "cluster_ctarank", "cluster_nctarank"]  # fmt: skip
    out = np.zeros((4, 4, len(names)), np.uint32)  # [y, x]
    stores = "".join(f"mov.u32 %r9, %{n}; st.global.u32 [%d2+{4 * i}], %r9;" for i, n in enumerate(names))
    body = (
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r3, %r2, 4, %r1;"
        f"mul.wide.u32 %d1, %r3, {4 * len(names)}; add.s64 %d2, %a0, %d1;{stores}"
    )
    image_out = launch_grid(launch, body, out, grid=(4, 4, 1), cluster=(2, 2, 1))
    y, x = np.mgrid[0:4, 0:4]
    assert (image_out[..., 0] == x % 2).all()
    assert (image_out[..., 1] == y % 2).all()
    assert (image_out[..., 2:4] == 2).all()
    assert (image_out[..., 4] == x // 2).all()
    assert (image_out[..., 5] == y // 2).all()
    assert (image_out[..., 6:8] == 2).all()
    assert (image_out[..., 8] == x % 2 + 2 * (y % 2)).all()
    assert (image_out[..., 9] == 4).all()


def launch_grid(launch: Launch, body: str, out: np.ndarray, **config: Any) -> np.ndarray:
    launch(body, [out], **config)
    return out


@pytest.mark.parametrize("cluster", [(2, 1, 1), (1, 4, 1), (2, 2, 2)])
@pytest.mark.parametrize("sms", [None, 8])
def test_each_cta_reads_its_neighbour(launch: Launch, cluster: tuple[int, int, int], sms: int | None) -> None:
    """Stores to one's own memory, loads from that of the next rank, through both kinds of addresses."""
    size = int(np.prod(cluster))
    out = np.zeros((size, 2, 32), np.uint32)
    body = f"""{RANK}
        mov.u32 %r4, buffer; shl.b32 %r5, %r2, 2; add.u32 %r4, %r4, %r5;
        mad.lo.u32 %r6, %r1, 100, %r2; st.shared.u32 [%r4], %r6;
        {SYNC}
        add.u32 %r7, %r1, 1; rem.u32 %r7, %r7, %r3;
        mapa.shared::cluster.u32 %r8, %r4, %r7; ld.shared::cluster.u32 %r9, [%r8];
        cvt.u64.u32 %d1, %r4; cvta.shared.u64 %d2, %d1; mapa.u64 %d3, %d2, %r7; ld.u32 %r10, [%d3];
        {SYNC}
        mad.lo.u32 %r11, %r1, 64, %r2; mul.wide.u32 %d4, %r11, 4; add.s64 %d5, %a0, %d4;
        st.global.u32 [%d5], %r9; st.global.u32 [%d5+128], %r10;
    """
    exchanged(launch, body, [out], cluster, grid=cluster, sms=sms)
    expected = (np.arange(size) + 1)[:, None] % size * 100 + np.arange(32)
    assert (out[:, 0] == expected).all()
    assert (out[:, 1] == expected).all()


def test_atomics_reach_the_other_cta(launch: Launch) -> None:
    out = np.zeros(4, np.uint32)
    body = f"""{RANK}
        setp.eq.u32 %p1, %r2, 0; mov.u32 %r4, buffer; mov.u32 %r5, 0;
        @%p1 st.shared.u32 [%r4], %r5;
        {SYNC}
        mapa.shared::cluster.u32 %r6, %r4, 0;
        red.relaxed.cluster.shared::cluster.add.u32 [%r6], 1;
        {SYNC}
        ld.shared::cluster.u32 %r7, [%r6];
        {SYNC}
        mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %a0, %d1;
        @%p1 st.global.u32 [%d2], %r7;
    """
    exchanged(launch, body, [out], (4, 1, 1))
    assert (out == 128).all()


def test_ranks_are_part_of_shared_addresses(launch: Launch) -> None:
    """Clearing the lowest bit of the rank finds the leader of a pair; getctarank and isspacep see through it."""
    out = np.zeros((4, 4), np.uint32)
    body = f"""{RANK}
        mov.u32 %r4, buffer; st.shared.u32 [%r4], %r1;
        {SYNC}
        and.b32 %r5, %r4, 0xFEFFFFFF; ld.shared::cluster.u32 %r6, [%r5];
        getctarank.shared::cluster.u32 %r7, %r5;
        cvt.u64.u32 %d1, %r5; cvta.shared.u64 %d2, %d1;
        isspacep.shared::cta %p1, %d2; isspacep.shared::cluster %p2, %d2;
        selp.u32 %r8, 1, 0, %p1; selp.u32 %r9, 1, 0, %p2;
        {SYNC}
        mul.wide.u32 %d3, %r1, 16; add.s64 %d4, %a0, %d3;
        st.global.v4.u32 [%d4], {{%r6, %r7, %r8, %r9}};
    """
    exchanged(launch, body, [out], (4, 1, 1), threads=32)
    assert out.tolist() == [[0, 0, 1, 1], [0, 0, 0, 1], [2, 2, 1, 1], [2, 2, 0, 1]]


INIT = """
        setp.eq.u32 %p1, %r2, 0; mov.u32 %r4, buffer; mov.u32 %r5, barrier;
        @%p1 mbarrier.init.shared::cta.b64 [%r5], {count};
        fence.mbarrier_init.release.cluster;
"""
WAIT = """
$wait: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r5], 0; @!%p9 bra $wait;
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_remote_arrival_completes_the_phase(launch: Launch, seed: int) -> None:
    """Every CTA writes into CTA 0 and arrives at its mbarrier there."""
    out = np.zeros(4, np.uint32)
    body = f"""{RANK}{INIT.format(count=4)}{SYNC}
        mapa.shared::cluster.u32 %r6, %r4, 0; mapa.shared::cluster.u32 %r7, %r5, 0;
        shl.b32 %r8, %r1, 2; add.u32 %r6, %r6, %r8;
        @%p1 st.shared::cluster.u32 [%r6], %r1;
        @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
        setp.ne.u32 %p2, %r1, 0; @%p2 bra $done; {WAIT}
        ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r4];
        st.global.v4.u32 [%a0], {{%r10, %r11, %r12, %r13}};
        $done: {SYNC}
    """
    exchanged(launch, body, [out], (4, 1, 1), seed=seed)
    assert out.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_multicast_lands_in_every_cta_of_the_mask(launch: Launch, seed: int) -> None:
    source = np.arange(64, dtype=np.uint32)
    out = np.zeros((4, 32), np.uint32)
    body = f"""{RANK}{INIT.format(count=1)}{SYNC}
        @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;
        mov.u16 %h1, 0xb; setp.eq.and.u32 %p2, %r1, 1, %p1; setp.eq.and.u32 %p3, %r1, 2, %p1;
        @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
            [%r4], [%a0], 128, [%r5], %h1;
        add.s64 %d1, %a0, 128;
        @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d1], 128, [%r5];
        {WAIT}
        shl.b32 %r6, %r2, 2; add.u32 %r7, %r4, %r6; ld.shared.u32 %r8, [%r7];
        mad.lo.u32 %r9, %r1, 32, %r2; mul.wide.u32 %d4, %r9, 4; add.s64 %d5, %a1, %d4;
        st.global.u32 [%d5], %r8;
        {SYNC}
    """
    exchanged(launch, body, [source, out], (4, 1, 1), seed=seed)
    assert (out[[0, 1, 3]] == source[:32]).all()
    assert (out[2] == source[32:]).all()


@pytest.mark.parametrize("seed", range(5))
def test_copies_between_the_memories_of_two_ctas(launch: Launch, seed: int) -> None:
    """CTA 0 sends its buffer in bulk, then two words with st.async and one with red.async."""
    out = np.zeros(32, np.uint32)
    body = f"""{RANK}{INIT.format(count=1)}
        shl.b32 %r6, %r2, 2; add.u32 %r7, %r4, %r6; add.u32 %r8, %r2, 1000; st.shared.u32 [%r7], %r8;
        st.shared.u32 [%r7+256], %r2;
        fence.proxy.async.shared::cta; bar.sync 0;
        setp.eq.and.u32 %p3, %r1, 1, %p1;
        @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 140;
        {SYNC}
        setp.eq.and.u32 %p2, %r1, 0, %p1; @!%p2 bra $receive;
        mapa.shared::cluster.u32 %r10, %r4, 1; mapa.shared::cluster.u32 %r11, %r5, 1;
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r10], [%r4], 128, [%r11];
        add.u32 %r12, %r10, 128;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r12], {{7, 9}}, [%r11];
        add.u32 %r12, %r10, 256;
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r12], 5, [%r11];
        $receive: setp.ne.u32 %p4, %r1, 1; @%p4 bra $done; {WAIT}
        ld.shared.u32 %r13, [%r7]; ld.shared.v2.u32 {{%r14, %r15}}, [%r4+128]; ld.shared.u32 %r16, [%r4+256];
        add.u32 %r13, %r13, %r14; add.u32 %r13, %r13, %r15; add.u32 %r13, %r13, %r16;
        mul.wide.u32 %d4, %r2, 4; add.s64 %d5, %a0, %d4; st.global.u32 [%d5], %r13;
        $done: {SYNC}
    """
    exchanged(launch, body, [out], (2, 1, 1), seed=seed)
    assert (out == np.arange(32) + 1000 + 7 + 9 + 5).all()


MISUSE: dict[str, tuple[str, type[Exception], str]] = {
    "a plain load of the other's memory": (
        "xor.b32 %r8, %r1, 1; mapa.shared::cluster.u32 %r6, %r4, %r8; ld.shared::cta.u32 %r7, [%r6];",
        OutOfBounds,
        "only .shared::cluster",
    ),
    "a rank that is not there": (
        "mapa.shared::cluster.u32 %r6, %r4, 2; st.shared::cluster.u32 [%r6], 1;",
        OutOfBounds,
        "of CTA 2; the cluster has 2",
    ),
    "an address of no CTA": (
        "add.u32 %r6, %r4, 0x5000000; st.shared::cluster.u32 [%r6], 1;",
        OutOfBounds,
        "the cluster has 2",
    ),
    "a read of what was never written": (
        "mapa.shared::cluster.u32 %r6, %r4, 1; ld.shared::cluster.u32 %r7, [%r6];",
        Uninitialised,
        "never written",
    ),
    "no mbarrier there": (
        "mapa.shared::cluster.u32 %r6, %r5, 1; mbarrier.arrive.shared::cluster.b64 _, [%r6];",
        MbarrierMisuse,
        "no initialised",
    ),
    "the other has ended": (
        """setp.eq.u32 %p1, %r1, 1; @%p1 bra $end; mapa.shared::cluster.u32 %r6, %r4, 1; mov.u32 %r9, 0;
        $l: add.u32 %r9, %r9, 1; st.shared::cluster.u32 [%r6], 1; setp.lt.u32 %p2, %r9, 100000; @%p2 bra $l;
        $end:""",
        Race,
        "has already ended",
    ),
    "two arrivals": (
        """setp.eq.u32 %p1, %r1, 0; @%p1 bra $end; barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;
        $end:""",
        BarrierMisuse,
        "twice",
    ),
    "a warp that never arrives": (
        f"""setp.ne.u32 %p1, %r1, 0; setp.ge.or.u32 %p1, %r2, 32, %p1; @%p1 bra $end; bar.sync 1, 64;
        $end: {SYNC}""",
        Deadlock,
        "barrier.cluster: 3 of 4 warps",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(launch: Launch, case: str) -> None:
    body, error, message = MISUSE[case]
    prologue = f"{RANK}\nmov.u32 %r4, buffer; mov.u32 %r5, barrier;\n"
    with pytest.raises(error, match=message):
        exchanged(launch, prologue + body, [], (2, 1, 1), threads=64 if "bar.sync" in body else 32)


def test_a_cluster_must_fit_the_launch(module: Callable[..., str]) -> None:
    image = Image.from_ptx(module("").replace("k()", "k()\n.reqnctapercluster 2, 1, 1"))
    run(image, b"", LaunchConfig(grid=(4, 1, 1), block=(32, 1, 1)))
    for config, message in [
        (LaunchConfig(grid=(3, 1, 1), block=(32, 1, 1)), "not a multiple"),
        (LaunchConfig(grid=(4, 1, 1), block=(32, 1, 1), cluster=(4, 1, 1)), "compiled for clusters"),
        (LaunchConfig(grid=(4, 1, 1), block=(32, 1, 1), sms=1), "does not fit on 1 SMs"),
    ]:
        with pytest.raises(UnsupportedLaunch, match=message):
            run(image, b"", config)
    plain = Image.from_ptx(module(""))
    with pytest.raises(UnsupportedLaunch, match="1 to 16"):
        run(plain, b"", LaunchConfig(grid=(32, 1, 1), block=(32, 1, 1), cluster=(32, 1, 1)))


def test_a_generic_mapa_needs_64_bits(module: Callable[..., str]) -> None:
    with pytest.raises(UnknownInstruction, match="a generic address has 64 bits"):
        Image.from_ptx(module("mapa.u32 %r1, %r2, 0;"))
