"""Gated linear units: two products at once, one gating the other."""

import torch

from machete.kernels.elementwise.activations import check_activation, gated
from machete.megakernel import Fusion


class GluPair(Fusion):
    """activation(a @ b.T) * (a @ up.T): the op multiplies by a second matrix `up` laid out like b.

    Gate and up halves of one weight are two slices: ``GemmOp.schedule(a=x, b=w[:n], c=y, combine=GluPair(up=w[n:]))``.
    """

    reads = {"up": (None, ("batch", "columns", "depth"))}

    def __init__(self, up: torch.Tensor, activation: str = "silu") -> None:
        check_activation(activation, "GluPair")
        super().__init__(up=up, config={"activation": activation})

    def apply(self, gate, up):
        return gated(self.activation)(gate, up)
