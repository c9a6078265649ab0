"""What a product of many rows waits for on sm_90a: its kernel without copies, without products, without both.

    python benchmarks/gemm_parts.py [--shape M,N,K,TILE_N …] [--rounds N]

µs of one launch in a CUDA graph that rotates over operand sets larger than the L2 cache. What is left out is left out
of the op: barriers, the ring and the result, then worthless, stay. A time that hardly falls when something is left out
is that of something else. Without a GPU the script compiles the variants, and that is all.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer
from gemm import MOST_SETS, ROTATED_BYTES, microseconds, rotating
from rich.console import Console
from rich.table import Table

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel, ScheduledOp, Target

SHAPES = [
    (512, 4096, 4096, 128),
    (256, 6144, 4096, 96),
    (128, 8192, 4096, 64),
    (64, 8192, 4096, 64),
    (64, 5120, 2048, 48),
]

#: What is left of a kernel: methods that do nothing.
PARTS: dict[str, tuple[str, ...]] = {
    "all": (),
    "no copies": ("_load_rows",),
    "no products": ("_multiply",),
    "neither": ("_load_rows", "_multiply"),
}


def without(op: ScheduledOp, methods: tuple[str, ...]) -> ScheduledOp:
    """The op as sm_90a runs it, without what these methods do."""
    lowered = op.op.lower(Target.named("sm_90a"), op)
    body: dict[str, Any] = {name: lambda self, *arguments: None for name in methods}
    body["lower"] = classmethod(lambda cls, target, op: op)
    return replace(lowered, op=type("Without".join([lowered.op.__name__, *methods]), (lowered.op,), body))


def kernel(m: int, n: int, k: int, tile_n: int, methods: tuple[str, ...], device: str) -> Megakernel:
    """One product of random bfloat16."""
    a, b = (torch.randn(rows, k, device=device).bfloat16() for rows in (m, n))
    c = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    (op,) = GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n, slices=1)
    return Megakernel([without(op, methods)], arch="sm_90a")


def main(
    shape: Annotated[list[str] | None, typer.Option(help="M,N,K,TILE_N; may be given several times.")] = None,
    rounds: int = 15,
) -> None:
    """A row for each shape, a column for each part."""
    os.environ["MACHETE_CACHE"] = "off"  # kernels that nobody else has a use for
    torch.manual_seed(0)
    console = Console(width=120)
    shapes = [tuple(int(number) for number in text.split(",")) for text in shape or []] or SHAPES
    if not torch.cuda.is_available():
        for methods in PARTS.values():
            kernel(64, 128, 256, 64, methods, "cpu").compile()
        console.print("no GPU: compiled, not timed")
        return
    table = Table("m, n, k", "tile_n", *PARTS)
    for m, n, k, tile_n in shapes:
        sets = max(2, min(MOST_SETS, ROTATED_BYTES // (2 * n * k)))
        graphs = {}
        for name, methods in PARTS.items():
            kernels = [kernel(m, n, k, tile_n, methods, "cuda") for _ in range(sets)]
            graphs[name] = (rotating([lambda made=made: made.run(sync=False) for made in kernels]), kernels)
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            for name, (graph, _) in graphs.items():
                samples[name].append(microseconds(graph) / sets)
        table.add_row(f"{m}, {n}, {k}", str(tile_n), *(f"{statistics.median(times):.1f}" for times in samples.values()))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
