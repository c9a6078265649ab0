"""Tracers: found by entry point, their code around every phase, and none of it in kernels that are not traced."""

from __future__ import annotations

import re
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import pytest
import torch

from machete.megakernel import Megakernel, Op
from machete.megakernel.errors import TracerMissingError
from machete.megakernel.launch import compilation, tracing

N = 2000  # 8 tiles of Add, 16 of Scale

TRACER = """
from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64

PHASES = ("load", "compute", "store")

class Counting:
    '''Six counters: phases that began, and ended. Then one flag for each tile of op 0, and what was waited for.'''

    buffer_bytes = 128

    def __init__(self, plan):
        self.hooks = self

    def start(self, buffer, role):
        return Counter(buffer, cute.make_rmem_tensor((1,), Int32))

@dataclass(frozen=True, eq=False)
class Counter:
    buffer: Any
    op: Any

    def begin(self, span, value):
        if span == "instruction":
            self.op[0] = value
        elif span in PHASES:
            self._count(self.buffer + 4 * PHASES.index(span))
            self._flag(self.buffer + 32, self.op[0], value)

    def end(self, span, after=None):
        if span in PHASES:
            self._count(self.buffer + (12 + 4 * PHASES.index(span)))

    def wait(self, cause, ready, wait):
        wait()
        if cause == "fetch":
            self._count(self.buffer + 100)

    @property
    def timing(self):
        return Int32(-1)

    def wait_for_stage(self, cause, begin, cycles):
        pass

    def stage(self):
        self._count(self.buffer + 104)

    def finish(self):
        self._count(self.buffer + 108)

    @cute.jit
    def _count(self, address):
        thread = cute.arch.thread_idx()[0]
        if thread == 0 or (thread >= 256 and thread % 32 == 0):
            cute.arch.inline_ptx("red.global.add.u32 [{$r0}], 1;", read_only_args=[address])

    @cute.jit
    def _flag(self, address, op, tile):
        if op == 0 and tile >= 0:
            cute.arch.inline_ptx("st.global.u32 [{$r0}], 1;", read_only_args=[address + Int64(tile) * 4])
"""


@pytest.fixture(autouse=True)
def without_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests bring the tracers that they look at: machete-trace, if it is installed, is none of them."""

    def others(*, group: str) -> list:
        return [entry for entry in entry_points(group=group) if entry.dist and entry.dist.name != "machete-trace"]

    monkeypatch.setattr(tracing, "entry_points", others)


@pytest.fixture
def tracer(install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "counting_tracer", raising=False)
    install(
        "counting",
        entry_points={"machete.tracers": {"anything": "counting_tracer:Counting"}},
        modules={"counting_tracer": TRACER},
    )


def ops_of(op_classes: SimpleNamespace, device: str) -> tuple[list, torch.Tensor, torch.Tensor]:
    x, y, z = torch.arange(N, dtype=torch.float32).to(device), *(torch.zeros(N, device=device) for _ in range(2))
    ops = op_classes.Add.schedule(x=x, y=x, z=y) + op_classes.Scale.schedule(x=y, y=z, tile_n=125)
    return ops, x, z


def test_a_missing_tracer_is_named(op_classes: SimpleNamespace) -> None:
    ops, _, _ = ops_of(op_classes, "cpu")
    with pytest.raises(TracerMissingError, match=r"(?s)machete-trace.*machete\.tracers") as caught:
        Megakernel(ops, trace=True)
    assert isinstance(caught.value, ImportError)
    assert Megakernel(ops).trace_buffer is None


@pytest.mark.usefixtures("tracer")
def test_hooks_run_around_every_phase(arch: str, device: str, op_classes: SimpleNamespace) -> None:
    ops, x, z = ops_of(op_classes, device)
    kernel = Megakernel(ops, arch=arch if device == "cpu" else None, trace=True)
    kernel.run()
    assert torch.equal(z, 4 * x)
    buffer = kernel.trace_buffer
    assert buffer is not None
    assert (buffer.dtype, buffer.device.type, buffer.numel()) == (torch.uint8, device, 128)
    counts = buffer.view(torch.int32).tolist()
    assert counts[:6] == [8, 24, 8] * 2, "loads, computes and stores of 8 tiles, then 16 computes"
    assert counts[8:17] == [1] * 8 + [0]
    fetches, stages, finished = counts[25:28]
    assert fetches == 4 * (len(kernel.plan.queues.rows) + kernel.plan.num_sms), "watcher, loader, compute and storer"
    assert stages == 16, "the loader takes 8 stages, and compute does"
    assert finished == 5 * kernel.plan.num_sms
    buffer.zero_()
    kernel.run()
    assert buffer.view(torch.int32).tolist() == counts


class ScaleRange(Op):
    """y = 2 * x, a whole range of tiles at a time."""

    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @cute.jit
    def compute(self, tiles, x, y):
        for number in cutlass.range(tiles.count, unroll=1):
            first = tiles.index(number, "N") * self.tile_size_N
            for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
                if first + i < self.N:
                    y[first + i] = x[first + i] * 2


@pytest.mark.usefixtures("tracer")
def test_a_phase_that_takes_a_range_is_traced_once(anywhere: str) -> None:
    x, y = torch.arange(N, dtype=torch.float32).to(anywhere), torch.zeros(N, device=anywhere)
    kernel = Megakernel([ScaleRange._schedule_single(tile_sizes={"N": 100}, x=x, y=y)], num_sms=2, trace=True)
    kernel.run()
    assert torch.equal(y, 2 * x)
    buffer = kernel.trace_buffer
    assert buffer is not None
    ranges = len(kernel.plan.queues.rows)
    assert ranges < 20, "the tiles of an SM are one range"
    assert buffer.view(torch.int32).tolist()[:25] == [0, ranges, 0, 0, ranges, 0] + [0] * 19


def code_of(ptx: str) -> str:
    """PTX without the symbol, which says what the kernel was traced with."""
    return re.sub(r"kernel_\w+", "kernel", ptx)


def test_a_kernel_without_trace_has_nothing_of_it(
    op_classes: SimpleNamespace, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACHETE_CACHE", "off")
    compilation.forget()
    ops, _, _ = ops_of(op_classes, "cpu")
    before = Megakernel(ops).compile()
    request.getfixturevalue("tracer")
    compilation.forget()
    traced = Megakernel(ops, trace=True).compile()
    after = Megakernel(ops).compile()
    assert after is not before
    assert code_of(after.ptx) == code_of(before.ptx)
    assert "red.global.add.u32" not in after.ptx
    assert "red.global.add.u32" in traced.ptx
    parameters = [code_of(one.ptx).count(".param .u64 kernel") for one in (after, traced)]
    assert parameters[1] == parameters[0] + 1, "the address of the buffer"
