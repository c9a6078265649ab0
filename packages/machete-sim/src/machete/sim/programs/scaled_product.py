"""`torch._scaled_mm` with block scales: torch has it for CUDA alone, and programs take it for their reference.

Scales of 32 (ue8m0: mxfp8, mxfp4) or 16 (e4m3: nvfp4) neighbours along K, in the tiles of 128 x 4 that cuBLAS asks for
("1D block scaling factors layout"). The product is of float32 values, and exact but for the order of its additions.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = {torch.float8_e8m0fnu: 32, torch.float8_e4m3fn: 16}  # elements that share a scale, by its dtype
TILE_ROWS, TILE_COLUMNS = 128, 4
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def is_block_scaled(operator: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether this is the call that torch cannot execute on a CPU."""
    return operator is torch.ops.aten._scaled_mm.default and arguments[2].dtype in BLOCK


def block_scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """a (M, K) times b (K, N), two e2m1 to a byte along K where they are of four bits."""
    product = _scaled(a, scale_a) @ _scaled(b.t(), scale_b).t()
    if bias is not None:
        product = product + bias.float()
    if scale_result is not None:
        product = product * scale_result.float()
    return product.to(out_dtype or a.dtype)


def _scaled(operand: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(rows, K) in float32."""
    values = _values(operand)
    rows, columns = values.shape
    block = BLOCK[scales.dtype]
    groups = -(-columns // block)
    tall, wide = -(-rows // TILE_ROWS), -(-groups // TILE_COLUMNS)
    # A tile has rows r, r + 32, r + 64 and r + 96 side by side.
    tiles = scales.float().reshape(tall, wide, 32, TILE_ROWS // 32, TILE_COLUMNS)
    plain = tiles.permute(0, 3, 2, 1, 4).reshape(tall * TILE_ROWS, wide * TILE_COLUMNS)
    return values * plain[:rows, :groups].repeat_interleave(block, dim=1)[:, :columns]


def _values(operand: torch.Tensor) -> torch.Tensor:
    if operand.dtype is not torch.float4_e2m1fn_x2:
        return operand.float()
    codes = operand.contiguous().view(torch.uint8).long()
    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
    return torch.stack([table[codes & 15], table[codes >> 4]], dim=-1).flatten(-2)
