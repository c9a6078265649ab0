"""Graphs with a known ailment, and delays that can be planted in them: what a trace has to diagnose.

Every delay is data, ns for each tile, so a kernel is compiled once and run well and ill. A delay is waited for by the
global timer, which the simulator has as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cutlass.cute as cute
import torch
from cutlass import Int64

from machete.megakernel import Op, PipelineSpec, ScheduledOp

ELEMENTS = 256  # of a tile


@cute.jit
def spin(nanoseconds):
    """Do nothing for so long (Int32)."""
    begin = cute.arch.globaltimer()
    now = begin
    while now - begin < Int64(nanoseconds):
        now = cute.arch.globaltimer()


class Work(Op):
    """y = x + 1, after a delay of every tile."""

    reads = {"x": (torch.float32, ("T", "E")), "delay": (torch.int32, ("T",))}
    writes = {"y": (torch.float32, ("T", "E"))}
    tile = ("T",)

    @classmethod
    def schedule(cls, *, x, y, delay):
        return [cls._schedule_single(tile_sizes={"T": 1}, x=x, y=y, delay=delay)]

    @cute.jit
    def compute(self, tile_T, x, y, delay):
        spin(delay[tile_T])
        thread = cute.arch.thread_idx()[0]
        y[tile_T, thread] = x[tile_T, thread] + 1


class UnevenWarps(Work):
    """The same, but the first warp has no delay: it waits for the others."""

    @cute.jit
    def compute(self, tile_T, x, y, delay):
        thread = cute.arch.thread_idx()[0]
        if thread >= 32:
            spin(delay[tile_T])
        y[tile_T, thread] = x[tile_T, thread] + 1


class Gather(Op):
    """z = the first row of y plus its last, for every tile: each tile depends on all of y."""

    reads = {"y": (torch.float32, ("T", "E")), "delay": (torch.int32, ("Q",))}
    writes = {"z": (torch.float32, ("Q", "E"))}
    tile = ("Q",)

    @classmethod
    def schedule(cls, *, y, z, delay):
        return [cls._schedule_single(tile_sizes={"Q": 1}, y=y, z=z, delay=delay)]

    @cute.jit
    def compute(self, tile_Q, y, z, delay):
        spin(delay[tile_Q])
        thread = cute.arch.thread_idx()[0]
        z[tile_Q, thread] = y[0, thread] + y[self.T - 1, thread]


class Stream(Op):
    """y = x through the ring, with delays in `load` and in `store`."""

    reads = {
        "x": (torch.float32, ("T", "E")),
        "load_delay": (torch.int32, ("T",)),
        "store_delay": (torch.int32, ("T",)),
    }
    writes = {"y": (torch.float32, ("T", "E"))}
    tile = ("T",)
    pipeline = PipelineSpec.streaming(input_stages=2, output_stages=2, stage_pages=1, page_bytes=1024)

    @classmethod
    def schedule(cls, *, x, y, load_delay, store_delay):
        return [cls._schedule_single(tile_sizes={"T": 1}, x=x, y=y, load_delay=load_delay, store_delay=store_delay)]

    @cute.jit
    def load(self, ring, tile_T, x, load_delay):
        stage = ring.acquire()
        spin(load_delay[tile_T])
        ring.load_span(stage, x[tile_T, None], 0, self.E)
        ring.commit(stage)

    @cute.jit
    def compute(self, ring):
        ring.forward(ring.wait())

    @cute.jit
    def store(self, ring, tile_T, y, store_delay):
        stage = ring.wait()
        spin(store_delay[tile_T])
        ring.store_span(stage, y[tile_T, None], 0, self.E)
        ring.release(stage)


@dataclass(frozen=True)
class Ailment:
    """A graph, and what a delay of `planted_ns` in it has to do to the report.

    Attributes:
        ops: what to run.
        delays: int32, ns, all of them 0 or the same; and the tile that gets the planted one.
        tile: its index.
        expected: category to how many SMs lose the planted delay to it.
        says: the category of the report's first saving.
        planted_is_ill: the delay is what it says so for; without, the graph is ill as it is, and the delay, if it is
            long, shifts the blame to the SM that has it.
        result, reference: a tensor that the graph writes, and what it has to hold.
    """

    ops: list[ScheduledOp]
    delays: torch.Tensor
    tile: int
    expected: dict[str, int]
    says: str
    planted_is_ill: bool
    result: torch.Tensor
    reference: torch.Tensor


def _rows(tiles: int, device: str) -> torch.Tensor:
    return torch.arange(tiles * ELEMENTS, dtype=torch.float32).reshape(tiles, ELEMENTS).to(device)


def _delay(tiles: int, device: str, nanoseconds: int = 0) -> torch.Tensor:
    return torch.full((tiles,), nanoseconds, dtype=torch.int32, device=device)


def unbalanced(device: str, num_sms: int) -> Ailment:
    """One tile of many takes long, and everybody needs its result."""
    tiles = 4 * num_sms
    x, y, z = _rows(tiles, device), *(torch.zeros(n, ELEMENTS, device=device) for n in (tiles, num_sms))
    delays = _delay(tiles, device, 1000)
    ops = Work.schedule(x=x, y=y, delay=delays) + Gather.schedule(y=y, z=z, delay=_delay(num_sms, device))
    reference = (x[0] + x[-1] + 2).expand(num_sms, ELEMENTS)
    # The last tile of its SM, which has to wait for nobody.
    return Ailment(ops, delays, tiles - 1, {"math": 1, "imbalance": num_sms - 1}, "imbalance", True, z, reference)


def serial(device: str, num_sms: int) -> Ailment:
    """All SMs wait for one tile, which only one of them can run."""
    x, y, z = _rows(1, device), *(torch.zeros(n, ELEMENTS, device=device) for n in (1, num_sms))
    delays = _delay(1, device)
    ops = Work.schedule(x=x, y=y, delay=delays) + Gather.schedule(y=y, z=z, delay=_delay(num_sms, device))
    reference = (2 * x[0] + 2).expand(num_sms, ELEMENTS)
    return Ailment(ops, delays, 0, {"math": 1, "dependency": num_sms - 1}, "dependency", True, z, reference)


def starved(device: str, num_sms: int) -> Ailment:
    """Results stay in the ring, so that no page is free for what comes next."""
    tiles = 12 * num_sms
    x, y = _rows(tiles, device), torch.zeros(tiles, ELEMENTS, device=device)
    delays = _delay(tiles, device, 2000)
    ops = Stream.schedule(x=x, y=y, load_delay=_delay(tiles, device), store_delay=delays)
    # In the middle of the queue of its SM; the others are done before it, and wait at the end.
    return Ailment(ops, delays, 5 * num_sms, {"page": 1, "imbalance": num_sms - 1}, "page", False, y, x)


def slow_copies(device: str, num_sms: int) -> Ailment:
    """Copies come late."""
    tiles = 12 * num_sms
    x, y = _rows(tiles, device), torch.zeros(tiles, ELEMENTS, device=device)
    delays = _delay(tiles, device, 2000)
    ops = Stream.schedule(x=x, y=y, load_delay=delays, store_delay=_delay(tiles, device))
    return Ailment(ops, delays, 5 * num_sms, {"streaming": 1, "imbalance": num_sms - 1}, "streaming", False, y, x)


def uneven_warps(device: str, num_sms: int) -> Ailment:
    """One warp waits for the others of its SM, at the end of every instruction."""
    tiles = num_sms
    x, y, z = _rows(tiles, device), *(torch.zeros(n, ELEMENTS, device=device) for n in (tiles, num_sms))
    delays = _delay(tiles, device, 1000)
    ops = UnevenWarps.schedule(x=x, y=y, delay=delays) + Gather.schedule(y=y, z=z, delay=_delay(num_sms, device))
    reference = (x[0] + x[-1] + 2).expand(num_sms, ELEMENTS)
    return Ailment(ops, delays, tiles - 1, {"barrier": 1, "imbalance": num_sms - 1}, "imbalance", True, z, reference)


AILMENTS: dict[str, Callable[[str, int], Ailment]] = {
    "unbalanced": unbalanced,
    "serial": serial,
    "starved": starved,
    "slow copies": slow_copies,
    "uneven warps": uneven_warps,
}


@dataclass(frozen=True)
class Misjudged:
    """A graph whose tiles cost something else than the plan's cost model expects.

    Attributes:
        ops: what to run.
        result, reference: a tensor that the graph writes, and what it has to hold.
    """

    ops: list[ScheduledOp]
    result: torch.Tensor
    reference: torch.Tensor


class LongWork(Work):
    """Another kind, whose tiles take long, though they move no more bytes."""


def misjudged(device: str, num_sms: int) -> Misjudged:
    """A few long tiles, whose length the cost model cannot know, beside many short ones that do not depend on them.

    Without measured times each SM gets its even share of the short tiles, the SMs with a long one too.
    """
    long, short = num_sms // 2, 10 * num_sms
    a, b = _rows(long, device), _rows(short, device)
    x, y = torch.zeros_like(a), torch.zeros_like(b)
    ops = LongWork.schedule(x=a, y=x, delay=_delay(long, device, 20_000))
    ops += Work.schedule(x=b, y=y, delay=_delay(short, device, 2_000))
    return Misjudged(ops, y, b + 1)
