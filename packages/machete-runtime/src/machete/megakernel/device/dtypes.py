"""torch dtypes as CuTe DSL element types."""

import cutlass
import torch

_ELEMENT_TYPES = {
    torch.float32: cutlass.Float32,
    torch.float64: cutlass.Float64,
    torch.float16: cutlass.Float16,
    torch.bfloat16: cutlass.BFloat16,
    torch.float8_e4m3fn: cutlass.Float8E4M3FN,
    torch.float8_e5m2: cutlass.Float8E5M2,
    torch.int8: cutlass.Int8,
    torch.int16: cutlass.Int16,
    torch.int32: cutlass.Int32,
    torch.int64: cutlass.Int64,
    torch.uint8: cutlass.Uint8,
    torch.bool: cutlass.Uint8,
}


def element_type(dtype: torch.dtype) -> type[cutlass.Numeric]:
    """The CuTe element type of a torch dtype that `TensorInfo` has accepted (bool is a byte)."""
    return _ELEMENT_TYPES[dtype]
