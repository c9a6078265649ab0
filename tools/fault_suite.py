"""Remove every synchronisation instruction of many kernels, one at a time: does the simulator name each fault?

    python tools/fault_suite.py                              # all kernels, all targets: minutes
    python tools/fault_suite.py --kernel through --arch sm_90a
    python tools/fault_suite.py --json faults.json           # every mutant with its verdict

Kernels are stand-alone CuTe DSL kernels (tools/fault_kernels.py) and megakernels of our own ops. What is run, removed
and judged is described in machete.sim.faults; docs/fault-suite.md has the results.
"""

from __future__ import annotations

import json
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import torch
import typer
from cutlass import Int32, Int64, cute
from rich.console import Console
from rich.table import Table

import fault_kernels
from fault_reasons import reason
from machete.kernels.gemm import GemmOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import Megakernel, ScheduledOp
from machete.sim import Image, LaunchConfig, RecordedLaunch, Region, record_launches, run
from machete.sim._core import engine
from machete.sim.faults import Verdict, inject
from small_ops import ReverseTiles, StreamAdd

ALL = ("sm_90a", "sm_100a", "sm_120a")
OUTCOMES = ("named", "equivalent", "not reached", "missed")
SEEDS = (0, 1, 2, 4)  # of the five rates at which copies complete, the ones that differ most


@dataclass(frozen=True)
class Case:
    """A kernel to break: `launch` runs it once for an architecture and returns what was recorded."""

    name: str
    archs: tuple[str, ...]
    launch: Callable[[str], Recorded]


@dataclass(frozen=True)
class Recorded:
    """`keep` owns the memory that the launch names."""

    launch: RecordedLaunch
    keep: Any


# ---- stand-alone kernels


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    storage = np.zeros(nbytes + 128, np.uint8)
    start = -storage.ctypes.data % 128
    return storage[start : start + nbytes].view(dtype).reshape(shape)


def _normal(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    out = _aligned(shape, dtype)
    out[...] = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return out


def _compile(function: Any, arch: str, words: str) -> Image:
    """words: "q" for an address, "i" for an integer, one letter a parameter."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [Int64(0) if word == "q" else Int32(0) for word in words]
        options = f"--gpu-arch {arch} --keep-ptx --generate-line-info --dump-dir {folder}"
        artefact = cute.compile(function, *arguments, options=options).artifacts.PTX
        text = artefact if artefact.lstrip().startswith("//") else Path(artefact).read_text()
    return Image.from_ptx(text, arch=arch)


def _stand_alone(
    name: str,
    arch: str,
    arguments: list[np.ndarray | int],
    grid: int,
    threads: int,
    others: tuple[np.ndarray, ...] = (),
    cluster: int = 1,
) -> Recorded:
    words = "".join("q" if isinstance(argument, np.ndarray) else "i" for argument in arguments)
    image = _compile(getattr(fault_kernels, name), arch, words)
    block, memory = b"", []
    for number, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            block += b"\0" * (-len(block) % 8) + struct.pack("<Q", argument.ctypes.data)
            memory.append(Region(argument.ctypes.data, argument.nbytes, f"argument {number}"))
        else:
            block += struct.pack("<i", argument)
    memory += [Region(array.ctypes.data, array.nbytes, "operand") for array in others]
    config = LaunchConfig((grid, 1, 1), (threads, 1, 1), dynamic_shared=96 * 1024, cluster=(cluster, 1, 1))
    with record_launches() as launches:
        run(image, block, config, memory)
    return Recorded(launches[0], (arguments, others))


def _through(arch: str) -> Recorded:
    chunks, width = 14, fault_kernels.CHUNK
    return _stand_alone(
        "through", arch, [_normal((chunks, width), "f4", 0), _aligned((chunks, width), "f4"), chunks], 2, 160
    )


def _total(arch: str) -> Recorded:
    x = _normal((4, 128), "f4", 0)
    return _stand_alone("total", arch, [x, _aligned((4,), "f4"), _aligned((1,), "u4"), _aligned((1,), "f4")], 4, 128)


def _exchange(arch: str) -> Recorded:
    return _stand_alone("exchange", arch, [_normal((7, 64), "f4", 0), _aligned((7, 64), "f4"), 7], 1, 128)


def _swap(arch: str) -> Recorded:
    return _stand_alone("swap", arch, [_normal((4, 5, 64), "f4", 0), _aligned((4, 5, 64), "f4"), 5], 4, 64, cluster=2)


def _operands(depth: int) -> list[np.ndarray]:
    rows, columns = fault_kernels.ROWS, fault_kernels.COLUMNS
    bf16 = ml_dtypes.bfloat16
    return [_normal((rows, depth), bf16, 0), _normal((columns, depth), bf16, 1), _aligned((rows, columns), "f4")]


def _gemm_cp_async(arch: str) -> Recorded:
    return _stand_alone("gemm_cp_async", arch, [*_operands(320), 320], 1, 128)


def _tensor_map(array: np.ndarray, rows: int) -> np.ndarray:
    """TMA's view of a bf16 matrix in tiles of `rows` rows and 128 bytes, swizzled."""
    descriptor = _aligned((128,), np.uint8)
    descriptor[:] = engine.encode_tensormap(
        base=array.ctypes.data,
        dtype=10,
        dim=[array.shape[1], len(array)],
        stride=[2, 2 * array.shape[1]],
        box=[fault_kernels.DEPTH, rows],
        elem_stride=[1, 1],
        swizzle=128,
    )
    return descriptor


def _gemm_wgmma(arch: str) -> Recorded:
    a, b, c = _operands(320)
    maps = [_tensor_map(array, len(array)) for array in (a, b)]
    return _stand_alone("gemm_wgmma", arch, [*maps, c, 5], 1, 160, (a, b))


def _gemm_tcgen05(arch: str) -> Recorded:
    tiles, depth, bf16 = 3, 5, ml_dtypes.bfloat16
    a = _normal((tiles * fault_kernels.TALL, depth * fault_kernels.DEPTH), bf16, 0)
    b = _normal((fault_kernels.WIDE, depth * fault_kernels.DEPTH), bf16, 1)
    c = _aligned((len(a), len(b)), "f4")
    maps = [_tensor_map(a, fault_kernels.TALL), _tensor_map(b, fault_kernels.WIDE)]
    recorded = _stand_alone("gemm_tcgen05", arch, [*maps, c, tiles, depth], 1, 192, (a, b))
    lanes = np.arange(len(a), dtype="f4")[:, None] % fault_kernels.TALL
    assert np.allclose(c, a.astype("f4") @ b.astype("f4").T + lanes, atol=1e-2)
    return recorded


# ---- megakernels


def _megakernel(ops: list[ScheduledOp], arch: str, num_sms: int) -> Recorded:
    kernel = Megakernel(ops, arch=arch, num_sms=num_sms)
    with record_launches() as launches:
        kernel.run()
    return Recorded(launches[0], kernel)


def _mega_stream(arch: str) -> Recorded:
    torch.manual_seed(0)
    x, y, z, w = (torch.randn(6000) for _ in range(4))
    ops = StreamAdd.schedule(x=x, y=y, z=z) + ReverseTiles.schedule(x=z, y=w) + StreamAdd.schedule(x=w, y=y, z=x)
    return _megakernel(ops, arch, 3)


def _mega_gemm(arch: str) -> Recorded:
    torch.manual_seed(0)
    a, w, v = (torch.randn(200, 256).to(torch.bfloat16) for _ in range(3))
    b, c = torch.empty(200, 200, dtype=torch.bfloat16), torch.empty(200, 200, dtype=torch.bfloat16)
    ops = GemmOp.schedule(a=a, b=w, c=b) + GemmOp.schedule(a=b, b=v[:, :200].contiguous(), c=c)
    return _megakernel(ops, arch, 2)


def _mega_decode(arch: str) -> Recorded:
    torch.manual_seed(0)
    x, y, c = (torch.randn(2, 512).to(torch.bfloat16) for _ in range(3))
    weight, matrix = torch.randn(512).to(torch.bfloat16), torch.randn(512, 512).to(torch.bfloat16)
    ops: list[ScheduledOp] = []
    for _ in range(4):  # layers, so that slots and barriers are used again
        ops += RMSNormOp.schedule(x=x, weight=weight, y=y) + GemmOp.schedule(a=y, b=matrix, c=c)
        ops += RMSNormOp.schedule(x=c, weight=weight, y=x)
    return _megakernel(ops, arch, 3)


CASES = {
    case.name: case
    for case in (
        Case("through", ALL, _through),
        Case("total", ALL, _total),
        Case("exchange", ALL, _exchange),
        Case("swap", ALL, _swap),
        Case("gemm_cp_async", ALL, _gemm_cp_async),
        Case("gemm_wgmma", ("sm_90a",), _gemm_wgmma),
        Case("gemm_tcgen05", ("sm_100a",), _gemm_tcgen05),
        Case("mega_stream", ("sm_100a",), _mega_stream),
        Case("mega_gemm", ("sm_90a",), _mega_gemm),
        Case("mega_decode", ("sm_120a",), _mega_decode),
    )
}


def judge(case: Case, arch: str, every: int = 1) -> list[Verdict]:
    """Every n-th mutant of a case, judged."""
    recorded = case.launch(arch)  # which owns the memory
    return list(inject(recorded.launch, SEEDS, every=every))


def main(
    kernel: Annotated[list[str] | None, typer.Option(help=f"Which ({', '.join(CASES)}); default: all.")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="Which targets; default: all that a kernel has.")] = None,
    every: Annotated[int, typer.Option(help="Judge each n-th mutant only.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every mutant with its verdict.")] = None,
) -> None:
    """Break kernels and say what was named; exits with 1 if a mutant is neither named nor has a reason."""
    console = Console()
    table = Table("kernel", "target", "mutants", "named", "equivalent", "not reached", "missed", "seconds", "named by")
    rows: list[dict[str, object]] = []
    for case in CASES.values():
        if kernel and case.name not in kernel:
            continue
        for target in case.archs:
            if arch and target not in arch:
                continue
            started = time.perf_counter()
            verdicts = judge(case, target, every)
            outcomes = Counter(verdict.outcome for verdict in verdicts)
            kinds = Counter(verdict.by for verdict in verdicts if verdict.outcome == "named")
            table.add_row(
                case.name,
                target,
                str(len(verdicts)),
                *(str(outcomes[outcome]) for outcome in OUTCOMES),
                f"{time.perf_counter() - started:.0f}",
                ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()),
            )
            for verdict in verdicts:
                rows.append(_row(case.name, target, verdict))
                if verdict.outcome != "named":
                    m = verdict.mutant
                    place = f"PTX line {m.line}" + (f", {Path(m.source).name}" if m.source else "")
                    why = reason(verdict) or f"UNEXPLAINED, {verdict.by}"
                    console.print(f"{case.name} {target}: {verdict.outcome}: {m.instruction} ({place}): {why}")
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1))
    if any(row["outcome"] != "named" and row["reason"] is None for row in rows):
        raise typer.Exit(1)


def _row(name: str, target: str, verdict: Verdict) -> dict[str, object]:
    m = verdict.mutant
    source = Path(m.source).name if m.source else None  # no paths of the machine
    return {
        "kernel": name,
        "target": target,
        "instruction": m.instruction,
        "line": m.line,
        "source": source,
        "outcome": verdict.outcome,
        "by": verdict.by,
        "reason": reason(verdict),
    }


if __name__ == "__main__":
    typer.run(main)
