"""Matrix products: `GemmOp.schedule(a=x, b=w, c=y)` computes `c = a @ b.T`; `linear` is that as a torch op."""

from .linear import grad_input, grad_weight, linear
from .op import GemmOp

__all__ = ["GemmOp", "grad_input", "grad_weight", "linear"]
