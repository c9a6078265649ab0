"""Run NVIDIA's CuTe DSL examples on the simulator, and write what came of it as a page.

    python tools/sim_coverage.py CUTLASS --output docs/sim-coverage.md [--only fmha]

CUTLASS is a checkout of https://github.com/NVIDIA/cutlass. Each example compares its result with a reference of its own
and fails where they differ; nothing of them is changed, and nothing of them is kept.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = Path("examples/python/CuTeDSL")
ONCE = "--iterations 1 --warmup_iterations 0"
# architecture, script below cute/, arguments
PROGRAMS = [
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm.py", "--mnkl 256,256,128,1"),
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm.py", "--mnkl 512,256,256,1 --cluster_shape_mn 2,1"),
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm_persistent.py", "--mnkl 512,512,256,1"),
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm_persistent.py", "--mnkl 512,512,256,1 --cluster_shape_mn 2,1"),
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm_fp8_2xacc.py", "--mnkl 256,256,256,1"),
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm_fp8_gelu_persistent.py", "--mnkl 256,256,256,1"),
    ("sm_90a", "hopper/kernel/dense_gemm/dense_gemm_persistent.py", "--mnkl 512,512,256,1 --cluster_shape_mn 2,2"),
    ("sm_90a", "hopper/kernel/grouped_gemm/grouped_gemm.py",
     "--num_groups 2 --problem_sizes_mnkl (128,256,128,1),(256,128,64,1)"),
    ("sm_90a", "hopper/kernel/attention/fmha.py", "--q_shape 1,256,2,64 --k_shape 1,256,2,64"),
    ("sm_90a", "hopper/kernel/attention/fmha.py", "--q_shape 1,256,2,64 --k_shape 1,256,2,64 --is_causal"),
    ("sm_90a", "hopper/kernel/cta_norm/cta_norm.py", "--M 64 --N 1024"),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm.py", "--mnkl 256,256,128,1"),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm_persistent.py", "--mnkl 256,256,128,1 --use_tma_store"),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm_persistent.py",
     ("--mnkl 512,256,256,1 --ab_dtype Float16 --c_dtype Float16 --use_2cta_instrs --mma_tiler_mn 256,128 "
      "--cluster_shape_mn 2,1 --use_tma_store")),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm_persistent.py",
     "--mnkl 512,512,256,1 --ab_dtype Float8E4M3FN --c_dtype Float16 --cluster_shape_mn 2,2 --use_tma_store"),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm_persistent_dynamic.py", "--mnkl 512,512,128,1"),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm_software_pipeline.py", "--mnkl 256,256,256,1"),
    ("sm_100a", "blackwell/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py", "--mnkl 256,256,256,1"),
    ("sm_100a", "blackwell/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
     "--mnkl 256,256,256,1 --sf_dtype Float8E8M0FNU --sf_vec_size 32"),
    ("sm_100a", "blackwell/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
     "--mnkl 256,256,256,1 --a_dtype Float8E4M3FN --b_dtype Float8E4M3FN --sf_dtype Float8E8M0FNU --sf_vec_size 32"),
    ("sm_100a", "blackwell/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
     "--mnkl 512,256,256,1 --mma_tiler_mn 256,128 --cluster_shape_mn 2,1"),
    ("sm_100a", "blackwell/kernel/grouped_gemm/grouped_gemm.py",
     "--num_groups 2 --problem_sizes_mnkl (128,256,128,1),(256,128,64,1)"),
    ("sm_100a", "blackwell/kernel/attention/fmha/fmha.py", "--q_shape 1,256,2,128 --k_shape 1,256,2,128"),
    ("sm_100a", "blackwell/kernel/attention/fmha/fmha.py", "--q_shape 1,256,2,128 --k_shape 1,256,1,128 --is_causal"),
    ("sm_100a", "blackwell/kernel/attention/fmha/fmha_bwd.py", "--s_q 256 --s_k 256 --h_q 2 --h_k 2 --d 64"),
    ("sm_100a", "blackwell/kernel/attention/mla/mla_decode_fp16.py", "--seq_len_k 256 --page_size 128"),
    ("sm_100a", "blackwell/kernel/attention/mla/mla_decode_fp8.py", ""),
    ("sm_100a", "blackwell/kernel/attention/mamba2_ssd/mamba2_ssd.py", "--gbehcdln 1,1,1,2,4,64,128,128"),
    ("sm_100a", "blackwell/kernel/blockwise_gemm/blockwise_gemm.py", "--mnkl 256,256,256,1"),
    ("sm_100a", "blackwell/kernel/blockwise_gemm/contiguous_grouped_gemm.py", ""),
    ("sm_100a", "blackwell/kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py", ""),
    ("sm_100a", "blackwell/kernel/dense_gemm/dense_gemm.py",
     "--mnkl 256,256,128,1 --ab_dtype TFloat32 --a_major m --b_major n"),
    ("sm_100a", "blackwell/kernel/rmsnorm/rmsnorm.py", "--M 64 --N 1024"),
    ("sm_120a", "blackwell_geforce/kernel/dense_gemm/dense_gemm.py", "--mnkl 256,256,128,1"),
    ("sm_120a", "blackwell_geforce/kernel/dense_gemm/dense_gemm.py", "--mnkl 128,128,512,1"),
    ("sm_120a", "blackwell_geforce/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_pingpong.py",
     "--mnkl 256,256,256,1"),
    ("sm_120a", "blackwell_geforce/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_cooperative.py",
     "--mnkl 256,256,256,1"),
    ("sm_120a", "blackwell_geforce/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_cooperative.py",
     "--mnkl 256,256,256,1 --sf_dtype Float8E8M0FNU --sf_vec_size 32"),
    ("sm_120a", "blackwell_geforce/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_cooperative.py",
     "--mnkl 256,256,256,1 --a_dtype Float8E4M3FN --b_dtype Float8E4M3FN --sf_dtype Float8E8M0FNU --sf_vec_size 32"),
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What one program came to. instructions: warp instructions simulated, in `simulated` seconds of `seconds`."""

    arch: str
    script: str
    arguments: str
    result: str
    instructions: str
    simulated: str
    seconds: float

    def row(self) -> str:
        command = f"`{self.script}`" + (f"<br>`{self.arguments}`" if self.arguments else "")
        return (
            f"| {self.arch} | {command} | {self.result} | {self.instructions} | {self.simulated} | {self.seconds:.0f} |"
        )


def execute(cutlass: Path, arch: str, script: str, arguments: str, timeout: int) -> Outcome:
    file = cutlass / EXAMPLES / "cute" / script
    known = file.read_text()
    extra = ONCE if "--iterations" in known and "--warmup_iterations" in known else ""
    command = [sys.executable, "-m", "machete.sim.programs", "run", "--arch", arch, str(file)]
    paths = os.pathsep.join(str(cutlass / EXAMPLES / folder) for folder in ("", "cute"))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, *shlex.split(f"{arguments} {extra}".replace("(", r"\(").replace(")", r"\)"))],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return Outcome(arch, script, arguments, f"not done after {timeout} s", "", "", timeout)
    seconds = time.perf_counter() - start
    summary = re.search(r"machete-sim: .*: \d+ launch\w*, ([\d,]+) warp instructions in ([\d.]+) s", done.stderr)
    result = "passes" if done.returncode == 0 else reason(done.stdout + done.stderr)
    count, simulated = summary.groups() if summary else ("", "")
    return Outcome(arch, script, arguments, result, count, simulated, seconds)


def reason(output: str) -> str:
    """The line that says why a program failed."""
    lines = [line for line in output.splitlines() if re.match(r"[\w.]*(Error|Exception|machete\.sim[\w.]*): ?", line)]
    lines = lines or [line for line in output.splitlines() if line.strip()] or ["no output"]
    return lines[-1].removeprefix("machete.sim.errors.").replace("|", "/")[:200]


PAGE = """# NVIDIA's CuTe DSL examples on the simulator

Each program is run by `machete-sim run --arch ARCH SCRIPT ARGUMENTS` and compares its result with a reference of its
own. The scripts are those of `examples/python/CuTeDSL/cute` in NVIDIA's CUTLASS repository, at commit `{commit}`,
unmodified. Instructions are warp instructions; the last columns are seconds in the interpreter, and of the whole
program with imports and compilation.

`python tools/sim_coverage.py CUTLASS --output docs/sim-coverage.md` makes this page.

| GPU | program | result | instructions | simulated s | whole s |
| --- | --- | --- | --- | --- | --- |
{rows}

## What the checks found

These are reports on unmodified programs that were looked into: what the instructions do is not what the PTX ISA asks
for, even where the hardware gets away with it.

- `blackwell/kernel/attention/fmha/fmha_bwd.py`: the warps of the dK and dV epilogue free tensor memory after their own
  accumulators are complete; nothing makes them wait for the last dQ product: only the reducing warps await its commit.
- `blackwell_geforce/kernel/dense_gemm/dense_gemm.py` with several tiles a CTA: one thread waits until its bulk store
  has read the stage, then no barrier follows before the other warps write the next tile there.
- `blackwell_geforce/kernel/blockscaled_gemm/dense_blockscaled_gemm_persistent_cooperative.py` with operands of eight
  bits: one lane releases a stage right after the warp's last `ldmatrix` of it. PTX lets `ldmatrix` wait for all lanes,
  and does not say that their reads are then done for a lane that arrives: `__syncwarp` would.
- `hopper/kernel/grouped_gemm/grouped_gemm.py`: the launch whose result is checked passes. Then its benchmark makes a
  second set of operands, of which `generate_tensors` keeps the table of addresses only: the tensors are freed when it
  returns, and the kernel reads and writes memory that is no longer theirs. (torch's allocator for GPUs keeps it mapped,
  so a GPU reports nothing.)
- `experimental/primitives/mapa.py`: a CTA reads its neighbour's shared memory with no cluster barrier before the
  neighbour ends.
- `experimental/primitives/reduction/cluster_tmem_reduce.py`: `tcgen05.cp` is followed by `tcgen05.wait::st`, which does
  not wait for it; a commit and a wait at its mbarrier would.
- `experimental/primitives/tcgen05/mcast_clusterMxN_1cta_mma.py`: a multicast `tcgen05.commit` arrives at mbarriers of
  CTAs that have already ended.
"""


def main(
    cutlass: Annotated[Path, typer.Argument(help="A checkout of NVIDIA's CUTLASS.")],
    output: Annotated[Path | None, typer.Option(help="The page to write.")] = None,
    only: Annotated[str, typer.Option(help="Programs whose name contains this.")] = "",
    timeout: Annotated[int, typer.Option(help="Seconds for one program.")] = 300,
    commit: Annotated[str, typer.Option(help="The checkout's commit, where it is no git repository.")] = "",
) -> None:
    """Run the examples one after the other."""
    outcomes = []
    for arch, script, arguments in PROGRAMS:
        if only in f"{script} {arguments}":
            outcomes.append(execute(cutlass.resolve(), arch, script, arguments, timeout))
            typer.echo(outcomes[-1].row())
    if output is not None:
        if not commit:
            head = ["git", "-C", str(cutlass), "rev-parse", "--short", "HEAD"]
            commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        output.write_text(PAGE.format(commit=commit, rows="\n".join(one.row() for one in outcomes)))


if __name__ == "__main__":
    typer.run(main)
