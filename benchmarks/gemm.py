"""`GemmOp` beside cuBLAS and quack, on one GPU: shapes from one row to square, each on weights that L2 does not hold.

    python benchmarks/gemm.py [--shape M,N,K …] [--sweep] [--quack] [--fp8 [--fast]] [--rounds N] [--json FILE]

Random bfloat16; with `--fp8` random float8_e4m3fn, with a scale for each row of both operands. Every candidate is a
CUDA graph that rotates over operand sets larger than the L2 cache; the graphs are replayed by turns, medians are
shown, `±` is the spread of the middle half. The peers: `torch.mm` (cuBLAS), or `torch._scaled_mm` for 8 bits (with
`use_fast_accum` if `--fast`, as ours then has), and with `--quack` quack's GEMM, tuned (which takes a while for each
shape). Results are checked before anything is timed. `--sweep` measures the products of Llama 8B, Qwen3 8B and Qwen3
30B-A3B for 1 to 4096 rows.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel

SHAPES = [
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 8192, 4096),
    (512, 4096, 4096),
    (128, 8192, 4096),
    (64, 8192, 4096),
    (16, 8192, 4096),
    (1, 16384, 4096),
    (1, 4096, 4096),
    (16, 1024, 1024),
]
#: (N, K) of the linear layers: Llama 8B, Qwen3 8B, Qwen3 30B-A3B.
LAYERS = [
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (24576, 4096),
    (4096, 12288),
    (5120, 2048),
    (2048, 4096),
]
ROWS = [1, 16, 64, 256, 1024, 4096]
ROTATED_BYTES = 400 << 20  # of weights: several times the L2 cache
MOST_SETS = 64


def rotating(calls: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the calls in a row, warmed up."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def quack_call(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    """quack's tuned product."""
    from quack.gemm_interface import gemm

    return lambda: gemm(x, w.t(), out=y, tuned=True)


def measure(
    m: int, n: int, k: int, *, rounds: int, quack: bool, fp8: bool = False, fast: bool = False, **tiles: int | None
) -> dict[str, Any]:
    """All candidates for one shape, by turns."""
    dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
    sets = max(2, min(MOST_SETS, ROTATED_BYTES // (dtype.itemsize * n * k)))
    xs = [torch.randn(m, k, device="cuda").to(dtype) for _ in range(sets)]
    ws = [(torch.randn(n, k, device="cuda") * (1 if fp8 else k**-0.5)).to(dtype) for _ in range(sets)]
    ys = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    operands = list(zip(xs, ws, ys, strict=True))
    options: dict[str, Any] = dict(tiles)
    scale_a, scale_b = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
    if fp8:
        options |= {"a_scale": scale_a[:, 0], "b_scale": scale_b[0], "fast_accumulation": fast}
    kernels = [Megakernel(GemmOp.schedule(a=x, b=w, c=y, **options)) for x, w, y in operands]
    kernels[-1].run()
    reference = xs[-1].float() @ ws[-1].float().T
    if fp8:
        reference = reference * scale_a * scale_b
    error = ((ys[-1].float() - reference).norm() / reference.norm()).item()

    def cublas(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> Any:
        if not fp8:
            return torch.mm(x, w.t(), out=y)
        return torch._scaled_mm(x, w.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)

    calls: dict[str, list[Callable[[], Any]]] = {
        "machete": [lambda kernel=kernel: kernel.run(sync=False) for kernel in kernels],
        "cuBLAS": [lambda operand=operand: cublas(*operand) for operand in operands],
    }
    if quack:
        calls["quack"] = [quack_call(*operand) for operand in operands]
    graphs = {name: rotating(candidates) for name, candidates in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            samples[name].append(microseconds(graph) / sets)
    quarters = {name: statistics.quantiles(values, n=4) for name, values in samples.items()}
    return {
        "shape": [m, n, k],
        "itemsize": dtype.itemsize,
        "kind": kernels[-1].plan.kinds[0].name.rpartition(".")[2],
        "tile": list(kernels[-1].plan.kinds[0].tile_sizes.values()),
        "error": error,
        "us": {name: statistics.median(values) for name, values in samples.items()},
        "spread": {name: values[2] - values[0] for name, values in quarters.items()},
    }


def show(rows: list[dict[str, Any]], operands: str, console: Console) -> None:
    """The measurements as a table."""
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {operands}")
    table.add_column("m n k")
    for column in ("machete, µs", "peer, µs", "peer", "ratio", "TFLOP/s", "TB/s", "tile", "error"):
        table.add_column(column, justify="right")
    ratios = []
    for row in rows:
        (m, n, k), times = row["shape"], row["us"]
        ours, best = times["machete"], min((name for name in times if name != "machete"), key=times.__getitem__)
        ratios.append(times[best] / ours)
        cells = [f"{times[name]:.1f} ±{row['spread'][name]:.1f}" for name in ("machete", best)]
        moved = row["itemsize"] * (m * k + n * k) + 2 * m * n
        rates = [f"{2e-6 * m * n * k / ours:.0f}", f"{1e-6 * moved / ours:.2f}"]
        tile = f"{row['kind']} {'x'.join(map(str, row['tile']))}"
        table.add_row(f"{m} {n} {k}", *cells, best, f"{ratios[-1]:.3f}", *rates, tile, f"{row['error']:.1e}")
    console.print(table)
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    console.print(f"geometric mean {mean:.3f}, least {min(ratios):.3f}, of {len(ratios)} shapes")


def main(
    shape: Annotated[list[str] | None, typer.Option(help="M,N,K; may be given several times.")] = None,
    sweep: Annotated[bool, typer.Option(help="Measure the layers of three models, too.")] = False,
    quack: Annotated[bool, typer.Option(help="Measure quack, tuned, too.")] = False,
    tile_n: Annotated[int | None, typer.Option(help="Columns of a tile, instead of the automatic choice.")] = None,
    slices: Annotated[int | None, typer.Option(help="Slices of K, instead of the automatic choice.")] = None,
    fp8: Annotated[bool, typer.Option("--fp8", help="Operands of 8 bits.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Leave sums of 8-bit products to tensor cores.")] = False,
    rounds: int = 11,
    output: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None,
) -> None:
    """Without options: the shapes of docs/benchmarks.md."""
    torch.manual_seed(0)
    shapes = [tuple(int(number) for number in text.split(",")) for text in shape or []] or SHAPES
    if sweep:
        shapes = [*shapes, *((m, n, k) for m in ROWS for n, k in LAYERS)]
    rows = []
    for m, n, k in shapes:
        options = {"rounds": rounds, "quack": quack and not fp8, "fp8": fp8, "fast": fast}
        rows.append(measure(m, n, k, **options, tile_n=tile_n, slices=slices))
        gc.collect()
        torch.cuda.empty_cache()
        if output is not None:
            output.write_text(json.dumps(rows, indent=1))
    operands = f"float8_e4m3fn, {'fast' if fast else 'float32'} sums" if fp8 else "bfloat16"
    show(rows, operands, Console(width=160))


if __name__ == "__main__":
    typer.run(main)
