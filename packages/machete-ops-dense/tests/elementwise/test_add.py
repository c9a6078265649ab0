"""`AddOp` against float64: any shape, any strides, one rounding."""

from __future__ import annotations

import pytest
import torch

from machete.kernels.elementwise import AddOp
from machete.megakernel import Megakernel
from machete.megakernel.errors import AlignmentError, DtypeError, OverlapError, ScheduleError, ShapeMismatchError

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-24}


def check(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """One rounding of the exact sum."""
    torch.testing.assert_close(y.double(), a.double() + b.double(), rtol=ROUNDING[y.dtype], atol=1e-7)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((100_003,), torch.bfloat16, "StreamingAdd"),
        ((31, 333), torch.bfloat16, "FlatAdd"),  # ragged rows that lie one behind the other
        ((50, 1000), torch.float32, "StreamingAdd"),
        ((3, 4, 5000), torch.float16, "StreamingAdd"),
        ((), torch.float32, "DirectAdd"),
        ((1,), torch.bfloat16, "DirectAdd"),
        ((33, 72), torch.bfloat16, "DirectAdd"),
        ((17, 101), torch.float16, "DirectAdd"),
        ((2, 3, 4, 5, 6, 7), torch.float32, "DirectAdd"),
    ],
)
def test_shapes(shape, dtype, kind, run, random, poisoned, kind_names) -> None:
    torch.manual_seed(len(shape))
    a, b, y = random(*shape, dtype=dtype), random(*shape, dtype=dtype), poisoned(*shape, dtype=dtype)
    kernel = run(AddOp.schedule(a=a, b=b, y=y, streaming=kind != "DirectAdd"))
    assert kind_names(kernel) == [kind]
    check(y, a, b)


def test_large_tensors_stream(random, poisoned, arch, device, kind_names) -> None:
    a, b, y = random(2048, 1025), random(2048, 1025), poisoned(2048, 1025)
    kernel = Megakernel(AddOp.schedule(a=a, b=b, y=y), arch=arch if device == "cpu" else None)
    assert kind_names(kernel) == ["FlatAdd"]


def test_mixed_dtypes(run, random, poisoned) -> None:
    """A float32 residual stream takes a bfloat16 branch."""
    a, b, y = random(20, 64, dtype=torch.float32), random(20, 64), poisoned(20, 64, dtype=torch.float32)
    run(AddOp.schedule(a=a, b=b, y=y))
    check(y, a, b)


VIEWS = {
    "every other row": lambda x: x[::2, :, :32],
    "transposed": lambda x: x[:16].permute(2, 1, 0)[:16],
    "misaligned": lambda x: x[:16, :, 1:33],
    "every other element": lambda x: x[:16, :, ::2],
}


@pytest.mark.parametrize("view", VIEWS)
def test_strided_views(view, run, random, poisoned) -> None:
    """No two of the three tensors have the same strides."""
    a, whole = VIEWS[view](random(32, 16, 64)), poisoned(32, 16, 64)
    y = VIEWS[view](whole)
    b = random(*reversed(a.shape)).permute(2, 1, 0)
    run(AddOp.schedule(a=a, b=b, y=y))
    check(y, a, b)
    assert whole.isfinite().sum() == y.numel()


@pytest.mark.parametrize("streaming", [True, False])
def test_slices_of_rows(streaming, run, random, device) -> None:
    a, b = random(60, 96)[::3, 16:80], random(20, 64)
    wide = torch.full((20, 88), 7.0, device=device, dtype=torch.bfloat16)
    y = wide[:, 8:72]
    run(AddOp.schedule(a=a, b=b, y=y, streaming=streaming))
    check(y, a, b)
    assert (wide[:, :8] == 7).all()
    assert (wide[:, 72:] == 7).all()


@pytest.mark.parametrize("streaming", [True, False])
def test_in_place_in_a_chain(streaming, run, random) -> None:
    x, z = random(50, 640, dtype=torch.float32), random(50, 640, dtype=torch.float32)
    expected = (x + z) + z
    run(2 * AddOp.schedule(a=x, b=z, y=x, streaming=streaming))
    assert torch.equal(x, expected)


@pytest.mark.parametrize("streaming", [True, False])
def test_expanded_operand(streaming, run, random, poisoned) -> None:
    """What broadcasting would do, said by the caller."""
    a, bias, y = random(20, 64), random(64), poisoned(20, 64)  # as the slices above: the same kernels
    run(AddOp.schedule(a=a, b=bias.expand_as(a), y=y, streaming=streaming))
    check(y, a, bias)


def test_nan_and_inf_stay_where_they_are(run, random, poisoned) -> None:
    a, b, y = random(20, 64), random(20, 64), poisoned(20, 64)
    a[1, 5], b[2, 7], a[3, 0] = float("nan"), float("inf"), -float("inf")
    run(AddOp.schedule(a=a, b=b, y=y, streaming=True))
    assert torch.equal(y.isnan(), a.isnan())
    assert torch.equal(y.isinf(), a.isinf() | b.isinf())


def test_fewer_rows_at_run_time(run, random, poisoned) -> None:
    a, b, y = random(64, 512), random(64, 512), poisoned(64, 512)
    kernel = run(AddOp.schedule(a=a, b=b, y=y, streaming=True))
    y.fill_(float("nan"))
    kernel.run(extents={"M": 21})
    assert y[21:].isnan().all()
    check(y[:21], a[:21], b[:21])


X = torch.zeros(4, 64)
WRONG = {
    "broadcasting": (ShapeMismatchError, {"b": torch.zeros(64)}, "expand_as"),
    "shapes differ": (ShapeMismatchError, {"y": torch.zeros(4, 63)}, "not broadcast"),
    "ints": (DtypeError, {"a": X.int()}, "float32"),
    "overlap": (OverlapError, {"a": X[:3], "b": X[:3], "y": X[1:]}, "overlap"),
    "too many dims": (
        ScheduleError,
        {
            "a": torch.zeros((2,) * 6),
            "b": torch.zeros((2,) * 6).permute(5, 4, 3, 2, 1, 0),
            "y": torch.zeros((2,) * 6),
        },
        "at most 5",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case: str) -> None:
    kind, change, text = WRONG[case]
    with pytest.raises(kind, match=text):
        AddOp.schedule(**{"a": X, "b": torch.zeros(4, 64), "y": torch.zeros(4, 64), **change})


def test_streaming_that_is_not_possible() -> None:
    with pytest.raises(AlignmentError, match="2 elements apart"):
        Megakernel(AddOp.schedule(a=torch.zeros(4, 128)[:, ::2], b=X, y=torch.zeros(4, 64), streaming=True))
