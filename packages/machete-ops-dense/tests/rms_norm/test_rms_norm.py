"""`RMSNormOp` against float64, through the ring and directly, for the shapes and layouts that break things."""

from __future__ import annotations

import pytest
import torch

from machete.kernels.rms_norm import RMSNormOp
from machete.megakernel import Megakernel
from machete.megakernel.errors import (
    AlignmentError,
    ConfigError,
    DtypeError,
    ExtentError,
    OverlapError,
    ScheduleError,
    ShapeMismatchError,
)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# ‖out − ref‖ / ‖ref‖: float32 inside, one rounding.
TOLERANCE = {torch.bfloat16: 2.5e-3, torch.float16: 4e-4, torch.float32: 2e-6}
EPS = 1e-5


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize(
    ("m", "d", "dtype"),
    [
        (1, 8, "bf16"),
        (300, 64, "fp16"),  # many rows in a stage, four threads a row
        (37, 1000, "bf16"),  # ragged for threads, vectors whole
        (9, 4096, "bf16"),  # two rows in a stage, all threads on one
        (3, 8192, "fp32"),  # stages of two pages
    ],
)
def test_streaming(m, d, dtype, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(m + d)
    dtype = DTYPES[dtype]
    x, weight, y = random(m, d, dtype=dtype), random(d, dtype=dtype), poisoned(m, d, dtype=dtype)
    kernel = run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS, streaming=True))
    assert kind_names(kernel) == ["StreamingRMSNorm"]
    assert error(y, reference(x, weight)) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("m", "d", "dtype"),
    [
        (1, 1, "fp32"),
        (70, 33, "bf16"),
        (130, 100, "fp32"),
        (3, 4096, "bf16"),
        (2, 20001, "fp16"),  # rows are read twice, an element at a time
        (2, 32768, "bf16"),  # in vectors
    ],
)
def test_direct(m, d, dtype, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(m + d)
    dtype = DTYPES[dtype]
    x, weight, y = random(m, d, dtype=dtype), random(d, dtype=dtype), poisoned(m, d, dtype=dtype)
    kernel = run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS))
    assert kind_names(kernel) == ["DirectRMSNorm"]
    assert error(y, reference(x, weight)) < TOLERANCE[dtype]


def test_large_tensors_stream(random, poisoned, arch, device, kind_names) -> None:
    """By default, once there are megabytes to move."""
    x, weight, y = random(1024, 4096), random(4096), poisoned(1024, 4096)
    kernel = Megakernel(RMSNormOp.schedule(x=x, weight=weight, y=y), arch=arch if device == "cpu" else None)
    assert kind_names(kernel) == ["StreamingRMSNorm"]


@pytest.mark.parametrize("streaming", [True, False])
def test_weight_of_another_dtype(streaming, run, random, poisoned, error) -> None:
    x, weight, y = random(20, 512), random(512, dtype=torch.float32), poisoned(20, 512)
    run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS, streaming=streaming))
    assert error(y, reference(x, weight)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("streaming", [True, False])
def test_strided_views(streaming, run, random, device, error) -> None:
    """Every third row of a wider tensor; the rest of the result's memory stays as it is."""
    x, weight = random(90, 384)[::3, 64:320], random(512)[::2]
    wide = torch.full((30, 304), 7.0, device=device, dtype=torch.bfloat16)
    y = wide[:, 8:264]
    run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS, streaming=streaming))
    assert error(y, reference(x, weight)) < TOLERANCE[torch.bfloat16]
    assert (wide[:, :8] == 7).all()
    assert (wide[:, 264:] == 7).all()


def test_transposed(run, random, poisoned, error) -> None:
    x, weight, y = random(40, 50).T, random(40), poisoned(40, 50).T
    run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS))
    assert error(y, reference(x, weight)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("shape", [(96,), (4, 5, 96), (2, 3, 4, 96)])
def test_ranks(shape, run, random, poisoned, error) -> None:
    x, weight, y = random(*shape), random(96), poisoned(*shape)
    run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS))
    assert error(y, reference(x, weight)) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("streaming", [True, False])
def test_in_place(streaming, run, random, error) -> None:
    x, weight = random(50, 256), random(256)
    expected = reference(x, weight)
    run(RMSNormOp.schedule(x=x, weight=weight, y=x, eps=EPS, streaming=streaming))
    assert error(x, expected) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("d", [64, 4096])
def test_nan_and_inf_stay_in_their_rows(d, streaming, run, random, poisoned) -> None:
    x, weight, y = random(21, d), random(d), poisoned(21, d)
    x[5, 17], x[20, 3] = float("nan"), float("inf")
    run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS, streaming=streaming))
    assert y[5].isnan().all()
    assert y[20, 3].isnan()
    assert y[[row for row in range(21) if row not in (5, 20)]].isfinite().all()


def test_zeros_and_eps(run, device, poisoned) -> None:
    x, weight, y = torch.zeros(3, 64, device=device), torch.ones(64, device=device), poisoned(3, 64).float()
    x[1] = 1e-3
    run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=1.0))
    assert torch.equal(y[0], x[0])
    torch.testing.assert_close(y[1], x[1] / (1 + 1e-6) ** 0.5)


def test_stages_are_in_flight(run, random, poisoned) -> None:
    x, weight, y = random(200, 1024), random(1024), poisoned(200, 1024)
    kernel = run(RMSNormOp.schedule(x=x, weight=weight, y=y, streaming=True))
    if kernel.simulated:
        assert (kernel.report.max_stages_in_flight or 0) >= 2


@pytest.mark.parametrize("streaming", [True, False])
def test_after_and_before_other_ops(streaming, run, random, poisoned, error) -> None:
    """Both operands have a producer in the kernel, and the result is normalised again."""
    x, weight, ones = random(40, 512), random(512)[None], random(512).abs() + 1
    y, scaled, z = poisoned(40, 512), poisoned(1, 512), poisoned(40, 512)
    run(
        RMSNormOp.schedule(x=weight, weight=ones, y=scaled, eps=EPS)
        + RMSNormOp.schedule(x=x, weight=scaled[0], y=y, eps=EPS, streaming=streaming)
        + RMSNormOp.schedule(x=y, weight=scaled[0], y=z, eps=EPS, streaming=streaming)
    )
    assert error(y, reference(x, scaled[0])) < TOLERANCE[torch.bfloat16]
    assert error(z, reference(y, scaled[0])) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("streaming", [True, False])
def test_fewer_rows_at_run_time(streaming, run, random, poisoned, error) -> None:
    x, weight, y = random(60, 512), random(512), poisoned(60, 512)
    kernel = run(RMSNormOp.schedule(x=x, weight=weight, y=y, eps=EPS, streaming=streaming))
    for rows in (60, 13, 0):
        y.fill_(float("nan"))
        kernel.run(extents={"M": rows})
        assert y[rows:].isnan().all()
        assert y[:rows].isfinite().all()
    kernel.run(extents={"M": 60})
    assert error(y, reference(x, weight)) < TOLERANCE[torch.bfloat16]


X = torch.zeros(4, 64)
WRONG = {
    "eps": (ConfigError, {"eps": -1.0}, "a number from 0 to"),
    "ints": (DtypeError, {"x": X.int(), "y": X.int()}, "float32"),
    "dtypes differ": (DtypeError, {"y": X.half()}, "make y torch.float32"),
    "weight too long": (ShapeMismatchError, {"weight": torch.zeros(65)}, "dim D"),
    "shapes differ": (ShapeMismatchError, {"y": torch.zeros(5, 64)}, "dim M"),
    "no columns": (ExtentError, {"x": X[:, :0], "y": torch.zeros(4, 0), "weight": torch.zeros(0)}, "mean"),
    "leading dims": (
        ScheduleError,
        {"x": torch.zeros(3, 2, 64).transpose(0, 1), "y": torch.zeros(2, 3, 64)},
        "one memory layout",
    ),
    "overlap": (OverlapError, {"x": X[:3], "y": X[1:]}, "overlap"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case: str) -> None:
    kind, change, text = WRONG[case]
    with pytest.raises(kind, match=text):
        RMSNormOp.schedule(**{"x": X, "weight": torch.zeros(64), "y": torch.zeros(4, 64), **change})


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.zeros(4, 65)[:, :64], "start at multiples of 4 bytes"),
        (torch.zeros(4, 66)[:, ::2], "2 elements apart"),
        (torch.zeros(4, 8200), "more than 32768"),
        (torch.zeros(4, 35), "start at multiples"),
    ],
)
def test_streaming_that_is_not_possible(x: torch.Tensor, text: str) -> None:
    ops = RMSNormOp.schedule(x=x, weight=torch.zeros(x.shape[1]), y=torch.zeros(x.shape), streaming=True)
    with pytest.raises(AlignmentError, match=text):
        Megakernel(ops)
