"""Normalise the rows of an operand while it is loaded."""

import cutlass.cute as cute
import torch
from cutlass import Float32

from machete.kernels.rms_norm.op import checked_eps
from machete.megakernel import Fusion


class RmsNormOnLoad(Fusion):
    """a[m, k] * rsqrt(mean over k of a[m, k]^2 + eps) * weight[k] (Zhang and Sennrich, 2019); weight (K,).

    The op adds up `statistic` over a row, turns the sum into `scale(total, extent)`, and multiplies by `apply`.
    """

    reads = {"weight": (None, ("columns",))}

    def __init__(self, weight: torch.Tensor, eps: float = 1e-6) -> None:
        super().__init__(weight=weight, config={"eps": checked_eps(eps, "RmsNormOnLoad")})

    def fetch(self, column, count: int):
        """Weights of `count` neighbouring columns, in registers; `column` is a multiple of `count`."""
        held = cute.make_rmem_tensor((count,), self.weight.element_type)
        cute.autovec_copy(cute.local_tile(self.weight, (count,), (column // count,)), held)
        return held

    def statistic(self, value):
        return value * value

    def scale(self, total, extent):
        return cute.math.rsqrt(total / Float32(extent) + Float32(self.eps))

    def apply(self, value, scale, weight):
        return value * scale * weight.to(Float32)
