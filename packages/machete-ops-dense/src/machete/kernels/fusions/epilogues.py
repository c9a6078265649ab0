"""Epilogues: element by element on a float32 result before it is rounded and stored.

An op calls `fetch(batch, row, column)` for each element as early as it can, and `apply(value, fetched)` when the value
is there; epilogues apply in the order in which they are listed. `fetch` returns an element as it is stored: to convert
it is to wait for it.
"""

import torch
from cutlass import Float32

from machete.kernels.elementwise.activations import ACTIVATIONS, check_activation
from machete.megakernel import Fusion
from machete.megakernel.errors import ConfigError

MOST = float(torch.finfo(torch.float32).max)


class Epilogue(Fusion):
    """Base of epilogues; one that reads no tensor fetches nothing."""

    def fetch(self, batch, row, column):
        return Float32(0.0)

    def apply(self, value, fetched):
        raise NotImplementedError


class ResidualAdd(Epilogue):
    """value + residual; residual has the shape of the result."""

    reads = {"residual": (None, ("batch", "rows", "columns"))}

    def __init__(self, residual: torch.Tensor) -> None:
        super().__init__(residual=residual)

    def fetch(self, batch, row, column):
        return self.residual[batch, row, column]

    def apply(self, value, fetched):
        return value + fetched.to(Float32)


class Bias(Epilogue):
    """value + bias[column]; bias (columns,)."""

    reads = {"bias": (None, ("columns",))}

    def __init__(self, bias: torch.Tensor) -> None:
        super().__init__(bias=bias)

    def fetch(self, batch, row, column):
        return self.bias[column]

    def apply(self, value, fetched):
        return value + fetched.to(Float32)


class Scale(Epilogue):
    """alpha * value, alpha fixed when the kernel is compiled."""

    def __init__(self, alpha: float) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= MOST:
            raise ConfigError(
                what=f"alpha={alpha!r}",
                where="Scale",
                why="it is a factor in float32",
                fix=f"use a number from {-MOST:g} to {MOST:g}",
            )
        super().__init__(config={"alpha": float(alpha)})

    def apply(self, value, fetched):
        return value * Float32(self.alpha)


class Scales(Epilogue):
    """Base of those that multiply by an element of a tensor."""

    def __init__(self, scales: torch.Tensor) -> None:
        super().__init__(scales=scales)

    def apply(self, value, fetched):
        return value * fetched.to(Float32)


class RowScale(Scales):
    """value * scales[row]; scales (rows,), or (batch, rows)."""

    reads = {"scales": (None, ("batch", "rows"))}

    def fetch(self, batch, row, column):
        return self.scales[batch, row]


class ColumnScale(Scales):
    """value * scales[column]; scales (columns,), or (batch, columns)."""

    reads = {"scales": (None, ("batch", "columns"))}

    def fetch(self, batch, row, column):
        return self.scales[batch, column]


class Activation(Epilogue):
    """silu, sigmoid, gelu or relu of the value."""

    def __init__(self, name: str) -> None:
        check_activation(name, "Activation")
        super().__init__(config={"name": name})

    def apply(self, value, fetched):
        return ACTIVATIONS[self.name](value)
