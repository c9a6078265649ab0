"""Whether `GemmOp` computes the same bits again and again, on one GPU.

    python benchmarks/determinism.py [--shape M,N,K …] [--launches N]

For each product: four sets of random bfloat16 operands, larger than the L2 cache together, and for each set a kernel.
Its first result is compared to float32, and what later launches compute to the first one, bit by bit. They run one
by one, back to back, in a CUDA graph, and as kernels that were just made; c is NaN before each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
import typer

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel

SHAPES = [(16, 8192, 4096), (16, 4096, 14336), (1, 4096, 4096), (64, 2048, 4096), (64, 8192, 4096), (256, 6144, 4096)]
SETS = 4
MOST_ERROR = 4e-3  # of bfloat16 results, relative
NEW_KERNELS = 20  # of them, one round


@dataclass
class Product:
    """Operands, and a kernel that multiplies them."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    kernel: Megakernel
    expected: torch.Tensor  # the first result
    error: float  # of that

    @classmethod
    def random(cls, m: int, n: int, k: int) -> Product:
        """One set; its first result is what others are compared to."""
        a, b = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
        c = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        kernel = Megakernel(GemmOp.schedule(a=a, b=b, c=c))
        kernel.run()
        reference = a.float() @ b.float().T
        error = ((c.float() - reference).norm() / reference.norm()).item()
        return cls(a, b, c, kernel, c.clone(), error)

    def new_kernel(self) -> Megakernel:
        """Another kernel for the same operands."""
        return Megakernel(GemmOp.schedule(a=self.a, b=self.b, c=self.c))


def differing(products: list[Product], launch: Callable[[], object], rounds: int) -> tuple[int, set[int]]:
    """How many elements differ after all launches together, and in which columns in the end."""
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    columns: set[int] = set()
    for number in range(rounds):
        for product in products:
            product.c.fill_(float("nan"))
        launch()
        for product in products:
            count += (product.c != product.expected).sum()
        if number == rounds - 1 or number % 100 == 99:
            for product in products:
                columns.update((product.c != product.expected).any(0).nonzero()[:, 0].tolist())
    return int(count), columns


def main(
    shape: Annotated[list[str] | None, typer.Option(help="M,N,K; may be given several times.")] = None,
    launches: Annotated[int, typer.Option(help="Of each set, in each way to launch.")] = 1500,
) -> None:
    """Exit status 1 if anything differs, or a first result is wrong."""
    torch.manual_seed(0)
    shapes = [tuple(int(number) for number in text.split(",")) for text in shape or []] or SHAPES
    failed = False
    for m, n, k in shapes:
        products = [Product.random(m, n, k) for _ in range(SETS)]
        typer.echo(f"{m} {n} {k}, {products[0].kernel.plan.kinds[0].name.rpartition('.')[2]}")
        for product in products:
            if not product.error < MOST_ERROR:
                typer.echo(f"  the first result is wrong: error {product.error:.1e}")
                failed = True
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for product in products:
                product.kernel.run(sync=False)

        def synchronised(products: list[Product] = products) -> None:
            for product in products:
                product.kernel.run()

        def back_to_back(products: list[Product] = products) -> None:
            for product in products:
                product.kernel.run(sync=False)

        def new(products: list[Product] = products) -> None:
            for product in products:
                product.new_kernel().run(sync=False)

        ways = [("one by one", synchronised, launches), ("back to back", back_to_back, launches)]
        ways += [("in a graph", graph.replay, launches), ("new kernels", new, NEW_KERNELS)]
        for name, launch, rounds in ways:
            count, columns = differing(products, launch, rounds)
            failed |= count > 0
            typer.echo(f"  {name}: {rounds * SETS} launches, {count} elements differ {sorted(columns)[:20] or ''}")
    raise typer.Exit(int(failed))


if __name__ == "__main__":
    typer.run(main)
