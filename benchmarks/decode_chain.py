"""Decode through a stack of MLP layers: general ops in one kernel beside torch's kernels, on one GPU.

    python benchmarks/decode_chain.py [--size D,F …] [--batch N …] [--layers 16] [--extra N] [--json FILE]

Each layer is RMSNorm(D), gate_up (2F x D), SwiGLU, down (D x F) and the residual, in bfloat16 on random weights.
Ours is `RMSNormOp`, `GemmOp`, `GluOp` and `AddOp`, rewritten by `fuse`, in one `Megakernel`. The peers are CUDA graphs
of torch's kernels, with `F.linear` and (for one row) `torch.mv`, plain and through torch.compile. Every candidate is
one CUDA graph; all are replayed by turns, and medians are shown. Weights exceed the L2 cache, so every replay reads
them from memory; what share of the card's read rate that is, is measured in the same run by kernels that read the same
weights and do nothing else. Errors are relative to float64.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cutlass
import cutlass.cute as cute
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
from machete.megakernel import Megakernel, Op, PipelineSpec, ScheduledOp

EPS = 1e-5
REPLAYS = 10  # back to back in one sample
SIZES = ["2048,8192", "3072,8192", "4096,14336"]
BATCHES = [1, 2, 4, 8, 16]
PAGE_BYTES = 16 * 1024


class EmptyOp(Op):
    """Does nothing to x, on every SM: what comes after it waits for the whole grid."""

    reads = {"x": (None, ("M", "D")), "lanes": (torch.int32, ("S",))}
    writes = {"x": (None, ("M", "D"))}
    tile = ("S",)

    @classmethod
    def schedule(cls, *, x, lanes):
        """`lanes` has an element for each SM."""
        return [cls._schedule_single(tile_sizes={"S": 1}, x=x, lanes=lanes)]

    @cute.jit
    def compute(self):
        pass


class ReadOp(Op):
    """Brings x (N,) into shared memory and forgets it: the rate of memory with nothing in its way."""

    reads = {"x": (None, ("N",))}
    writes = {"nothing": (torch.int32, ("one",))}
    tile = ("N",)
    throttled = True
    pipeline = PipelineSpec.streaming(input_stages=13, page_bytes=PAGE_BYTES, scratch_bytes=0)

    @classmethod
    def schedule(cls, *, x, nothing):
        return [cls._schedule_single(tile_sizes={"N": PAGE_BYTES // x.element_size()}, x=x, nothing=nothing)]

    @cute.jit
    def load(self, ring, tile_N, x):
        first = tile_N * self.tile_size_N
        stage = ring.acquire()
        ring.load_span(stage, x, first, cutlass.min(self.tile_size_N, self.N - first))
        ring.commit(stage)

    @cute.jit
    def compute(self, ring):
        ring.release(ring.wait())


@dataclass
class Chain:
    """Weights of the layers, the input of the first, and the outputs of all."""

    gate_up: torch.Tensor
    down: torch.Tensor
    norm: torch.Tensor
    xs: torch.Tensor

    @classmethod
    def random(cls, layers: int, d: int, f: int, batch: int, device: str) -> Chain:
        """Weights of standard deviation 0.02 / sqrt(d / 2048), norms around 1."""
        bf16, scale = torch.bfloat16, 0.02 * (2048 / d) ** 0.5
        return cls(
            (torch.randn(layers, 2 * f, d, device=device) * scale).to(bf16),
            (torch.randn(layers, d, f, device=device) * scale).to(bf16),
            (1 + 0.1 * torch.randn(layers, d, device=device)).to(bf16),
            torch.randn(layers + 1, batch, d, device=device).to(bf16),
        )

    @property
    def layers(self) -> range:
        return range(len(self.norm))

    @property
    def weight_bytes(self) -> int:
        return 2 * (self.gate_up.numel() + self.down.numel() + self.norm.numel())

    def ops(self, extra: int = 0, lanes: torch.Tensor | None = None) -> list[ScheduledOp]:
        """The layers from general ops, rewritten; after each layer `extra` ops that do nothing."""
        batch, d, f = self.xs.shape[1], self.xs.shape[2], self.down.shape[2]
        like = {"dtype": self.xs.dtype, "device": self.xs.device}
        y, z = torch.empty(batch, d, **like), torch.empty(batch, d, **like)
        both, h = torch.empty(batch, 2 * f, **like), torch.empty(batch, f, **like)
        ops: list[ScheduledOp] = []
        for layer in self.layers:
            x, after = self.xs[layer], self.xs[layer + 1]
            ops += RMSNormOp.schedule(x=x, weight=self.norm[layer], y=y, eps=EPS)
            ops += GemmOp.schedule(a=y, b=self.gate_up[layer], c=both)
            ops += GluOp.schedule(gate=both[:, :f], up=both[:, f:], y=h)
            ops += GemmOp.schedule(a=h, b=self.down[layer], c=z)
            ops += AddOp.schedule(a=x, b=z, y=after)
            for _ in range(extra):
                ops += EmptyOp.schedule(x=after, lanes=lanes)
        return fuse(ops, temporaries=[y, both, h, z])

    def torch_linear(self, x: torch.Tensor) -> torch.Tensor:
        """The same in torch, with `F.linear`."""
        for layer in self.layers:
            y = functional.rms_norm(x, x.shape[-1:], self.norm[layer], EPS)
            gate, up = functional.linear(y, self.gate_up[layer]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, self.down[layer])
        return x

    def torch_mv(self, x: torch.Tensor) -> torch.Tensor:
        """The same in torch for one row, with `torch.mv`."""
        x = x[0]
        for layer in self.layers:
            y = functional.rms_norm(x, x.shape, self.norm[layer], EPS)
            gate, up = torch.mv(self.gate_up[layer], y).chunk(2)
            x = x + torch.mv(self.down[layer], functional.silu(gate) * up)
        return x[None]

    def reference(self) -> torch.Tensor:
        """The same in float64."""
        x = self.xs[0].double()
        for layer in self.layers:
            y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.norm[layer].double()
            gate, up = (y @ self.gate_up[layer].double().T).chunk(2, -1)
            x = x + (functional.silu(gate) * up) @ self.down[layer].double().T
        return x


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """‖out − reference‖ / ‖reference‖."""
    return ((out.double() - reference).norm() / reference.norm()).item()


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of one call, and what the call returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, result


def microseconds(graph: torch.cuda.CUDAGraph) -> float:
    """Of one replay, among several back to back."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / REPLAYS


def read_only(chain: Chain) -> dict[str, Callable[[], Any]]:
    """Ways to read all weights and do nothing else."""
    weights = [weight.view(-1) for weight in (chain.gate_up, chain.down)]
    nothing = torch.zeros(2, 1, dtype=torch.int32, device="cuda")  # one each, so that neither waits for the other
    first, second = (ReadOp.schedule(x=weight, nothing=one) for weight, one in zip(weights, nothing, strict=True))
    kernel = Megakernel(first + second)
    words = [weight.view(torch.int32) for weight in weights]
    return {
        "read only, page ring": lambda: kernel.run(sync=False),
        "read only, torch.amax": lambda: [word.amax() for word in words],
    }


def measure(layers: int, d: int, f: int, batch: int, extra: int, rounds: int) -> dict[str, Any]:
    """All candidates for one size and batch, by turns."""
    torch.manual_seed(0)
    torch.compiler.reset()
    chain = Chain.random(layers, d, f, batch, "cuda")
    reference = chain.reference()
    first = chain.xs[0]
    chain.xs[1:].fill_(float("nan"))
    lanes = torch.zeros(torch.cuda.get_device_properties(0).multi_processor_count, dtype=torch.int32, device="cuda")
    kernel = Megakernel(chain.ops(extra, lanes))
    calls: dict[str, Callable[[], Any]] = {
        "machete": lambda: (kernel.run(sync=False), chain.xs[-1])[1],
        "graph of F.linear": lambda: chain.torch_linear(first),
    }
    compiled = {"compiled F.linear": torch.compile(chain.torch_linear)}
    if batch == 1:
        calls["graph of torch.mv"] = lambda: chain.torch_mv(first)
        compiled["compiled torch.mv"] = torch.compile(chain.torch_mv)
    calls |= {name: (lambda function=function: function(first)) for name, function in compiled.items()}
    graphs, errors = {}, {}
    for name, call in {**calls, **read_only(chain)}.items():
        graphs[name], result = captured(call)
        if name in calls:
            errors[name] = relative_error(result, reference)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            samples[name].append(microseconds(graph))
    times = {name: statistics.median(values) for name, values in samples.items()}
    quarters = {name: statistics.quantiles(values, n=4) for name, values in samples.items()}
    return {
        "layers": layers,
        "d": d,
        "f": f,
        "batch": batch,
        "extra": extra,
        "bytes": chain.weight_bytes,
        "ops": len(kernel.plan.ops),
        "us": times,
        "spread": {name: values[2] - values[0] for name, values in quarters.items()},
        "error": errors,
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def show(row: dict[str, Any], console: Console) -> None:
    """One measurement as a table."""
    times, ours = row["us"], row["us"]["machete"]
    streaming = min(time for name, time in times.items() if name.startswith("read only"))
    rate = row["bytes"] / streaming / 1e6
    extra = f", {row['extra']} empty dependencies a layer" if row["extra"] else ""
    table = Table(
        title=f"{row['layers']} layers, D {row['d']}, F {row['f']}, batch {row['batch']}: {row['ops']} ops{extra}; "
        f"the card reads {rate:.2f} TB/s"
    )
    table.add_column("candidate")
    for column in ("µs", "middle half", "TB/s", "of read only", "machete is faster by", "error"):
        table.add_column(column, justify="right")
    for name, time in sorted(times.items(), key=lambda item: item[1]):
        error = f"{row['error'][name]:.2e}" if name in row["error"] else ""
        faster = f"{time / ours:.2f}" if error and name != "machete" else ""
        cells = [f"{time:.1f}", f"{row['spread'][name]:.1f}", f"{row['bytes'] / time / 1e6:.2f}"]
        table.add_row(name, *cells, f"{streaming / time:.1%}", faster, error)
    console.print(table)


def main(
    size: Annotated[list[str] | None, typer.Option(help="D,F of a layer; may be given several times.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Rows; may be given several times.")] = None,
    layers: int = 16,
    extra: Annotated[int, typer.Option(help="Empty grid-wide dependencies to add to each layer.")] = 0,
    rounds: int = 15,
    output: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None,
) -> None:
    """Without options: the first size for all batches, the others for one row."""
    console, rows = Console(width=140), []
    for index, text in enumerate(size or SIZES):
        d, f = (int(number) for number in text.split(","))
        for number in batch or (BATCHES if index == 0 else [1]):
            rows.append(measure(layers, d, f, number, extra, rounds))
            show(rows[-1], console)
            gc.collect()
            torch.cuda.empty_cache()
    if output is not None:
        output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
