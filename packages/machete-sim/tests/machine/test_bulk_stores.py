"""Bulk stores with a byte mask, and zeros in bulk."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from machete.sim import Image, LaunchConfig, Misaligned, Region, UnknownInstruction, run

Module = Callable[..., str]


def launch(module: Module, body: str, out: np.ndarray) -> np.ndarray:
    before = ".shared .align 128 .b8 tile[512];"
    image = Image.from_ptx(module(body, parameters=1, before=before, target="sm_100a"), arch="sm_100a")
    region = Region(out.ctypes.data, out.nbytes, "out")
    run(image, struct.pack("<Q", out.ctypes.data), LaunchConfig((1, 1, 1), (32, 1, 1)), [region])
    return out


FILL = """mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 3; mov.u32 %r3, tile; add.u32 %r4, %r3, %r2;
    mov.u64 %d1, -1; st.shared.b64 [%r4], %d1; fence.proxy.async.shared::cta; bar.sync 0; setp.eq.u32 %p1, %r1, 0;"""
STORE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


def aligned(nbytes: int) -> np.ndarray:
    storage = np.zeros(nbytes + 16, np.uint8)
    start = -storage.ctypes.data % 16
    return storage[start : start + nbytes]


def test_only_masked_bytes_are_written(module: Module) -> None:
    text = f"""{FILL} mov.u16 %h1, 0x8005; @!%p1 ret;
        cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%a0], [tile], 32, %h1; {STORE}"""
    out = launch(module, text, aligned(64))
    assert np.flatnonzero(out).tolist() == [0, 2, 15, 16, 18, 31]


def test_zeros(module: Module) -> None:
    text = f"""{FILL} @%p1 st.bulk.weak.shared::cta [tile+16], 24, 0; bar.sync 0; @!%p1 ret;
        fence.proxy.async.shared::cta;
        cp.async.bulk.global.shared::cta.bulk_group [%a0], [tile], 64; {STORE}"""
    out = launch(module, text, aligned(64))
    assert np.flatnonzero(out == 0).tolist() == list(range(16, 40))
    with pytest.raises(Misaligned, match="multiples of 8"):
        launch(module, f"{FILL} st.bulk.weak.shared::cta [tile+4], 24, 0;", aligned(64))


def test_stochastic_rounding_is_refused(module: Module) -> None:
    with pytest.raises(UnknownInstruction, match="stochastic rounding"):
        Image.from_ptx(module("cvt.rs.f16x2.f32 %r1, %r2, %r3, %r4;"))
