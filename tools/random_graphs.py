"""Random graphs of small ops in one kernel, compared bit for bit with running the ops one after another in torch.

    python tools/random_graphs.py --count 10000                 # on the simulator, for every target in turn
    python tools/random_graphs.py --count 500 --device cuda     # on the card

Streaming, scratch-page and compute-only ops are mixed, over views of shared buffers; where there is tensor memory,
products, too. Every graph begins with an empty op of each kind, so all graphs of a target share one compiled kernel
and only the plan differs.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from machete.megakernel import Megakernel, ScheduledOp
from small_ops import Accumulate, ReverseTiles, RowSum, Scale, Spread, StreamAdd, StreamTotal, TensorProduct

ROWS, COLUMNS = 24, 40
LENGTH = ROWS * COLUMNS  # elements of a buffer
BUFFERS = 6
WIDTH = 16  # of the result of a product
ALIGNED = 4  # elements in 16 bytes: where bulk copies may begin


@dataclass(frozen=True)
class Step:
    """One op of a graph: its kind, its views as (buffer, first element, elements), and its scalar."""

    kind: str
    views: tuple[tuple[int, int, int], ...]
    factor: int


def draw(generator: random.Random, arch: str | None, most: int = 9) -> list[Step]:
    """A graph of 1 to `most` ops."""
    return [_step(generator, kinds_of(arch)) for _ in range(generator.randint(1, most))]


def _span(generator: random.Random, buffer: int, length: int) -> tuple[int, int, int]:
    return buffer, ALIGNED * generator.randint(0, (LENGTH - length) // ALIGNED), length


def _step(generator: random.Random, kinds: list[str]) -> Step:
    kind = generator.choice(kinds)
    # Inputs and outputs of one op lie in different buffers: an op may not overwrite what another of its tiles reads.
    buffers = generator.sample(range(BUFFERS), 3)
    if kind in ("row sum", "spread"):
        rows = ALIGNED * generator.randint(1, ROWS // ALIGNED)
        lengths = [rows * COLUMNS, rows, COLUMNS]
    elif kind == "product":
        rows = generator.randint(1, ROWS)
        lengths = [rows * COLUMNS, rows * WIDTH, 1]
    elif kind == "total":
        lengths = [generator.randint(1, LENGTH), 1, 1]
    else:
        lengths = [generator.randint(1, LENGTH)] * 3
    views = tuple(_span(generator, buffer, length) for buffer, length in zip(buffers, lengths, strict=True))
    return Step(kind, views, generator.randint(-3, 3))


def _matrix(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, COLUMNS)


def _reversed(x: torch.Tensor) -> torch.Tensor:
    whole = len(x) // 64 * 64
    return torch.cat([x[:whole].view(-1, 64).flip(1).reshape(-1), x[whole:]])


@functools.cache
def _chosen(device: torch.device) -> torch.Tensor:
    """What products multiply by: each result adds up a few neighbours."""
    place = torch.arange(COLUMNS)[None] - 2 * torch.arange(WIDTH)[:, None]
    return ((place >= 0) & (place < 5)).float().to(device)


def _shortened(x: torch.Tensor) -> torch.Tensor:
    """float32 as tensor cores take it for tf32: 10 bits of the fraction."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


Make = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], list[ScheduledOp]]
Act = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], object]
KINDS: dict[str, tuple[Make, Act]] = {
    "scale": (
        lambda x, y, z, f: Scale.schedule(x=x, y=y, factor=float(f), tile_n=96),
        lambda x, y, z, f: y.copy_(x * f),
    ),
    "accumulate": (lambda x, y, z, f: Accumulate.schedule(x=x, y=y), lambda x, y, z, f: y.add_(x)),
    "row sum": (
        lambda x, y, z, f: RowSum.schedule(x=_matrix(x), s=y, tile_m=8),
        lambda x, y, z, f: y.copy_(_matrix(x).sum(1)),
    ),
    "spread": (
        lambda x, y, z, f: Spread.schedule(x=y, y0=z, y=_matrix(x)),
        lambda x, y, z, f: x.copy_((y[:, None] + z).reshape(-1)),
    ),
    "stream": (lambda x, y, z, f: StreamAdd.schedule(x=x, y=z, z=y), lambda x, y, z, f: y.copy_(x + z)),
    "total": (lambda x, y, z, f: StreamTotal.schedule(x=x, s=y), lambda x, y, z, f: y.copy_(x.sum())),
    "product": (
        lambda x, y, z, f: TensorProduct.schedule(a=_matrix(x), b=_chosen(x.device), c=y.view(-1, WIDTH)),
        lambda x, y, z, f: y.copy_((_shortened(_matrix(x)).double() @ _chosen(x.device).double().T).reshape(-1)),
    ),
    "reverse": (lambda x, y, z, f: ReverseTiles.schedule(x=x, y=y), lambda x, y, z, f: y.copy_(_reversed(x))),
}


def kinds_of(arch: str | None) -> list[str]:
    """Kinds of ops that a target runs; None for that of the card, an H200."""
    return [kind for kind in sorted(KINDS) if kind != "product" or arch == "sm_100a"]


def _first(device: str, arch: str | None) -> list[ScheduledOp]:
    """An op of every kind that does nothing: it reads and writes no elements."""
    ops: list[ScheduledOp] = []
    for kind in kinds_of(arch):
        empty = torch.empty(0, device=device)
        one = torch.zeros(1, device=device)
        if kind == "total":
            # Its one tile cannot be empty; it adds up no elements into a tensor of its own.
            ops += StreamTotal.schedule(x=empty, s=one)
        elif kind == "spread":
            ops += Spread.schedule(x=empty, y0=torch.empty(COLUMNS, device=device), y=_matrix(empty))
        else:
            ops += KINDS[kind][0](empty, empty, empty, 1)
    return ops


def check(steps: list[Step], seed: int, device: str, arch: str | None, num_sms: int) -> Megakernel:
    """Run a graph both ways on random integers; an AssertionError says which buffer differs."""
    torch.manual_seed(seed)
    buffers = [torch.randint(-4, 5, (LENGTH,)).to(device=device, dtype=torch.float32) for _ in range(BUFFERS)]
    expected = [buffer.clone() for buffer in buffers]
    ops = _first(device, arch)
    for step in steps:
        make, act = KINDS[step.kind]
        x, y, z = (buffers[b][first : first + n] for b, first, n in step.views)
        ops += make(x, y, z, step.factor)
        x, y, z = (expected[b][first : first + n] for b, first, n in step.views)
        act(x, y, z, step.factor)
    kernel = Megakernel(ops, arch=arch, num_sms=num_sms, seed=seed)
    kernel.run()
    for number, (got, want) in enumerate(zip(buffers, expected, strict=True)):
        assert torch.equal(got, want), f"buffer {number} differs, seed {seed}: {steps}"
    return kernel


def main(
    count: Annotated[int, typer.Option(help="Graphs to run.")] = 100,
    device: Annotated[str, typer.Option(help="cpu for the simulator, or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Of the first graph.")] = 0,
) -> None:
    """Run random graphs; stops at the first that differs."""
    arches = ["sm_90a", "sm_100a", "sm_120a"] if device == "cpu" else [None]
    started, ops = time.perf_counter(), 0
    with Progress() as progress:
        task = progress.add_task("random graphs", total=count)
        for number in range(seed, seed + count):
            generator = random.Random(number)
            arch = arches[number % len(arches)]
            steps = draw(generator, arch)
            num_sms = generator.choice([1, 2, 3, 5, 8, 20] if device == "cpu" else [1, 7, 66, 132])
            check(steps, number, device, arch, num_sms)
            ops += len(steps)
            progress.advance(task)
    seconds = time.perf_counter() - started
    Console().print(f"{count} graphs, {ops} ops on {device}: all equal torch, {seconds:.0f} s")


if __name__ == "__main__":
    typer.run(main)
