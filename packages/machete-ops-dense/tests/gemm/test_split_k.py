"""`GemmOp` with K in slices: several SMs multiply one tile, and one of them adds up the sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from machete.kernels.fusions import Activation, Bias, ResidualAdd
from machete.kernels.gemm import GemmOp
from machete.kernels.gemm.op import tile_times

pytestmark = pytest.mark.archs("sm_90a", "sm_100a")
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}


IMPLEMENTATIONS = {"sm_90a": "SplitWgmmaGemm", "sm_100a": "SplitTcgen05Gemm"}
WGMMA_SHAPES = [
    (64, 128, 512, 128, 2, torch.bfloat16),
    (24, 200, 1032, 128, 4, torch.float32),  # warps without rows; the last slice is shorter
    (40, 136, 520, 64, 3, torch.float16),  # odd number of steps
    (33, 257, 328, 256, 5, torch.bfloat16),  # odd n: pairs of columns straddle the edge
    (130, 70, 584, 64, 3, torch.float16),
    (140, 200, 1096, 128, 4, torch.bfloat16),
    (200, 300, 392, 256, 2, torch.float32),
    (72, 64, 136, 128, 8, torch.bfloat16),  # slices with nothing in them
]
TCGEN05_SHAPES = [WGMMA_SHAPES[1], WGMMA_SHAPES[4], WGMMA_SHAPES[6], WGMMA_SHAPES[7]]


@pytest.mark.parametrize(
    ("arch", "m", "n", "k", "tile_n", "slices", "dtype"),
    [("sm_90a", *shape) for shape in WGMMA_SHAPES] + [("sm_100a", *shape) for shape in TCGEN05_SHAPES],
)
def test_shapes(arch, m, n, k, tile_n, slices, dtype, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(m + n + k)
    operands = torch.float16 if dtype is torch.float16 else torch.bfloat16
    a, b, c = random(m, k, dtype=operands), random(n, k, dtype=operands), poisoned(m, n, dtype=dtype)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, tile_n=tile_n, slices=slices))
    assert kind_names(kernel) == [IMPLEMENTATIONS[arch]]
    assert kernel.plan.ops[0].tiles[-1] == slices
    assert error(c, a.double() @ b.double().T) < TOLERANCE[dtype]


@pytest.mark.parametrize(("m", "slices"), [(48, 4), (129, 3)])
def test_epilogues(m, slices, run, random, poisoned, error) -> None:
    """Once, on the sum of all slices; launch after launch with the same bits."""
    n, k = 150, 712
    a, b, c = random(m, k), random(n, k, scale=k**-0.5), poisoned(m, n)
    bias, residual = random(n, dtype=torch.float32), random(m, n)
    kernel = run(
        GemmOp.schedule(a=a, b=b, c=c, slices=slices, epilogue=[Bias(bias), Activation("silu"), ResidualAdd(residual)])
    )
    expected = functional.silu(a.double() @ b.double().T + bias.double()) + residual.double()
    assert error(c, expected) < TOLERANCE[torch.bfloat16]
    first = c.clone()
    c.fill_(float("nan"))
    kernel.run()
    assert torch.equal(c, first)


@pytest.mark.parametrize("seed", range(3))
def test_slices_add_up_in_one_order(seed, run, random, poisoned) -> None:
    """Whoever comes last, the sum is the same; one SM alone does not wait for itself."""
    torch.manual_seed(0)
    a, b, c, expected = random(150, 1096), random(80, 1096), poisoned(150, 80), poisoned(150, 80)
    run(GemmOp.schedule(a=a, b=b, c=c, tile_n=64, slices=5), seed=seed)
    run(GemmOp.schedule(a=a, b=b, c=expected, tile_n=64, slices=5), num_sms=1)
    assert torch.equal(c, expected)


def test_sums_of_nothing(run, random, poisoned) -> None:
    """Zero is a sum, too: whoever waits for it gets it. NaN and Inf stay in their rows."""
    a, b, c = random(64, 512), random(40, 512), poisoned(64, 40)
    a[:30] = 0
    a[31, 3], a[40, 500] = float("nan"), float("inf")
    run(GemmOp.schedule(a=a, b=b, c=c, slices=2))
    assert (c[:30] == 0).all()
    assert c[31].isnan().all()
    assert not c[40].isfinite().any()
    assert c[41:].isfinite().all()


def test_batched_strided_and_smaller_at_run_time(run, random, error, device) -> None:
    a, b = random(2, 70, 512)[:, :, :392], random(2, 180, 392)[:, ::2]
    wide = torch.full((2, 70, 99), 7.0, device=device)
    c = wide[:, :, 5:95]
    kernel = run(GemmOp.schedule(a=a, b=b, c=c, tile_n=64, slices=3))
    assert error(c, a.double() @ b.double().mT) < TOLERANCE[torch.float32]
    for m, n, k in ((70, 90, 136), (30, 50, 392), (70, 90, 0)):
        wide.fill_(7.0)
        kernel.run(extents={"M": m, "N": n, "K": k})
        expected = a[:, :m, :k].double() @ b[:, :n, :k].double().mT
        assert (c[:, :m, :n].double() - expected).norm() <= TOLERANCE[torch.float32] * expected.norm()
        assert (wide[:, :, :5] == 7).all()
        assert (wide[:, m:] == 7).all()


def test_chain(run, random, poisoned, error) -> None:
    """Tiles of the next product wait for all slices of what they read."""
    a, b, d = random(100, 520), random(192, 520, scale=520**-0.5), random(72, 192)
    c, e = poisoned(100, 192), poisoned(100, 72)
    run(GemmOp.schedule(a=a, b=b, c=c, slices=3) + GemmOp.schedule(a=c, b=d, c=e, slices=2))
    assert error(c, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]
    assert error(e, c.double() @ d.double().T) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(
    ("shape", "choice"),
    [
        ((64, 4096, 4096), (32, 1)),  # narrow tiles, one for each SM
        ((64, 2048, 4096), (32, 2)),
        ((32, 4096, 14336), (96, 3)),
        ((256, 2048, 4096), (64, 2)),
        ((64, 8192, 4096), (64, 1)),  # a tile for each SM anyway
        ((512, 4096, 4096), (128, 1)),
        ((256, 6144, 4096), (96, 1)),
        ((1024, 5120, 2048), (192, 1)),  # TMA stores the result
        ((4096, 4096, 4096), (256, 1)),
    ],
)
def test_what_is_cut(shape, choice) -> None:
    """Products that leave SMs without a tile: columns of a tile, and slices of K."""
    times = tile_times(*shape)
    assert min(times, key=times.__getitem__) == choice
