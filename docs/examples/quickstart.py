"""The README's GEMM as a megakernel: on the GPU if there is one, else on the simulator.

Run it with `python -m nox -s quickstart`; options after `--`: `--arch sm_100a` picks the simulated target.
"""

from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel


def main(
    arch: Annotated[str | None, typer.Option(help="Simulated target: sm_90a, sm_100a or sm_120a.")] = None,
    m: int = 16,
    n: int = 1024,
    k: int = 1024,
) -> None:
    """c = a @ b.T in bfloat16, checked against a float32 reference."""
    console = Console()
    device = "cuda" if torch.cuda.is_available() and arch is None else "cpu"
    torch.manual_seed(0)
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    y = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)

    kernel = Megakernel(GemmOp.schedule(a=x, b=w, c=y), arch=arch)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"compiling for {kernel.target.name}")
        artefact = kernel.compile()
        doing = "simulating" if kernel.simulated else "running"
        progress.update(task, description=doing)

        def show(instructions: int, finished: int) -> None:
            done = f"{instructions / 1e6:.1f} M warp instructions, {finished} of {kernel.plan.num_sms} SMs done"
            progress.update(task, description=f"{doing}: {done}")

        report = kernel.run(progress=show)
        times = [report.seconds]
        if not kernel.simulated:
            times = [kernel.run().seconds for _ in range(20)]

    reference = x.float() @ w.float().T
    error = ((y.float() - reference).norm() / reference.norm()).item()
    tiles = np.asarray(kernel.plan.tiles_per_sm)
    busy = int((tiles > 0).sum())

    table = Table(title=f"c = a @ b.T   ({m} x {k}) x ({n} x {k}), bfloat16", show_header=False)
    ran = f"{report.where}, {torch.cuda.get_device_name()}" if device == "cuda" else "the simulator (no GPU used)"
    table.add_row("ran on", ran)
    table.add_row("target", report.target)
    table.add_row("ops", ", ".join(kernel.plan.kinds[kind].name.rpartition(".")[2] for kind in kernel.plan.kind_of_op))
    table.add_row("tiles per SM", f"{tiles.max()} on {busy} of {len(tiles)} SMs, {tiles.sum()} in all")
    table.add_row("error", f"{error:.2e} relative to float32")
    found = ", then; now found in the kernel cache" if artefact.cached else ""
    table.add_row("compiled in", f"{artefact.compile_seconds:.2f} s{found}")
    seconds = sorted(times)[len(times) // 2]
    unit = (
        f"{seconds:.2f} s" if kernel.simulated else f"{seconds * 1e6:.1f} µs (median of 20, launch and wait included)"
    )
    table.add_row("run took", unit)
    if report.instructions is not None:
        table.add_row("executed", f"{report.instructions:,} warp instructions")
        table.add_row("stages in flight", f"{report.max_stages_in_flight} at most")
    console.print(table)
    if not error < 1e-2:
        console.print("[red]the result is wrong[/red]")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
