"""`GemmOp` for two to sixteen rows: tensor cores that read each weight once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from machete.kernels.fusions import GluPair, ResidualAdd, RmsNormOnLoad
from machete.kernels.gemm import GemmOp
from machete.megakernel import temporary

TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}
EPS = 1e-5


def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "columns"),
    [
        (16, 64, 256, torch.bfloat16, 8),  # one box of K
        (5, 24, 96, torch.float16, 8),  # less than one box
        (9, 70, 1032, torch.bfloat16, 8),  # ragged in every dim; a page with one box of four
        (8, 2040, 584, torch.float16, 16),  # two boxes in a page, the last page has one
        (16, 4090, 264, torch.bfloat16, 32),  # one box in a page
    ],
)
def test_shapes(m, n, k, dtype, columns, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(m + n + k)
    a, b, c = random(m, k, dtype=dtype), random(n, k, dtype=dtype), poisoned(m, n, dtype=dtype)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c))
    assert kind_names(kernel) == ["FewRowsGemm"]
    assert kernel.plan.kinds[0].tile_sizes["N"] == columns
    assert error(c, a.double() @ b.double().T) < TOLERANCE[dtype]


@pytest.mark.parametrize(("m", "n", "k", "slices"), [(16, 40, 4352, 2), (8, 24, 8200, 2), (12, 20, 9000, 4)])
def test_slices_of_k(m, n, k, slices, run, random, poisoned, error, kind_names) -> None:
    """Rows that do not fit the registers: several SMs share a tile, launch after launch with the same bits."""
    a, b, c, residual = random(m, k), random(n, k), poisoned(m, n), random(m, n, scale=9.0)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, epilogue=[ResidualAdd(residual)]))
    assert kind_names(kernel) == ["SplitFewRowsGemm_ResidualAdd"]
    assert kernel.plan.ops[0].tiles[-1] == slices
    assert error(c, a.double() @ b.double().T + residual.double()) < TOLERANCE[torch.bfloat16]
    first = c.clone()
    c.fill_(float("nan"))
    kernel.run()
    assert torch.equal(c, first)


@pytest.mark.parametrize("seed", range(3))
def test_slices_add_up_in_one_order(seed, run, random, poisoned) -> None:
    """Whoever comes last, the sum is the same."""
    torch.manual_seed(0)
    a, b, c = random(3, 24600), random(8, 24600), poisoned(3, 8)
    run(GemmOp.schedule(a=a, b=b, c=c), seed=seed)
    expected = poisoned(3, 8)
    run(GemmOp.schedule(a=a, b=b, c=expected), num_sms=1)
    assert torch.equal(c, expected)


@pytest.mark.parametrize(("m", "k"), [(16, 2048), (8, 4104), (11, 4096), (2, 72)])
def test_all_slots(m, k, run, random, poisoned, error) -> None:
    n = 42
    a, w, c, weight, residual = random(m, k), random(2 * n, k, scale=k**-0.5), poisoned(m, n), random(k), random(m, n)
    run(
        GemmOp.schedule(
            a=a,
            b=w[::2],
            c=c,
            prologue=RmsNormOnLoad(weight, EPS),
            combine=GluPair(w[1::2]),
            epilogue=[ResidualAdd(residual)],
        )
    )
    y = normalised(a, weight)
    expected = functional.silu(y @ w[::2].double().T) * (y @ w[1::2].double().T) + residual.double()
    assert error(c, expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("m", [8, 16])
def test_chain_of_layers(m, run, random, error) -> None:
    """Layers of norm, GLU and residual, two ops each; the second has slices of K."""
    d, f = 64, 8448
    x = random(m, d)
    h = temporary((m, f), torch.bfloat16, x.device)
    expected, ops = x.double(), []
    for _ in range(2):
        norm, gate_up, down = random(d), random(2 * f, d, scale=d**-0.5), random(d, f, scale=f**-0.5)
        ops += GemmOp.schedule(a=x, b=gate_up[:f], c=h, prologue=RmsNormOnLoad(norm, EPS), combine=GluPair(gate_up[f:]))
        ops += GemmOp.schedule(a=h, b=down, c=x, epilogue=[ResidualAdd(x)])
        gate, up = (normalised(expected, norm) @ gate_up.double().T).chunk(2, -1)
        expected = expected + (functional.silu(gate) * up) @ down.double().T
    run(ops)
    assert error(x, expected) < 3 * TOLERANCE[torch.bfloat16]


def test_strided_views_and_float32(run, random, device, error) -> None:
    a, b = random(7, 512)[:, 64:320], random(60, 384)[::2, 8:264]
    wide = torch.full((7, 41), 7.0, device=device)
    run(GemmOp.schedule(a=a, b=b, c=wide[:, 5:35]))
    assert error(wide[:, 5:35], a.double() @ b.double().T) < TOLERANCE[torch.float32]
    assert (wide[:, :5] == 7).all()
    assert (wide[:, 35:] == 7).all()


def test_nan_and_inf_stay_in_their_rows(run, random, poisoned) -> None:
    a, b, c = random(13, 264), random(30, 264), poisoned(13, 30)
    a[1, 17], a[12, 260] = float("nan"), float("inf")
    run(GemmOp.schedule(a=a, b=b, c=c))
    assert c[1].isnan().all()
    assert not c[12].isfinite().any()
    clean = [row for row in range(13) if row not in (1, 12)]
    assert c[clean].isfinite().all()
