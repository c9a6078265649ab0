"""`GemmOp` on operands of 8 bits, with scales of tensors and of rows."""

from __future__ import annotations

import pytest
import torch

from machete.kernels.fusions import Activation, Bias
from machete.kernels.gemm import GemmOp

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def tolerance(dtype: torch.dtype, device: str, fast: bool = False) -> float:
    """Of up to 1040 columns of K. On an H200 tensor cores keep 14 bits or so of sums, of a step or (`fast`) of all."""
    if dtype != torch.float32:
        return 4e-3
    if device == "cpu":
        return 1e-5
    return 2e-3 if fast else 5e-4


@pytest.mark.parametrize(("a_type", "b_type"), [(E4M3, E4M3), (E5M2, E4M3)], ids=["e4m3", "e5m2 by e4m3"])
def test_products(a_type, b_type, device, run, random, poisoned, error) -> None:
    """Of several sizes with the same code: a step that is not full, ragged tiles, few rows."""
    for m, n, k in ((136, 144, 400), (129, 70, 16), (3, 256, 512)):
        a, b, c = random(m, k, dtype=a_type), random(n, k, dtype=b_type), poisoned(m, n, dtype=torch.float32)
        run(GemmOp.schedule(a=a, b=b, c=c, tile_n=128, slices=1), num_sms=3)
        assert error(c, a.double() @ b.double().T) < tolerance(torch.float32, device)


@pytest.mark.parametrize("scaled", ["rows", "tensors"])
def test_scales(scaled, device, run, random, poisoned, error) -> None:
    """Scales come before the epilogue; one element stands for all rows."""
    m, n, k = 140, 72, 160
    a, b, c, bias = random(m, k, dtype=E4M3), random(n, k, dtype=E4M3), poisoned(m, n), random(n)
    a_scale, b_scale = random(m, dtype=torch.float32).abs(), random(n, dtype=torch.float32).abs()
    if scaled == "tensors":
        a_scale, b_scale = a_scale[:1], b_scale[0]
    epilogue = [Bias(bias), Activation("relu")]
    run(GemmOp.schedule(a=a, b=b, c=c, a_scale=a_scale, b_scale=b_scale, epilogue=epilogue), num_sms=2)
    rows = a_scale.double().reshape(-1, 1)
    expected = (a.double() @ b.double().T * rows * b_scale.double() + bias.double()).relu()
    assert error(c, expected) < tolerance(torch.bfloat16, device)


def test_scales_of_batches(run, random, poisoned, error) -> None:
    a, b, c = random(2, 20, 64, dtype=E4M3), random(2, 24, 64, dtype=E4M3), poisoned(2, 20, 24)
    a_scale, b_scale = random(2, 20, dtype=torch.float32), random(24, dtype=torch.float32)
    run(GemmOp.schedule(a=a, b=b, c=c, a_scale=a_scale, b_scale=b_scale, tile_n=64), num_sms=2)
    assert error(c, a.double() @ b.double().mT * a_scale.double()[..., None] * b_scale.double()) < 4e-3


@pytest.mark.archs("sm_90a")
@pytest.mark.parametrize(
    ("m", "tile_n", "slices", "dtype"),
    [
        (140, 256, 1, torch.bfloat16),
        (40, 64, 1, torch.float32),
        (40, 128, 3, torch.bfloat16),
        (8, 64, 1, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("fast", [False, True], ids=["float32 sums", "fast"])
def test_tiles_of_wgmma(fast, m, tile_n, slices, dtype, device, run, random, poisoned, error, kind_names) -> None:
    n, k = 200, 1040
    a, b, c = random(m, k, dtype=E4M3), random(n, k, dtype=E4M3), poisoned(m, n, dtype=dtype)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n, slices=slices, fast_accumulation=fast), num_sms=4)
    widest = 256 if fast else 128  # sums of a step need registers of their own
    assert kernel.plan.kinds[0].tile_sizes["N"] == min(tile_n, widest)
    assert ("Split" in kind_names(kernel)[0]) == (slices > 1)
    assert error(c, a.double() @ b.double().T) < tolerance(dtype, device, fast)


@pytest.mark.archs("sm_90a")
@pytest.mark.parametrize("tile_n", [64, 128])
def test_float32_sums_of_many_columns(tile_n, device, run, random, poisoned, error) -> None:
    """Of numbers of one sign, where tensor cores lose a bit of the sum with each of 256 instructions."""
    m, n, k = 40, 64, 8192
    a, b = (random(rows, k, dtype=E4M3).float().abs().to(E4M3) for rows in (m, n))
    errors = {}
    for fast in (False, True):
        c = poisoned(m, n, dtype=torch.float32)
        run(GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n, slices=1, fast_accumulation=fast))
        errors[fast] = error(c, a.double() @ b.double().T)
    # An H200 rounds towards zero within a step, too: of numbers of one sign it loses 2e-3.
    assert errors[False] < (1e-5 if device == "cpu" else 4e-3)
    if device == "cuda":  # the simulator adds up in float32 either way
        assert errors[True] > 2 * errors[False]
