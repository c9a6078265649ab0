"""clusterlaunchcontrol: running clusters take over those that were not launched yet."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Image, LaunchConfig, Region, UnknownInstruction, run

Module = Callable[..., str]

# Every CTA counts the work of its cluster, then asks for another one until there is none.
STEAL = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %clusterid.x; mov.u32 %r4, %ctaid.y;
    mov.u32 %r5, bar; mov.u32 %r6, response; setp.eq.u32 %p1, %r1, 0; setp.eq.and.u32 %p2, %r2, 0, %p1;
    @%p1 mbarrier.init.shared::cta.b64 [%r5], 1; fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; mov.u32 %r7, 0;
    mov.u32 %r8, %ctaid.x;
    $work: mad.lo.u32 %r9, %r4, {nx}, %r8; mul.wide.u32 %d1, %r9, 4; add.s64 %d2, %a0, %d1;
    @%p1 red.global.add.u32 [%d2], 1;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 16;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
        [%r6], [%r5];
    $wait: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5], %r7; @!%p3 bra $wait; xor.b32 %r7, %r7, 1;
    ld.shared.b128 %q0, [%r6];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q0;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r10, %q0;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{_, %r11, %r12, _}}, %q0;
    add.u32 %r8, %r10, %r2; mov.u32 %r4, %r11; fence.proxy.async.shared::cta;
    @%p4 bra $work;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
@pytest.mark.parametrize(("cluster", "sms"), [(1, 3), (2, 4), (2, None)])
@pytest.mark.parametrize("seed", range(3))
def test_all_work_is_done_once(module: Module, arch: str, cluster: int, sms: int | None, seed: int) -> None:
    grid = (6, 3, 1)
    out = np.zeros((3, 6), np.uint32)
    before = ".shared .align 8 .b64 bar;\n.shared .align 16 .b8 response[16];"
    text = module(STEAL.format(nx=grid[0]), parameters=1, before=before, target=arch)
    image = Image.from_ptx(text, arch=arch)
    config = LaunchConfig(grid, (32, 1, 1), cluster=(cluster, 1, 1), sms=sms, seed=seed)
    report = run(image, struct.pack("<Q", out.ctypes.data), config, [Region(out.ctypes.data, out.nbytes, "out")])
    assert (out == 1).all()
    assert report.ctas == (18 if sms is None else sms)


def test_it_does_not_exist_on_hopper(module: Module) -> None:
    with pytest.raises(UnknownInstruction, match="exists on sm_100a"):
        Image.from_ptx(module("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q0;"))
