"""Host time of a launch: what `run` costs the thread that calls it, beside torch's own launches, on one GPU.

    python benchmarks/host_time.py [--json FILE]

Each row is the time from the first to the last of many calls, divided by their number, with the launch queue never full
(the queue is drained between the samples, outside of the time); the median of many samples, all rows interleaved. The
GPU's own time is not in it: kernels are tiny.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import cutlass
import cutlass.cute as cute
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from machete.megakernel import Megakernel, Op, register_op, temporary

CALLS = 200  # the driver queues about 1000 launches before it blocks
SAMPLES = 51
N = 4096


class Scale(Op):
    """y = factor * x."""

    reads = {"x": (None, ("N",))}
    writes = {"y": (None, ("N",))}
    tile = ("N",)
    scalars = {"factor": torch.float32}

    @classmethod
    def schedule(cls, *, x, y, factor=2.0):
        return [cls._schedule_single(tile_sizes={"N": 256}, x=x, y=y, factor=factor)]

    @cute.jit
    def compute(self, tile_N, x, y, factor):
        for i in cutlass.range(cute.arch.thread_idx()[0], self.tile_size_N, self.threads_per_row):
            n = tile_N * self.tile_size_N + i
            if n < self.N:
                y[n] = x[n] * factor


def chain(x: Tensor, y: Tensor, length: int) -> list[Any]:
    """`length` ops from x to y, through temporaries."""
    tensors = [x, *(temporary(x.shape, x.dtype, x.device) for _ in range(length - 1)), y]
    ops = []
    for i in range(length):
        ops += Scale.schedule(x=tensors[i], y=tensors[i + 1], factor=1.0)
    return ops


def build_scale(x: Tensor, y: Tensor) -> Any:
    """What `machete::host_time_scale` runs."""
    return Scale.schedule(x=x, y=y)


def cases() -> dict[str, Callable[[], Any]]:
    """Name to a call that launches something."""
    x, y = torch.randn(N, device="cuda"), torch.empty(N, device="cuda")
    others = [torch.randn(N, device="cuda") for _ in range(2)]
    targets = [torch.empty(N, device="cuda") for _ in range(2)]
    one = Megakernel(Scale.schedule(x=x, y=y))
    many = Megakernel(chain(x, y, 300))
    rebound = Megakernel(Scale.schedule(x=x, y=y))
    rebound_many = Megakernel(chain(x, y, 300))
    scaled = Megakernel(Scale.schedule(x=x, y=y))
    op = register_op("host_time_scale", build_scale, outputs={"y": lambda x: torch.empty_like(x)})
    for kernel in (one, many, rebound, rebound_many, scaled):
        kernel.run()
    expected = 2 * x
    assert torch.equal(op(x), expected)
    one.run()
    assert torch.equal(y, expected)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.add(x, x, out=y)
    own_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(own_graph):
        one.run(sync=False)
    argument, target = rebound_many.argument(x), rebound_many.argument(y)
    count = 0

    def rebind_one() -> None:
        nonlocal count
        count += 1
        rebound.run(sync=False, x=others[count % 2])

    def rebind_two_of_many() -> None:
        nonlocal count
        count += 1
        pairs = [(argument, others[count % 2]), (target, targets[count % 2])]
        rebound_many.run(sync=False, replace=pairs)

    def other_scalar() -> None:
        nonlocal count
        count += 1
        scaled.run(sync=False, factor=float(count))

    return {
        "Megakernel.run(sync=False), 1 op": lambda: one.run(sync=False),
        "Megakernel.run(sync=False), 300 ops": lambda: many.run(sync=False),
        "  … with another scalar": other_scalar,
        "  … with another tensor": rebind_one,
        "  … with 2 other tensors, 300 ops": rebind_two_of_many,
        "registered op, called directly": lambda: op(others[0]),
        "registered op, torch.ops": lambda: torch.ops.machete.host_time_scale(others[0]),
        "CUDA graph of a megakernel": own_graph.replay,
        "torch.add(out=)": lambda: torch.add(x, x, out=y),
        "x + x": lambda: x + x,
        "CUDA graph of torch.add": graph.replay,
    }


def sample(call: Callable[[], Any]) -> float:
    """Microseconds per call."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = time.perf_counter() - started
    torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def main(output: Annotated[Path | None, typer.Option("--json", help="Write every number here.")] = None) -> None:
    calls = cases()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(SAMPLES):
        for name, call in calls.items():
            samples[name].append(sample(call))
    table = Table(title=f"{torch.cuda.get_device_name()}, torch {torch.__version__}: host time of a launch")
    for column in ("launch", "µs", "quartiles"):
        table.add_column(column, justify="left" if column == "launch" else "right")
    result = {}
    for name, values in samples.items():
        low, middle, high = statistics.quantiles(values[1:], n=4)
        table.add_row(name, f"{middle:.2f}", f"{low:.2f} – {high:.2f}")
        result[name.strip(" …")] = {"us": middle, "low": low, "high": high}
    Console(width=120).print(table)
    if output is not None:
        output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    typer.run(main)
