"""An op that decides itself when to wait for its dependencies, and what the kernel makes of that."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import pytest
import torch

from machete.megakernel import Megakernel, Op

COUNT = 512


class Increment(Op):
    """y = x + 1 for whole tiles of 128, after a wait that every thread comes to."""

    reads = {"x": (torch.float32, ("N",))}
    writes = {"y": (torch.float32, ("N",))}
    tile = ("N",)
    scalars = {"factor": torch.float32}

    @classmethod
    def schedule(cls, *, x, y, factor=1.0):
        return [cls._schedule_single(tile_sizes={"N": 128}, x=x, y=y, factor=factor)]

    @cute.jit
    def compute(self, tiles, dependencies, x, y, factor):
        dependencies.wait()
        for number in cutlass.range(tiles.count, unroll=1):
            self._tile(tiles.index(number, "N"), x, y)

    @cute.jit
    def _tile(self, tile, x, y):
        thread = cute.arch.thread_idx()[0]
        if thread < 128:
            y[tile * 128 + thread] = x[tile * 128 + thread] + 1.0


class MayWait(Increment):
    """The same where factor is positive; else it does nothing, and does not wait."""

    @cute.jit
    def compute(self, tiles, dependencies, x, y, factor):
        wait = dependencies.wait
        if factor > 0:
            wait()
            for number in cutlass.range(tiles.count, unroll=1):
                self._tile(tiles.index(number, "N"), x, y)


def run(kind: type[Increment], factor: float, arch: str, device: str) -> list[torch.Tensor]:
    """x -> y -> z, and then z -> x by an op that waits for z alone."""
    x, y, z = (torch.arange(COUNT, dtype=torch.float32, device=device) for _ in range(3))
    ops = Increment.schedule(x=x, y=y) + kind.schedule(x=y, y=z, factor=factor)
    ops += Increment.schedule(x=z, y=x)
    Megakernel(ops, arch=arch if device == "cpu" else None, num_sms=3).run()
    return [x, y, z]


@pytest.mark.parametrize("kind", [Increment, MayWait])
@pytest.mark.parametrize("factor", [1.0, -1.0])
def test_what_an_op_signals_vouches_for_what_it_depends_on(
    kind: type[Increment], factor: float, arch: str, device: str
) -> None:
    """The last op overwrites what the first one reads, and knows only that the one in between is done."""
    start = torch.arange(COUNT, dtype=torch.float32, device=device)
    x, y, z = run(kind, factor, arch, device)
    assert torch.equal(y, start + 1)
    assert torch.equal(z, start + 2 if kind is Increment or factor > 0 else start)
    assert torch.equal(x, z + 1)
