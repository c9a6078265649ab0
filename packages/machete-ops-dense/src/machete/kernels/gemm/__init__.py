"""Matrix products: `GemmOp.schedule(a=x, b=w, c=y)` computes `c = a @ b.T`."""

from .op import GemmOp

__all__ = ["GemmOp"]
