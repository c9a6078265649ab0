"""The examples in docs/ops, run as printed but for `device=`: on the card, or on the simulator for every target."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as functional

PAGES = Path(__file__).parents[2] / "docs" / "ops"


def silu_glu(both: torch.Tensor, f: int) -> torch.Tensor:
    return functional.silu(both[..., :f]) * both[..., f:]


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def layer(n: dict[str, Any]) -> torch.Tensor:
    both = rms_norm(n["x"].double(), n["norm"].double()) @ n["gate_up"].double().T
    return n["x"].double() + silu_glu(both, n["F"]) @ n["down"].double().T


#: (page, words that pick the example) to (name of the result, its value from the example's other names).
EXAMPLES = {
    ("gemm", "y = x @ w.T"): ("y", lambda n: n["x"].double() @ n["w"].double().T),
    ("gemm", "a_scale="): (
        "y",
        lambda n: (n["a"].double() * n["x_scale"][:, None]) @ (n["b"].double() * n["w_scale"][:, None]).T,
    ),
    ("gemm", "linear("): (
        "z",
        lambda n: functional.silu(functional.linear(n["x"].double(), n["weight"].double(), n["bias"].double())),
    ),
    ("fusions", "epilogue ="): (
        "y",
        lambda n: functional.gelu(n["x"].double() @ n["w"].double().T + n["bias"].double()) + n["x"].double(),
    ),
    ("fusions", "fuse("): ("out", layer),
    ("rms_norm", "RMSNormOp"): ("y", lambda n: rms_norm(n["x"].double(), n["weight"].double())),
    ("glu", "GluOp"): ("y", lambda n: silu_glu(n["both"].double(), 640)),
}


def source(page: str, about: str, arch: str, device: str) -> str:
    """The example as a program for this device."""
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), flags=re.DOTALL)
    (code,) = (block for block in blocks if about in block)
    if device == "cpu":
        code = code.replace('device="cuda"', 'device="cpu"')
        code = re.sub(r"\)\.run\(\)", f', arch="{arch}").run()', code)
    return str(code)


@pytest.mark.parametrize(("page", "about"), EXAMPLES)
def test_example(page: str, about: str, arch: str, device: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    file = tmp_path / "example.py"
    file.write_text(source(page, about, arch, device))
    names = runpy.run_path(str(file))
    result, reference = EXAMPLES[page, about]
    expected = reference(names)
    assert ((names[result].double() - expected).norm() / expected.norm()).item() < 4e-3


def test_add(arch: str, device: str, tmp_path: Path) -> None:
    """The example updates in place, so what it started from is drawn again."""
    file = tmp_path / "example.py"
    torch.manual_seed(0)
    file.write_text(source("add", "AddOp", arch, device))
    names = runpy.run_path(str(file))
    torch.manual_seed(0)
    x = torch.randn(4, 50, 96, device=device)
    assert torch.equal(names["x"], x + names["branch"].float())
