"""quack-kernels, as one uses it on a GPU: norms, softmax and cross entropy against torch.

python quack_reductions.py [--rows 8] [--columns 512]
"""

import argparse

import torch
from quack.cross_entropy import cross_entropy
from quack.rmsnorm import layernorm_fwd, rmsnorm
from quack.softmax import softmax

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=8)
parser.add_argument("--columns", type=int, default=512)
options = parser.parse_args()
shape = (options.rows, options.columns)


def check(name: str, ours: torch.Tensor, reference: torch.Tensor, tolerance: float) -> None:
    assert ours.is_cuda
    error = ((ours.float() - reference.float()).norm() / reference.float().norm()).item()
    print(f"{name}: relative error {error:.2e}")
    assert error < tolerance, f"{name}: {error} is not below {tolerance}"


torch.manual_seed(0)
x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(options.columns, device="cuda")
check("RMSNorm", rmsnorm(x, weight, eps=1e-6), torch.nn.functional.rms_norm(x.float(), shape[1:], weight, 1e-6), 3e-3)
check(
    "LayerNorm", layernorm_fwd(x, weight, eps=1e-6), torch.nn.functional.layer_norm(x.float(), shape[1:], weight), 3e-3
)
check("softmax", softmax(x), torch.softmax(x.float(), dim=-1), 3e-3)

target = torch.randint(0, options.columns, shape[:1], device="cuda")
check(
    "cross entropy",
    cross_entropy(x, target, reduction="none"),
    torch.nn.functional.cross_entropy(x.float(), target, reduction="none"),
    1e-3,
)

# Through autograd: the gradients come from kernels too.
ours, reference = (x.detach().clone().requires_grad_() for _ in range(2))
dy = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
softmax(ours).backward(dy)
torch.softmax(reference.float(), dim=-1).backward(dy.float())
check("softmax backward", ours.grad, reference.grad, 1e-2)
