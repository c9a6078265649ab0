"""wgmma of single bits, as PTX writes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Report

Launch = Callable[..., Report]

# 128 threads; rows of A and columns of B are 32 bytes, in core matrices of 8 x 16 bytes: the halves of K are 128 bytes
# apart, groups of eight rows 256.
BODY = """
    .shared .align 128 .b8 a[2048]; .shared .align 128 .b8 b[256];
    mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 1; and.b32 %r2, %r0, 1; shl.b32 %r3, %r0, 4; cvt.u64.u32 %d0, %r3;
    shr.u32 %r4, %r1, 3; shl.b32 %r4, %r4, 8; and.b32 %r5, %r1, 7; shl.b32 %r5, %r5, 4; add.u32 %r4, %r4, %r5;
    shl.b32 %r5, %r2, 7; add.u32 %r4, %r4, %r5; mov.u32 %r6, a; mov.u32 %r7, b;
    add.s64 %d1, %a0, %d0; ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d1]; add.u32 %r8, %r6, %r4;
    st.shared.v4.u32 [%r8], {%r10, %r11, %r12, %r13}; setp.lt.u32 %p0, %r0, 16; add.s64 %d1, %a1, %d0;
    @%p0 ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d1]; add.u32 %r8, %r7, %r4;
    @%p0 st.shared.v4.u32 [%r8], {%r10, %r11, %r12, %r13};
    fence.proxy.async.shared::cta; bar.sync 0;
    shr.u32 %r6, %r6, 4; shr.u32 %r7, %r7, 4; cvt.u64.u32 %d2, %r6; cvt.u64.u32 %d3, %r7;
    or.b64 %d2, %d2, 0x1000080000; or.b64 %d3, %d3, 0x1000080000; setp.ne.u32 %p1, %r0, 9999;
    mov.u32 %r20, 5; mov.u32 %r21, 6; mov.u32 %r22, 7; mov.u32 %r23, 8;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%r20, %r21, %r22, %r23}, %d2, %d3, %p1;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    add.s64 %d1, %a2, %d0; st.global.v4.u32 [%d1], {%r20, %r21, %r22, %r23};
"""


@pytest.mark.parametrize("check", ["races", "strict"])
def test_bits_in_common(launch: Launch, check: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (rows, 32), np.uint8) for rows in (64, 8))
    out = np.zeros((4, 8, 4, 2, 2), np.uint32)  # warp, row, pair of columns, half of the rows, column
    launch(BODY, [a, b, out], threads=128, check=check)
    common = np.unpackbits(a, axis=1).astype(np.int64) @ np.unpackbits(b, axis=1).T.astype(np.int64)
    before = np.array([[5, 6], [7, 8]])
    expected = common.reshape(4, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4) + before
    np.testing.assert_array_equal(out, expected)
