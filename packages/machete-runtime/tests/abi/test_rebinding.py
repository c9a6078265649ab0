"""Other tensors and scalars for a scheduled op."""

from __future__ import annotations

import pytest
import torch

from machete.megakernel.abi import (
    AlignmentError,
    DeviceError,
    DtypeError,
    Op,
    OverlapError,
    ScalarError,
    ScheduledOp,
    ShapeMismatchError,
    StrideError,
    TensorTypeError,
)
from machete.megakernel.abi.rebinding import with_scalar, with_tensors


class AddOp(Op):
    reads = {"x": (None, ("B", "N"))}
    writes = {"y": (None, ("B", "N"))}
    scalars = {"a": torch.float32, "n": torch.int32}

    def compute(self, x, y, a, n): ...


def add() -> ScheduledOp:
    x, y = torch.zeros(1, 8), torch.zeros(1, 8)
    return AddOp._schedule_single(x=x, y=y, a=2.0, n=3, config={"mode": "fast"})


def test_what_is_not_replaced_stays():
    op, x = add(), torch.ones(1, 8)
    other = with_tensors(op, {"x": x})
    assert other.tensors["x"] is x
    assert other.infos["x"].address == x.data_ptr()
    assert other.tensors["y"] is op.tensors["y"]
    assert (other.op, other.config, other.scalars) == (op.op, op.config, op.scalars)
    assert op.tensors["x"] is not x, "the op itself does not change"


def test_leading_dims_are_added():
    assert with_tensors(add(), {"x": torch.ones(8)}).infos["x"].shape == (1, 8)


def test_scalars_have_the_declared_type():
    op = add()
    assert with_scalar(op, "a", 1).scalars == {"a": 1.0, "n": 3}
    assert op.scalars == {"a": 2.0, "n": 3}
    with pytest.raises(ScalarError, match=r"n=1.0 is a float"):
        with_scalar(op, "n", 1.0)


def freed() -> torch.Tensor:
    tensor = torch.zeros(1, 8)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(1, 9), ShapeMismatchError, r"`x` has shape \(1, 9\), not \(1, 8\)"),
        (torch.zeros(1, 16)[:, ::2], StrideError, r"`x` has strides \(16, 2\), not \(8, 1\)"),
        (torch.zeros(9)[1:].view(1, 8), AlignmentError, r"`x` is aligned to 4 bytes, not to 16"),
        (torch.zeros(1, 8).half(), DtypeError, r"`x` is float16, not float32"),
        (torch.empty(1, 8, device="meta"), DeviceError, r"`x` is on meta"),
        (torch.zeros(1, 8).to_sparse(), TensorTypeError, r"`x` is sparse"),
        (freed(), TensorTypeError, r"`x` has no memory"),
        ([1.0] * 8, TensorTypeError, r"`x` is a list"),
    ],
)
def test_tensors_of_another_layout_are_refused(x, error, message):
    with pytest.raises(error, match=message):
        with_tensors(add(), {"x": x})


def test_a_tensor_that_overlaps_an_output_is_refused():
    base = torch.zeros(12)
    op = with_tensors(add(), {"y": base[:8].view(1, 8)})
    with pytest.raises(OverlapError, match="input `x` and output `y` overlap"):
        with_tensors(op, {"x": base[4:].view(1, 8)})
