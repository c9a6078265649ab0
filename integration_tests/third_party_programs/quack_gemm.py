"""quack-kernels' GEMM on a GPU, against torch.

python quack_gemm.py [--m 128] [--n 128] [--k 128]
"""

import argparse

import torch
from quack.gemm_interface import gemm, gemm_add

parser = argparse.ArgumentParser()
for extent in ("m", "n", "k"):
    parser.add_argument(f"--{extent}", type=int, default=128)
options = parser.parse_args()

torch.manual_seed(0)
a = torch.randn(options.m, options.k, device="cuda", dtype=torch.bfloat16)
b = torch.randn(options.n, options.k, device="cuda", dtype=torch.bfloat16).T
c = torch.randn(options.m, options.n, device="cuda", dtype=torch.bfloat16)


def check(name: str, ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.is_cuda
    error = ((ours.float() - reference).norm() / reference.norm()).item()
    print(f"{name}: relative error {error:.2e}")
    assert error < 3e-3, f"{name}: {error}"


check("GEMM", gemm(a, b, tuned=False), a.float() @ b.float())
check("GEMM + C", gemm_add(a, b, c, tuned=False), a.float() @ b.float() + c.float())
