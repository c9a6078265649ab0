"""Kernels that would wait for ever are stopped; the report says who waited for what, and the device is as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch

from machete.megakernel import Megakernel, Op, PipelineSpec
from machete.megakernel.errors import HangError, PlanError
from machete.megakernel.launch.alarm import COUNTER, REASONS
from machete.megakernel.plan.program import Program

N, TILE = 4096, 256
TIMEOUT = 0.005


class Plain(Op):
    """y = x + 1, a tile at a time."""

    reads = {"x": (torch.float32, ("N",))}
    writes = {"y": (torch.float32, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x: Any, y: Any) -> Any:
        return [cls._schedule_single(tile_sizes={"N": TILE}, x=x, y=y)]

    @cute.jit
    def compute(self, tile_N, x, y):
        index = tile_N * self.tile_size_N + cute.arch.thread_idx()[0]
        y[index] = x[index] + 1.0


class Streaming(Op):
    """y = 2 x through the ring. Subclasses break one step each."""

    reads = {"x": (torch.float32, ("N",))}
    writes = {"y": (torch.float32, ("N",))}
    tile = ("N",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, page_bytes=4 * TILE)
    copied = TILE  # elements that the stage is said to hold
    loads = waits = forwards = frees = True

    @classmethod
    def schedule(cls, *, x: Any, y: Any) -> Any:
        return [cls._schedule_single(tile_sizes={"N": TILE}, x=x, y=y)]

    @cute.jit
    def load(self, ring, tile_N, x):
        stage = ring.acquire()
        ring.load_span(stage, x, tile_N * self.tile_size_N, self.tile_size_N)
        if cutlass.const_expr(self.copied > TILE):
            ring.load_span(stage, x, tile_N * self.tile_size_N, 0)
        if cutlass.const_expr(self.loads):
            ring.commit(stage)

    @cute.jit
    def compute(self, ring):
        stage = ring.wait()
        if cutlass.const_expr(not self.waits):
            ring.wait()
        thread = cute.arch.thread_idx()[0]
        values = stage.tensor(cutlass.Float32, cute.make_layout(TILE))
        values[thread] = values[thread] * 2.0
        if cutlass.const_expr(self.forwards):
            ring.forward(stage)

    @cute.jit
    def store(self, ring, tile_N, y):
        stage = ring.wait()
        ring.store_span(stage, y, tile_N * self.tile_size_N, self.tile_size_N)
        if cutlass.const_expr(self.frees):
            ring.release(stage)


class NeverCommits(Streaming):
    loads = False


class WaitsTwice(Streaming):
    waits = False


class NeverForwards(Streaming):
    forwards = False


class NeverFrees(Streaming):
    frees = False


class NeverHandsOver(Plain):
    """Takes over what nobody stores."""

    hands_over = True

    @cute.jit
    def compute(self, tile_N, x, y, dependencies):
        dependencies.wait()
        take_tagged = dependencies.take_tagged
        if cute.arch.thread_idx()[0] < 32:
            take_tagged(y.iterator.toint())  # zeros, so there is no tag


def nothing(program: Program) -> None:
    """Leave the program as it is."""


def threshold_too_high(program: Program) -> None:
    program.waits[-1, 1] += 1


def waits_for_what_comes_after_it(program: Program) -> None:
    """The first instruction waits for one that its SM runs later."""
    later = program.rows[signalling(program)[1:], 7]
    own = program.rows[: program.queue_begin[1]]
    wait = next(i for i, (counter, _) in enumerate(program.waits) if counter in later and counter in own[1:, 7])
    program.rows[0, 5:7] = wait, 1


def signal_is_lost(program: Program) -> None:
    program.rows[signalling(program)[0], 7] = -1


def signals_another_counter(program: Program) -> None:
    program.rows[signalling(program)[0], 7] = program.num_counters - 1


def everybody_forgets_to_signal(program: Program) -> None:
    program.rows[:, 7] = -1


def skips_an_instruction(program: Program) -> None:
    """The first SM begins with its second."""
    program.queue_begin[0] += 1


def signalling(program: Program) -> np.ndarray:
    """Rows that signal."""
    return np.flatnonzero(program.rows[:, 7] >= 0)


FAULTS: list[tuple[type[Op], Callable[[Program], None], str]] = [
    (Plain, threshold_too_high, r"the watcher waited .* for signals[\s\S]*op 1[\s\S]*expected at least \d+, seen \d+"),
    (Plain, waits_for_what_comes_after_it, r"the watcher waited .* for signals[\s\S]*op 0"),
    (Plain, signal_is_lost, r"the watcher waited .* for signals[\s\S]*op 1"),
    (Plain, signals_another_counter, r"the watcher waited .* for signals[\s\S]*op 1"),
    (Plain, everybody_forgets_to_signal, r"the watcher waited .* for signals[\s\S]*op 1[\s\S]*seen 0"),
    (Plain, skips_an_instruction, r"the watcher waited .* for signals[\s\S]*op 1"),
    (NeverCommits, nothing, r"(copies into a stage to land|few|copies)[\s\S]*NeverCommits[\s\S]*mbarrier full\["),
    (WaitsTwice, nothing, r"WaitsTwice[\s\S]*mbarrier"),
    (NeverForwards, nothing, r"NeverForwards[\s\S]*mbarrier (out_full|empty|full)\["),
    (NeverFrees, nothing, r"NeverFrees[\s\S]*mbarrier (out_empty|empty)\["),
    (NeverHandsOver, nothing, r"sums that another SM hands over[\s\S]*NeverHandsOver[\s\S]*they are not there"),
]


def chain(first: type[Op], device: str) -> tuple[list[Any], torch.Tensor, torch.Tensor]:
    x = torch.arange(N, dtype=torch.float32).to(device)
    y, z = torch.zeros(N, device=device), torch.zeros(N, device=device)
    return first.schedule(x=x, y=y) + Plain.schedule(x=y, y=z), x, z  # type: ignore[attr-defined]


@pytest.mark.parametrize(("first", "fault", "message"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_and_the_device_goes_on(
    first: type[Op],
    fault: Callable[[Program], None],
    message: str,
    anywhere: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops, _, _ = chain(first, anywhere)
    program_of = Program.of

    def faulty(plan: Any) -> Program:
        program = program_of(plan)
        fault(program)
        return program

    monkeypatch.setattr(Program, "of", faulty)
    kernel = Megakernel(ops, num_sms=4, timeout=TIMEOUT)
    with pytest.raises(HangError, match=message) as caught:
        kernel.run()
    assert f"waited {TIMEOUT} s" in str(caught.value)
    assert "SM " in str(caught.value)
    monkeypatch.undo()

    ops, x, z = chain(Plain, anywhere)
    kernel = Megakernel(ops, num_sms=4, timeout=TIMEOUT)
    kernel.run()
    assert torch.equal(z, x + 2)


def test_a_stopped_kernel_says_so_each_time(anywhere: str) -> None:
    ops, _, _ = chain(NeverCommits, anywhere)
    kernel = Megakernel(ops, num_sms=4, timeout=TIMEOUT)
    for _ in range(2):
        with pytest.raises(HangError, match="NeverCommits"):
            kernel.run()
    kernel.check()  # what was reported has been raised


def test_a_long_queue_ends_as_fast(anywhere: str) -> None:
    """After an alarm nothing of the queue is run but what was published, here 3 of 2000 instructions."""
    x, y = torch.zeros(N, device=anywhere), torch.zeros(N, device=anywhere)
    ops = NeverCommits.schedule(x=x, y=y)
    for _ in range(1000):
        ops += Plain.schedule(x=y, y=x) + Plain.schedule(x=x, y=y)
    kernel = Megakernel(ops, num_sms=2, timeout=TIMEOUT)
    with pytest.raises(HangError, match="NeverCommits"):
        kernel.run()
    assert x.abs().max() < 10


def test_sms_that_wait_for_each_other_run_together(anywhere: str) -> None:
    with pytest.raises(PlanError, match="SMs on one another"):
        Megakernel(
            NeverHandsOver.schedule(x=torch.zeros(N, device=anywhere), y=torch.zeros(N, device=anywhere)),
            programmatic=True,
        )


def test_the_reasons_of_host_and_device_are_the_same() -> None:
    from machete.megakernel.device.waiting import PASSIVE
    from machete.megakernel.device.waiting import REASONS as NAMES

    assert [1 + NAMES.index(name) for name in NAMES if name not in PASSIVE] == list(REASONS)
    assert NAMES[COUNTER - 1] == "counter"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True, 1e9])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    ops, _, _ = chain(Plain, "cpu")
    with pytest.raises(PlanError, match="timeout"):
        Megakernel(ops, timeout=timeout)
