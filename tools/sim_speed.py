"""How fast the simulator is, on one core: MMA of every type, other instructions, what the checks cost, whole programs.

    python tools/sim_speed.py                 # a minute; --only mma: the table of products alone
    python tools/sim_speed.py --markdown      # as docs/simulator.md has it

Each figure is the best of seven runs, in processor time. Checking is off (MACHETE_SIM_CHECK=memory) but where
it is said to be on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel
from machete.sim import Image, LaunchConfig, record_launches, run
from machete.sim.settings import Check

REPEATS = 7
PROGRAMS = Path(__file__).parent.parent / "integration_tests" / "third_party_programs"
HEAD = ".version 9.0\n.target {arch}\n.address_size 64\n.visible .entry k()\n{{\n"
LOOP = "mov.u32 %i, 0; LOOP: {body} add.u32 %i, %i, 1; setp.lt.u32 %again, %i, {count}; @%again bra LOOP;"


@dataclass(frozen=True)
class Mma:
    """An instruction in a loop; m, n and k are those of one."""

    name: str
    arch: str
    mnk: tuple[int, int, int]
    threads: int
    ptx: str
    count: int

    def gflops(self) -> float:
        m, n, k = self.mnk
        return 2e-9 * m * n * k * self.count / _seconds(self.ptx, self.arch, self.threads)


def _seconds(ptx: str, arch: str, threads: int, check: Check = "memory") -> float:
    image = Image.from_ptx(HEAD.format(arch=arch) + ptx + "ret;\n}\n", arch=arch)
    config = LaunchConfig((1, 1, 1), (threads, 1, 1), check=check)
    return min(_processor_seconds(lambda: run(image, b"", config)) for _ in range(REPEATS))


def _processor_seconds(work: Callable[[], object]) -> float:
    """Of this thread: what others do on the machine counts little."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _registers(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


# ---- products


def _mma_sync(shape: str, kind: str, d: str, a: str, b: str, arch: str = "sm_90a", scales: int = 0) -> Mma:
    """scales: of a row; the vector's name goes with it."""
    k = int(shape.partition("k")[2])
    narrow = bool(kind)
    a_count = 4
    d_count = 2 if d == "f16" else 4
    vector = f".block_scale.scale_vec::{scales}X" if scales else ""
    suffix = ".ue8m0" if scales else ""
    opcode = f"mma.sync.aligned.{shape}.row.col{f'.kind::{kind}' if narrow else ''}{vector}.{d}.{a}.{b}.{d}{suffix}"
    operands = ", ".join(_registers(name, n) for name, n in (("d", d_count), ("a", a_count), ("b", 2), ("d", d_count)))
    extra = ", %s, {0, 0}, %s, {0, 0}" if scales else ""
    count = 20_000
    body = f"{opcode} {operands}{extra};\n" * 8
    fill = "".join(f"mov.b32 %{name}{i}, 0x38383838;" for name, n in (("a", a_count), ("b", 2)) for i in range(n))
    zero = "".join(f"mov.b32 %d{i}, 0;" for i in range(d_count))
    ptx = (
        ".reg .pred %again; .reg .b32 %i, %s, %a<4>, %b<2>, %d<4>;\n"
        f"{fill}{zero} mov.b32 %s, 0x7f7f7f7f;\n{LOOP.format(body=body, count=count // 8)}"
    )
    types = f"{a} {kind}" if narrow else a
    return Mma(f"mma.sync {shape} {types} → {d}", arch, (16, 8, k), 32, ptx, count)


FILL = """
    .reg .pred %again, %first, %done; .reg .b32 %i, %t, %at, %end, %bar, %tmem, %idesc, %phase; .reg .b64 %a, %b, %s;
    mov.u32 %t, %tid.x; mov.u32 %at, tiles; add.u32 %end, %at, {half}; shl.b32 %i, %t, 2; add.u32 %at, %at, %i;
    F: st.shared.u32 [%at], 0x38383838; add.u32 %at, %at, 512; setp.lt.u32 %again, %at, %end; @%again bra F;
    add.u32 %end, %end, {scales};
    setp.lt.u32 %again, %at, %end; @!%again bra READY;
    G: st.shared.u32 [%at], 0x7f7f7f7f; add.u32 %at, %at, 512; setp.lt.u32 %again, %at, %end; @%again bra G;
    READY: fence.proxy.async; bar.sync 0;
    mov.u32 %at, tiles; shr.u32 %at, %at, 4; cvt.u64.u32 %a, %at; or.b64 %a, %a, {descriptor};
    add.s64 %b, %a, {b_at}; add.s64 %s, %a, {scales_at};
"""
TILES = ".shared .align 1024 .b8 tiles[{size}];\n"
SWIZZLED = 1 << 16 | 64 << 32  # leading and stride of rows of 128 bytes, 8 rows an atom


def _wgmma(a: str, k: int, d: str) -> Mma:
    """M 64, N 256, both operands in shared memory, rows of 128 bytes."""
    registers = _registers("d", 64 if d == "f16" else 128)
    count = 400
    size = 128 * (64 + 256)
    modifiers = "1, 1" + (", 0, 0" if a in ("f16", "bf16") else "")
    negate = "" if a in ("s8", "u8") else modifiers
    operation = f"wgmma.mma_async.sync.aligned.m64n256k{k}.{d}.{a}.{a} {registers}, %a, %b, 1"
    body = "wgmma.fence.sync.aligned;" + f"{operation}{', ' + negate if negate else ''};\n" * 4
    body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
    zero = "".join(f"mov.b32 %d{i}, 0;" for i in range(128))
    ptx = (
        TILES.format(size=size)
        + FILL.format(half=size, scales=0, descriptor=SWIZZLED | 1 << 62, b_at=64 * 128 >> 4, scales_at=0)
        + f".reg .b32 %d<128>; {zero}\n{LOOP.format(body=body, count=count // 4)}"
    )
    return Mma(f"wgmma m64n256k{k} {a} → {d}", "sm_90a", (64, 256, k), 128, ptx, count)


def _tcgen05(kind: str, a: str, code: int, k: int, d: str = "f32", scales: int = 0) -> Mma:
    """M 128, N 256, one CTA, both operands in shared memory, rows of 128 bytes."""
    count = 200
    size = 128 * (128 + 256)
    accumulator = {"f16": 0, "f32": 1, "s32": 2}[d]
    instruction = code << 7 | code << 10 | 256 // 8 << 17 | 128 // 16 << 24
    instruction |= 1 << 23 if scales else accumulator << 4
    vector = f".block_scale.scale_vec::{scales}X" if scales else ""
    operands = "[%sa], [%sb], " if scales else ""
    scale_descriptor = 8 << 32 | 1 << 46
    copies = "".join(
        f"add.u32 %end, %tmem, {at}; tcgen05.cp.cta_group::1.32x128b.warpx4 [%end], %s;\n" for at in (320, 384, 388)
    )
    body = (
        f"tcgen05.mma.cta_group::1.kind::{kind}{vector} [%tmem], %a, %b, %idesc, {operands}%first;\n"
        * 4
        + "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];\n"
        "and.b32 %phase, %i, 1;"
        "W{n}: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], %phase; @!%done bra W{n};\n"
    ).replace("{n}", "0")
    ptx = (
        TILES.format(size=size + 1024)
        + ".shared .align 8 .b64 bar; .shared .align 4 .b32 slot;\n"
        + FILL.format(half=size, scales=1024, descriptor=SWIZZLED | 1 << 46 | 2 << 61, b_at=128 * 128 >> 4, scales_at=0)
        + f"""
        .reg .b32 %sa, %sb, %slot;
        mov.u32 %bar, bar; mov.u32 %slot, slot; mov.u32 %idesc, {instruction}; setp.eq.u32 %first, %t, 0;
        @%first mbarrier.init.shared::cta.b64 [%bar], 1; bar.sync 0;
        setp.lt.u32 %again, %t, 32; @%again tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%slot], 512;
        bar.sync 0; ld.shared.u32 %tmem, [%slot]; @!%first bra END;
        add.u32 %sa, %tmem, 320; add.u32 %sb, %tmem, 384;
        mov.u32 %at, tiles; add.u32 %at, %at, {size}; shr.u32 %at, %at, 4; cvt.u64.u32 %s, %at;
        or.b64 %s, %s, {scale_descriptor};
        {copies if scales else ""}
        tcgen05.mma.cta_group::1.kind::{kind}{vector} [%tmem], %a, %b, %idesc, {operands}0;
        {LOOP.format(body=body, count=count // 4)}
        END: bar.sync 0; setp.lt.u32 %again, %t, 32;
        @%again tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, 512;
        """
    )
    return Mma(f"tcgen05 m128n256k{k} {a} {kind} → {d}", "sm_100a", (128, 256, k), 128, ptx, count)


def products() -> Iterator[Mma]:
    for a in ("f16", "bf16"):
        yield _mma_sync("m16n8k16", "", "f32", a, a)
    yield _mma_sync("m16n8k16", "", "f16", "f16", "f16")
    yield _mma_sync("m16n8k8", "", "f32", "tf32", "tf32")
    yield _mma_sync("m16n8k32", "", "f32", "e4m3", "e4m3")
    for a in ("s8", "u8"):
        yield _mma_sync("m16n8k32", "", "s32", a, a)
    for a in ("e4m3", "e2m3", "e2m1"):
        yield _mma_sync("m16n8k32", "f8f6f4", "f32", a, a, "sm_120a")
    yield _mma_sync("m16n8k32", "mxf8f6f4", "f32", "e4m3", "e4m3", "sm_120a", 1)
    yield _mma_sync("m16n8k64", "mxf4", "f32", "e2m1", "e2m1", "sm_120a", 2)
    yield _mma_sync("m16n8k64", "mxf4nvf4", "f32", "e2m1", "e2m1", "sm_120a", 4)
    for a, k, d in (
        ("f16", 16, "f32"),
        ("f16", 16, "f16"),
        ("bf16", 16, "f32"),
        ("tf32", 8, "f32"),
        ("e4m3", 32, "f32"),
        ("e4m3", 32, "f16"),
        ("s8", 32, "s32"),
        ("u8", 32, "s32"),
    ):
        yield _wgmma(a, k, d)
    yield _tcgen05("f16", "f16", 0, 16)
    yield _tcgen05("f16", "f16", 0, 16, "f16")
    yield _tcgen05("f16", "bf16", 1, 16)
    yield _tcgen05("tf32", "tf32", 2, 8)
    yield _tcgen05("f8f6f4", "e4m3", 0, 32)
    yield _tcgen05("f8f6f4", "e2m3", 3, 32)
    yield _tcgen05("f8f6f4", "e2m1", 5, 32)
    yield _tcgen05("i8", "u8", 0, 32, "s32")
    yield _tcgen05("i8", "s8", 1, 32, "s32")
    yield _tcgen05("mxf8f6f4", "e4m3", 0, 32, scales=1)
    yield _tcgen05("mxf4", "e2m1", 1, 64, scales=2)
    yield _tcgen05("mxf4nvf4", "e2m1", 1, 64, scales=4)


# ---- the rest


def instruction_rate() -> float:
    """Warp instructions a second of a loop of integer and float32 arithmetic, and shared memory."""
    body = (
        "fma.rn.f32 %x, %x, %y, %x; add.u32 %j, %j, 7; shl.b32 %k, %j, 2; and.b32 %k, %k, 4092; add.u32 %k, %k, %at;"
        "ld.shared.f32 %y, [%k]; setp.gt.f32 %p, %x, %y; selp.f32 %x, %y, %x, %p; st.shared.f32 [%own], %x;"
    )
    ptx = (
        ".shared .align 16 .b8 words[5120]; .reg .pred %again, %p; .reg .b32 %i, %j, %k, %at, %own; .reg .f32 %x, %y;"
        "mov.u32 %at, words; mov.u32 %j, %tid.x; shl.b32 %own, %j, 2; add.u32 %own, %own, %at; mov.f32 %x, 0f3f800000;"
        "mov.f32 %y, 0f3f000000; mov.u32 %i, 0; S: st.shared.f32 [%own], %y; add.u32 %own, %own, 1024;"
        "add.u32 %i, %i, 1; setp.lt.u32 %again, %i, 5; @%again bra S; sub.u32 %own, %own, 1024; bar.sync 0;\n"
        + LOOP.format(body=body, count=20_000)
    )
    return 8 * 12 * 20_000 / _seconds(ptx, "sm_90a", 256)


def gemm(arch: str) -> tuple[float, float]:
    """Seconds of a 512³ bf16 GEMM of ours with checking off, and on."""
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512).to(torch.bfloat16) for _ in range(2))
    kernel = Megakernel(GemmOp.schedule(a=a, b=b, c=torch.empty(512, 512, dtype=torch.bfloat16)), arch=arch, num_sms=4)
    seconds = []
    for check in ("memory", "races"):
        os.environ["MACHETE_SIM_CHECK"] = check
        with record_launches() as launches:
            kernel.run()
        seconds.append(min(_processor_seconds(launches[0].replay) for _ in range(REPEATS)))
    return seconds[0], seconds[1]


def attention(arch: str) -> tuple[float, float]:
    """FlashAttention-4 forward, b1 h2 s512 d128, checks on: seconds in the interpreter, and of the whole program."""
    options = ["--batch", "1", "--heads", "2", "--kv-heads", "2", "--length", "512", "--dim", "128"]
    command = [sys.executable, "-m", "machete.sim.programs", "run", "--arch", arch]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, str(PROGRAMS / "flash_attention_4.py"), *options], capture_output=True, text=True, check=True
    )
    whole = time.perf_counter() - started
    return float(done.stderr.strip().rpartition(" in ")[2].removesuffix(" s")), whole


def main(
    only: Annotated[str | None, typer.Option(help="mma, instructions, gemm or attention; default: all.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print tables for docs/simulator.md.")] = False,
) -> None:
    """Measure, on one core."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if only in (None, "mma"):
        rows = [(mma.name, f"{mma.gflops():.0f}") for mma in products()]
        _print(("instruction", "GFLOP/s"), rows, markdown)
    rows = []
    if only in (None, "instructions"):
        rows.append(("other instructions", f"{instruction_rate() / 1e6:.0f} million a second"))
    for arch in ("sm_90a", "sm_100a", "sm_120a"):
        if only in (None, "gemm"):
            off, on = gemm(arch)
            rows.append((f"512³ bf16 GEMM, {arch}", f"{off:.2f} s; with all checks {on:.2f} s, {on / off:.1f} times"))
        if only in (None, "attention"):
            inner, whole = attention(arch)
            text = f"{inner:.2f} s, with imports and compilation {whole:.0f} s"
            rows.append((f"FlashAttention-4 forward b1 h2 s512 d128, {arch}, all checks", text))
    if rows:
        _print(("what", "speed"), rows, markdown)


def _print(head: tuple[str, str], rows: list[tuple[str, str]], markdown: bool) -> None:
    if markdown:
        print(f"| {head[0]} | {head[1]} |\n| --- | --- |")
        print("\n".join(f"| {name} | {value} |" for name, value in rows), "\n")
        return
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
