"""The dense ops are kept in the kernel cache: a process that starts warm traces nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from machete.kernels.elementwise import AddOp
from machete.kernels.fusions import Activation, Bias
from machete.kernels.gemm import GemmOp
from machete.kernels.glu import GluOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import Megakernel, ScheduledOp
from machete.megakernel.launch import compilation


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MACHETE_CACHE", "on")
    monkeypatch.setenv("MACHETE_CACHE_DIR", str(tmp_path))
    compilation.forget()
    yield
    compilation.forget()


def matrix(m: int, n: int) -> torch.Tensor:
    return torch.zeros(m, n, dtype=torch.bfloat16)


def layer() -> list[ScheduledOp]:
    """Each of the ops, with fused ones."""
    x, y, weight = matrix(128, 256), matrix(128, 256), matrix(256, 256)
    norm = RMSNormOp.schedule(x=x, weight=weight[0], y=y, eps=1e-5)
    product = matrix(128, 256)
    epilogue = [Bias(weight[1]), Activation("silu")]
    gemm = GemmOp.schedule(a=y, b=weight, c=product, epilogue=epilogue)
    gated, total = matrix(128, 256), matrix(128, 256)
    glu = GluOp.schedule(gate=product, up=y, y=gated)
    return norm + gemm + glu + AddOp.schedule(a=gated, b=x, y=total)


#: In a process of its own: says whether the kernel was found, and whether the compiler was imported.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from {Path(__file__).stem} import layer
from machete.megakernel import Megakernel
print(Megakernel(layer(), arch="sm_90a").compile().cached, "machete.megakernel.launch.compiler" in sys.modules)
"""


def test_a_warm_process_traces_nothing() -> None:
    """Two processes without pytest, which rewrites what it imports."""
    outputs = [
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert outputs == [["False", "True"], ["True", "False"]]


def test_what_was_compiled_is_found() -> None:
    assert not Megakernel(layer(), arch="sm_90a").compile().cached
    compilation.forget()
    assert Megakernel(layer(), arch="sm_90a").compile().cached
