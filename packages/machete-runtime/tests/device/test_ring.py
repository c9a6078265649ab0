"""The page ring where it is easy to get wrong: mixed stage sizes under a throttle, two stages for one, long spans."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import pytest
import torch

from machete.megakernel import Megakernel, Op, PipelineSpec, ScheduledOp, Throttle

ELEMENTS = 256  # of a page of 1024 bytes


class Copy(Op, abstract=True):
    """y = x, a page of data in every stage whatever its size."""

    reads = {"x": (torch.float32, ("N",))}
    writes = {"y": (torch.float32, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x, y):
        return [cls._schedule_single(tile_sizes={"N": ELEMENTS}, x=x, y=y)]

    @cute.jit
    def load(self, ring, tile_N, x):
        first = tile_N * self.tile_size_N
        stage = ring.acquire()
        ring.load_span(stage, x, first, cutlass.min(self.tile_size_N, self.N - first))
        ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_N):
        ring.forward(ring.wait())

    @cute.jit
    def store(self, ring, tile_N, y):
        first = tile_N * self.tile_size_N
        stage = ring.wait()
        ring.store_span(stage, y, first, cutlass.min(self.tile_size_N, self.N - first))
        ring.release(stage)


class OnePage(Copy):
    pipeline = PipelineSpec.streaming(input_stages=4, output_stages=2, stage_pages=1, page_bytes=1024)


class TwoPages(Copy):
    pipeline = PipelineSpec.streaming(input_stages=2, output_stages=2, stage_pages=2, page_bytes=1024)


class Throttled(Copy):
    throttled = True
    pipeline = PipelineSpec.streaming(input_stages=4, output_stages=2, stage_pages=1, page_bytes=1024)


class Pairs(Op):
    """y[tile] = x[2 tile] + x[2 tile + 1]: two input stages for each stage that is stored."""

    reads = {"x": (torch.float32, ("P", "N"))}
    writes = {"y": (torch.float32, ("T", "N"))}
    tile = ("T",)
    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=3, page_bytes=1024)

    @classmethod
    def schedule(cls, *, x, y):
        return [cls._schedule_single(tile_sizes={"T": 1}, x=x, y=y)]

    @cute.jit
    def load(self, ring, tile_T, x):
        for half in cutlass.range_constexpr(2):
            stage = ring.acquire()
            ring.load_span(stage, x[2 * tile_T + half, None], 0, ELEMENTS)
            ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_T):
        first, second = ring.wait(), ring.wait()
        sA = first.tensor(cutlass.Float32, cute.make_layout(ELEMENTS))
        sB = second.tensor(cutlass.Float32, cute.make_layout(ELEMENTS))
        for i in cutlass.range(cute.arch.thread_idx()[0], ELEMENTS, self.threads_per_row):
            sA[i] = sA[i] + sB[i]
        ring.forward(first)
        ring.release(second)

    @cute.jit
    def store(self, ring, tile_T, y):
        stage = ring.wait()
        ring.store_span(stage, y[tile_T, None], 0, ELEMENTS)
        ring.release(stage)


class TooLong(Copy):
    """Copies two pages into stages of one."""

    pipeline = PipelineSpec.streaming(input_stages=3, output_stages=2, stage_pages=1, page_bytes=1024)

    @classmethod
    def schedule(cls, *, x, y):
        return [cls._schedule_single(tile_sizes={"N": 2 * ELEMENTS}, x=x, y=y)]


def run(ops: list[ScheduledOp], arch: str, device: str, **options: object) -> None:
    Megakernel(ops, arch=arch if device == "cpu" else None, **options).run()  # type: ignore[arg-type]


def values(*shape: int, device: str) -> torch.Tensor:
    return torch.randint(-9, 9, shape).to(device=device, dtype=torch.float32)


@pytest.mark.parametrize("tiles", [1, 4, 5, 7])
@pytest.mark.parametrize("num_sms", [1, 3])
def test_mixed_stages_under_a_throttle(arch: str, device: str, tiles: int, num_sms: int) -> None:
    """Pages that are skipped to align a larger stage count as in flight, too: never more than the ring holds."""
    x = values(tiles * ELEMENTS - 3, device=device)
    outputs = [torch.full_like(x, float("nan")) for _ in range(5)]
    throttle = Throttle(first=2048, ramp=4096, steady=1 << 20)
    kinds = (OnePage, TwoPages, Throttled, TwoPages, OnePage)
    ops = [op for kind, y in zip(kinds, outputs, strict=True) for op in kind.schedule(x=x, y=y)]
    run(ops, arch, device, num_sms=num_sms, throttle=throttle)
    assert all(torch.equal(y, x) for y in outputs)


@pytest.mark.parametrize("tiles", [1, 2, 9])
def test_two_input_stages_for_one_output(arch: str, device: str, tiles: int) -> None:
    x, y = values(2 * tiles, ELEMENTS, device=device), torch.full((tiles, ELEMENTS), float("nan"), device=device)
    run(Pairs.schedule(x=x, y=y), arch, device, num_sms=1)
    assert torch.equal(y, x[::2] + x[1::2])


def test_a_span_that_does_not_fit_its_stage(arch: str) -> None:
    pytest.importorskip("machete.sim", reason="on the card the kernel would trap, and take the CUDA context with it")
    x = values(10 * ELEMENTS, device="cpu")
    with pytest.raises(Exception, match="do not fit a stage of 1024 bytes"):
        run(TooLong.schedule(x=x, y=torch.empty_like(x)), arch, "cpu")
