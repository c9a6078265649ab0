"""One SwiGLU MLP block as one megakernel beside torch.compile and the graph lowering of the same ops, on one GPU.

    python benchmarks/mlp_block.py [--size D,F …] [--rows M …] [--autotune] [--rounds N] [--json FILE]

RMSNorm → gate_up → SwiGLU → down → residual, bfloat16, with the sizes of Llama 8B and Qwen3 8B. Ours are the general
ops, rewritten by `fuse`. Every candidate is a CUDA graph of several blocks in a row, each with weights of its own, more
than the L2 cache holds; the graphs are replayed by turns, and the medians are µs of one block. torch.compile is that of
the whole block; `--autotune` lets it look for the best kernels (max-autotune), which takes minutes. Errors are relative
to float64. Without a GPU the script runs small sizes on the simulator and compares results only.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as functional
import typer
from rich.console import Console
from rich.table import Table

from machete.kernels.elementwise import AddOp
from machete.kernels.fusions import fuse
from machete.kernels.gemm import GemmOp
from machete.kernels.glu import GluOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import Megakernel, ScheduledOp, lower, temporary

EPS = 1e-5
SIZES = ["4096,14336", "4096,12288"]  # Llama 8B, Qwen3 8B
ROWS = [1, 16, 128, 2048]
BLOCKS = 3  # in a row; the weights of one alone exceed the L2 cache
BF16 = torch.bfloat16


@dataclass
class Block:
    """x (M, D), out (M, D), norm (D,), gate_up (2F, D), down (D, F)."""

    x: torch.Tensor
    out: torch.Tensor
    norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @classmethod
    def random(cls, m: int, d: int, f: int, device: str) -> Block:
        """Weights that keep the scale of x, norms around 1."""
        like = {"device": device, "dtype": BF16}
        return cls(
            torch.randn(m, d, **like),
            torch.full((m, d), float("nan"), **like),
            1 + 0.1 * torch.randn(d, **like),
            torch.randn(2 * f, d, **like) * d**-0.5,
            torch.randn(d, f, **like) * f**-0.5,
        )

    def ops(self) -> list[ScheduledOp]:
        """The block from general ops, rewritten."""
        (m, d), f, device = self.x.shape, self.down.shape[1], self.x.device
        y, z = (temporary((m, d), BF16, device) for _ in range(2))
        both, h = temporary((m, 2 * f), BF16, device), temporary((m, f), BF16, device)
        ops: list[ScheduledOp] = []
        ops += RMSNormOp.schedule(x=self.x, weight=self.norm, y=y, eps=EPS)
        ops += GemmOp.schedule(a=y, b=self.gate_up, c=both)
        ops += GluOp.schedule(gate=both[:, :f], up=both[:, f:], y=h)
        ops += GemmOp.schedule(a=h, b=self.down, c=z)
        ops += AddOp.schedule(a=self.x, b=z, y=self.out)
        return fuse(ops)

    def torch(self, x: torch.Tensor) -> torch.Tensor:
        """The same in torch."""
        y = functional.rms_norm(x, x.shape[-1:], self.norm, EPS)
        gate, up = functional.linear(y, self.gate_up).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, self.down)

    def reference(self) -> torch.Tensor:
        """The same in float64."""
        x = self.x.double()
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.norm.double()
        gate, up = (y @ self.gate_up.double().T).chunk(2, -1)
        return x + (functional.silu(gate) * up) @ self.down.double().T


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """‖out − reference‖ / ‖reference‖."""
    return ((out.double() - reference).norm() / reference.norm()).item()


def captured(calls: list[Callable[[], Any]]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of the calls in a row, and what the last one returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls * 2:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    graph.replay()
    torch.cuda.synchronize()
    return graph, results[-1]


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one replay, the second of two back to back."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def measure(m: int, d: int, f: int, *, rounds: int, autotune: bool) -> dict[str, Any]:
    """All candidates for one size and number of rows, by turns."""
    torch.manual_seed(0)
    torch.compiler.reset()
    blocks = [Block.random(m, d, f, "cuda") for _ in range(BLOCKS)]
    reference = blocks[-1].reference()
    kernels = [Megakernel(block.ops()) for block in blocks]
    singles = [lower(block.ops(), "graph").singles for block in blocks]  # captured below, with those of other blocks
    mode = "max-autotune-no-cudagraphs" if autotune else "default"
    compiled = [torch.compile(block.torch, mode=mode) for block in blocks]
    calls: dict[str, list[Callable[[], Any]]] = {
        "machete": [lambda kernel=kernel: kernel.run(sync=False) for kernel in kernels],
        "machete, graph of kernels": [lambda ops=ops: [single.run(sync=False) for single in ops] for ops in singles],
        "torch": [lambda block=block: block.torch(block.x) for block in blocks],
        "torch.compile": [
            lambda call=call, block=block: call(block.x) for call, block in zip(compiled, blocks, strict=True)
        ],
    }
    graphs, errors = {}, {}
    for name, candidates in calls.items():
        blocks[-1].out.fill_(float("nan"))
        graphs[name], result = captured(candidates)
        errors[name] = relative_error(result if isinstance(result, torch.Tensor) else blocks[-1].out, reference)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            samples[name].append(microseconds(graph) / BLOCKS)
    quarters = {name: statistics.quantiles(values, n=4) for name, values in samples.items()}
    return {
        "rows": m,
        "d": d,
        "f": f,
        "ops": [op.op.__name__ for op in blocks[-1].ops()],
        "autotune": autotune,
        "us": {name: statistics.median(values) for name, values in samples.items()},
        "spread": {name: values[2] - values[0] for name, values in quarters.items()},
        "error": errors,
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """The measurements as a table: µs of a block, and how much faster the megakernel is."""
    names = list(rows[0]["us"])
    table = Table(title=f"{rows[0]['machine']}, torch {rows[0]['torch']}: one MLP block, bfloat16, µs")
    for column in ("D, F", "rows", "ops", *names, "of torch.compile", "error"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [f"{row['us'][name]:.1f} ±{row['spread'][name]:.1f}" for name in names]
        ratio = row["us"]["torch.compile"] / row["us"]["machete"]
        error = f"{row['error']['machete']:.1e} / {row['error']['torch']:.1e}"
        table.add_row(f"{row['d']}, {row['f']}", str(row["rows"]), str(len(row["ops"])), *cells, f"{ratio:.2f}", error)
    console.print(table)


def simulated(console: Console) -> None:
    """Small blocks on the simulator: each lowering against the reference."""
    for m in (1, 5, 20):
        block = Block.random(m, 128, 192, "cpu")
        for name in ("persistent", "graph"):
            block.out.fill_(float("nan"))
            lower(block.ops(), name).run()
            console.print(f"rows {m}, {name}: relative error {relative_error(block.out, block.reference()):.1e}")


def main(
    size: Annotated[list[str] | None, typer.Option(help="D,F of a block; may be given several times.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Rows of x; may be given several times.")] = None,
    autotune: Annotated[bool, typer.Option(help="Let torch.compile look for its best kernels.")] = False,
    rounds: int = 15,
    output: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None,
) -> None:
    """Measure every size with every number of rows."""
    console, measured = Console(width=150), []
    if not torch.cuda.is_available():
        simulated(console)
        return
    for text in size or SIZES:
        d, f = (int(number) for number in text.split(","))
        for m in rows or ROWS:
            measured.append(measure(m, d, f, rounds=rounds, autotune=autotune))
            gc.collect()
            torch.cuda.empty_cache()
            if output is not None:
                output.write_text(json.dumps(measured, indent=1))
    show(measured, console)


if __name__ == "__main__":
    typer.run(main)
