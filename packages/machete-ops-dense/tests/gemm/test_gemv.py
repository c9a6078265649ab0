"""`GemmOp` for one to four rows, with everything that can be fused into it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from machete.kernels.elementwise import AddOp
from machete.kernels.fusions import Activation, GluPair, ResidualAdd, RmsNormOnLoad
from machete.kernels.gemm import GemmOp
from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel.errors import ExtentError, StrideError

TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}
EPS = 1e-5


def normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [
        (1, 64, 64, torch.bfloat16),
        (1, 1, 64, torch.float16),
        (2, 70, 256, torch.bfloat16),  # fewer rows of b in the last stage
        (3, 50, 192, torch.float16),  # three rows computed as four
        (4, 33, 1536, torch.bfloat16),  # not a power of two
        (1, 20, 5120, torch.bfloat16),  # one row of b in a stage
        (1, 5, 9216, torch.bfloat16),  # a row of b in two pages
        (1, 700, 128, torch.bfloat16),  # more than one chunk on each SM
    ],
)
def test_shapes(m, n, k, dtype, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(m + n + k)
    a, b, c = random(m, k, dtype=dtype), random(n, k, dtype=dtype), poisoned(m, n, dtype=dtype)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c))
    assert kind_names(kernel) == ["GemvGemm" if m == 1 else "FewRowsGemm"]
    assert error(c, a.double() @ b.double().T) < TOLERANCE[dtype]


def test_k_that_does_not_divide_takes_tiles(run, random, poisoned, error, kind_names) -> None:
    a, b, c = random(1, 1032), random(40, 1032), poisoned(1, 40)
    kernel = run(GemmOp.schedule(a=a, b=b, c=c))
    assert not kind_names(kernel)[0].startswith("Gemv")
    assert error(c, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]


def test_strided_views(run, random, device, error) -> None:
    """Rows of everything are slices: weights one by one, results with an odd offset."""
    a, b = random(3, 512)[:, 64:320], random(60, 384)[::2, 8:264]
    wide = torch.full((3, 41), 7.0, device=device, dtype=torch.bfloat16)
    c = wide[:, 5:35]
    run(GemmOp.schedule(a=a, b=b, c=c))
    assert error(c, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]
    assert (wide[:, :5] == 7).all()
    assert (wide[:, 35:] == 7).all()


def test_transposed_result(run, random, poisoned, error) -> None:
    a, b, c = random(3, 128), random(40, 128), poisoned(40, 3).T
    run(GemmOp.schedule(a=a, b=b, c=c))
    assert error(c, a.double() @ b.double().T) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(("m", "k"), [(1, 64), (3, 1536), (1, 9216)])
def test_norm_on_load(m, k, run, random, poisoned, error) -> None:
    a, b, c, weight = random(m, k, scale=4.0), random(40, k), poisoned(m, 40), random(k)
    run(GemmOp.schedule(a=a, b=b, c=c, prologue=RmsNormOnLoad(weight, EPS)))
    assert error(c, normalised(a, weight) @ b.double().T) < TOLERANCE[torch.bfloat16]


def test_norm_weight_with_a_producer(run, random, poisoned, error) -> None:
    """The norm's weight comes from an op of the same kernel."""
    a, b, c, scaled = random(1, 256), random(40, 256), poisoned(1, 40), poisoned(256)
    weight, more = random(256), random(256)
    run(
        AddOp.schedule(a=weight, b=more, y=scaled) + GemmOp.schedule(a=a, b=b, c=c, prologue=RmsNormOnLoad(scaled, EPS))
    )
    assert error(c, normalised(a, scaled) @ b.double().T) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize(
    ("m", "n", "k", "activation"),
    [(1, 37, 128, "silu"), (1, 24, 576, "gelu"), (4, 24, 576, "silu"), (2, 10, 8192, "gelu")],
)
def test_glu_pair(m, n, k, activation, run, random, poisoned, error) -> None:
    """Both matrices are halves of one weight."""
    a, w, c = random(m, k, scale=k**-0.5), random(2 * n, k), poisoned(m, n)
    run(GemmOp.schedule(a=a, b=w[:n], c=c, combine=GluPair(w[n:], activation)))
    gate, up = (a.double() @ half.double().T for half in (w[:n], w[n:]))
    expected = (functional.silu if activation == "silu" else functional.gelu)(gate) * up
    assert error(c, expected) < TOLERANCE[torch.bfloat16]


def test_all_slots(run, random, poisoned, error) -> None:
    m, n, k = 2, 42, 320
    a, w, c, weight, residual = random(m, k), random(2 * n, k, scale=0.1), poisoned(m, n), random(k), random(m, n)
    run(
        GemmOp.schedule(
            a=a,
            b=w[::2],
            c=c,
            prologue=RmsNormOnLoad(weight, EPS),
            combine=GluPair(w[1::2]),
            epilogue=[Activation("relu"), ResidualAdd(residual)],
        )
    )
    y = normalised(a, weight)
    expected = (functional.silu(y @ w[::2].double().T) * (y @ w[1::2].double().T)).relu() + residual.double()
    assert error(c, expected) < TOLERANCE[torch.bfloat16]


def test_weights_with_a_producer(run, random, poisoned, error) -> None:
    """The loader waits for weights that the kernel itself computes."""
    a, b, more, total, c = random(1, 192), random(80, 192), random(80, 192), poisoned(80, 192), poisoned(1, 80)
    run(AddOp.schedule(a=b, b=more, y=total) + GemmOp.schedule(a=a, b=total, c=c))
    assert error(c, a.double() @ total.double().T) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("m", [1, 3])
def test_chain_of_layers(m, run, random, poisoned, error) -> None:
    """Three layers of norm, GLU and residual: two ops each, every layer in the memory of the one before."""
    d, f = 128, 192
    x, h = random(m, d), poisoned(m, f)
    expected, ops = x.double(), []
    for _ in range(3):
        norm, gate_up, down = random(d), random(2 * f, d, scale=d**-0.5), random(d, f, scale=f**-0.5)
        ops += GemmOp.schedule(a=x, b=gate_up[:f], c=h, prologue=RmsNormOnLoad(norm, EPS), combine=GluPair(gate_up[f:]))
        ops += GemmOp.schedule(a=h, b=down, c=x, epilogue=[ResidualAdd(x)])
        gate, up = (normalised(expected, norm) @ gate_up.double().T).chunk(2, -1)
        expected = expected + (functional.silu(gate) * up) @ down.double().T
    run(ops)
    assert error(x, expected) < 3 * TOLERANCE[torch.bfloat16]


def test_nan_and_inf_stay_in_their_rows(run, random, poisoned) -> None:
    a, b, c, weight = random(4, 256), random(30, 256), poisoned(4, 30), random(256)
    a[1, 17], a[2, 250] = float("nan"), float("inf")
    run(GemmOp.schedule(a=a, b=b, c=c, prologue=RmsNormOnLoad(weight, EPS)))
    assert c[1].isnan().all()
    assert c[2].isnan().all()
    assert c[[0, 3]].isfinite().all()


@pytest.mark.parametrize("num_sms", [1, 3])
def test_any_number_of_sms(num_sms, run, random, poisoned, error) -> None:
    """With one SM all chunks of partial sums are its own."""
    x, weight, y, b, c = random(2, 128), random(128), poisoned(2, 128), random(300, 128), poisoned(2, 300)
    run(RMSNormOp.schedule(x=x, weight=weight, y=y) + GemmOp.schedule(a=y, b=b, c=c), num_sms=num_sms)
    assert error(c, y.double() @ b.double().T) < TOLERANCE[torch.bfloat16]


def test_extents_are_those_of_the_schedule(run, random, poisoned) -> None:
    kernel = run(GemmOp.schedule(a=random(1, 128), b=random(90, 128), c=poisoned(1, 90)))
    with pytest.raises(ExtentError, match="dim 'N'"):
        kernel.run(extents={"N": 37})


def test_pair_of_two_layouts_is_refused() -> None:
    half = torch.float16
    with pytest.raises(StrideError, match="two slices of one weight"):
        GemmOp.schedule(
            a=torch.zeros(1, 64, dtype=half),
            b=torch.zeros(8, 64, dtype=half),
            c=torch.zeros(1, 8, dtype=half),
            combine=GluPair(torch.zeros(8, 72, dtype=half)[:, :64]),
        )
