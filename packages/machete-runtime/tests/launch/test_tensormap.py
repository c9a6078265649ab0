"""The descriptors that we write are the ones that the CUDA driver writes."""

from __future__ import annotations

import pytest
import torch

from machete.megakernel import TmaBox
from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.launch.tensormap import encode, encode_with_driver

CASES = [
    (torch.bfloat16, (64, 64), (64, 64), 128),
    (torch.bfloat16, (1000, 520), (128, 64), 128),
    (torch.float16, (3, 70, 136), (1, 128, 64), 128),
    (torch.float32, (256, 128), (32, 32), 128),
    (torch.float32, (255, 128), (8, 16), 64),
    (torch.int32, (40, 64), (8, 8), 32),
    (torch.uint8, (17, 4096), (4, 256), 0),
    (torch.bfloat16, (4096,), (256,), 0),
    (torch.bfloat16, (2, 3, 4, 5, 64), (1, 1, 2, 5, 64), 128),
    (torch.bfloat16, (1, 40, 64), (1, 8, 64), 128),
]


@pytest.mark.parametrize(("dtype", "shape", "box", "swizzle"), CASES)
def test_fields(dtype: torch.dtype, shape: tuple[int, ...], box: tuple[int, ...], swizzle: int) -> None:
    """Extents and box come back out of the words where the format has them."""
    info = TensorInfo.of("x", torch.empty(shape, dtype=dtype))
    words = [int(word) for word in encode(info, TmaBox(box, swizzle=swizzle))]
    bits = sum(word << (64 * i) for i, word in enumerate(words))
    rank = len(shape)
    assert words[0] == info.address
    assert (bits >> 68 & 7) == rank - 1
    assert [(bits >> (256 + 32 * i) & 0xFFFFFFFF) + 1 for i in range(rank)] == list(shape[::-1])
    assert [(bits >> (440 + 8 * i) & 0xFF) + 1 for i in range(rank)] == list(box[::-1])
    assert [(bits >> (96 + 32 * i) & 0xFFFFFFFF) * 16 for i in range(rank - 1)] == [
        stride * dtype.itemsize if extent > 1 else 16
        for stride, extent in zip(info.strides[-2::-1], shape[-2::-1], strict=True)
    ]
    assert words[8:] == [0] * 8


def test_an_inner_dim_that_is_not_the_last() -> None:
    """The descriptor of a transposed view is that of the matrix, its box with the dims the other way round."""
    x = torch.empty(3, 200, 136, dtype=torch.bfloat16)
    there = encode(TensorInfo.of("x", x), TmaBox((1, 32, 64), swizzle=128))
    view = encode(TensorInfo.of("x", x.mT), TmaBox((1, 64, 32), swizzle=128, inner=1))
    assert view.tolist() == there.tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares with the CUDA driver, which a GPU's machine has")
@pytest.mark.parametrize(("dtype", "shape", "box", "swizzle"), CASES)
def test_equals_the_driver(dtype: torch.dtype, shape: tuple[int, ...], box: tuple[int, ...], swizzle: int) -> None:
    info = TensorInfo.of("x", torch.empty(shape, dtype=dtype, device="cuda"))
    ours = [int(word) for word in encode(info, TmaBox(box, swizzle=swizzle))]
    drivers = [int(word) for word in encode_with_driver(info, TmaBox(box, swizzle=swizzle))]
    assert [hex(word) for word in ours] == [hex(word) for word in drivers]
