"""`GluOp` against float64, through the ring and directly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional

from machete.kernels.glu import GluOp
from machete.megakernel import Megakernel
from machete.megakernel.errors import AlignmentError, DtypeError, OverlapError, ScheduleError, ShapeMismatchError

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
}
TOLERANCE = {torch.bfloat16: 2.5e-3, torch.float16: 4e-4, torch.float32: 2e-6}


def reference(gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    return ACTIVATIONS[activation](gate.double()) * up.double()


@pytest.mark.parametrize(
    ("m", "f", "dtype", "streaming"),
    [
        (9, 256, torch.bfloat16, True),  # all rows in one stage
        (3, 9000, torch.bfloat16, True),  # rows in three parts, the last one shorter
        (40, 1024, torch.float32, True),
        (1, 1, torch.float16, False),
        (33, 72, torch.bfloat16, False),
        (7, 101, torch.float32, False),  # one element at a time
        (2, 5000, torch.float16, False),
    ],
)
def test_halves_of_one_tensor(m, f, dtype, streaming, run, random, poisoned, error, kind_names) -> None:
    torch.manual_seed(m + f)
    both, y = random(m, 2 * f, dtype=dtype), poisoned(m, f, dtype=dtype)
    kernel = run(GluOp.schedule(gate=both[:, :f], up=both[:, f:], y=y, streaming=streaming))
    assert kind_names(kernel) == ["StreamingGlu" if streaming else "DirectGlu"]
    assert error(y, reference(both[:, :f], both[:, f:])) < TOLERANCE[dtype]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, run, random, poisoned, error) -> None:
    gate, up, y = random(50, 64, dtype=torch.float32, scale=3.0), random(50, 64), poisoned(50, 64, dtype=torch.float32)
    run(GluOp.schedule(gate=gate, up=up, y=y, activation=activation))
    assert error(y, reference(gate, up, activation)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_inf_are_those_of_the_formula(activation, run, device, poisoned) -> None:
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e30, 88.0, -88.0, -104.0]
    # Of the shape and the types of `test_activations`: one kernel does for both.
    gate = torch.tensor(values, device=device).repeat(50 * 64 // len(values)).view(50, 64)
    up = torch.ones(50, 64, device=device, dtype=torch.bfloat16)
    up[1::2] = 2.0
    y = poisoned(50, 64, dtype=torch.float32)
    run(GluOp.schedule(gate=gate, up=up, y=y, activation=activation))
    expected = reference(gate, up, activation).float()
    torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-5, atol=1e-7)


def test_large_tensors_stream(random, poisoned, arch, device, kind_names) -> None:
    gate, up, y = random(512, 4096), random(512, 4096), poisoned(512, 4096)
    kernel = Megakernel(GluOp.schedule(gate=gate, up=up, y=y), arch=arch if device == "cpu" else None)
    assert kind_names(kernel) == ["StreamingGlu"]


@pytest.mark.parametrize("streaming", [True, False])
def test_in_place_in_a_chain(streaming, run, random, error) -> None:
    """y is gate; then the result gates once more."""
    gate, up = random(40, 640), random(40, 640)
    once = reference(gate, up).to(torch.bfloat16)
    ops = GluOp.schedule(gate=gate, up=up, y=gate, streaming=streaming)
    run(ops + GluOp.schedule(gate=up, up=gate, y=gate, activation="relu", streaming=streaming))
    assert error(gate, reference(up, once, "relu")) < 2 * TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("streaming", [True, False])
def test_strided_views(streaming, run, random, device, error) -> None:
    both = random(60, 400)[::2]
    wide = torch.full((30, 208), 7.0, device=device, dtype=torch.bfloat16)
    y = wide[:, 8:136]
    run(GluOp.schedule(gate=both[:, 16:144], up=both[:, 200:328], y=y, streaming=streaming))
    assert error(y, reference(both[:, 16:144], both[:, 200:328])) < TOLERANCE[torch.bfloat16]
    assert (wide[:, :8] == 7).all()
    assert (wide[:, 136:] == 7).all()


def test_interleaved_and_transposed(run, random, poisoned, error) -> None:
    both, y = random(30, 60), poisoned(30, 30).T
    run(GluOp.schedule(gate=both[:, ::2], up=both[:, 1::2], y=y))
    assert error(y, reference(both[:, ::2], both[:, 1::2])) < TOLERANCE[torch.bfloat16]


def test_one_row(run, random, poisoned, error) -> None:
    gate, up, y = random(1003), random(1003), poisoned(1003)
    run(GluOp.schedule(gate=gate, up=up, y=y, streaming=True))
    assert error(y, reference(gate, up)) < TOLERANCE[torch.bfloat16]


def test_fewer_rows_at_run_time(run, random, poisoned, error) -> None:
    gate, up, y = random(64, 512), random(64, 512), poisoned(64, 512)
    kernel = run(GluOp.schedule(gate=gate, up=up, y=y, streaming=True))
    y.fill_(float("nan"))
    kernel.run(extents={"M": 21})
    assert y[21:].isnan().all()
    assert error(y[:21], reference(gate[:21], up[:21])) < TOLERANCE[torch.bfloat16]


X = torch.zeros(4, 64)
WRONG = {
    "activation": (ScheduleError, {"activation": "swish"}, "silu, sigmoid, gelu, relu"),
    "ints": (DtypeError, {"gate": X.int()}, "float32"),
    "shapes differ": (ShapeMismatchError, {"up": torch.zeros(4, 63)}, "dim F"),
    "rank": (ShapeMismatchError, {"up": torch.zeros(1, 4, 64)}, "rank"),
    "overlap": (OverlapError, {"gate": X[:3], "up": X[:3], "y": X[1:]}, "overlap"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case: str) -> None:
    kind, change, text = WRONG[case]
    with pytest.raises(kind, match=text):
        GluOp.schedule(**{"gate": X, "up": torch.zeros(4, 64), "y": torch.zeros(4, 64), **change})


def test_streaming_that_is_not_possible() -> None:
    ops = GluOp.schedule(gate=X.half(), up=X, y=torch.zeros(4, 64), streaming=True)
    with pytest.raises(AlignmentError, match=r"`up` is torch.float32 and `gate` torch.float16"):
        Megakernel(ops)
