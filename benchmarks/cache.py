"""What it takes to have a kernel: compiled, found in the cache, or loaded from a file, each in new processes.

    python benchmarks/cache.py [--layers 16] [--json FILE]

A transformer's MLP layers, bfloat16, batch 1: on the GPU if there is one, else on the simulator, smaller. Process time
(user and system, all threads) and wall time from before `machete` is imported until the first run has ended; torch is
imported and CUDA is initialised before. Medians of several processes; the modes take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

MODES = {
    "compiled": "no cache: traced, compiled, planned",
    "cached": "found in the cache: planned",
    "loaded": "Megakernel.load: neither, and without the DSL",
}


def child(mode: str, layers: int, file: str) -> None:
    """Have the kernel in one way, run it once, and print what that took."""
    import torch

    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    D, F = (2048, 8192) if device == "cuda" else (256, 512)
    x = torch.randn(1, D, device=device).bfloat16()
    process, wall = time.process_time(), time.perf_counter()
    from machete.megakernel import Megakernel

    if mode == "loaded":
        kernel = Megakernel.load(file)
        kernel.run(x=x)
    else:
        kernel, tensors = build(x, layers, F)
        kernel.run()
    taken: dict[str, Any] = {"process": time.process_time() - process, "wall": time.perf_counter() - wall}
    taken["dsl"] = "cutlass" in sys.modules
    if mode == "compiled":
        kernel.save(file, tensors=tensors)
        taken["bytes"] = Path(file).stat().st_size
        taken["ops"], taken["kinds"] = len(kernel.plan.ops), len(kernel.plan.kinds)
        taken["where"] = torch.cuda.get_device_name() if device == "cuda" else "the simulator"
    else:
        assert kernel.compile().cached
    print(json.dumps(taken))


def build(x: Any, layers: int, F: int) -> tuple[Any, dict[str, Any]]:
    """The layers as a kernel, and its tensors by name."""
    import torch

    from machete.kernels.elementwise import AddOp
    from machete.kernels.gemm import GemmOp
    from machete.kernels.glu import GluOp
    from machete.kernels.rms_norm import RMSNormOp
    from machete.megakernel import Megakernel, temporary

    D = x.shape[1]

    def scratch(width: int) -> torch.Tensor:
        return temporary((1, width), torch.bfloat16, x.device)

    tensors = {"x": x}
    ops = []
    for layer in range(layers):
        weights = {
            "norm": torch.ones(D, device=x.device).bfloat16(),
            "gate_up": torch.randn(2 * F, D, device=x.device).bfloat16() / D**0.5,
            "down": torch.randn(D, F, device=x.device).bfloat16() / F**0.5,
        }
        tensors |= {f"layer_{layer}_{name}": weight for name, weight in weights.items()}
        normed, both, gated, out = scratch(D), scratch(2 * F), scratch(F), scratch(D)
        ops += RMSNormOp.schedule(x=x, weight=weights["norm"], y=normed)
        ops += GemmOp.schedule(a=normed, b=weights["gate_up"], c=both)
        ops += GluOp.schedule(gate=both[:, :F], up=both[:, F:], y=gated)
        ops += GemmOp.schedule(a=gated, b=weights["down"], c=out)
        ops += AddOp.schedule(a=x, b=out, y=x)
    return Megakernel(ops), tensors


def main(
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 16,
    processes: Annotated[int, typer.Option(help="Processes for each mode.")] = 5,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
    one: Annotated[str, typer.Option(hidden=True)] = "",
    file: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Compare the ways to have a kernel."""
    if one:
        child(one, layers, file)
        return
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MACHETE_CACHE_DIR": f"{folder}/cache"}
        for sample in range(processes + 1):  # the first fills the cache, and the file cache of the system
            for mode in MODES:
                options = ["--layers", str(layers), "--one", mode, "--file", f"{folder}/kernel"]
                off = {"MACHETE_CACHE": "off"} if mode == "compiled" and sample else {}
                command = [sys.executable, __file__, *options]
                printed = subprocess.run(command, env=environment | off, stdout=subprocess.PIPE, text=True, check=True)
                if sample:
                    found[mode].append(json.loads(printed.stdout.splitlines()[-1]))
    facts = found["compiled"][0]
    table = Table(title=f"{facts['ops']} ops of {facts['kinds']} kinds on {facts['where']}; {facts['bytes']:,} bytes")
    for heading in ("", "process time, s", "wall time, s", "imports the DSL"):
        table.add_column(heading)
    for mode, what in MODES.items():
        times = [[sample[kind] for sample in found[mode]] for kind in ("process", "wall")]
        cells = [f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in times]
        table.add_row(what, *cells, "yes" if found[mode][0]["dsl"] else "no")
    Console(width=120).print(table)
    if as_json:
        as_json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    typer.run(main)
