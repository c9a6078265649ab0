"""TMA descriptors: the 128 bytes that tell the copy engine about a tensor and the box to move.

On a GPU the driver writes them (`cuTensorMapEncodeTiled`). Without one, `encode` writes the same format, whose first
64 bytes are the defined ones: word 0 the address; word 1 rank, element type, swizzle; words 1 to 3 the strides in
units of 16 bytes, with their upper four bits in word 3; words 4 to 6 extents minus one; words 6 and 7 the box minus
one. Found by encoding descriptors and comparing bits; `tests/launch/test_tensormap.py` compares with the driver on a
machine that has one.
"""

import numpy as np
import torch

from machete.megakernel.abi.tensor import TensorInfo
from machete.megakernel.abi.tma import TmaBox

DESCRIPTOR_BYTES = 128
STRIDE_BYTES = 16  # strides are multiples of this, also along dims of extent 1

_TYPE_CODES = {
    torch.uint8: 0,
    torch.int8: 0,
    torch.bool: 0,
    torch.float8_e4m3fn: 0,
    torch.float8_e5m2: 0,
    torch.int16: 1,
    torch.int32: 3,
    torch.int64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 9,
    torch.bfloat16: 10,
}
_SWIZZLE_CODES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION_256B = 3 << 17


def _described(info: TensorInfo, box: TmaBox) -> tuple[list[int], list[int], list[int]]:
    """Extents, bytes from one element to the next, and the box, innermost dim first.

    A stride has a valid value where nothing steps.
    """
    dims = box.order[::-1]
    shape = [info.shape[dim] for dim in dims]
    steps = [info.strides[dim] * info.itemsize if info.shape[dim] > 1 else STRIDE_BYTES for dim in dims]
    return shape, steps, [box.box[dim] for dim in dims]


def encode(info: TensorInfo, box: TmaBox) -> np.ndarray:
    """The descriptor of `info` moved in boxes of `box`, as uint64[16]."""
    rank = len(info.shape)
    shape, strides, extents = _described(info, box)
    flags = (rank - 1) << 4 | _TYPE_CODES[info.dtype] << 7 | _SWIZZLE_CODES[box.swizzle] << 13 | _L2_PROMOTION_256B
    words = [0] * 16
    words[0] = info.address

    def put(bit: int, value: int, width: int) -> None:
        words[bit // 64] |= (value & ((1 << width) - 1)) << (bit % 64)

    put(64, flags, 32)
    for i, stride in enumerate(strides[1:]):
        units = stride // 16
        put(96 + 32 * i, units, 32)
        put(3 * 64 + 32 + 4 * i, units >> 32, 4)
    for i, extent in enumerate(shape):
        put(4 * 64 + 32 * i, extent - 1, 32)
    for i, extent in enumerate(extents):
        put(6 * 64 + 56 + 8 * i, extent - 1, 8)
    return np.array(words, dtype=np.uint64)


def encode_with_driver(info: TensorInfo, box: TmaBox) -> np.ndarray:
    """The same descriptor, written by the CUDA driver. Needs a current CUDA context."""
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    element = {
        0: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        3: kinds.CU_TENSOR_MAP_DATA_TYPE_INT32,
        5: kinds.CU_TENSOR_MAP_DATA_TYPE_INT64,
        6: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        7: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        9: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        10: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }[_TYPE_CODES[info.dtype]]
    swizzle = {
        0: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
        32: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_32B,
        64: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
        128: driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    }[box.swizzle]
    shape, strides, extents = _described(info, box)
    error, descriptor = driver.cuTensorMapEncodeTiled(
        element,
        len(info.shape),
        info.address,
        [driver.cuuint64_t(extent) for extent in shape],
        [driver.cuuint64_t(stride) for stride in strides[1:]],
        [driver.cuuint32_t(extent) for extent in extents],
        [driver.cuuint32_t(1) for _ in box.box],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    from .driver import checked

    checked((error,), f"cuTensorMapEncodeTiled for {info.name} {tuple(info.shape)}")
    return np.array([int(word) for word in descriptor.opaque], dtype=np.uint64)
