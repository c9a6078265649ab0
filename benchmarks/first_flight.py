"""The quick-start GEMM and element-wise ops over 1 GiB beside torch, on one GPU, launch overhead included.

    python benchmarks/first_flight.py [--json FILE]

Every row is measured against its peer in the same run, interleaved, on random data; the median of many is shown, with
the spread of the middle half. Two ways of launching: `eager` issues each launch from Python, back to back, and counts
from the first launch to the end of the last (so host overhead is in it where it limits); `graph` replays one CUDA graph
that rotates over operand sets larger than the L2 cache. Results are checked before anything is timed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import cutlass
import cutlass.cute as cute
import torch
import typer
from rich.console import Console
from rich.table import Table

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel, Op, PipelineSpec

ROUNDS = 11
L2_BYTES = 64 << 20


class ScaleOp(Op):
    """y = 2 x, as in the README: each thread one element at a time, no pipeline."""

    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)

    @classmethod
    def schedule(cls, *, x, y, tile_n=256):
        return [cls._schedule_single(tile_sizes={"N": tile_n}, x=x, y=y)]

    @cute.jit
    def compute(self, page_ptr, tile_N, x, y):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = (x[n].to(cutlass.Float32) * 2.0).to(self.y_dtype)


class StreamingScaleOp(Op):
    """y = 2 x through the page ring: bulk copies in, 16-byte accesses in shared memory, bulk copies out."""

    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)
    pipeline = PipelineSpec.streaming(input_stages=6, output_stages=3, stage_pages=2, page_bytes=16 * 1024)

    @classmethod
    def schedule(cls, *, x, y):
        return [cls._schedule_single(tile_sizes={"N": 2 * 16 * 1024 // x.element_size()}, x=x, y=y)]

    @cute.jit
    def load(self, ring, tile_N, x):
        first = tile_N * self.tile_size_N
        stage = ring.acquire()
        ring.load_span(stage, x, first, cutlass.min(self.tile_size_N, self.N - first))
        ring.commit(stage)

    @cute.jit
    def compute(self, ring, tile_N):
        stage = ring.wait()
        width = 128 // self.x_dtype.width
        rows = self.tile_size_N // width
        sX = stage.tensor(self.x_dtype, cute.make_layout((width, rows), stride=(1, width)))
        count = cutlass.min(self.tile_size_N, self.N - tile_N * self.tile_size_N)
        for row in cutlass.range(cute.arch.thread_idx()[0], (count + width - 1) // width, self.threads_per_row):
            values = cute.make_rmem_tensor((width,), self.x_dtype)
            cute.autovec_copy(sX[None, row], values)
            values.store((values.load().to(cutlass.Float32) * 2.0).to(self.x_dtype))
            cute.autovec_copy(values, sX[None, row])
        ring.forward(stage)

    @cute.jit
    def store(self, ring, tile_N, y):
        first = tile_N * self.tile_size_N
        stage = ring.wait()
        ring.store_span(stage, y, first, cutlass.min(self.tile_size_N, self.N - first))
        ring.release(stage)


def eager(calls: list[Callable[[], Any]], repeats: int) -> float:
    """Microseconds per call, issued one after another from Python."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for i in range(repeats):
        calls[i % len(calls)]()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / repeats


def captured(calls: list[Callable[[], Any]], repeats: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `repeats` calls in a row."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            calls[i % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def compare(ours: list[Callable[[], Any]], peer: list[Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """Medians of both sides, interleaved, eager and in a graph."""
    graphs = {name: captured(calls, repeats) for name, calls in (("ours", ours), ("peer", peer))}
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, calls in (("ours", ours), ("peer", peer)):
            samples.setdefault(("eager", name), []).append(eager(calls, repeats))
            graph = graphs[name]
            samples.setdefault(("graph", name), []).append(eager([graph.replay], 1) / repeats)
    result = {}
    for (how, name), values in samples.items():
        quarters = statistics.quantiles(values, n=4)
        result[f"{how}_{name}"] = {"us": statistics.median(values), "spread": quarters[2] - quarters[0]}
    return result


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return ((out.double() - reference.double()).norm() / reference.double().norm()).item()


def gemm_row(m: int, n: int, k: int) -> dict[str, Any]:
    sets = max(2, min(48, 2 * L2_BYTES // (2 * n * k)))
    xs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    ws = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    ys = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    kernels = [Megakernel(GemmOp.schedule(a=x, b=w, c=y)) for x, w, y in zip(xs, ws, ys, strict=True)]
    kernels[0].run()
    error = relative_error(ys[0], xs[0].float() @ ws[0].float().T)
    ours = [lambda kernel=kernel: kernel.run(sync=False) for kernel in kernels]
    peer = [lambda i=i: torch.mm(xs[i], ws[i].t(), out=ys[i]) for i in range(sets)]
    repeats = 2 * sets if m * n * k < 1 << 34 else sets
    flops = 2 * m * n * k
    return {
        "work": f"GemmOp m{m} n{n} k{k} bf16",
        "peer": "torch.mm (cuBLAS)",
        "error": error,
        "flops": flops,
        "bytes": 2 * (m * k + n * k + m * n),
        **compare(ours, peer, repeats),
    }


def scale_row(name: str, schedule: Callable[..., Any], nbytes: int) -> dict[str, Any]:
    x = torch.randn(nbytes // 2, device="cuda", dtype=torch.bfloat16)
    y = torch.full_like(x, float("nan"))
    kernel = Megakernel(schedule(x=x, y=y))
    kernel.run()
    error = 0.0 if torch.equal(y, x * 2) else float("nan")
    ours = [lambda: kernel.run(sync=False)]
    peer = [lambda: torch.mul(x, 2.0, out=y)]
    return {"work": name, "peer": "torch.mul", "error": error, "bytes": 2 * nbytes, **compare(ours, peer, 4)}


def main(output: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None) -> None:
    torch.manual_seed(0)
    gib = 1 << 30
    rows = [
        gemm_row(16, 1024, 1024),
        gemm_row(512, 4096, 4096),
        gemm_row(4096, 4096, 4096),
        gemm_row(8192, 8192, 8192),
        scale_row("ScaleOp 1 GiB bf16, tile_n=256", ScaleOp.schedule, gib),
        scale_row("ScaleOp 1 GiB, tile_n=16384", lambda x, y: ScaleOp.schedule(x=x, y=y, tile_n=16384), gib),
        scale_row("StreamingScaleOp 1 GiB", StreamingScaleOp.schedule, gib),
        scale_row("StreamingScaleOp 64 KiB", StreamingScaleOp.schedule, 64 << 10),
    ]
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for column in (
        "work",
        "peer",
        "graph µs",
        "peer",
        "ratio",
        "eager µs",
        "peer",
        "ratio",
        "TFLOP/s or TB/s",
        "error",
    ):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        cells = []
        for how in ("graph", "eager"):
            ours, peer = row[f"{how}_ours"], row[f"{how}_peer"]
            cells += [f"{ours['us']:.1f} ±{ours['spread']:.1f}", f"{peer['us']:.1f} ±{peer['spread']:.1f}"]
            cells.append(f"{peer['us'] / ours['us']:.3f}")
        seconds = row["graph_ours"]["us"] * 1e-6
        rate = row["flops"] / seconds / 1e12 if row.get("flops", 0) > 1e10 else row["bytes"] / seconds / 1e12
        table.add_row(row["work"], row["peer"], *cells, f"{rate:.2f}", f"{row['error']:.1e}")
    Console(width=180).print(table)
    if output is not None:
        output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
