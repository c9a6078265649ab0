"""The machine code is what is meant: tensor-core instructions of the target, no spills, and warps that stay whole.

A change far away may end the last: then every elected copy of the loader costs a vote and moves between register files,
without any other test noticing.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import nvidia
import pytest
import torch

from machete.kernels.gemm import GemmOp
from machete.megakernel import Megakernel

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn

#: M, N, K, dtype, tile_n, slices, and the instruction that multiplies, by target.
PRODUCTS = {
    "gemv": (1, 512, 512, BF16, None, None, {}),
    "few rows": (16, 512, 512, BF16, None, None, {"sm_90a": "HMMA", "sm_100a": "HMMA"}),
    "tiles": (512, 512, 512, BF16, 256, 1, {"sm_90a": "HGMMA", "sm_100a": "UTCHMMA"}),
    "bytes": (256, 512, 512, E4M3, 128, 1, {"sm_90a": "QGMMA", "sm_100a": "UTCQMMA"}),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_products_are_the_instructions_meant(name: str, target: str, tmp_path: Path) -> None:
    m, n, k, dtype, tile_n, slices, multiplied_by = PRODUCTS[name]
    a, b = (torch.zeros(rows, k).to(dtype) for rows in (m, n))
    ops = GemmOp.schedule(a=a, b=b, c=torch.zeros(m, n, dtype=BF16), tile_n=tile_n, slices=slices)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(Megakernel(ops, arch=target, num_sms=4).compile().cubin)
    found = instructions(cubin)

    assert not found["BRA.DIV"], "a role's warp is taken for one that may be divided"
    assert not found["STL"], "registers are spilled"
    assert found["EXIT"], "nothing was disassembled"
    if target in multiplied_by:
        assert found[multiplied_by[target]]


def instructions(cubin: Path) -> Counter[str]:
    """How often each instruction occurs, by its name without modifiers; and `BRA.DIV`."""
    programs = [path for folder in nvidia.__path__ for path in Path(folder).glob("*/bin/nvdisasm")]
    text = subprocess.run([programs[0], "-c", cubin], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", text)
    return Counter(name for full in names for name in {full.partition(".")[0], full if full == "BRA.DIV" else ""})
