"""Three lowerings of the same ops, measured by `machete.megakernel.compare`: MLP layers, and one large product.

    python benchmarks/lowerings.py [--layers 16]

On one GPU, bfloat16, random data. See docs/lowerings.md for what the lowerings are and how they are timed.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from machete.kernels.elementwise import AddOp
from machete.kernels.gemm import GemmOp
from machete.kernels.glu import GluOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import compare, temporary

BF16 = torch.bfloat16


def mlp(layers: int, batch: int, D: int, F: int, device: str) -> list[Any]:
    """x += down(silu(gate(norm x)) up(norm x)), for each layer with weights of its own."""
    x = torch.randn(batch, D, device=device).to(BF16)
    normed, out = (temporary((batch, D), BF16, device) for _ in range(2))
    both, gated = temporary((batch, 2 * F), BF16, device), temporary((batch, F), BF16, device)
    ops: list[Any] = []
    for _ in range(layers):
        weight = torch.ones(D, device=device).to(BF16)
        gate_up = (torch.randn(2 * F, D, device=device) / D**0.5).to(BF16)
        down = (torch.randn(D, F, device=device) / F**0.5).to(BF16)
        ops += RMSNormOp.schedule(x=x, weight=weight, y=normed)
        ops += GemmOp.schedule(a=normed, b=gate_up, c=both)
        ops += GluOp.schedule(gate=both[:, :F], up=both[:, F:], y=gated)
        ops += GemmOp.schedule(a=gated, b=down, c=out)
        ops += AddOp.schedule(a=x, b=out, y=x)
    return ops


def product(m: int, n: int, k: int, device: str) -> list[Any]:
    """c = a @ b.T, one op: nothing to fuse."""
    a, b = torch.randn(m, k, device=device).to(BF16), torch.randn(n, k, device=device).to(BF16)
    return list(GemmOp.schedule(a=a, b=b, c=torch.empty(m, n, device=device, dtype=BF16)))


def main(layers: Annotated[int, typer.Option(help="Layers of the chains.")] = 16) -> None:
    """Print the comparison of each workload."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    D, F, size = (2048, 8192, 4096) if device == "cuda" else (256, 512, 256)
    console = Console(width=120)
    torch.manual_seed(0)
    for name, ops in (
        (f"{layers} MLP layers, D {D}, F {F}, batch 1", mlp(layers, 1, D, F, device)),
        (f"{layers} MLP layers, D {D}, F {F}, batch 16", mlp(layers, 16, D, F, device)),
        (f"GEMM {size} x {size} x {size}", product(size, size, size, device)),
    ):
        comparison = compare(ops)
        console.print(f"[bold]{name}[/bold]")
        console.print(comparison.table())
        console.print(comparison.verdict, end="\n\n")


if __name__ == "__main__":
    typer.run(main)
