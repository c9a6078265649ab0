"""What planning knows about tensors."""

from __future__ import annotations

import pytest
import torch

from machete.megakernel.abi.tensor import TensorInfo


def info(tensor: torch.Tensor, name: str = "x") -> TensorInfo:
    return TensorInfo.of(name, tensor)


def aligned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """At an address that is a multiple of 16 bytes, like every allocation of torch."""
    tensor = torch.zeros(shape, dtype=dtype)
    assert tensor.data_ptr() % 16 == 0
    return tensor


@pytest.mark.parametrize(
    ("tensor", "unit_inner", "alignment"),
    [
        pytest.param(aligned(8), True, 16, id="vector"),
        pytest.param(aligned(8)[1:], True, 4, id="vector from element 1"),
        pytest.param(aligned(8)[2:], True, 8, id="vector from element 2"),
        pytest.param(aligned(8)[::2], False, 8, id="every second element"),
        pytest.param(aligned(4, 6), True, 8, id="rows of 24 bytes"),
        pytest.param(aligned(1, 6), True, 16, id="one row: its stride is never taken"),
        pytest.param(aligned(8, 4).T, False, 4, id="transposed: the innermost stride counts"),
        pytest.param(aligned(8, 1), True, 4, id="one column"),
        pytest.param(aligned(), True, 16, id="rank 0"),
        pytest.param(aligned(1).expand(8), False, 16, id="expanded"),
        pytest.param(aligned(0, 3), True, 16, id="no elements"),
        pytest.param(aligned(8, dtype=torch.bfloat16)[1:], True, 2, id="bfloat16 from element 1"),
    ],
)
def test_layout_class(tensor, unit_inner, alignment):
    assert (info(tensor).unit_inner, info(tensor).alignment) == (unit_inner, alignment)


def test_a_view_of_the_same_elements_is_the_same_view():
    x = aligned(4, 1, 8)
    assert info(x).same_view(info(x[:], "y"))
    assert info(x).same_view(info(x.as_strided((4, 1, 8), (8, 99, 1)))), "strides of single elements mean nothing"
    assert not info(x).same_view(info(x.view(4, 8)))
    assert not info(x).same_view(info(x.view(torch.int32)))
    assert not info(x).same_view(info(x[:3]))
    assert not info(x).same_view(info(x.clone()))


def test_nothing_overlaps_a_tensor_without_elements():
    x = aligned(4, 4)
    empty = info(x[2:2])
    assert not empty.overlaps(info(x))
    assert not empty.overlaps(empty)
    assert not empty.self_overlapping()
    assert empty.span[0] == empty.span[1]
    assert empty.nbytes == 0


def test_it_prints_like_a_declaration():
    assert str(info(aligned(2, 3, dtype=torch.bfloat16))) == "x: bfloat16[2, 3]"
