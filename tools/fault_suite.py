"""Remove every synchronisation instruction of many kernels, one at a time: does the simulator name each fault?

    python tools/fault_suite.py                              # all kernels, all targets: minutes
    python tools/fault_suite.py --kernel through --arch sm_90a
    python tools/fault_suite.py --json faults.json           # every mutant with its verdict

Kernels are stand-alone CuTe DSL kernels (tools/fault_kernels.py) and megakernels of our own ops. What is run, removed
and judged is described in machete.sim.faults; docs/fault-suite.md has the results.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import ml_dtypes
import numpy as np
import torch
import typer
from cutlass import Int32, Int64, cute
from rich.console import Console
from rich.table import Table

import fault_kernels
import fault_ops
from fault_reasons import reason
from machete.kernels.fusions import ResidualAdd, RmsNormOnLoad
from machete.kernels.gemm import GemmOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import Megakernel, ScheduledOp
from machete.megakernel.errors import HangError
from machete.megakernel.plan.plan import Plan
from machete.megakernel.plan.program import Program
from machete.sim import Image, LaunchConfig, RecordedLaunch, Region, record_launches, run
from machete.sim._core import engine
from machete.sim.faults import Verdict, inject
from small_ops import Accumulate, RowSum

ALL = ("sm_90a", "sm_100a", "sm_120a")
OUTCOMES = ("named", "equivalent", "not reached", "missed")
PATIENCE = 0.001  # seconds until the kernel that waits in vain is stopped
SEEDS = (0, 1, 2, 4)  # of the five rates at which copies complete, the ones that differ most


@dataclass(frozen=True)
class Case:
    """A kernel to break: `launch` runs it for an architecture and returns what was recorded."""

    name: str
    archs: tuple[str, ...]
    launch: Callable[[str], Recorded]


@dataclass(frozen=True)
class Recorded:
    """Launches of one kernel; `keep` owns the memory that they name."""

    launches: list[RecordedLaunch]
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
    config = LaunchConfig(
        (grid, 1, 1), (threads, 1, 1), dynamic_shared=96 * 1024, cluster=(cluster, 1, 1), check="strict"
    )
    with record_launches() as launches:
        run(image, block, config, memory)
    return Recorded(launches, (arguments, others))


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


# ---- megakernels: several launches of each, for what one plan does not do another does


def _megakernel(graphs: list[tuple[list[ScheduledOp], int]], arch: str) -> Recorded:
    """Launch graphs of the same kinds of ops, each with its number of SMs: all of them are the same program.

    And once more the first one, as a kernel that waits in vain and has to stop. What it writes from then on is
    worthless, so its accesses to memory need not be ordered.
    """
    with record_launches() as launches:
        kernels = [_run(ops, arch, num_sms, "strict") for ops, num_sms in graphs]
        with mock.patch.object(Program, "of", _never_satisfied):
            kernels.append(_run(graphs[0][0], arch, graphs[0][1], "memory", timeout=PATIENCE))
    return Recorded(launches, kernels)


def _run(ops: list[ScheduledOp], arch: str, num_sms: int, check: str, timeout: float | None = None) -> Megakernel:
    kernel = Megakernel(ops, arch=arch, num_sms=num_sms, timeout=timeout)
    with contextlib.suppress(HangError), mock.patch.dict(os.environ, MACHETE_SIM_CHECK=check):
        kernel.run()
    return kernel


_program_of = Program.of


def _never_satisfied(plan: Plan) -> Program:
    """A program whose middle wait is for one signal more than there are."""
    program = _program_of(plan)
    program.waits[len(program.waits) // 2, 1] += 1
    return program


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _mega_stream(arch: str) -> Recorded:
    """Ops that share buffers, which they read and overwrite in any order."""

    def graph(rows: int, length: int, order: random.Random) -> list[ScheduledOp]:
        constant, *buffers = (_random(rows, fault_ops.ROW) for _ in range(6))
        ops: list[ScheduledOp] = []
        for number in range(length):
            x, y, s, m, other = order.sample(buffers, 5)
            op = (fault_ops.Mix, fault_ops.MixPairs)[number % 2]
            ops += op.schedule(x=order.choice((x, constant)), y=y, s=s, m=m)
            if number % 3 == 1:  # sums of rows, and of everything
                ops += RowSum.schedule(x=order.choice((y, m)), s=other[:, fault_ops.CHUNK], tile_m=2)
                ops += RowSum.schedule(x=order.choice((y, s, other)).view(2, -1), s=x[:2, fault_ops.CHUNK], tile_m=2)
        x, y, s, m, other = buffers  # one waits for some rows of a sum, one for all of them
        ops += RowSum.schedule(x=constant, s=x[:, fault_ops.CHUNK], tile_m=2)
        ops += fault_ops.Mix.schedule(x=x, y=y, s=s, m=m)
        ops += RowSum.schedule(x=x.view(2, -1), s=other[:2, fault_ops.CHUNK], tile_m=2)
        return ops

    torch.manual_seed(0)
    order = random.Random(0)
    return _megakernel([(graph(5, 9, order), 3), (graph(3, 9, order), 2), (graph(5, 5, order), 1)], arch)


def _mega_gemm(arch: str) -> Recorded:
    """Products with a residual, and sums in place, whose operands are each other's results."""

    def graph(size: int, length: int, order: random.Random) -> list[ScheduledOp]:
        constant, *buffers = (_random(size, size, dtype=torch.bfloat16) / 16 for _ in range(6))
        ops: list[ScheduledOp] = []
        for number in range(length):
            a, b, c, residual, other = order.sample(buffers, 5)
            if order.random() < 0.5:
                a = b = constant  # only the epilogue waits for somebody
            depth = (size, 64)[number % 2]  # with one step, and with some
            epilogue = [ResidualAdd(residual)]
            ops += GemmOp.schedule(a=a[:, :depth], b=b[:, :depth], c=c, epilogue=epilogue, tile_n=256, slices=1)
            if number % 2:
                ops += Accumulate.schedule(x=other.view(-1)[: 8 * size], y=residual.view(-1)[: 8 * size])
        a, b, c, other, _ = buffers  # one waits for some tiles of a sum, one for all of them
        ops += Accumulate.schedule(x=constant.view(-1)[:1000], y=b.view(-1)[:1000])
        ops += Accumulate.schedule(x=b.view(-1)[128:640], y=other.view(-1)[:512])
        ops += GemmOp.schedule(a=a, b=b, c=c, epilogue=[ResidualAdd(constant)], tile_n=256, slices=1)
        return ops

    def apart(length: int) -> list[ScheduledOp]:
        """Ops that nobody waits for: one follows upon the other."""
        a, b, *others = (_random(136, 136, dtype=torch.bfloat16) / 16 for _ in range(2 + 4 * length))
        ops: list[ScheduledOp] = []
        for number in range(0, len(others), 4):
            y, *results = others[number : number + 4]
            for c in results:
                ops += GemmOp.schedule(a=a, b=b, c=c, epilogue=[ResidualAdd(a)], tile_n=256, slices=1)
            ops += Accumulate.schedule(x=b.view(-1)[:1000], y=y.view(-1)[:1000])
        return ops

    def tall(length: int) -> list[ScheduledOp]:
        """Many tiles of one step for an instruction: results come as fast as they can."""
        a, b, *results = (_random(rows, 136, dtype=torch.bfloat16) / 16 for rows in (1000, 136, *[1000] * length))
        ops: list[ScheduledOp] = []
        for c in results:
            ops += GemmOp.schedule(a=a[:, :64], b=b[:, :64], c=c, epilogue=[ResidualAdd(a)], tile_n=256, slices=1)
        ops += Accumulate.schedule(x=b.view(-1)[:1000], y=a.view(-1)[:1000])
        return ops

    torch.manual_seed(0)
    order = random.Random(0)
    graphs = [(graph(200, 8, order), 2), (graph(136, 6, order), 1), (graph(136, 4, order), 3)]
    graphs.append((graph(296, 2, order), 1))  # several tiles of c for an instruction
    graphs.append((apart(3), 1))
    graphs.append((tall(3), 1))
    return _megakernel(graphs, arch)


def _mega_decode(arch: str) -> Recorded:
    """Few rows: norms and products, whose rows, weights and matrices are each other's results."""

    def graph(length: int, order: random.Random) -> list[ScheduledOp]:
        matrices = [_random(128, 1024, dtype=torch.bfloat16) / 16 for _ in range(3)]
        ops: list[ScheduledOp] = []
        for _ in range(length):
            one, other, third = order.sample(matrices, 3)
            ops += RMSNormOp.schedule(x=one[2:4], weight=third[2], y=other[:2])
            prologue = RmsNormOnLoad(other[order.choice((4, 9))])
            ops += GemmOp.schedule(a=other[:2], b=one, c=third[2:4, :128], prologue=prologue)
            ops += RMSNormOp.schedule(x=third[2:4], weight=one[0], y=one[4:6])
        # One waits for some columns of a product, one for all of them; and for rows of a norm.
        one, other, third = matrices
        ops += GemmOp.schedule(a=other[:2], b=one, c=third[2:4, :128], prologue=RmsNormOnLoad(other[4]))
        ops += RMSNormOp.schedule(x=other[2:4], weight=other[0], y=one[40:42])
        ops += RMSNormOp.schedule(x=third[2:4], weight=other[0], y=other[60:62])
        ops += RMSNormOp.schedule(x=one[:8], weight=other[0], y=third[8:16])
        ops += RMSNormOp.schedule(x=third[12:16], weight=other[0], y=other[70:74])
        ops += GemmOp.schedule(a=third[8:16], b=other, c=one[8:16, :128], prologue=RmsNormOnLoad(other[4]))
        return ops

    def apart(length: int) -> list[ScheduledOp]:
        """Ops that nobody waits for: one follows upon the other."""
        one, other, third = (_random(128, 1024, dtype=torch.bfloat16) / 16 for _ in range(3))
        ops: list[ScheduledOp] = []
        for number in range(length):
            row = slice(2 * number, 2 * number + 2)
            ops += RMSNormOp.schedule(x=one[row], weight=one[0], y=other[row])
            ops += GemmOp.schedule(a=one[row], b=one, c=third[row, :128], prologue=RmsNormOnLoad(one[0]))
        return ops

    torch.manual_seed(0)
    order = random.Random(0)
    graphs = [(graph(4, order), 3), (graph(1, order), 1), (graph(3, order)[:-1], 2), (graph(3, order), 4)]
    graphs.append((apart(3), 1))
    return _megakernel(graphs, arch)


def _mega_tcgen05(arch: str) -> Recorded:
    """Products in tensor memory between ops on rows through the same ring, and sums in place, of each other's results.

    Rows of a matrix are those of `fault_ops`, of whose memory the products use the beginning.
    """
    width, some = 136, 5

    def matrix(rows: int) -> torch.Tensor:
        return _random(rows, 2 * fault_ops.ROW, dtype=torch.bfloat16) / 16

    def mix(*tensors: torch.Tensor) -> list[ScheduledOp]:
        x, y, s, m = (tensor.view(torch.float32) for tensor in tensors)
        return fault_ops.MixLarge.schedule(x=x, y=y, s=s, m=m)

    def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, depth: int = width) -> list[ScheduledOp]:
        return GemmOp.schedule(a=a[:, :depth], b=b[:width, :depth], c=c[:, :width], tile_n=128, slices=1)

    def accumulate(x: torch.Tensor, y: torch.Tensor, count: int = 1000) -> list[ScheduledOp]:
        return Accumulate.schedule(x=x.view(-1)[:count], y=y.view(-1)[:count])

    def graph(rows: int, length: int, order: random.Random) -> list[ScheduledOp]:
        constant, *buffers = (matrix(rows) for _ in range(6))
        ops: list[ScheduledOp] = []
        for number in range(length):
            a, b, c, y, other = order.sample(buffers, 5)
            if order.random() < 0.3:
                a = b = constant  # nothing waits but for the memory of the result
            ops += multiply(a, b, c, (width, 64)[number % 2])  # with some steps, and with one
            if number % 2:
                ops += mix(order.choice((c, constant))[:some], y[:some], other[-some:], b[:some])
            if number % 3 == 1:
                ops += accumulate(c, other)
        a, b, c, y, other = buffers  # one waits for some tiles of a result, one for all of them
        ops += accumulate(constant, b, 256)
        ops += accumulate(b.view(-1)[128:], other, 128)
        ops += multiply(a, b, c)
        ops += mix(c[:some], y[:some], other[:some], a[:some])
        ops += mix(y[1:2], other[8:9], other[9:10], other[10:11])
        ops += multiply(y, constant, b)
        return ops

    def apart(length: int) -> list[ScheduledOp]:
        """Ops that nobody waits for: the loader comes around the ring before compute."""
        rows = 200
        a, *others = (matrix(rows) for _ in range(1 + 2 * length))
        ops: list[ScheduledOp] = []
        for c, y in zip(others[::2], others[1::2], strict=True):
            ops += multiply(a, a, c)
            for first in range(0, 9 * some, 3 * some):
                ops += mix(a[:some], *(y[first + number * some :][:some] for number in range(3)))
            ops += accumulate(a, y[100:])
        return ops

    torch.manual_seed(0)
    order = random.Random(0)
    graphs = [(graph(200, 6, order), 2), (graph(296, 6, order), 1), (graph(136, 4, order), 3), (apart(3), 1)]
    return _megakernel(graphs, arch)


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
        Case("mega_tcgen05", ("sm_100a",), _mega_tcgen05),
    )
}


def judge(case: Case, arch: str, every: int = 1) -> list[Verdict]:
    """Every n-th mutant of a case, judged."""
    recorded = case.launch(arch)  # which owns the memory
    return list(inject(recorded.launches, SEEDS, every=every))


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
