"""flash-attn-4 on a GPU, forward, against torch's attention in float32.

python flash_attention_4.py [--batch 1] [--heads 2] [--kv-heads 1] [--length 128] [--dim 64] [--causal]
"""

import argparse

import torch
from flash_attn.cute import flash_attn_func

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--heads", type=int, default=2)
parser.add_argument("--kv-heads", type=int, default=1)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--dim", type=int, default=64)
parser.add_argument("--causal", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)


def random(heads: int) -> torch.Tensor:
    return torch.randn(options.batch, options.length, heads, options.dim, device="cuda", dtype=torch.bfloat16)


q, k, v = random(options.heads), random(options.kv_heads), random(options.kv_heads)
out = flash_attn_func(q, k, v, causal=options.causal)
out = out[0] if isinstance(out, tuple) else out

queries, keys, values = (x.float().transpose(1, 2) for x in (q, k, v))
reference = torch.nn.functional.scaled_dot_product_attention(
    queries, keys, values, is_causal=options.causal, enable_gqa=options.heads != options.kv_heads
).transpose(1, 2)

error = ((out.float() - reference).norm() / reference.norm()).item()
print(
    f"attention of {tuple(q.shape)}, {options.kv_heads} KV heads, causal {options.causal}: relative error {error:.2e}"
)
assert out.is_cuda
assert error < 1e-2, error
